"""What a rank is communicating right now: one description for every call on a process group, until it completes.

torch.distributed's functions all end in a method of `ProcessGroup` that returns a `Work`. Those methods and `Work.wait`
are wrapped once per rank (they are C++ objects, so the public functions stay as they are). The watcher reads
`waiting_in` to say what a hung rank waits for; a timeline listens to `listeners`.

Calls that never pass through Python (the C++ reducer of torch's DDP, functional collectives) are not seen here.
"""

import itertools
import math
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup, Work

from course_lib.runtime import context
from course_lib.runtime.backends import returns_at_once
from course_lib.runtime.instruments.clocks import side_stream
from course_lib.runtime.operations import OPERATIONS, POINT_TO_POINT, list_methods
from course_lib.runtime.staging import StagedWork
from course_lib.runtime.tensors import tensors_in
from course_lib.runtime.torch_private import wrap_batches


class GroupCall:
    """One call on a process group. `number` counts this rank's calls, `peer` is a global rank (send and recv only).

    Made for every message a rank sends, and looked at for few of them: it keeps dtypes and shapes, and no text.
    `on_stream`: a stream of the GPU waits for it, not the host.
    """

    __slots__ = ("number", "op", "peer", "group", "tensors", "on_stream")

    def __init__(self, number: int, op: str, peer: int | None, group: tuple[int, ...],
                 tensors: Sequence[tuple[torch.dtype, Sequence[int]]], on_stream: bool = False) -> None:
        self.number, self.op, self.peer, self.group, self.tensors = number, op, peer, group, tensors
        self.on_stream = on_stream

    @property
    def num_bytes(self) -> int:
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


# What hears of every call, from its begin to its completion: see TimelineRecorder. end_call is called once for each
# call, perhaps from a thread of the backend; where the call is `on_stream`, the current stream is at its completion,
# and the host ahead of it. end_wait gets back what begin_wait has returned.
listeners: list[Any] = []
waiting_in: dict[int, list[GroupCall]] = {}  # thread id -> the calls it is inside, outermost first
counts: Counter[tuple[str, tuple[int, ...]]] = Counter()  # (op, group's ranks) -> calls begun so far
_numbers = itertools.count()
# Weak: a work that nobody waits for is given up by torch, which a reference of ours would keep from happening.
_calls_of: "weakref.WeakKeyDictionary[Work, list[GroupCall]]" = weakref.WeakKeyDictionary()
_batches: dict[ProcessGroup, list[GroupCall]] = {}  # what a group has been given since it began to put calls together


_installed = False
_wait = Work.wait  # torch's own, which install wraps


def install() -> None:
    """Wrap the process-group methods of this process. A second call changes nothing."""
    global _installed
    if _installed:
        return
    _installed = True
    for kind in (Work, StagedWork):
        kind.wait = _wrap_wait(kind.wait)
    for method, op in list_methods().items():
        if hasattr(ProcessGroup, method):  # torch 2.13 has new names beside the old ones
            setattr(ProcessGroup, method, _wrap_method(getattr(ProcessGroup, method), op))
    wrap_batches(_wrap_batch_begin, _wrap_batch_end)


def _wrap_wait(wait: Callable) -> Callable:
    def wait_and_finish(work: Work, *arguments: Any) -> Any:
        calls = _calls_of.get(work)
        if calls is None:  # made before, made in C++, or what a staged call asks of gloo
            return wait(work, *arguments)
        done = _inside(calls[0], wait, (work, *arguments), {})
        _finish(calls)
        return done

    return wait_and_finish


def _wrap_method(method: Callable, op: str) -> Callable:
    def call_and_follow(group: ProcessGroup, *arguments: Any, **options: Any) -> Any:
        call = _describe(group, op, arguments, options)
        counts[op, call.group] += 1  # before the call: of two ranks the one that hangs inside has made one more
        for listener in listeners:
            listener.begin_call(call)
        work = _inside(call, method, (group, *arguments), options)
        if _batches and group in _batches:
            _batches[group].append(call)
        else:
            _follow(group, work, [call])
        return work

    return call_and_follow


def _wrap_batch_begin(method: Callable) -> Callable:
    def begin(group: ProcessGroup, *arguments: Any) -> None:
        method(group, *arguments)
        _batches[group] = []

    return begin


def _wrap_batch_end(method: Callable) -> Callable:
    """NCCL gives the calls of dist.batch_isend_irecv one work, when the last one has been made."""
    def end(group: ProcessGroup, *arguments: Any) -> Any:
        calls = _batches.pop(group, [])
        work = method(group, *arguments)
        if calls:
            _follow(group, work, calls, batch=True)
        return work

    return end


def _follow(group: ProcessGroup, work: Any, calls: list[GroupCall], batch: bool = False) -> None:
    """See to it that the end of `calls`, which have one work, is noticed."""
    if not isinstance(work, Work):  # it has waited already, or NCCL made the current stream wait
        _finish(calls)
        return
    _calls_of[work] = calls
    if listeners and calls[0].on_stream:
        _finish_beside(group, work, calls, batch)
    elif listeners:
        try:  # suppress() would take longer
            work.get_future().add_done_callback(lambda _: _finish(calls))
        except RuntimeError:  # gloo's send and recv have no future: wait() tells
            pass


def _describe(group: ProcessGroup, op: str, arguments: tuple, options: dict[str, Any]) -> GroupCall:
    ranks = tuple(dist.get_process_group_ranks(group))
    if op in POINT_TO_POINT and len(arguments) == 3:  # (tensors, peer's rank in the group, tag)
        tensors, peer = arguments[0], ranks[arguments[1]]
    else:
        tensors, peer = tensors_in(arguments), None
    return GroupCall(next(_numbers), op, peer, ranks, [(tensor.dtype, tensor.shape) for tensor in tensors],
                _streams_wait(group, tensors, options))


def _streams_wait(group: ProcessGroup, tensors: Sequence[torch.Tensor], options: dict[str, Any]) -> bool:
    """Whether the call returns at once, and streams wait for it where a host would."""
    if tensors and tensors[0].is_cpu:  # asked first: it is quick
        return False
    device = tensors[0].device if tensors else getattr(options.get("opts"), "device", None)  # a barrier's
    return device is not None and returns_at_once(group, device)


def _inside(call: GroupCall, function: Callable, arguments: tuple, options: dict[str, Any]) -> Any:
    """What `function` returns; meanwhile the calling thread counts as being inside `call`."""
    calls = waiting_in.setdefault(threading.get_ident(), [])
    # Kept: only who has heard the beginning hears the end, whoever comes or goes in between.
    entered = [(listener, listener.begin_wait(call)) for listener in listeners] if listeners else ()
    calls.append(call)
    try:
        return function(*arguments, **options)
    finally:
        calls.pop()
        for listener, since in entered:
            listener.end_wait(call, since)


_finished: set[int] = set()  # numbers of the calls whose end the listeners know
_finished_lock = threading.Lock()  # the end is seen by wait() and by the backend's own thread


def _finish(calls: list[GroupCall]) -> None:
    if not listeners:
        return
    for call in calls:
        with _finished_lock:
            first = call.number not in _finished
            _finished.add(call.number)
        if first:
            for listener in listeners:
                listener.end_call(call)


_beside = threading.Lock()


def _finish_beside(group: ProcessGroup, work: Work, calls: list[GroupCall], batch: bool) -> None:
    """The end of what streams wait for: on a stream that does nothing else, which waits now, and holds up nobody."""
    # One stream a communicator, which does one thing after another, so that none holds up the end of another.
    # One thread at a time, since the stream remembers which one it stands in for.
    with _beside, side_stream(context.device(), (group.group_name, None if batch else calls[0].peer)):
        if batch:
            _wait(work)  # its future, where it has one, knows of no stream
        elif _gives_result(calls[0].op) and (future := work.get_future()).done():
            # Not work.wait(), which lets go of the tensors that the work has to keep alive until the reader waits.
            future.wait()
        else:
            return  # wait() tells
        _finish(calls)


@cache
def _gives_result(function: str) -> bool:
    """Whether the call's future holds a tensor, and so knows of its stream."""
    return all(row.has_result for row in OPERATIONS.values() if function in row.functions)
