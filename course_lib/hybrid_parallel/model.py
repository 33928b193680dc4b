"""HybridModel: what a rank has of the model, and one pass forward and backward of all ranks together.

Behind it what a checkpoint has of it, piece by piece:

    NAME                        a parameter, by its name in the plain model
    NAME.exp_avg, .exp_avg_sq   what the optimiser keeps of it: cut as the parameter is, and by ZeRO besides
    NAME.step                   a number

A tied parameter is there by its first name, on all ranks that have it.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from course_lib.checkpoint import piece
from course_lib.checkpoint.piece import LocalTensor, Piece, Placement, State, TensorRange, whole
from course_lib.collectives.differentiable import start_all_reduce
from course_lib.expert_parallel import MoELayer
from course_lib.hybrid_parallel import kinds
from course_lib.hybrid_parallel.kinds import Kind, scale_gradients
from course_lib.hybrid_parallel.layout import ParallelLayout
from course_lib.pipeline_parallel import PipelineParallel, Schedule
from course_lib.pipeline_parallel.stages import Stage
from course_lib.reference import Block
from course_lib.sequence_parallel import local_positions
from course_lib.tensor_parallel.cut import Cut
from course_lib.zero import FullyShardedDataParallel
from course_lib.zero.units import ShardedParameter, homes

Loss = Callable[[Tensor, Tensor], Tensor]


class HybridModel(nn.Module):
    """This rank's stages, cut and sharded. Made by parallelize.

        model = parallelize(GPT(config), layout, num_microbatches=4)
        optimizer = HybridOptimizer(model, torch.optim.AdamW, lr=1e-3)
        loss = model.forward_backward(*batches(step, model.dp.r, model.dp.n))
        norm = clip_grad_norm_(model, 1.0)
        optimizer.step()
        optimizer.zero_grad()

    `named_parts()` gives the parameters the names that they have in the plain model; `kinds` says by these names what
    kind each is, `cuts` which slices of the plain one it is.
    """

    def __init__(self, stages: Sequence[Stage], layout: ParallelLayout, schedule: Schedule, loss_fn: Loss,
                 kind_of: dict[str, Kind], autocast: torch.dtype | None = None) -> None:
        super().__init__()
        self.layout, self.schedule, self.kinds, self.optimizer = layout, schedule, kind_of, None
        self.dp, self.cp, self.pp, self.replicas = (layout.member(*axes) for axes in
                                                    (("dp",), ("cp",), ("pp",), ("dp", "cp")))
        # This rank may have a second copy of a parameter, under a name that the plain model does not have.
        self.tied = {name: common for stage in stages for name, common in stage.shared.items()}
        self.cuts = {name: cuts for stage in stages for name, cuts in cuts_of(stage).items()}
        # Before ZeRO cuts them: a checkpoint asks for the shape of this rank's whole part.
        self.shapes = {name: parameter.shape for stage in stages
                       for name, parameter in stage.named_parameters(remove_duplicate=False)}  # of this rank's part
        sharded = [shard_stage(stage, layout) for stage in stages] if layout.zero_stage == 3 else stages
        self.stages = nn.ModuleList(sharded)
        self.sharded = dict(pair for stage in sharded if layout.zero_stage == 3 for pair in named_shards(stage))
        # Under ZeRO-3 backward brings the gradient to the whole parameter; the shard gets an average, which no hook
        # sees.
        scale_gradients([self.sharded[name].whole if name in self.sharded else parameter
                         for name, parameter in self.named_parts() if kind_of[name].averaged == kinds.EXPERTS.averaged],
                        layout)
        if autocast is not None:
            loss_fn = in_autocast(loss_fn, autocast)
            for stage in self.stages:
                stage.forward = in_autocast(stage.forward, autocast)
        self.pipeline = PipelineParallel(list(self.stages), schedule, self.pp.group, loss_fn)

    def named_parts(self) -> Iterator[tuple[str, nn.Parameter]]:
        """(name in the plain model, this rank's part of it), each parameter once."""
        # Two stages of one rank may share a parameter.
        seen = set()
        for stage in self.stages:
            for name, parameter in stage.named_parameters():
                name = name.removeprefix("module.") if self.layout.zero_stage == 3 else name
                if parameter not in seen:
                    seen.add(parameter)
                    yield name, parameter

    def shards_gradient(self, name: str) -> bool:
        """Whether ZeRO cuts the gradient of this parameter over the ranks that average it."""
        return self.layout.zero_stage in (1, 2) or name in self.sharded

    def local_tokens(self, rows: Tensor) -> Tensor:
        """The columns of rows (B, T) that this rank of cp computes on, (B, T/c), in the order of a zigzag."""
        if self.cp.n == 1:
            return rows
        return rows[:, local_positions(rows.shape[1], self.cp).to(rows.device)]

    def forward_backward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """One step's forward and backward passes. Returns the mean loss of the whole batch, on every rank.

        inputs, targets (B/dp, T): this rank of dp's rows, all their tokens, the same on all ranks of tp, cp and pp.
        Gradients are those of the mean over the whole batch when it returns: in .grad, or under ZeRO 1 and 2 with the
        optimiser. Call the optimiser's zero_grad() before the next one.
        """
        if self.layout.zero_stage in (1, 2) and self.optimizer is None:
            raise ValueError(f"zero_stage={self.layout.zero_stage}, where the optimiser averages gradients: expected "
                             "a HybridOptimizer of this model before the first step")
        # Its mean is over this rank's rows and tokens only; all replicas have equally many, so their mean is the
        # batch's.
        loss = self.pipeline.step(self.local_tokens(inputs), self.local_tokens(targets))
        if self.replicas.n == 1:
            self.reduce_gradients()
            return loss
        adding_up = start_all_reduce(loss, self.replicas)  # one number, beside the gradients
        self.reduce_gradients()
        return adding_up() / self.replicas.n

    def reduce_gradients(self) -> None:
        """What forward_backward ends with: see kinds.reduce_gradients, and chapter 6 for what ZeRO does instead."""
        if self.layout.zero_stage == 0:
            kinds.reduce_gradients({p: self.kinds[name] for name, p in self.named_parts()}, self.layout.member)
        elif self.optimizer is not None:
            self.optimizer.average_gradients()


def cuts_of(stage: Stage) -> dict[str, list[tuple[Cut, int, int]]]:
    """By name of a parameter, each way in which it is cut: how, this rank's place, of how many."""
    found: dict[str, list[tuple[Cut, int, int]]] = {}
    for prefix, module in stage.named_modules(remove_duplicate=False):
        for name, cut in getattr(module, "cuts", {}).items():
            found.setdefault(f"{prefix}.{name}", []).append((cut, module.member.r, module.member.n))
        if isinstance(module, MoELayer):
            for name, _ in module.experts.named_parameters():
                cut = Cut(0, (module.num_experts,)), module.member.r, module.member.n
                found.setdefault(f"{prefix}.experts.{name}", []).append(cut)
    return found


def shard_stage(stage: Stage, layout: ParallelLayout) -> FullyShardedDataParallel:
    """ZeRO-3 of one stage of a pipeline, its parameters cut over the ranks of dp and cp: its blocks as units, and the
    rest as one, as chapter 6 does with a model. Experts, of which these ranks have different ones, are units of their
    own, cut over the ranks of edp.

    A parameter that another stage holds too stays whole: its gradient is complete after the last micro-batch only, when
    the stages add up theirs. The rest is then cut module by module.
    """
    shared = {stage.get_parameter(name) for name in stage.shared}
    blocks = [name for name, module in stage.named_modules() if isinstance(module, Block)]
    experts = {f"{name}.experts": layout.member("edp") for name, module in stage.named_modules()
               if isinstance(module, MoELayer)}
    # A unit for the whole stage would take the shared parameter along, so each module with parameters becomes a unit.
    apart = {home for parameter, where in homes(stage).items() if parameter not in shared for home, _ in where}

    def is_unit(name: str, module: nn.Module) -> bool:
        if name in blocks or name in experts:
            return True
        return not name if not shared else name in apart and not any(name.startswith(f"{block}.") for block in blocks)

    sharded = FullyShardedDataParallel(stage, layout.member("dp", "cp").group, is_unit, groups=experts)
    # The pipeline asks the wrapper, whose names begin with "module.".
    sharded.shared = {f"module.{name}": common for name, common in stage.shared.items()}
    return sharded


def named_shards(stage: FullyShardedDataParallel) -> Iterator[tuple[str, ShardedParameter]]:
    """Parameters that ZeRO-3 has cut, by their names in the plain model, and what they are parts of."""
    shards = stage.shards()
    for name, parameter in stage.module.named_parameters(remove_duplicate=False):
        if parameter in shards:
            yield name, shards[parameter]


def in_autocast(function: Callable, dtype: torch.dtype) -> Callable:
    """`function` with matrix products in `dtype`, on whatever device its first argument lies."""

    def cast(*arguments: Tensor) -> Tensor:
        with torch.autocast(arguments[0].device.type, dtype):
            return function(*arguments)

    return cast


# What a checkpoint has of it

def pieces(model: HybridModel, optimizer: Any = None) -> dict[str, list[Piece]]:
    """{name: this rank's pieces}: views of the memory that the model and the optimiser use, to be read or filled.

    optimizer: its HybridOptimizer, whose state is there from the first step on, or after checkpoint.loading.make_state.
    """
    found: dict[str, list[Piece]] = {}
    for name, parameter in model.named_parts():
        plain, held = model.tied.get(name, name), local_part(model, name, parameter)
        found[plain] = held.pieces(parameter)
        for part in () if optimizer is None else optimizer.parts:
            found |= piece.optimizer_pieces(plain, held, part.state.get(parameter, {}), part)
    return found


@piece.pieces.register(HybridModel)
def all_pieces(model: HybridModel, optimizer: Any = None) -> State:
    """What a checkpoint has: these, and buffers, which all ranks hold whole: the bias of a router, say."""
    buffers = {name: whole(buffer) for stage in piece.unwrap(model)
               for name, buffer in getattr(stage, "module", stage).named_buffers()}
    return {**pieces(model, optimizer), **buffers}


def gradient_pieces(model: HybridModel) -> dict[str, list[Piece]]:
    """By name, the pieces of the gradient that this rank holds between forward_backward and the optimiser's step."""
    parameters, found = dict(model.named_parts()), {}
    for name, gradient in gradients_here(model).items():
        held = local_part(model, name, parameters[name])
        # ZeRO 1 and 2 cut the gradient and not the parameter, ZeRO-3 both.
        first = None if model.optimizer is None else model.optimizer.first_of(parameters[name])
        found[model.tied.get(name, name)] = (held.pieces(gradient) if first is None else
                                             held.place.pieces_of_range(gradient, first))
    return found


@torch.no_grad()
def gather_whole(found: Mapping[str, Sequence[Piece]]) -> dict[str, Tensor]:
    """The whole tensors of which all ranks' pieces are boxes, on the host, on every rank. Collective; for small ones.
    """
    mine = [(name, piece.shape, piece.offsets, piece.tensor.cpu()) for name, some in found.items() for piece in some]
    # As objects: pieces have any number and shape, and ranks do not know those of others.
    everyones: list = [None] * dist.get_world_size()
    dist.all_gather_object(everyones, mine)
    wholes: dict[str, Tensor] = {}
    # Of ranks that hold the same numbers, or should, the lowest counts: it comes last.
    for name, shape, offsets, part in (one for of_rank in reversed(everyones) for one in of_rank):
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


def local_part(model: HybridModel, name: str, parameter: nn.Parameter) -> LocalTensor:
    """Where this rank's part of the parameter lies, also where ZeRO-3 has cut it."""
    place = placement_of(model, name)
    if name not in model.sharded:
        return LocalTensor(parameter, place)
    return LocalTensor.shard(parameter, place, model.sharded[name].S,
                             model.layout.member(*model.kinds[name].averaged).r)


def gradients_here(model: HybridModel) -> dict[str, Tensor]:
    """What this rank has of the gradient, by name: what its optimiser will step on."""
    if model.optimizer is not None:
        return model.optimizer.gradients()
    return {name: parameter.grad for name, parameter in model.named_parts() if parameter.grad is not None}
