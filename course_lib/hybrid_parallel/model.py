"""HybridModel: what a rank has of the model, and one pass forward and backward of all ranks together."""

from collections.abc import Callable, Iterator, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn

from course_lib.expert_parallel import MoELayer
from course_lib.hybrid_parallel import kinds
from course_lib.hybrid_parallel.experts import scale_gradients
from course_lib.hybrid_parallel.kinds import Kind
from course_lib.hybrid_parallel.layout import ParallelLayout
from course_lib.pipeline_parallel import PipelineParallel, Schedule
from course_lib.pipeline_parallel.partition import Stage
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
        self.reduce_gradients()
        if self.replicas.n > 1:
            loss = loss.to(self.replicas.wire(loss.device))
            dist.all_reduce(loss, group=self.replicas.group)
        return loss / self.replicas.n

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
