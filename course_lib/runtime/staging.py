"""Messages between ranks that share one GPU: through the host's memory, since gloo carries few things from a GPU.

gloo promises broadcast and all_reduce for tensors of a GPU, and nothing else (operations.py). After `install()` every
other operation copies its tensors to the host, lets gloo carry the copies, and copies what came back into the caller's
tensors when the caller waits.

Every call of torch.distributed ends in one operator of torch's dispatcher (`c10d::send`, `c10d::allgather_`, ...),
whoever makes it: `dist.send`, FSDP2, and in C++ DDP's reducer and the functional collectives under DTensor. Here those
operators get a kernel of our own for the GPU's dispatch key. Wrapping the methods of ProcessGroup, as instruments/
pending.py does, would miss whatever C++ calls; and below the dispatcher nothing is seen twice: the timeline and the
watcher (above, in Python) and record_communication (a dispatch mode) see one call with the caller's tensors, and a
call with tensors of the host never comes here, but for the one that an older gloo does not have (`carry_lists`). What
is asked of a Backend itself, and not of its ProcessGroup, does not pass the dispatcher, and is not staged.
"""

import contextlib
import threading
import warnings
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor
from torch.distributed import Work
from torch.torch_version import TorchVersion

from course_lib.runtime.operations import POINT_TO_POINT, Operation, list_staged_operators
from course_lib.runtime.tensors import tensors_in
from course_lib.runtime.torch_private import OpOverload, dispatch_key, tree_map_only

LISTS_SINCE = "2.13"  # the first torch whose gloo has an all_to_all of lists
_library: torch.library.Library | None = None  # holds our kernels for as long as it lives
_lists: torch.library.Library | None = None  # and the one of carry_lists
# C++ holds a Work without its Python half, which has to live for as long as somebody can wait for it: a collective's
# until it is over, since the functional collectives wait in C++. A message's only until its Python caller has it, and
# no longer, so that a receive that nobody waits for is given up, as on the CPU.
_collectives: set["StagedWork"] = set()
_latest = threading.local()


def install() -> None:
    """Stage the operators for this process's kind of GPU. A second call changes nothing."""
    global _library
    if _library is not None:
        return
    kernels = {name: _make_kernel(getattr(torch.ops.c10d, name).default, function, row)
               for name, (function, row) in list_staged_operators().items()}
    _library = _register(kernels, dispatch_key(torch.accelerator.current_accelerator().type))


def complete_gloo() -> None:
    """Give this process what its torch's gloo does not have."""
    if TorchVersion(torch.__version__) < LISTS_SINCE:
        carry_lists()


def carry_lists() -> None:
    """`dist.all_to_all` for tensors of the host, where gloo has only `all_to_all_single`. For good."""
    global _lists
    if _lists is None:
        _lists = _register({"alltoall_": _all_to_all_in_one}, "CPU")


def _register(kernels: dict[str, Callable], key: str) -> torch.library.Library:
    library = torch.library.Library("c10d", "IMPL")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Warning only once for all operators")  # that there was a kernel before
        for name, kernel in kernels.items():
            library.impl(name, kernel, key)
    return library


@torch.no_grad()
def _all_to_all_in_one(outputs: list[Tensor], inputs: list[Tensor], group: Any, *options: Any) -> tuple:
    """c10d::alltoall_ by one c10d::alltoall_base_ of all numbers, one list after the other."""
    _latest.work = None
    sent = torch.cat([tensor.flatten() for tensor in inputs])
    arrives = [tensor.numel() for tensor in outputs]
    came = sent.new_empty(sum(arrives))
    host_work = torch.ops.c10d.alltoall_base_(came, sent, group, arrives, [tensor.numel() for tensor in inputs],
                                              *options)
    copies = [(own, part.view_as(own)) for own, part in zip(outputs, came.split(arrives), strict=True)]
    _latest.work = work = StagedWork(Work.unbox(host_work), copies)
    _collectives.add(work)
    return outputs, work.boxed()


def uninstall() -> None:
    """torch's own kernels again, for a process that goes on with another backend."""
    global _library
    if _library is not None:
        _library._destroy()
        _library = None
    _collectives.clear()


def _make_kernel(operator: OpOverload, function: str, row: Operation) -> Callable:
    """What `operator` does for tensors of a GPU. Its schema says which arguments it writes: those not called input."""
    names = [argument.name for argument in operator._schema.arguments]
    has_outputs = len(operator._schema.returns) == 2  # the first argument, and the work

    @torch.no_grad()
    def kernel(*arguments: Any) -> Any:
        _latest.work = None  # a receive that was dropped must not take the next one's message
        _check(function, arguments, row.contiguous)
        copies: list[tuple[Tensor, Tensor]] = []  # (the caller's, the host's) of what is written
        on_host = [_to_host(named, argument, copies) for named, argument in zip(names, arguments)]
        returned = operator(*on_host)
        host_work = Work.unbox(returned[1] if has_outputs else returned)
        _latest.work = work = StagedWork(host_work, copies if row.name != "send" else [])
        if row.name not in POINT_TO_POINT:
            _collectives.add(work)
        return (arguments[0], work.boxed()) if has_outputs else work.boxed()

    return kernel


def _check(function: str, arguments: tuple, contiguous: bool) -> None:
    """All tensors on one GPU, whose current stream has by then done what it was asked for before."""
    tensors = tensors_in(arguments)
    devices = {tensor.device for tensor in tensors}
    if len(devices) > 1:
        raise ValueError(f"{function}: expected all tensors on one device, got "
                         f"{' and '.join(sorted(map(str, devices)))}")
    for tensor in tensors:
        if contiguous and not tensor.is_contiguous():
            raise ValueError(f"{function}: expected a contiguous tensor, got strides {tensor.stride()} for shape "
                             f"{list(tensor.shape)}: pass tensor.contiguous()")
    # The GPU may not have computed yet what is to be copied: gloo and the host know nothing of its streams.
    torch.accelerator.current_stream(devices.pop()).synchronize()


def _to_host(named: str, argument: Any, copies: list[tuple[Tensor, Tensor]]) -> Any:
    """`argument` with tensors of the host. Outputs are copied, too: what gloo leaves alone stays as it was."""
    def copy_to_host(tensor: Tensor) -> Tensor:
        host = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu").copy_(tensor)
        if not named.startswith("input"):
            copies.append((tensor, host))
        return host

    return tree_map_only(Tensor, copy_to_host, argument)


class StagedWork(Work):
    """gloo's work on the host's copies, which is over when the caller's tensors have what came."""

    def __init__(self, host: Work, copies: list[tuple[Tensor, Tensor]]) -> None:
        super().__init__()
        self._host, self._copies = host, copies
        self._lock = threading.Lock()  # whoever waits, and gloo's thread where somebody asked for the future
        self._copied = False

    def wait(self, *timeout: timedelta) -> bool:
        """Block until gloo is done, then copy. Raises what gloo raises, and then copies nothing."""
        try:
            done = self._host.wait(*timeout)
        finally:
            _collectives.discard(self)
            if getattr(_latest, "work", None) is self:
                _latest.work = None
        self._copy_back()
        return done

    def _copy_back(self) -> None:
        with self._lock:
            if not self._copied:
                for own, host in self._copies:
                    own.data.copy_(host)  # .data: a backend's writing is no change that autograd should count
                self._copied = True

    def synchronize(self) -> None:
        self._host.synchronize()
        self.is_completed()

    def is_completed(self) -> bool:
        """Whether the message has come; then it is copied back to the GPU, too."""
        done = self._host.is_completed()
        if done:
            with contextlib.suppress(RuntimeError):  # how it ended is for wait() to tell
                self.wait()
        return done

    def is_success(self) -> bool:
        return self._host.is_success()

    def exception(self) -> Any:
        return self._host.exception()

    def result(self) -> list[Tensor]:
        self.is_completed()
        return self._own(self._host.result())

    def source_rank(self) -> int:
        return self._host.source_rank()

    _source_rank = source_rank

    def get_future(self) -> torch.futures.Future:
        """A future of the tensors on the GPU, done when they are copied back."""

        def end_future(future: torch.futures.Future) -> Any:
            value = future.value()  # raises what gloo raised
            self._copy_back()
            _collectives.discard(self)
            return self._own(value)

        return self._host.get_future().then(end_future)

    def _own(self, value: Any) -> Any:
        """`value` with the caller's tensors for the host's."""
        own_of = {id(host): own for own, host in self._copies}
        return tree_map_only(Tensor, lambda tensor: own_of.get(id(tensor), tensor), value)
