"""What this rank has of the plain model and of its optimiser, piece by piece, for a checkpoint.

    NAME                        a parameter, by its name in the plain model
    NAME.exp_avg, .exp_avg_sq   what the optimiser keeps of it: cut as the parameter is, and by ZeRO besides
    NAME.step                   a number

A tied parameter is there by its first name, on all ranks that have it. One rank counts each number.
"""

from collections.abc import Iterator, Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn

from course_lib.checkpoint import models
from course_lib.checkpoint.piece import Piece, Placement, State, TensorRange, whole
from course_lib.hybrid_parallel.model import HybridModel
from course_lib.hybrid_parallel.norms import gradients_here, is_counted_here
from course_lib.hybrid_parallel.optimizer import HybridOptimizer


def pieces(model: HybridModel, optimizer: HybridOptimizer | None = None) -> dict[str, list[Piece]]:
    """{name: this rank's pieces}: views of the memory that the model and the optimiser use, to be read or filled.

    Optimiser state is there from the first step on, or after `checkpoint.models.make_state(optimizer)`.
    """
    found: dict[str, list[Piece]] = {}
    for name, parameter in model.named_parts():
        plain, placement = model.tied.get(name, name), placement_of(model, name)
        cut = shard_range(model, name)
        found[plain] = make_pieces(placement, parameter.detach(), cut, is_counted_here(model, name, cut is not None))
        if optimizer is None:
            continue
        # ZeRO 1 and 2 cut only what the optimiser keeps, ZeRO-3 the parameter as well.
        cut, writes = optimizer.range_of(parameter) or cut, is_counted_here(model, name, model.shards_gradient(name))
        for key, value in state_of(optimizer, parameter):
            found[f"{plain}.{key}"] = make_pieces(placement, value, cut, writes) if value.dim() else whole(value)
    return found


@models.pieces.register(HybridModel)
def all_pieces(model: HybridModel, optimizer: HybridOptimizer | None = None) -> State:
    """What a checkpoint has: these, and buffers, which all ranks hold whole: the bias of a router, say."""
    buffers = {name: whole(buffer) for stage in models.unwrap(model)
               for name, buffer in getattr(stage, "module", stage).named_buffers()}
    return {**pieces(model, optimizer), **buffers}


def gradient_pieces(model: HybridModel) -> dict[str, list[Piece]]:
    """By name, the pieces of the gradient that this rank holds between forward_backward and the optimiser's step."""
    parameters, found = dict(model.named_parts()), {}
    for name, gradient in gradients_here(model).items():
        cut = shard_range(model, name)
        if model.optimizer is not None:
            cut = model.optimizer.range_of(parameters[name]) or cut
        writes = is_counted_here(model, name, model.shards_gradient(name))
        found[model.tied.get(name, name)] = make_pieces(placement_of(model, name), gradient, cut, writes)
    return found


@torch.no_grad()
def gather_whole(found: Mapping[str, Sequence[Piece]]) -> dict[str, Tensor]:
    """The whole tensors of which all ranks' pieces are boxes, on the host, on every rank. Collective; for small ones.
    """
    mine = [(name, piece.shape, piece.offsets, piece.tensor.cpu()) for name, some in found.items() for piece in some
            if piece.writes]
    # As objects: pieces have any number and shape, and ranks do not know those of others.
    everyones: list = [None] * dist.get_world_size()
    dist.all_gather_object(everyones, mine)
    wholes: dict[str, Tensor] = {}
    for name, shape, offsets, part in (one for of_rank in everyones for one in of_rank):
        whole = wholes.setdefault(name, torch.empty(shape, dtype=part.dtype, device="cpu"))
        whole[tuple(slice(a, a + size) for a, size in zip(offsets, part.shape))] = part
    return dict(sorted(wholes.items()))


def placement_of(model: HybridModel, name: str) -> Placement:
    """Where this rank's part of the parameter, before ZeRO cuts it, lies in the plain model's."""
    cuts = model.cuts.get(name, [])
    whole_along = {cut.dim: sum(cut.sections) for cut, _, _ in cuts}
    shape = tuple(whole_along.get(dim, size) for dim, size in enumerate(model.shapes[name]))
    placement = Placement.whole(shape)
    for cut, r, n in cuts:
        placement = cut_again(placement, Placement.cut(shape, cut.dim, r, n, cut.sections))
    return placement


def cut_again(placement: Placement, other: Placement) -> Placement:
    """What is left of a whole that is cut along one dimension as `placement` says, along another one as `other` does.
    """
    boxes = (TensorRange(tuple(map(sum, zip(a.start, b.start))), tuple(map(min, a.sizes, b.sizes)),
                 tuple(map(sum, zip(a.offsets, b.offsets)))) for a in placement.boxes for b in other.boxes)
    return Placement(placement.shape, tuple(boxes))


def make_pieces(placement: Placement, tensor: Tensor, cut: tuple[int, int] | None, writes: bool) -> list[Piece]:
    """cut: which numbers of the local tensor `tensor` begins with, if it is flat and not all of them."""
    if cut is None:
        return placement.pieces(tensor, writes)
    first, last = cut
    return placement.pieces_of_range(tensor.flatten()[:last - first], first, writes)


def shard_range(model: HybridModel, name: str) -> tuple[int, int] | None:
    """The numbers of the parameter that ZeRO-3 has left here, padding not counted; None where it has all."""
    if name not in model.sharded:
        return None
    shard, size = model.sharded[name], model.shapes[name].numel()
    # The last ranks may have padding only, which is no number of the parameter.
    first = min(model.layout.member(*model.kinds[name].averaged).r * shard.S, size)
    return first, min(first + shard.S, size)


def state_of(optimizer: HybridOptimizer, parameter: nn.Parameter) -> Iterator[tuple[str, Tensor]]:
    """(key, tensor) of what the optimiser keeps here for the parameter."""
    for part in optimizer.parts:
        for key, value in part.state.get(parameter, {}).items():
            if isinstance(value, Tensor):
                yield key, value
