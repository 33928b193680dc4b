"""The observers behind `record_memory`: they notice storages that come, change or go, and what they are for.

A TorchDispatchMode sees what torch operators return, a weak reference to each storage tells when it is freed, and
`UntypedStorage.resize_` is wrapped because FSDP frees and reallocates with it. Hooks on autograd and on optimisers say
what is an activation, a gradient, an optimiser's state. A step has thousands of operators, half of which return what
was there before (in-place ones, views): those are counted, and not looked at. Beside what is counted by storage stands
what the allocator of a rank's GPU says of itself. Prior art: torch/distributed/_tools/mem_tracker.py.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.hooks import RemovableHandle
from torch.utils.weak import WeakIdRef

from course_lib.runtime import context
from course_lib.runtime.instruments.recordings import OperatorWatcher, Run, span_listeners, watch_operators
from course_lib.runtime.instruments.storage_book import (
    ACTIVATIONS,
    GRADIENTS,
    OPTIMIZER_STATE,
    PARAMETERS,
    SEEN_PARAMETERS,
    MemoryPhase,
    StorageBook,
    Track,
    may_return_other_memory,
)
from course_lib.runtime.tensors import NO_TENSORS, tensors_in
from course_lib.runtime.torch_private import (
    backward_number,
    replace_attribute,
    saved_tensor_hooks_through,
    when_backward_ends,
    without_dispatch,
)

_peaks: list[list[int]] = []  # of the blocks that measure, each in a list of its own


@contextmanager
def measure_allocator_peak(track: Track) -> Iterator[None]:
    """Note in `track` the most bytes that the GPU's allocator had given out at one time in the block; not on the CPU.

    The allocator keeps one peak a process, which starts anew with each block: those around it note theirs first.
    """
    device = context.device()
    # torch.cuda, or its like for another kind of device, which may have no statistics.
    statistics = None if device.type == "cpu" else torch.get_device_module(device)
    if not hasattr(statistics, "max_memory_allocated"):
        yield
        return

    def note() -> None:
        for peak in _peaks:
            peak[0] = max(peak[0], statistics.max_memory_allocated(device))

    note()
    statistics.reset_peak_memory_stats(device)
    _peaks.append(mine := [0])
    try:
        yield
    finally:
        note()
        _peaks[:] = [other for other in _peaks if other is not mine]
        track.allocator_peak = mine[0]


PLAIN = (torch.Tensor, nn.Parameter)
NO_PARAMETERS = NO_TENSORS | {torch.Tensor}
Sources = list[tuple[int, Callable[[], Any]]]  # what to claim as what: asked again at every look around


@dataclass(frozen=True)
class Hooked:
    """A parameter in use: whether it was named, and the handle of the hook on its gradient."""

    parameter: Callable[[], torch.Tensor | None]
    named: bool
    handle: RemovableHandle | None


class MemoryTracker(OperatorWatcher):
    """Writes into `track` while it is watching."""

    def __init__(self, track: Track, sources: Sources) -> None:
        self.track, self.sources = track, sources
        self.book = StorageBook(track)
        self.hooked: dict[int, Hooked] = {}  # id of a parameter that is alive ->
        self.open_spans: list[tuple[str, int]] = []
        self.last_backward = -1
        self.packing = False

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Observe until the block ends; then take every hook out again."""
        # What is entered last ends first: the allocator is read, all is looked at once more, and then the hooks go.
        with ExitStack() as hooks:
            self.look_around()
            hooks.callback(self.stop)
            resize = torch.UntypedStorage.resize_
            hooks.enter_context(replace_attribute(torch.UntypedStorage, "resize_",
                                         lambda storage, size: self.book.resize(resize, storage, size)))
            hooks.enter_context(saved_tensors_hooks(self.pack, self.unpack))
            hooks.enter_context(saved_tensor_hooks_through(self.mark_packed))
            hooks.callback(register_optimizer_step_pre_hook(lambda *_: self.look_around()).remove)
            hooks.callback(register_optimizer_step_post_hook(self.claim_optimizer_state).remove)
            span_listeners.append(self)
            hooks.callback(span_listeners.remove, self)
            hooks.enter_context(watch_operators(self))
            hooks.callback(self.look_around)
            hooks.enter_context(measure_allocator_peak(self.track))
            yield

    def stop(self) -> None:
        """Close what is open and take the hooks off; the track stays."""
        while self.open_spans:
            self.end_span()
        for hooked in self.hooked.values():
            if hooked.handle is not None:
                hooked.handle.remove()
        self.book.close()

    # torch operators

    def wrap(self, operator: Any, run: Run) -> Run:
        track, hooked, note_result = self.track, self.hooked, self.book.note_result
        is_looked_at = may_return_other_memory(operator)

        def run_and_track(args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
            if self.packing:
                return run(args, kwargs)
            for value in args:
                if type(value) not in NO_PARAMETERS and id(value) not in hooked:
                    self.see_parameters_in(value)
            result = run(args, kwargs)
            track.num_ops += 1
            if is_looked_at:
                for tensor in (result,) if type(result) is torch.Tensor else tensors_in(result):
                    note_result(tensor, operator, args, kwargs)
            return result

        return run_and_track

    def see_wrappers(self, args: Sequence[Any]) -> None:
        if not self.packing:
            self.see_parameters_in(args)

    # What storages are for

    def look_around(self) -> None:
        """Claim what the sources hold now, and the gradients of all parameters in use."""
        for claim, source in self.sources:
            for tensor in tensors_in(source()):
                self.book.claim(tensor, claim)
                if claim == PARAMETERS and id(tensor) not in self.hooked:
                    self.hook_gradient(tensor, named=True)
        for hooked in list(self.hooked.values()):
            parameter = hooked.parameter()
            if parameter is not None and (gradient := parameter.grad) is not None:
                self.book.claim(gradient, GRADIENTS, count=hooked.named)

    def see_parameters_in(self, value: Any) -> None:
        """Claim each parameter among the arguments of an operation."""
        for tensor in tensors_in(value):
            if type(tensor) is not torch.Tensor and isinstance(tensor, nn.Parameter):  # the first test is fast
                self.see_parameter(tensor)

    def see_parameter(self, parameter: nn.Parameter) -> None:
        """A parameter in use that perhaps nobody named: its storage counts only if it is new."""
        if id(parameter) not in self.hooked:
            self.book.claim(parameter, SEEN_PARAMETERS, count=False)
            self.hook_gradient(parameter, named=False)

    def hook_gradient(self, parameter: torch.Tensor, named: bool) -> None:
        """Learn when a parameter's gradient is ready; forgets the parameter when it is gone."""
        can_have_one = parameter.is_leaf and parameter.requires_grad
        handle = parameter.register_post_accumulate_grad_hook(self.gradient_ready) if can_have_one else None
        # Not `self`: the callback and the dict that keeps it are a cycle, which would hold the sources, a whole model,
        # until the garbage collector comes.
        key, all_hooked = id(parameter), self.hooked
        self.hooked[key] = Hooked(WeakIdRef(parameter, lambda _: all_hooked.pop(key, None)), named, handle)

    def gradient_ready(self, parameter: torch.Tensor) -> None:
        """Claim the gradient now, and look once more when this backward pass is over."""
        if parameter.grad is not None:
            self.book.claim(parameter.grad, GRADIENTS, count=False)
        backward = backward_number()
        if backward != self.last_backward:
            # When all is done, too: FSDP and DDP put the gradients they reduced elsewhere by then.
            self.last_backward = backward
            when_backward_ends(self.look_around)

    def claim_optimizer_state(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        for tensor in tensors_in(optimizer.state):
            self.book.claim(tensor, OPTIMIZER_STATE, count=False)
        self.look_around()

    # What autograd saves

    def pack(self, tensor: torch.Tensor) -> tuple[torch.Tensor, int]:
        """Detached: an output that its own graph node keeps would otherwise never be freed."""
        self.claim_saved_tensor(tensor)
        if type(tensor) in PLAIN:
            with without_dispatch():  # our own detach is no operation of the reader's
                return tensor.detach(), tensor._version
        self.packing = True
        try:
            return tensor.detach(), tensor._version
        finally:
            self.packing = False

    def unpack(self, packed: tuple[torch.Tensor, int]) -> torch.Tensor:
        """Autograd leaves the check for changes in place to whoever installs hooks."""
        tensor, version = packed
        if tensor._version != version:
            raise RuntimeError("one of the variables needed for gradient computation has been modified by an "
                               f"inplace operation: {tensor.type()} {list(tensor.shape)} is at version "
                               f"{tensor._version}; expected version {version} instead")
        return tensor

    def claim_saved_tensor(self, tensor: torch.Tensor) -> None:
        """Claim what autograd keeps: a parameter for itself, anything else as an activation."""
        if type(tensor) is not torch.Tensor and isinstance(tensor, nn.Parameter):
            self.see_parameter(tensor)
        else:
            self.book.claim(tensor, ACTIVATIONS)

    def mark_packed(self, pack: Callable[[torch.Tensor], Any]) -> Callable[[torch.Tensor], Any]:
        """The pack hook of somebody else, who is asked instead of us, with what it keeps marked as saved."""
        def pack_and_mark(tensor: torch.Tensor) -> Any:
            try:
                packed = pack(tensor)
            except BaseException:
                self.claim_saved_tensor(tensor)  # torch.utils.checkpoint ends its recomputation so, with the last one
                raise
            for kept in tensors_in(packed):
                self.claim_saved_tensor(kept)
            return packed

        return pack_and_mark

    # Spans

    def begin_span(self, name: str, labels: dict[str, Any]) -> None:
        self.open_spans.append((name, self.track.num_ops))

    def end_span(self) -> None:
        if self.open_spans:  # empty when the span outlives the recorder
            name, start = self.open_spans.pop()
            self.track.phases.append(MemoryPhase(name, start, self.track.num_ops, depth=len(self.open_spans)))
