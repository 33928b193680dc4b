"""Recomputation: keep what goes into a layer, throw away what it kept for backward, and make that again when asked.

Autograd hands every tensor that it saves to a pack hook, and keeps what the hook returns. Here that is an empty Slot,
so the tensor is free as soon as the forward pass has no use for it. Backward hands the slot to the unpack hook: at the
first one the function runs once more, and the i-th tensor that it saves now goes into the i-th slot. It stops as soon
as the last one is filled: what comes after it is not needed.

Sources: Chen et al. 2016, "Training Deep Nets with Sublinear Memory Cost"; Korthikanti et al. 2022, "Reducing
Activation Recomputation in Large Transformer Models", for the selective kind; the rules are those of
torch.utils.checkpoint with use_reentrant=False.
"""

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from course_lib.runtime.torch_private import backward_number, tree_flatten, tree_unflatten
from course_lib.sequence_parallel.surroundings import Surroundings

POLICIES = ("full", "selective")


def recompute(module_or_fn: Callable, policy: str = "full") -> Callable:
    """A function that does what `module_or_fn` does, and keeps only its arguments for the backward pass.

    policy "full": all of it is run again in backward. "selective": only the core of attention, which holds the T x T
    matrices: every `.attend` of the module and of those inside it, whatever calls it. `module_or_fn` is then a module,
    or a method of one: `block.forward = recompute(block.forward, "selective")`.

    It has to do the same again: random numbers, autocast and the default device are restored for it, all else is its
    own affair. Arguments of any kind, by keyword or inside lists and dicts, pass; calls may be nested. ValueError for
    another policy, or where there is no attention; in backward for a function that does not save the same again.
    """
    if policy not in POLICIES:
        raise ValueError(f"policy={policy!r}: expected one of {', '.join(POLICIES)}")
    if not callable(module_or_fn):
        raise ValueError(f"module_or_fn={module_or_fn!r:.80}: expected a module or a function")
    if policy == "selective":
        find_cores(module_or_fn)
    return Recomputed(module_or_fn, policy)


@dataclass(frozen=True)
class Recomputed:
    """What `recompute` returns: an object, so that a copy of a model has a copy of its modules in it."""

    function: Callable
    policy: str

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return self.function(*args, **kwargs)
        if self.policy == "selective":
            with cores_recomputed(self.function):
                return self.function(*args, **kwargs)
        run = Run(self.function, args, kwargs)
        with saved_tensors_hooks(run.pack, run.unpack):
            return self.function(*args, **kwargs)


class Slot:
    """In the place of a saved tensor: what it looked like, and itself, for each backward pass that has made it again.

    Only the graph holds it, so that what was made for a node that is gone is gone, too.
    """

    def __init__(self, tensor: Tensor) -> None:
        self.look = look(tensor)
        self.tensors: dict[int, Tensor] = {}


class Enough(Exception):
    """Raised inside the second run when all slots are filled: the rest of the function is not needed."""


class Run:
    """One call of `function`, and the slots of what it saved, in order."""

    def __init__(self, function: Callable, args: tuple, kwargs: dict[str, Any]) -> None:
        self.function = function
        leaves, self.form = tree_flatten((args, kwargs))
        self.leaves = [None if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        self.places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
        tensors = [leaves[place] for place in self.places]
        # Autograd keeps them, so that whoever watches what it keeps (an outer recompute, an offloader) gets them, too.
        self.kept = Keep.apply(torch.empty(0, device="cpu", requires_grad=True), *tensors).grad_fn
        self.surroundings = Surroundings(tensors)
        self.slots: list[weakref.ref[Slot]] = []

    def pack(self, tensor: Tensor) -> Slot:
        slot = Slot(tensor)
        self.slots.append(weakref.ref(slot))
        return slot

    def unpack(self, slot: Slot) -> Tensor:
        backward = backward_number()  # with retain_graph there are several
        if backward not in slot.tensors:
            self.run_again(backward)
        return slot.tensors.pop(backward)

    def run_again(self, backward: int) -> None:
        leaves = list(self.leaves)
        for place, tensor in zip(self.places, self.kept.saved_tensors):
            leaves[place] = tensor
        args, kwargs = tree_unflatten(leaves, self.form)
        filled: list[None] = []
        hooks = saved_tensors_hooks(partial(self.fill, backward, filled), lambda tensor: tensor)
        with suppress(Enough), self.surroundings.restored(), torch.enable_grad(), hooks:
            self.function(*args, **kwargs)
        if len(filled) < len(self.slots):
            raise ValueError(f"{name_of(self.function)} saved {len(self.slots)} tensors for the backward pass, and "
                             f"{len(filled)} when it was run again: expected the same. Does it depend on anything that "
                             "has changed in between?")

    def fill(self, backward: int, filled: list[None], tensor: Tensor) -> Tensor:
        """The pack hook of the second time."""
        slot, tensor = self.slots[len(filled)](), tensor.detach()
        filled.append(None)
        if slot is not None:  # the graph still wants it
            if look(tensor) != slot.look:
                raise ValueError(f"{name_of(self.function)} saved {slot.look} as tensor {len(filled) - 1} for the "
                                 f"backward pass, and {look(tensor)} when it was run again: expected the same")
            slot.tensors[backward] = tensor
        if len(filled) == len(self.slots):
            raise Enough
        return tensor


class Keep(torch.autograd.Function):
    """Nothing but a place in the graph where tensors are saved."""

    @staticmethod
    def forward(ctx: Any, nothing: Tensor, *tensors: Tensor) -> Tensor:
        """`nothing`, with `tensors` saved for backward by autograd itself, which checks that nobody changes them in
        between.
        """
        ctx.save_for_backward(*tensors)
        return nothing.clone()


def look(tensor: Tensor) -> tuple[torch.Size, torch.dtype, torch.device]:
    """What must be the same when a tensor is made again."""
    return tensor.shape, tensor.dtype, tensor.device


def name_of(function: Callable) -> str:
    """What an error calls the function."""
    return getattr(function, "__qualname__", type(function).__name__)


def find_cores(module_or_fn: Callable) -> list[tuple[Any, str]]:
    """(owner, name of the attribute) of every attention's core. ValueError where there is none."""
    module = getattr(module_or_fn, "__self__", module_or_fn)
    inside = module.modules() if isinstance(module, nn.Module) else []
    owners = [each for each in inside if callable(getattr(each, "attend", None))]
    if not owners:
        raise ValueError(f"policy='selective' of {name_of(module_or_fn)}: expected a module, or a method of one, with "
                         "an attention inside it whose core is its `attend(q, k, v, ...)`; for any other function "
                         "use policy='full'")
    return [(each.attend, "forward") if isinstance(each.attend, nn.Module) else (each, "attend") for each in owners]


@contextmanager
def cores_recomputed(module_or_fn: Callable) -> Iterator[None]:
    """Until the block ends, every attention's core keeps its arguments only."""
    cores = find_cores(module_or_fn)
    before = [(owner, name, owner.__dict__.get(name)) for owner, name in cores]
    try:
        for owner, name in cores:
            setattr(owner, name, Recomputed(getattr(owner, name), "full"))
        yield
    finally:
        for owner, name, own in before:
            delattr(owner, name) if own is None else setattr(owner, name, own)
