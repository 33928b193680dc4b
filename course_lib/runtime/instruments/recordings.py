"""What all recorders of a rank share: the logs that they leave, spans, and the mode that sees torch's operators.

A log is plain data (no tensors, no process groups), so it travels from a rank to the notebook beside the result, and
logs of many ranks merge into one. Every closed recorder leaves its log here; `launch` collects them by `take()`. Of
recorders nested in each other only the outermost is kept: its log already holds what the inner ones saw, and merging
both would count everything twice.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch.distributed as dist

from course_lib.pictures.drawn import Drawn
from course_lib.runtime.tensors import wraps_tensors
from course_lib.runtime.torch_private import TorchDispatchMode, current_dispatch_mode

_closed: list["Recording"] = []
_open: list["Recording"] = []


class Recording(Drawn):
    """Base of every log; `record_communication` has `records = "communication"`."""

    ranks: tuple[int, ...]
    records = "nothing"

    def who(self) -> str:
        """Each of its ranks, as the subject of a sentence."""
        return f"each of {len(self.ranks)} ranks" if len(self.ranks) > 1 else f"rank {self.ranks[0]}"

    def check_has(self, rank: int) -> None:
        """ValueError for a rank that recorded nothing at all."""
        if rank not in self.ranks:
            raise ValueError(f"rank {rank} recorded no {self.records}; recorded ranks: {list(self.ranks)}")


@contextmanager
def keep_recording(log: Recording) -> Iterator[None]:
    """Keep `log` for `take()` when the block ends, also when it ends with an exception."""
    outermost = open_recording(type(log)) is None
    _open.append(log)
    try:
        yield
    finally:
        _open[:] = [other for other in _open if other is not log]  # two logs with the same events are equal
        if outermost:
            _closed.append(log)


def open_recording(kind: type[Recording]) -> Recording | None:
    """The outermost log of this `kind` that is being written, which has what all inner ones see."""
    return next((log for log in _open if type(log) is kind), None)


def take() -> list[Recording]:
    """Return the logs closed since the last call, oldest first, and forget them."""
    taken = _closed.copy()
    _closed.clear()
    return taken


def this_rank() -> int:
    """The global rank of the calling process, 0 where no process group is initialised."""
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0


span_listeners: list[Any] = []  # each has begin_span(name, labels) and end_span(), of the calling thread


class span:  # noqa: N801  used like a function; a class, because a generator costs several times as much
    """`with span("forward", micro_batch=3):` names the block, as a bar in a timeline or a phase of memory.

    Spans nest; unheard they cost about 1 us.
    """

    __slots__ = ("name", "labels", "heard_by")

    def __init__(self, name: str, **labels: Any) -> None:
        self.name, self.labels = name, labels

    def __enter__(self) -> None:
        # Remembered: a recorder opened inside the span must not hear its end.
        self.heard_by = tuple(span_listeners)
        for listener in self.heard_by:
            listener.begin_span(self.name, self.labels)

    def __exit__(self, *exc_info: object) -> None:
        for listener in self.heard_by:
            listener.end_span()


Run = Callable[[Sequence[Any], dict[str, Any]], Any]  # args and kwargs of an operator -> its result


class OperatorWatcher:
    """What a recorder does at the operators of torch; by default nothing."""

    def wrap(self, operator: Any, run: Run) -> Run:
        """What runs in the place of `run`, and calls it; `run` itself where the recorder has nothing to do with such an
        operator. Asked once for each operator, while nobody comes or goes.
        """
        return run

    def see_wrappers(self, args: Sequence[Any]) -> None:
        """An operator on tensors that wrap others, such as DTensors: those inside come by next, one at a time."""


@contextmanager
def watch_operators(watcher: OperatorWatcher) -> Iterator[None]:
    """`watcher` sees the operators of this thread, and of the backward passes that it starts, until the block ends.

    Recorders inside each other share one mode, since a mode alone costs some 5 us an operator.
    """
    outer = current_dispatch_mode()
    if isinstance(outer, _WatchingMode):
        with outer.add(watcher):
            yield
    else:
        with _WatchingMode() as mode, mode.add(watcher):
            yield


class _WatchingMode(TorchDispatchMode):
    """A TorchDispatchMode that only looks."""

    def __init__(self) -> None:
        super().__init__()
        self.watchers: list[OperatorWatcher] = []
        self.runs: dict[int, Run] = {}  # id of an operator, whose own hash is slow; what runs keeps it alive

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Usually torch guards a mode against torch.compile, at twice the cost; here is nothing to guard."""
        return False

    @contextmanager
    def add(self, watcher: OperatorWatcher) -> Iterator[None]:
        self.watchers.append(watcher)
        self.runs.clear()
        try:
            yield
        finally:
            self.watchers.remove(watcher)
            self.runs.clear()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if types and any(wraps_tensors(kind) for kind in types):
            for watcher in self.watchers:
                watcher.see_wrappers(args)
            return NotImplemented  # torch asks again for each inner tensor
        run = self.runs.get(id(func)) or self._learn(func)
        return run(args, kwargs or {})

    def _learn(self, operator: Any) -> Run:
        def run(args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
            return operator(*args, **kwargs)

        for watcher in self.watchers:  # the latest comes first
            run = watcher.wrap(operator, run)
        self.runs[id(operator)] = run
        return run
