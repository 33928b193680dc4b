"""The instrument behind `record_memory`: notices every tensor storage that appears, changes size or disappears.

Four observers feed one `Track`: a TorchDispatchMode sees what each operator returns; a weak reference to each storage
fires when it is freed; `UntypedStorage.resize_` is wrapped, because FSDP frees and reallocates with it; and hooks on
autograd and on optimisers say what a storage is for. Scratch memory inside a kernel is not seen.
Prior art: torch/distributed/_tools/mem_tracker.py.
"""

import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakTensorKeyDictionary

from course_lib.runtime.recordings import flat_tensors, wraps_tensors

# From the weakest to the strongest claim on a storage: when two apply, the later one holds.
KINDS = ("other", "activations", "optimizer_state", "gradients", "parameters")
OTHER, ACTIVATIONS, OPTIMIZER_STATE, GRADIENTS, PARAMETERS = range(len(KINDS))


@dataclass(frozen=True)
class Phase:
    """A span, measured in torch operations since recording began; `depth` is 0 for an outermost span."""

    name: str
    start: int
    end: int
    depth: int


@dataclass
class Track:
    """What one rank's memory did. A storage is a number; its kind may still rise while it lives, and after."""

    rank: int
    changes: list[tuple[int, int, int]] = field(default_factory=list)  # (torch operation, storage, bytes more or less)
    kinds: list[int] = field(default_factory=list)  # storage -> index into KINDS
    phases: list[Phase] = field(default_factory=list)
    num_ops: int = 0


class _Storage:
    """A storage under observation. `number` is None while it does not count: it was there before and is not named."""

    __slots__ = ("number", "num_bytes", "kind", "reference")

    def __init__(self, kind: int, reference: weakref.ref) -> None:
        self.number: int | None = None
        self.num_bytes = 0
        self.kind = kind
        self.reference = reference


class MemoryTracker(TorchDispatchMode):
    """Writes a `Track` while it is open. `sources` give the tensors of a kind at the moment they are called."""

    def __init__(self, track: Track, modules: list[nn.Module], optimizers: list[torch.optim.Optimizer],
                 sources: list[tuple[int, Callable[[], Any]]]) -> None:
        super().__init__()
        self.track = track
        self.modules, self.optimizers, self.sources = modules, optimizers, sources
        self._storages: dict[int, _Storage] = {}  # by address: freed storages leave before it is used again
        self._parameters = WeakTensorKeyDictionary()  # parameter -> whether it was named
        self._open_spans: list[tuple[str, int]] = []
        self._last_backward = -1
        self._packing = False

    # What there is: storages that appear, change size, disappear

    def claim(self, tensor: torch.Tensor, kind: int, count: bool = True) -> None:
        """Say that the storages of `tensor` are at least `kind`; `count` those that were not counted so far, too."""
        for storage in storages(tensor):
            known = self._storages.get(storage._cdata)
            if known is None:
                known = self._observe(storage, kind)
            known.kind = max(known.kind, kind)
            if known.number is not None:
                self.track.kinds[known.number] = known.kind
            self._resized(storage, known, count)

    def _observe(self, storage: torch.UntypedStorage, kind: int) -> _Storage:
        address = storage._cdata
        known = _Storage(kind, weakref.ref(storage, partial(self._freed, address)))
        self._storages[address] = known
        return known

    def _resized(self, storage: torch.UntypedStorage, known: _Storage, count: bool) -> None:
        if known.number is None and count:
            known.number = len(self.track.kinds)
            self.track.kinds.append(known.kind)
        if known.number is not None and storage.nbytes() != known.num_bytes:
            self._change(known, storage.nbytes() - known.num_bytes)

    def _change(self, known: _Storage, more: int) -> None:
        known.num_bytes += more
        self.track.changes.append((self.track.num_ops, known.number, more))

    def _freed(self, address: int, reference: weakref.ref) -> None:
        known = self._storages.pop(address)
        if known.number is not None and known.num_bytes:
            self._change(known, -known.num_bytes)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not self._packing:
            for tensor in flat_tensors(args):
                if isinstance(tensor, nn.Parameter) and tensor not in self._parameters:
                    self._meet(tensor)
        if any(wraps_tensors(kind) for kind in types):
            return NotImplemented  # the tensors inside a DTensor come by one by one
        result = func(*args, **kwargs)
        if not self._packing:
            self.track.num_ops += 1
            for tensor in flat_tensors(result):
                self._returned(tensor, func, args, kwargs)
        return result
