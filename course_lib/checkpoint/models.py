"""The pieces of a model and of its optimiser, for what the chapters make of a model.

    plain, or data-parallel         every tensor whole; all ranks hold the same, each writes some of it
    tensor-parallel                 the slices that its layers say (tensor_parallel/cut.py)
    stages of a pipeline            the layers that this rank has, under the names of the model; give a list of them
    ZeroOptimizer                   the state: flat blocks, which may begin and end in the middle of a parameter
    FullyShardedDataParallel        parameters and state: a flat n-th of each

A model that is cut in other ways registers its own function: `@pieces.register(HybridModel)` in hybrid_parallel.

An optimiser's entry for a parameter NAME is saved as NAME.exp_avg and so on: no module can have a parameter `a` and
something called `a.b`, so no name is taken twice.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import singledispatch
from typing import Any

import torch
from torch import Tensor, nn

from course_lib.checkpoint.piece import Piece, Placement, State, whole
from course_lib.data_parallel import DistributedDataParallel
from course_lib.groups.membership import Member
from course_lib.tensor_parallel.cut import Cut
from course_lib.tensor_parallel.full_state import cuts_by_name
from course_lib.tensor_parallel.linear import CutModule
from course_lib.zero import FullyShardedDataParallel, ZeroOptimizer

Model = nn.Module | Sequence[nn.Module]


@dataclass(frozen=True, eq=False)
class LocalTensor:
    """`tensor`, a parameter or a buffer of this rank, is the local tensor that `place` describes; or, flat, what comes
    of it from number `first` on: then what is behind its `count` numbers is padding.
    """

    tensor: Tensor
    place: Placement
    first: int | None = None
    count: int = 0

    def pieces(self, like: Tensor) -> list[Piece]:
        """The pieces of `like`, a tensor of the held one's shape: itself, or what an optimiser keeps about it."""
        if self.first is None:
            return self.place.pieces(like)
        return self.place.pieces_of_range(like.detach()[:self.count], self.first)


@singledispatch
def pieces(model: Model, optimizer: torch.optim.Optimizer | None = None) -> State:
    """The pieces of the plain model, and of the optimiser's state, that this rank holds."""
    held = held_tensors(model)
    state: dict[str, Sequence[Piece]] = {name: of_one.pieces(of_one.tensor) for name, of_one in held.items()}
    kept = {} if optimizer is None else optimizer.state
    for name, of_one in held.items():
        if of_one.tensor in kept:
            state.update(optimizer_pieces(name, of_one, kept[of_one.tensor], optimizer))
    return state


def optimizer_pieces(name: str, held: LocalTensor, kept: dict[str, Any], optimizer: torch.optim.Optimizer) -> State:
    """What an optimiser keeps about one parameter, by NAME.key."""
    state = {}
    for key, value in kept.items():
        if not isinstance(value, Tensor):
            raise ValueError(f"{type(optimizer).__name__} keeps {key}={value!r} of {name}: expected a tensor, since "
                             "only tensors are saved")
        if value.dim() == 0:
            state[f"{name}.{key}"] = whole(value)
        elif isinstance(optimizer, ZeroOptimizer):
            state[f"{name}.{key}"] = held.place.pieces_of_range(value, optimizer.pieces[held.tensor].first)
        elif value.shape == held.tensor.shape:
            state[f"{name}.{key}"] = held.pieces(value)
        else:
            raise ValueError(f"{type(optimizer).__name__} keeps {key} of shape {list(value.shape)} of {name}, which "
                             f"has {list(held.tensor.shape)}: expected that shape, or a single number")
    return state


def held_tensors(model: Model) -> dict[str, LocalTensor]:
    """This rank's parameters and buffers, by their names in the plain model; a tied one once, by its first."""
    held: dict[str, LocalTensor] = {}
    seen = set()
    for name, of_one in named_tensors(model):
        if of_one.tensor not in seen:
            if name in held:
                raise ValueError(f"this rank holds {name} twice: expected one tensor, used by both of its stages")
            held[name] = of_one
            seen.add(of_one.tensor)
    return held


def tied_names(model: Model) -> dict[str, str]:
    """Other names of tensors that are in a checkpoint once -> the name that they have there."""
    first: dict[Tensor, str] = {}
    tied = {}
    for module in unwrap(model):
        inner = module.module if isinstance(module, FullyShardedDataParallel) else module
        shared = getattr(inner, "shared", {})
        for name, tensor in inner.state_dict(keep_vars=True).items():
            common = first.setdefault(tensor, shared.get(name, name))
            if name != common:
                tied[name] = common
    return tied


def named_tensors(model: Model) -> Iterator[tuple[str, LocalTensor]]:
    """Everything that state_dict() has; what a stage shares with another one under the model's first name for it."""
    for module in unwrap(model):
        sharded = isinstance(module, FullyShardedDataParallel)
        inner, shards = (module.module, module.shards()) if sharded else (module, {})
        cuts, shared = cuts_of(inner), getattr(inner, "shared", {})
        for name, tensor in inner.state_dict(keep_vars=True).items():
            if not isinstance(tensor, Tensor):
                raise ValueError(f"{name} of the model is a {type(tensor).__name__}: expected only tensors")
            shard = shards.get(tensor)
            place = placement(tensor.shape if shard is None else shard.shape, *cuts.get(name, ()))
            if shard is None:
                yield shared.get(name, name), LocalTensor(tensor, place)
            else:
                first = min(module.member.r * shard.S, shard.shape.numel())
                count = min(shard.S, shard.shape.numel() - first)
                yield shared.get(name, name), LocalTensor(tensor, place, first, count)


def cuts_of(module: nn.Module) -> dict[str, tuple[Cut, Member]]:
    """By name of a parameter, how tensor parallelism has cut it and where this rank stands; {} where nothing is cut."""
    return cuts_by_name(module) if any(isinstance(inner, CutModule) for inner in module.modules()) else {}


def placement(local: Sequence[int], cut: Cut | None = None, me: Member | None = None) -> Placement:
    """Where a parameter's local tensor of shape `local` lies in the whole one: by tensor parallelism's Cut, or it is
    the whole.
    """
    if cut is None:
        return Placement.whole(local)
    shape = list(local)
    shape[cut.dim] = sum(cut.sections)
    return Placement.cut(shape, cut.dim, me.r, me.n, cut.sections)


def unwrap(model: Model) -> list[nn.Module]:
    """This rank's stages, or the one module, without a DistributedDataParallel (ours or torch's) around it."""
    modules = list(getattr(model, "stages", [model])) if isinstance(model, nn.Module) else list(model)
    wrappers = (DistributedDataParallel, nn.parallel.DistributedDataParallel)
    return [module.module if isinstance(module, wrappers) else module for module in modules]


# Before and after loading

def parts_of(optimizer: torch.optim.Optimizer) -> list[torch.optim.Optimizer]:
    """Itself, or the optimisers that it is made of: a hybrid one has one for each group that shards."""
    return list(getattr(optimizer, "parts", [optimizer]))


@torch.no_grad()
def make_state(optimizer: torch.optim.Optimizer) -> None:
    """An optimiser has no state before its first step: take one that changes nothing, so that there is a place to load
    to. Gradients are kept.
    """
    for part in parts_of(optimizer):
        inner = part.inner if isinstance(part, ZeroOptimizer) else part
        if not any(inner.state.values()):
            step_that_changes_nothing(inner)


def step_that_changes_nothing(optimizer: torch.optim.Optimizer) -> None:
    """Gradients of zeros, and a learning rate of 0, which also takes care of weight decay."""
    groups = optimizer.param_groups
    trained = [p for group in groups for p in group["params"] if p.requires_grad]
    gradients, rates = [p.grad for p in trained], [group["lr"] for group in groups]
    for p in trained:
        p.grad = torch.zeros_like(p)
    for group in groups:
        group["lr"] = torch.zeros_like(group["lr"]) if isinstance(group["lr"], Tensor) else 0.0
    try:
        optimizer.step()
    finally:
        for p, gradient in zip(trained, gradients):
            p.grad = gradient
        for group, rate in zip(groups, rates):
            group["lr"] = rate


def accept(optimizer: torch.optim.Optimizer) -> None:
    """The pieces have been filled: 32-bit copies of 16-bit parameters have been, too, and are not to be made anew."""
    for part in parts_of(optimizer):
        if isinstance(part, ZeroOptimizer):
            for bucket in part.buckets:
                bucket.remember_versions()
