"""What a rank is communicating right now: one description for every call on a process group, until it completes.

torch.distributed's functions all end in a method of `ProcessGroup` that returns a `Work`. Those methods and `Work.wait`
are wrapped once per rank (they are C++ objects, so the public functions stay as they are). The watcher reads
`waiting_in` to say what a hung rank waits for; a timeline listens to `listeners`.

Calls that never pass through Python (the C++ reducer of torch's DDP, functional collectives) are not seen here.
"""

import itertools
import math
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import ProcessGroup, Work

from course_lib.runtime.staging import StagedWork
from course_lib.runtime.tensors import tensors_in

# ProcessGroup's method -> the name under which torch.distributed offers it
METHODS = {
    "allreduce": "all_reduce",
    "allreduce_coalesced": "all_reduce_coalesced",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "allgather": "all_gather",
    "_allgather_base": "all_gather_into_tensor",
    "all_gather_single": "all_gather_into_tensor",
    "allgather_into_tensor_coalesced": "all_gather_into_tensor",
    "allgather_coalesced": "all_gather",
    "gather": "gather",
    "scatter": "scatter",
    "reduce_scatter": "reduce_scatter",
    "_reduce_scatter_base": "reduce_scatter_tensor",
    "reduce_scatter_single": "reduce_scatter_tensor",
    "reduce_scatter_tensor_coalesced": "reduce_scatter_tensor",
    "alltoall": "all_to_all",
    "alltoall_base": "all_to_all_single",
    "all_to_all_single": "all_to_all_single",
    "send": "send",
    "recv": "recv",
    "recv_anysource": "recv",
    "barrier": "barrier",
    "monitored_barrier": "monitored_barrier",
}


class Call:
    """One call on a process group. `number` counts this rank's calls, `peer` is a global rank (send and recv only).

    Made for every message a rank sends, and looked at for few of them: it keeps dtypes and shapes, and no text.
    """

    __slots__ = ("number", "op", "peer", "group", "tensors", "started_s")

    def __init__(self, number: int, op: str, peer: int | None, group: tuple[int, ...],
                 tensors: Sequence[tuple[torch.dtype, Sequence[int]]]) -> None:
        self.number, self.op, self.peer, self.group, self.tensors = number, op, peer, group, tensors
        self.started_s = time.perf_counter()

    @property
    def num_bytes(self) -> int:
        """The bytes of all its tensors together."""
        return sum(math.prod(shape) * dtype.itemsize for dtype, shape in self.tensors)

    def __str__(self) -> str:
        arguments = []
        if self.op == "recv":
            arguments.append("from any rank" if self.peer is None else f"src={self.peer}")
        elif self.op == "send":
            arguments.append(f"dst={self.peer}")
        arguments += [f"{str(dtype).removeprefix('torch.')}{list(shape)}" for dtype, shape in self.tensors[:2]]
        if len(self.tensors) > 2:
            arguments.append("...")
        if len(self.group) != dist.get_world_size():
            arguments.append(f"group={list(self.group)}")
        return f"{self.op}({', '.join(arguments)})"


class Listener(Protocol):
    def started(self, call: Call) -> None: ...

    def finished(self, call: Call) -> None:
        """Called once per call, at its completion; perhaps from a thread of the backend."""

    def waited(self, call: Call, start_s: float) -> None:
        """The calling thread was inside the call, or its wait(), from start_s (perf_counter) until now."""


listeners: list[Listener] = []
waiting_in: dict[int, list[Call]] = {}  # thread id -> the calls it is inside, outermost first
counts: Counter[tuple[str, tuple[int, ...]]] = Counter()  # (op, group's ranks) -> calls begun so far
_numbers = itertools.count()
_calls_of: "weakref.WeakKeyDictionary[Work, Call]" = weakref.WeakKeyDictionary()


_installed = False


def install() -> None:
    """Wrap the process-group methods of this process. A second call changes nothing."""
    global _installed
    if _installed:
        return
    _installed = True
    for kind in (Work, StagedWork):
        kind.wait = _wrapped_wait(kind.wait)
    for method, op in METHODS.items():
        if hasattr(ProcessGroup, method):
            setattr(ProcessGroup, method, _wrapped(getattr(ProcessGroup, method), op))


def _wrapped_wait(wait: Callable) -> Callable:
    def waited(work: Work, *arguments: Any) -> Any:
        call = _calls_of.get(work)
        if call is None:  # made before, made in C++, or what a staged call asks of gloo
            return wait(work, *arguments)
        done = _inside(call, wait, (work, *arguments), {})
        _finish(call)
        return done

    return waited


def _wrapped(method: Callable, op: str) -> Callable:
    def called(group: ProcessGroup, *arguments: Any, **options: Any) -> Any:
        call = _describe(group, op, arguments)
        counts[op, call.group] += 1
        for listener in listeners:
            listener.started(call)
        work = _inside(call, method, (group, *arguments), options)
        if not isinstance(work, Work):  # monitored_barrier: it has waited already
            _finish(call)
            return work
        _calls_of[work] = call
        if listeners:
            _finish_when_done(work, call)
        return work

    return called


def _describe(group: ProcessGroup, op: str, arguments: tuple) -> Call:
    ranks = tuple(dist.get_process_group_ranks(group))
    if op in ("send", "recv") and len(arguments) == 3:  # (tensors, peer's rank in the group, tag)
        tensors, peer = arguments[0], ranks[arguments[1]]
    else:
        tensors, peer = tensors_in(arguments), None
    return Call(next(_numbers), op, peer, ranks, [(tensor.dtype, tensor.shape) for tensor in tensors])


def _inside(call: Call, function: Callable, arguments: tuple, options: dict[str, Any]) -> Any:
    """What `function` returns; meanwhile the calling thread counts as being inside `call`."""
    calls = waiting_in.setdefault(threading.get_ident(), [])
    start_s = time.perf_counter()
    calls.append(call)
    try:
        return function(*arguments, **options)
    finally:
        calls.pop()
        for listener in listeners:
            listener.waited(call, start_s)


_finished: set[int] = set()  # numbers of the calls whose end the listeners know
_finished_lock = threading.Lock()  # the end is seen by wait() and by the backend's own thread


def _finish(call: Call) -> None:
    if not listeners:
        return
    with _finished_lock:
        first = call.number not in _finished
        _finished.add(call.number)
    if first:
        for listener in listeners:
            listener.finished(call)


def _finish_when_done(work: Work, call: Call) -> None:
    try:
        work.get_future().add_done_callback(lambda _: _finish(call))
    except RuntimeError:  # gloo's send and recv have no future: wait() tells
        pass
