"""Recomputation: keep what goes into a layer, throw away what it kept for backward, and make that again when asked.

    recompute              chooses what is made again: the whole function, or only the core of attention
    repeatable_call.py     how: a call whose saved tensors are made again
    surroundings.py        with the random numbers, autocast and default device of the first time

Sources: Chen et al. 2016, "Training Deep Nets with Sublinear Memory Cost"; Korthikanti et al. 2022, "Reducing
Activation Recomputation in Large Transformer Models", for the selective kind.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks

from course_lib.sequence_parallel.repeatable_call import RepeatableCall, name_of

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
        find_cores(module_or_fn)  # now, so that a module without attention is refused here, not in its first step
    return RecomputedFunction(module_or_fn, policy)


@dataclass(frozen=True)
class RecomputedFunction:
    """What `recompute` returns: an object, so that a copy of a model has a copy of its modules in it."""

    function: Callable
    policy: str

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():  # no backward pass will come
            return self.function(*args, **kwargs)
        if self.policy == "selective":
            with recompute_cores(self.function):
                return self.function(*args, **kwargs)
        call = RepeatableCall(self.function, args, kwargs)
        with saved_tensors_hooks(call.pack, call.unpack):
            return self.function(*args, **kwargs)


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
def recompute_cores(module_or_fn: Callable) -> Iterator[None]:
    """Until the block ends, every attention's core keeps its arguments only."""
    cores = find_cores(module_or_fn)
    before = [(owner, name, owner.__dict__.get(name)) for owner, name in cores]
    try:
        for owner, name in cores:
            setattr(owner, name, RecomputedFunction(getattr(owner, name), "full"))
        yield
    finally:
        for owner, name, own in before:
            # What came from the class was no attribute of the object: none may be left there.
            delattr(owner, name) if own is None else setattr(owner, name, own)
