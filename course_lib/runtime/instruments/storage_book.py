"""The storages of one rank: which exist, how large they are, what they are for; and the Track of it, as plain data.

A storage is what tensors are views of; counting storages counts tied weights, views and slices once.
"""

import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any

import numpy as np
import torch

from course_lib.runtime import context
from course_lib.runtime.tensors import storages_of, tensors_in
from course_lib.runtime.torch_private import COMPOSITE

# From the weakest to the strongest claim on a storage: when two apply, the later one holds. An nn.Parameter
# that is merely seen in use counts as a parameter until somebody says that it is a master copy, say.
CLAIMS = ("other", "activations", "parameters", "optimizer_state", "gradients", "parameters")
OTHER, ACTIVATIONS, SEEN_PARAMETERS, OPTIMIZER_STATE, GRADIENTS, PARAMETERS = range(len(CLAIMS))
KINDS = ("parameters", "gradients", "optimizer_state", "activations", "other")
CLAIM_OF_KIND = dict(zip(KINDS, (PARAMETERS, GRADIENTS, OPTIMIZER_STATE, ACTIVATIONS, OTHER)))


@dataclass(frozen=True)
class MemoryPhase:
    """A span, measured in torch operations since recording began; `depth` is 0 for an outermost span."""

    name: str
    start: int
    end: int
    depth: int


@dataclass
class Track:
    """One rank's memory. Storages are numbered; a claim may come late, and holds for the whole life."""

    rank: int
    changes: list[tuple[int, int, int]] = field(default_factory=list)  # (operations so far, storage, bytes)
    claims: list[int] = field(default_factory=list)  # storage -> index into CLAIMS
    phases: list[MemoryPhase] = field(default_factory=list)
    num_ops: int = 0
    on_host: set[int] = field(default_factory=set)  # storages in the host's memory, of a rank that has a GPU
    allocator_peak: int | None = None  # bytes, by the GPU's allocator

    def ops(self) -> np.ndarray:
        """Torch operations that had run at each change."""
        return np.array([op for op, _, _ in self.changes] or [0])

    def over_time(self) -> dict[str, np.ndarray]:
        """Bytes of each kind after each change."""
        _, storage, more = np.array(self.changes or [(0, 0, 0)], dtype=np.int64).T
        kind = np.array(CLAIMS)[np.array(self.claims or [OTHER])[storage]]
        return {name: np.where(kind == name, more, 0).cumsum() for name in KINDS}

    def total(self) -> np.ndarray:
        """Bytes of all kinds after each change."""
        return np.array([more for _, _, more in self.changes] or [0], dtype=np.int64).cumsum()

    def peak(self) -> int:
        return int(self.total().max())

    def peak_on_gpu(self) -> int | None:
        """The most that was held at one time outside the host's memory; None where no allocator was asked."""
        if self.allocator_peak is None:
            return None
        on_gpu = [more for _, storage, more in self.changes if storage not in self.on_host]
        return int(np.array([0, *on_gpu], dtype=np.int64).cumsum().max())

    def composition(self, change: int) -> dict[str, int]:
        """Bytes of each kind after one change (an index, -1 is the last)."""
        return {kind: int(num_bytes[change]) for kind, num_bytes in self.over_time().items()}

    def at_peak(self) -> dict[str, int]:
        return self.composition(int(self.total().argmax()))

    def phase_of_peak(self) -> str | None:
        """The innermost span open at the peak."""
        op = int(self.ops()[self.total().argmax()])
        around = [phase for phase in self.phases if phase.start < op <= phase.end]
        return max(around, key=lambda phase: phase.depth).name if around else None

    def followed_by(self, later: "Track") -> "Track":
        """One track of two that a rank recorded one after the other: what the first still held is let go."""
        alive: dict[int, int] = {}
        for _, storage, more in self.changes:
            alive[storage] = alive.get(storage, 0) + more
        ops, known = self.num_ops, len(self.claims)
        changes = self.changes + [(ops, storage, -held) for storage, held in alive.items() if held]
        changes += [(op + ops, storage + known, more) for op, storage, more in later.changes]
        phases = [replace(phase, start=phase.start + ops, end=phase.end + ops) for phase in later.phases]
        claims = self.claims + later.claims
        on_host = self.on_host | {storage + known for storage in later.on_host}
        asked = [peak for peak in (self.allocator_peak, later.allocator_peak) if peak is not None]
        return Track(self.rank, changes, claims, self.phases + phases, ops + later.num_ops, on_host,
                     max(asked, default=None))


LIFT_FRESH = torch.ops.aten.lift_fresh.default


class _Storage:
    """A storage under observation. `number` is None while it does not count: from before, and not named."""

    __slots__ = ("number", "num_bytes", "claim", "reference")

    def __init__(self, claim: int, reference: weakref.ref) -> None:
        self.number: int | None = None
        self.num_bytes = 0
        self.claim = claim
        self.reference = reference  # kept: it calls back when the storage is freed


class StorageBook:
    """Every storage seen so far, by address, and what happens to it, written into `track`."""

    def __init__(self, track: Track) -> None:
        self.track = track
        self._storages: dict[int, _Storage] = {}
        self._has_gpu = context.device().type != "cpu"

    def claim(self, tensor: torch.Tensor, claim: int, count: bool = True) -> None:
        """The storages of `tensor` are at least what `claim` says; with `count` they begin to count.

        Not on a weaker claim than a known one: a weight from before does not count once autograd saves it.
        """
        for storage in storages_of(tensor):
            known = self._storages.get(storage._cdata)
            if known is not None and known.claim >= claim and known.num_bytes == storage.nbytes():
                continue  # nearly always, since the same is claimed several times a step: it counts already
            known = known or self._observe(storage)
            if known.claim < claim:
                known.claim = claim
                if known.number is not None:
                    self.track.claims[known.number] = claim
            self._measure(storage, known, count and known.claim == claim)

    def note_result(self, tensor: torch.Tensor, operator: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        """An operator returned `tensor`: an allocation, unless it shares the memory of an input."""
        for storage in storages_of(tensor):
            known, is_new = self._storages.get(storage._cdata), False
            if known is None:
                known = self._observe(storage)
                # torch.tensor(...) arrives as the input of lift_fresh, and is new all the same.
                is_new = operator is LIFT_FRESH or not (
                    shares_memory(storage, args) or kwargs and shares_memory(storage, tuple(kwargs.values())))
            self._measure(storage, known, is_new)

    def resize(self, original: Any, storage: torch.UntypedStorage, size: int) -> None:
        """Run `UntypedStorage.resize_`; memory that grows from nothing is an allocation."""
        was_empty = storage.nbytes() == 0
        original(storage, size)
        self._measure(storage, self._storages.get(storage._cdata) or self._observe(storage), was_empty)

    def close(self) -> None:
        """Stop looking: what is freed from now on is not written any more."""
        self._storages.clear()

    def _observe(self, storage: torch.UntypedStorage) -> _Storage:
        # torch keeps a storage's Python object for as long as its memory lives, so the weak reference goes with both.
        # The callback has the address only; it takes the entry out before another storage can be given the same one.
        address = storage._cdata
        known = _Storage(OTHER, weakref.ref(storage, partial(self._forget, address)))
        self._storages[address] = known
        return known

    def _measure(self, storage: torch.UntypedStorage, known: _Storage, count: bool = False) -> None:
        # A meta tensor has no memory (nor has a fake one, which claims another device than its storage does).
        if count and known.number is None and storage.device.type != "meta":
            known.number = len(self.track.claims)
            self.track.claims.append(known.claim)
            if self._has_gpu and storage.device.type == "cpu":
                self.track.on_host.add(known.number)
        if known.number is not None and (num_bytes := storage.nbytes()) != known.num_bytes:
            self._change(known, num_bytes - known.num_bytes)

    def _forget(self, address: int, reference: weakref.ref) -> None:
        known = self._storages.pop(address)
        if known.number is not None and known.num_bytes:
            self._change(known, -known.num_bytes)

    def _change(self, known: _Storage, more: int) -> None:
        known.num_bytes += more
        self.track.changes.append((self.track.num_ops, known.number, more))


@cache
def may_return_other_memory(operator: Any) -> bool:
    """False where all that the operator returns lies where an input lies and has the size that it had: in-place ones,
    and views. Not so where torch decides at run time, as reshape does.
    """
    schema = getattr(operator, "_schema", None)
    if schema is None or schema.name.partition("::")[0] != "aten" or operator is LIFT_FRESH:
        return True
    name = schema.name.removeprefix("aten::")
    resizes = name.startswith(("resize", "set_")) or any(argument.is_out for argument in schema.arguments)
    return resizes or operator.has_kernel_for_dispatch_key(COMPOSITE) or not all(
        value.alias_info is not None for value in schema.returns)


def shares_memory(storage: torch.UntypedStorage, inputs: Sequence[Any]) -> bool:
    """Whether one of the tensors in `inputs` lives in `storage`."""
    address = storage._cdata
    for tensor in tensors_in(inputs):
        for other in storages_of(tensor):
            if other._cdata == address:
                return True
    return False
