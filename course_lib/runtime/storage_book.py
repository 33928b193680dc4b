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

# From the weakest to the strongest claim on a storage: when two apply, the later one holds. An nn.Parameter that is
# merely seen in use counts as a parameter until somebody says that it is, for instance, a master copy.
KINDS = ("other", "activations", "parameters", "optimizer_state", "gradients", "parameters")
OTHER, ACTIVATIONS, SEEN_PARAMETERS, OPTIMIZER_STATE, GRADIENTS, PARAMETERS = range(len(KINDS))


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
        self.reference = reference  # kept: it calls back when the storage is freed


class StorageBook:
    """Every storage seen so far, by address, and what happens to it, written into `track`."""

    def __init__(self, track: Track) -> None:
        self.track = track
        self._storages: dict[int, _Storage] = {}

    def claim(self, tensor: torch.Tensor, kind: int, count: bool = True) -> None:
        """The storages of `tensor` are at least `kind`. Those that did not count begin to, if `count` says so.

        Not on a weak claim, though: a weight from before does not begin to count because autograd saved it.
        """
        for storage in storages(tensor):
            known = self._storages.get(storage._cdata) or self._observe(storage)
            if known.kind < kind:
                known.kind = kind
                if known.number is not None:
                    self.track.kinds[known.number] = kind
            self._measure(storage, known, count and known.kind == kind)

    def returned(self, tensor: torch.Tensor, operator: Any, inputs: Any) -> None:
        """An operator returned `tensor`: memory of its own is an allocation, memory of an unknown input is not."""
        for storage in storages(tensor):
            known = self._storages.get(storage._cdata)
            if known is None:
                known = self._observe(storage)
                # torch.tensor(...) arrives as the input of lift_fresh, and is new all the same.
                self._measure(storage, known, operator is LIFT_FRESH or not shares_memory(storage, inputs))
            else:
                self._measure(storage, known)

    def resize(self, original: Any, storage: torch.UntypedStorage, size: int) -> None:
        """Run `UntypedStorage.resize_`; memory that grows from nothing is an allocation."""
        was_empty = storage.nbytes() == 0
        original(storage, size)
        self._measure(storage, self._storages.get(storage._cdata) or self._observe(storage), was_empty)

    def _observe(self, storage: torch.UntypedStorage) -> _Storage:
        address = storage._cdata
        known = _Storage(OTHER, weakref.ref(storage, partial(self._freed, address)))
        self._storages[address] = known
        return known

    def _measure(self, storage: torch.UntypedStorage, known: _Storage, count: bool = False) -> None:
        if count and known.number is None:
            known.number = len(self.track.kinds)
            self.track.kinds.append(known.kind)
        if known.number is not None and storage.nbytes() != known.num_bytes:
            self._change(known, storage.nbytes() - known.num_bytes)

    def _freed(self, address: int, reference: weakref.ref) -> None:
        known = self._storages.pop(address)
        if known.number is not None and known.num_bytes:
            self._change(known, -known.num_bytes)

    def _change(self, known: _Storage, more: int) -> None:
        known.num_bytes += more
        self.track.changes.append((self.track.num_ops, known.number, more))


def shares_memory(storage: torch.UntypedStorage, inputs: Any) -> bool:
    """Whether one of the tensors in `inputs` lives in `storage`."""
    return any(storage._cdata == other._cdata for tensor in flat_tensors(inputs) for other in storages(tensor))
