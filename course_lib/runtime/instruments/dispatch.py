"""What the recorders that watch torch operators share: the mode that sees them, and how to look at one."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch import nn

from course_lib.runtime.tensors import tensors_in
from course_lib.runtime.torch_private import TorchDispatchMode, current_dispatch_mode

Run = Callable[[Sequence[Any], dict[str, Any]], Any]  # args and kwargs of an operator -> its result


class OperatorWatcher:
    """What a recorder does at the operators of torch; by default nothing."""

    def around(self, operator: Any, run: Run) -> Run:
        """What runs in the place of `run`, and calls it; `run` itself where the recorder has nothing to do with such an
        operator. Asked once for each operator, while nobody comes or goes.
        """
        return run

    def see_wrappers(self, args: Sequence[Any]) -> None:
        """An operator on tensors that wrap others, such as DTensors: those inside come by next, one at a time."""


@contextmanager
def watching(watcher: OperatorWatcher) -> Iterator[None]:
    """`watcher` sees the operators of this thread, and of the backward passes that it starts, until the block ends.

    Recorders inside each other share one mode, since a mode alone costs some 5 us an operator.
    """
    outer = current_dispatch_mode()
    if isinstance(outer, _WatchingMode):
        with outer.joined_by(watcher):
            yield
    else:
        with _WatchingMode() as mode, mode.joined_by(watcher):
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
    def joined_by(self, watcher: OperatorWatcher) -> Iterator[None]:
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
            return NotImplemented
        run = self.runs.get(id(func)) or self._learn(func)
        return run(args, kwargs or {})

    def _learn(self, operator: Any) -> Run:
        def run(args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
            return operator(*args, **kwargs)

        for watcher in self.watchers:  # the latest comes first
            run = watcher.around(operator, run)
        self.runs[id(operator)] = run
        return run


@cache
def wraps_tensors(kind: type) -> bool:
    """Whether `kind` is a tensor subclass that runs its operators on inner tensors, as DTensor does.

    A mode that answers NotImplemented for such a type is asked again for each inner tensor.
    """
    return hasattr(kind, "__tensor_flatten__")


def storages(tensor: torch.Tensor) -> Sequence[torch.UntypedStorage]:
    """The memory behind `tensor`: one storage, or several if it is sparse or wraps other tensors."""
    kind = type(tensor)
    if kind is not torch.Tensor and kind is not nn.Parameter and wraps_tensors(kind):
        inner = tensors_in([getattr(tensor, name) for name in tensor.__tensor_flatten__()[0]])
        return [storage for one in inner for storage in storages(one)]
    if tensor.layout is torch.strided:
        return (tensor.untyped_storage(),)
    return (tensor._indices().untyped_storage(), tensor._values().untyped_storage()) if tensor.is_sparse else ()
