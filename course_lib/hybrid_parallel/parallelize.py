"""parallelize: a plain GPT becomes this rank's part of it, under any layout.

    B rows a step      T tokens in a row      m micro-batches      t, c, p ranks along tp, cp, pp

    experts   dealt out over ep, and each cut over etp                chapter 8
    matrices  cut over tp                                             chapter 5
    tokens    dealt out over cp, attention by a ring                  chapter 7
    layers    cut into stages over pp, run by a schedule              chapter 4
    what is left of one stage: sharded over dp and cp, experts over   chapter 6
              edp, if zero_stage is 3

In this order: each step finds modules that compute on what the later ones leave of rows, tokens and layers. What is
averaged where follows from the kinds of parameters (kinds.py), what optimisers shard from the layout (optimizer.py).
"""

from collections.abc import Callable, Sequence
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from course_lib import sequence_parallel as tokens_dealt_out
from course_lib import tensor_parallel
from course_lib.expert_parallel import MoELayer
from course_lib.groups.gradients import broadcast
from course_lib.groups.membership import Member
from course_lib.hybrid_parallel import state  # noqa: F401  tells checkpoints what a HybridModel holds
from course_lib.hybrid_parallel.experts import auxiliary_of, carry_auxiliary_loss, deal_out_experts, deal_out_tokens
from course_lib.hybrid_parallel.kinds import kinds_of
from course_lib.hybrid_parallel.layout import ParallelLayout
from course_lib.hybrid_parallel.model import HybridModel
from course_lib.pipeline_parallel import Schedule, find_schedule, partition
from course_lib.pipeline_parallel.partition import Stage, layer_costs
from course_lib.reference import GPT
from course_lib.runtime import device
from course_lib.tensor_parallel.surgery import GPT_PLAN, Apart, Tokenwise

SPLIT_BACKWARD = "IW"
PLAN = {**GPT_PLAN, "mlp.router": Tokenwise(), "mlp.shared": Tokenwise(),
        "mlp.experts": Apart()}


def parallelize(model: GPT, layout: ParallelLayout, *, num_microbatches: int = 1,
                schedule: str | Callable[[int, int], Schedule] = "1F1B", sequence_parallel: bool = False,
                autocast: torch.dtype | None = None) -> HybridModel:
    """This rank's part of `model`, a GPT or one with experts, cut in place. Collective; rank 0's parameters are used.

    schedule: a name in pipeline_parallel.SCHEDULES, or a function of (p, m) that returns a Schedule. sequence_parallel:
    between the matrices each rank of tp computes on its own T/t tokens. autocast: the dtype of matrix products,
    torch.bfloat16 say; parameters, and what is averaged, stay as they are.

    The optimiser is made afterwards: hybrid_parallel.HybridOptimizer. ValueError for what does not divide.
    """
    pipeline = generate_schedule(schedule, layout.pp, num_microbatches)
    require_fitting(model, layout, pipeline, sequence_parallel)
    for axes in (("tp",), ("cp",), ("dp",), ("pp",), ("ep",), ("etp",), ("edp",), ("dp", "cp")):
        layout.member(*axes)  # made now, in one order on all ranks
    # Before anything is cut: whatever ranks made of their seeds, each cuts its part from the same numbers.
    model.to(device())
    broadcast([*model.parameters(), *model.buffers()])
    # Costs of whole layers: once they are cut, a rank would count its own part only.
    costs, sequence_parallel = layer_costs(model), sequence_parallel and layout.tp > 1
    # A share of the loss, since gradients of all micro-batches are added up, and those of all ranks of tp.
    auxiliary = auxiliary_of(model, layout, 1 / num_microbatches / layout.tp)
    # MoEGPT adds auxiliary losses to the loss of the whole model, which no stage has: each stage carries its own.
    model.__class__ = GPT
    deal_out_experts(model, layout.member("ep"), layout.member("etp"))
    if layout.tp > 1:
        tensor_parallel.parallelize(model, layout.member("tp"), sequence_parallel, plan=PLAN)
        if not sequence_parallel:
            deal_out_tokens(model, layout.member("tp"))
    if layout.cp > 1:
        cp, T = layout.member("cp"), model.config.sequence_length
        around = partial(tokens_dealt_out.ring_attention, group=cp, layout="zigzag")
        tokens_dealt_out.context_parallel(model, around, tokens_dealt_out.local_positions(T, cp))
    all_stages = partition(model, pipeline.num_stages, costs)
    stages = [all_stages[number] for number in pipeline.stages[layout.member("pp").r]]
    kinds = {}
    for stage in stages:
        kinds |= kinds_of(stage, PLAN, layout.tp, sequence_parallel, names_elsewhere(stage, stages))
        carry_auxiliary_loss(stage, auxiliary)
    return HybridModel(stages, layout, pipeline, partial(mean_loss, tp=layout.member("tp")), kinds, autocast)


def mean_loss(logits: Tensor, targets: Tensor, tp: Member) -> Tensor:
    """logits (B, T, V/t), targets (B, T) -> the mean over all tokens, in 32 bits at least."""
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    if tp.n > 1:
        return tensor_parallel.vocab_parallel_cross_entropy(wide, targets, tp)
    return F.cross_entropy(wide.flatten(0, -2), targets.flatten())


def generate_schedule(schedule: str | Callable[[int, int], Schedule], p: int, m: int) -> Schedule:
    """The schedule for p ranks and m micro-batches. ValueError, with all names, for an unknown one."""
    return (find_schedule(schedule) if isinstance(schedule, str) else schedule)(p, m)


def names_elsewhere(stage: Stage, mine: Sequence[Stage]) -> dict[str, str]:
    """Parameters of `stage` that other stages have as well, without those that another stage of `mine` has."""
    # Both copies on this rank are one parameter, and autograd adds up its gradient.
    own = [common for other in mine for common in other.shared.values()]
    return {name: common for name, common in stage.shared.items() if own.count(common) == 1}


def require_fitting(model: GPT, layout: ParallelLayout, schedule: Schedule, sequence_parallel: bool) -> None:
    """ValueError, with what was expected, for a model that the layout cannot cut, or a mix that nobody has built."""
    if not isinstance(model, GPT):
        raise ValueError(f"model is a {type(model).__name__}: expected a reference.GPT, which every chapter can cut")
    T, tp, cp = model.config.sequence_length, layout.tp, layout.cp
    if cp > 1 and T % (2 * cp):
        raise ValueError(f"{T} tokens in a row over cp={cp}: expected a multiple of {2 * cp}, for a zigzag")
    if sequence_parallel and T // cp % tp:
        raise ValueError(f"{T // cp} tokens of a row on each rank, over tp={tp} with sequence_parallel: expected a "
                         f"multiple of {tp}")
    require_fitting_experts(model, layout)
    if layout.zero_stage == 3 and any(action.kind in SPLIT_BACKWARD for actions in schedule.actions
                                      for action in actions):
        raise ValueError(f"zero_stage=3 with the schedule {schedule.name!r}, which cuts backward in two: parameters "
                         "would be gathered for I and again for W. Expected a schedule with whole backward passes, "
                         "1F1B say, or a lower stage")


def require_fitting_experts(model: GPT, layout: ParallelLayout) -> None:
    """ValueError for experts, or tokens that go through them, that the layout does not divide."""
    layers, ep, etp = [module for module in model.modules() if isinstance(module, MoELayer)], layout.ep, layout.etp
    counts = {layer.num_experts for layer in layers}
    made = "moe_gpt(model, E, group=SINGLE, tokens_group=SINGLE)"
    if ep * etp > 1 and not layers or any(count % ep for count in counts):
        asked = f"ep={ep}, etp={etp}" if etp > 1 else f"ep={ep}"
        raise ValueError(f"{asked} for a model with {sorted(counts) or 'no'} experts: expected {made} with a number E "
                         "of experts that ep divides")
    if any(layer.member.n > 1 for layer in layers):
        raise ValueError(f"the model's experts are dealt out already: expected {made}, which parallelize deals out "
                         "over ep")
    for _, width, D in {layer.experts.w2.shape for layer in layers}:
        if width % etp or D % etp:
            raise ValueError(f"etp={etp} for experts of width {width} on tokens of {D} numbers: expected a number that "
                             "divides both")
    T = model.config.sequence_length // layout.cp
    if layers and T % layout.tp:
        raise ValueError(f"{T} tokens of a row on each rank, over tp={layout.tp} with experts: expected a multiple of "
                         f"{layout.tp}, since each rank of tp sends a part of them to the experts")
