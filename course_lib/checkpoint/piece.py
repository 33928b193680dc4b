"""A piece: what one rank holds of one tensor of the plain model or of its optimiser, and where it lies in the whole.

    the whole     shape (N, ..., M), one for each name that the plain model's state_dict has
    a piece       a box of it: `offsets` says where it begins, its tensor's shape how far it goes
    a state       {name: [this rank's pieces of it]}; the ranks' pieces together are the whole

Whatever cut the tensor, boxes are all that a checkpoint knows of it, and that is why it can be loaded into another
layout: a new box reads from all old ones that it overlaps.

    q | k | v of one rank of a tensor-parallel group       three boxes, one of each section
    numbers 5 to 13 of a matrix with rows of four          the end of row 1, row 2, the beginning of row 3
    plain, or data-parallel                                every tensor whole; all ranks hold the same
    stages of a pipeline                                   the layers that this rank has, under the model's names
    ZeroOptimizer                                          of the state: blocks that begin and end inside a parameter
    FullyShardedDataParallel                               parameters and state: a flat n-th of each

A model that is cut in other ways registers its own function: `@pieces.register(HybridModel)` in hybrid_parallel. An
optimiser's entry for a parameter NAME is saved as NAME.exp_avg and so on: no module can have a parameter `a` and
something called `a.b`, so no name is taken twice. Where the generators of random numbers stand are two tensors more:

    random_state.cpu       (R, 5056) uint8, one row a rank: torch's generator of the host
    random_state.device    (R, ...) uint8: that of the rank's GPU, where it has one

Dropout then draws on as if nothing had happened. In another layout the rows mean nothing to the new ranks: all of them
take rank 0's, because those of a tensor-parallel group have to draw the same. Python's and NumPy's generators are not
saved: the course's batches are functions of the step.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import singledispatch
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from course_lib.data_parallel import DistributedDataParallel
from course_lib.groups.membership import Member
from course_lib.runtime import device
from course_lib.tensor_parallel.cut import Cut
from course_lib.tensor_parallel.full_state import cuts_by_name
from course_lib.tensor_parallel.linear import CutModule
from course_lib.zero import FullyShardedDataParallel, ZeroOptimizer

Sizes = tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Piece:
    """`tensor` lies in a whole of `shape`, beginning at `offsets`.

    tensor: the memory that the model or the optimiser itself has, which is read by save and filled by load; a number
    such as AdamW's step has shape (). Other ranks may hold the same: which of them writes it, says planners.SavePieces.
    """

    tensor: Tensor
    shape: Sizes
    offsets: Sizes

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", tuple(self.shape))
        object.__setattr__(self, "offsets", tuple(self.offsets))
        sizes = tuple(self.tensor.shape)
        fits = len(sizes) == len(self.shape) == len(self.offsets) and all(
            0 <= offset and offset + size <= whole for offset, size, whole in zip(self.offsets, sizes, self.shape))
        if not fits:
            raise ValueError(f"a piece of shape {list(sizes)} at {list(self.offsets)} of a tensor of shape "
                             f"{list(self.shape)}: expected a box inside it")


State = Mapping[str, Sequence[Piece]]


@dataclass(frozen=True)
class TensorRange:
    """The numbers of a local tensor from `start`, `sizes` of them in each dimension, are those from `offsets` on."""

    start: Sizes
    sizes: Sizes
    offsets: Sizes


@dataclass(frozen=True)
class Placement:
    """Where the numbers of a local tensor lie in a whole tensor of `shape`: box by box."""

    shape: Sizes
    boxes: tuple[TensorRange, ...]

    @classmethod
    def whole(cls, shape: Sequence[int]) -> "Placement":
        """The local tensor is the whole one."""
        zeros = (0,) * len(shape)
        return cls(tuple(shape), (TensorRange(zeros, tuple(shape), zeros),))

    @classmethod
    def cut(cls, shape: Sequence[int], dim: int, r: int, n: int, sections: Sequence[int] | None = None) -> "Placement":
        """Place r of n holds the r-th part of each of the `sections` along `dim`, one after the other.

        shape: of the whole. sections: sizes that add up to that of `dim`; None is one. torch's chunk deals them out:
        what n does not divide is dealt unevenly, the last ones may have nothing.
        """
        dim, boxes, start, begin = dim % len(shape), [], 0, 0
        for section in (shape[dim],) if sections is None else sections:
            share = -(-section // n)
            first, last = min(r * share, section), min((r + 1) * share, section)
            along = [(0, size, 0) for size in shape]
            along[dim] = (start, last - first, begin + first)
            boxes.append(TensorRange(*zip(*along)))
            start, begin = start + last - first, begin + section
        return cls(tuple(shape), tuple(boxes))

    @property
    def local_shape(self) -> Sizes:
        """The shape of the local tensor."""
        return tuple(max(ends) for ends in zip(*([a + b for a, b in zip(box.start, box.sizes)] for box in self.boxes)))

    def pieces(self, local: Tensor) -> list[Piece]:
        """The local tensor as pieces of the whole one, a view for each box."""
        if tuple(local.shape) != self.local_shape:
            raise ValueError(f"a tensor of shape {list(local.shape)}: expected {list(self.local_shape)}, as placed")
        return [Piece(take(local, box.start, box.sizes), self.shape, box.offsets) for box in self.boxes]

    def pieces_of_range(self, flat: Tensor, first: int) -> list[Piece]:
        """The pieces that K of the local tensor's numbers make, from number `first` on; `flat` (K,) holds them, and
        pieces are views of it.
        """
        found, done = [], 0
        for start, sizes in boxes_of_range(self.local_shape, first, first + flat.numel()):
            part = flat[done:done + prod(sizes)].view(sizes)
            done += prod(sizes)
            for box in self.boxes:
                begin = [max(a, b) for a, b in zip(start, box.start)]
                end = [min(a + m, b + n) for a, m, b, n in zip(start, sizes, box.start, box.sizes)]
                if all(a < b for a, b in zip(begin, end)):
                    mine = take(part, [a - b for a, b in zip(begin, start)], [b - a for a, b in zip(begin, end)])
                    moved = [a - b + c for a, b, c in zip(begin, box.start, box.offsets)]
                    found.append(Piece(mine, self.shape, tuple(moved)))
        return found


def take(tensor: Tensor, start: Sequence[int], sizes: Sequence[int]) -> Tensor:
    """The box of `tensor` that begins at `start`: a view."""
    tensor = tensor.detach()
    for dim, (a, size) in enumerate(zip(start, sizes)):
        tensor = tensor.narrow(dim, a, size)
    return tensor


def boxes_of_range(shape: Sequence[int], first: int, last: int) -> Iterator[tuple[Sizes, Sizes]]:
    """(start, sizes) of boxes that together are numbers `first` to `last` of a tensor of `shape`, in their order.

    At most 2 d - 1 for d dimensions: the rest of a row, whole rows, the beginning of a row, and so for each dimension.
    """
    if first >= last:
        return
    if not shape:
        yield (), ()
        return
    inner, rest = prod(shape[1:]), tuple(shape[1:])
    row, end = divmod(first, inner)
    if end and last <= (row + 1) * inner or not end and last < (row + 1) * inner:  # part of one row
        for start, sizes in boxes_of_range(rest, end, last - row * inner):
            yield (row, *start), (1, *sizes)
        return
    if end:
        yield from boxes_of_range(shape, first, (row + 1) * inner)
        row += 1
    whole_rows = last // inner - row
    if whole_rows:
        yield (row, *(0 for _ in rest)), (whole_rows, *rest)
    yield from boxes_of_range(shape, (row + whole_rows) * inner, last)


def whole(tensor: Tensor) -> list[Piece]:
    """The one piece of a tensor that this rank has whole, of a number such as AdamW's step too."""
    return Placement.whole(tensor.shape).pieces(tensor.detach())


# What a rank holds of a model and of its optimiser

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

    @classmethod
    def shard(cls, tensor: Tensor, place: Placement, size: int, r: int) -> "LocalTensor":
        """The r-th `size` numbers of the local tensor, as ZeRO-3 cuts it: the last ranks may have padding only."""
        numel = prod(place.local_shape)
        first = min(r * size, numel)
        return cls(tensor, place, first, min(size, numel - first))

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
    for inner in plain_modules(model):
        shared = getattr(inner, "shared", {})
        for name, tensor in inner.state_dict(keep_vars=True).items():
            common = first.setdefault(tensor, shared.get(name, name))
            if name != common:
                tied[name] = common
    return tied


def borrowed_names(model: Model) -> set[str]:
    """Names in a checkpoint of tensors that this rank has under another name only, as a tied one of another stage."""
    own = {name for inner in plain_modules(model) for name in inner.state_dict(keep_vars=True)}
    return {*tied_names(model).values()} - own


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
            yield shared.get(name, name), (LocalTensor(tensor, place) if shard is None else
                                           LocalTensor.shard(tensor, place, shard.S, module.member.r))


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


def plain_modules(model: Model) -> list[nn.Module]:
    """unwrap's, without a FullyShardedDataParallel around it either."""
    return [module.module if isinstance(module, FullyShardedDataParallel) else module for module in unwrap(model)]


# Random numbers

PREFIX = "random_state."


def random_pieces(r: int, n: int) -> State:
    """This rank's rows, in memory of their own."""
    states = {"cpu": torch.get_rng_state()}
    if device().type != "cpu":
        states["device"] = torch.get_device_module(device()).get_rng_state(device()).cpu()
    return {PREFIX + key: [Piece(state[None], (n, len(state)), (r, 0))] for key, state in states.items()}


def pieces_to_load(saved: Mapping[str, Sizes], r: int) -> State:
    """Rows to be filled with those of place `r`. What the checkpoint does not have is not asked for: a run that goes
    on on another kind of device.
    """
    wanted = random_pieces(0, 1)
    return {name: [Piece(of_one.tensor, saved[name], (r, 0))] for name, (of_one,) in wanted.items()
            if name in saved and saved[name][1:] == of_one.shape[1:] and r < saved[name][0]}


def restore(state: State) -> None:
    """Set the generators to the rows that have been filled. ValueError for numbers that are no generator's."""
    for name, (piece,) in state.items():
        try:
            if name == PREFIX + "cpu":
                torch.set_rng_state(piece.tensor[0])
            else:
                torch.get_device_module(device()).set_rng_state(piece.tensor[0], device())
        except RuntimeError as error:
            raise ValueError(f"the checkpoint's {name} is no state of a generator: {error}") from error
