"""The storages of one rank: which exist, how large they are, what they are for.

A storage is what tensors are views of; counting storages counts tied weights, views and slices once.
"""

import weakref
from collections.abc import Sequence
from functools import cache, partial
from typing import Any

import torch

from course_lib.runtime import context
from course_lib.runtime.instruments.dispatch import storages
from course_lib.runtime.instruments.memory_track import OTHER, Track
from course_lib.runtime.tensors import tensors_in
from course_lib.runtime.torch_private import COMPOSITE

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
        for storage in storages(tensor):
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
        for storage in storages(tensor):
            known = self._storages.get(storage._cdata)
            if known is None:
                known = self._observe(storage)
                # torch.tensor(...) arrives as the input of lift_fresh, and is new all the same.
                is_new = operator is LIFT_FRESH or not (
                    shares_memory(storage, args) or kwargs and shares_memory(storage, tuple(kwargs.values())))
                self._measure(storage, known, is_new)
            else:
                self._measure(storage, known)

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
        for other in storages(tensor):
            if other._cdata == address:
                return True
    return False
