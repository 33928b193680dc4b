"""parallelize: a plain GPT becomes this rank's part of it, under any layout.

    B rows a step      T tokens in a row      D hidden size      F width of an expert      m micro-batches
    t, c, p ranks along tp, cp, pp      n ranks of etp, r this one      E_r experts of each      M_r rows come to it

    experts   dealt out over ep, and each cut over etp                chapter 8
    matrices  cut over tp                                             chapter 5
    tokens    dealt out over cp, attention by a ring                  chapter 7
    layers    cut into stages over pp, run by a schedule              chapter 4
    what is left of one stage: sharded over dp and cp, experts over   chapter 6
              edp, if zero_stage is 3

In this order: each step finds modules that compute on what the later ones leave of rows, tokens and layers. What is
averaged where follows from the kinds of parameters (kinds.py), what optimisers shard from the layout (optimizer.py).

Each token goes through its experts once. Under sequence parallelism a rank of tp has T/t tokens of its own there; else
all of them have the same T, so each takes its T/t, and they gather what comes back. Router and shared experts then see
a part of the tokens, and their gradients are summed over tp. An auxiliary loss belongs to the stage whose experts it
balances, and no later stage knows of it: its gradient enters where backward enters the stage.

One expert's width over several ranks is chapter 5 inside of chapter 8: its rows are gathered, cut, and added up.
Source: Liu et al. 2025, "MoE Parallel Folding", whose dispatcher gathers and reduce-scatters behind the all-to-all.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from course_lib import sequence_parallel as tokens_dealt_out
from course_lib import tensor_parallel
from course_lib.collectives import gather_from_group, scatter_to_group
from course_lib.collectives.differentiable import Pair
from course_lib.expert_parallel import Experts, MoELayer, auxiliary_loss
from course_lib.expert_parallel.dispatch import all_to_all_rows, by_expert, by_rank
from course_lib.expert_parallel.model import MoEGPT
from course_lib.groups.gradients import broadcast
from course_lib.groups.membership import Member
from course_lib.hybrid_parallel.kinds import kinds_of
from course_lib.hybrid_parallel.layout import ParallelLayout
from course_lib.hybrid_parallel.model import HybridModel
from course_lib.pipeline_parallel import Schedule, find_schedule, partition
from course_lib.pipeline_parallel.stages import Stage, layer_costs, layers_of
from course_lib.reference import GPT
from course_lib.runtime import device
from course_lib.tensor_parallel import surgery
from course_lib.tensor_parallel.cut import cut_evenly
from course_lib.tensor_parallel.full_state import share_parameters
from course_lib.tensor_parallel.parallelize import styles_of
from course_lib.tensor_parallel.surgery import GPT_PLAN, Apart, Column, Row, Tokenwise, Vocabulary, draw_alone

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


# What a layout refuses

def require_trainable(model: GPT, layout: ParallelLayout, *, batch_size: int, num_microbatches: int = 1,
                      schedule: str = "1F1B", sequence_parallel: bool = False) -> None:
    """ValueError for what HybridTrainer would refuse on the ranks of `layout`, said by one process before they are
    there. `model`, which need have no memory (torch.device("meta")), is left as it is.
    """
    require_dividing(batch_size, layout.dp, num_microbatches)
    pipeline = generate_schedule(schedule, layout.pp, num_microbatches)
    layers = [name for name, _ in layers_of(model)]
    if pipeline.num_stages > len(layers):
        each = pipeline.num_stages // layout.pp
        raise ValueError(f"pp={layout.pp}" + (f" with {each} stages for each rank" if each > 1 else "") + f" needs "
                         f"{pipeline.num_stages} stages, and a model of {model.config.num_layers} layers has at most "
                         f"{len(layers)}: a stage for each layer, the embedding, the last norm and the head")
    require_fitting(model, layout, pipeline, sequence_parallel)
    # A place without a process group: what is checked is sizes, and nothing is sent.
    me = Member(None, layout.tp, 0)
    for name, style in styles_of(model, PLAN).items() if layout.tp > 1 else ():
        if isinstance(style, (Column, Row, Vocabulary)):
            around = model.get_submodule(name.rpartition(".")[0])
            surgery.cut_layer(model.get_submodule(name), style, around, False, me, sequence_parallel=sequence_parallel)


def require_dividing(batch_size: int, dp: int, num_microbatches: int) -> None:
    """ValueError unless dp replicas with so many micro-batches each divide the batch evenly."""
    if batch_size < 1 or num_microbatches < 1 or batch_size % (dp * num_microbatches):
        raise ValueError(f"batch_size={batch_size} with dp={dp} and num_microbatches={num_microbatches}: expected a "
                         f"multiple of {dp * num_microbatches}, so that all micro-batches have as many rows")


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


# Experts

def deal_out_experts(model: GPT, ep: Member, etp: Member) -> None:
    """Each MoELayer of `model`, which has all experts, becomes this rank's part of it."""
    for block in model.blocks:
        if isinstance(block.mlp, MoELayer):
            # Whole experts are dealt out first, then each one that is here is cut: the two cuts are of different
            # dimensions.
            if ep.n > 1:
                block.mlp = MoELayer.from_unsplit(block.mlp, ep)
            if etp.n > 1:
                block.mlp.experts = SplitExperts(block.mlp.experts, etp)


def deal_out_tokens(model: GPT, tp: Member) -> None:
    """Each MoELayer of `model`, which gets (B, T, D) that all ranks of tp have, computes on T/t tokens of its own."""
    for layer in (block.mlp for block in model.blocks if isinstance(block.mlp, MoELayer)):
        surgery.change_input(layer, partial(scatter_to_group, dim=-2, group=tp))
        surgery.change_output(layer, partial(gather_from_group, dim=-2, group=tp))
        draw_alone(layer, tp)  # other tokens, other masks
        for module in filter(None, (layer.router, layer.shared)):
            # Each rank of tp now sees other tokens, so its gradients of what all hold whole are summands.
            share_parameters(module, tp)


def auxiliary_of(model: GPT, layout: ParallelLayout, share: float) -> Callable[[nn.Module], Tensor] | None:
    """A function that gives the auxiliary loss of a stage's last forward pass; None where `model` has none.

    Experts' choices are counted over the ranks with different tokens: dp, cp and tp. share: of the loss, where ranks'
    gradients are added up, and of the batch, where micro-batches' are.
    """
    if not isinstance(model, MoEGPT) or not (model.balance or model.z):
        return None
    balance, z, tokens_group = model.balance * share, model.z * share, layout.member("dp", "cp", "tp")
    return lambda stage: auxiliary_loss(stage, balance, z, tokens_group)


def carry_auxiliary_loss(stage: nn.Module, auxiliary: Callable[[nn.Module], Tensor] | None) -> None:
    """From now on, in training, backward through what `stage` returns also goes through its auxiliary loss."""
    if auxiliary is None or not any(isinstance(module, MoELayer) for module in stage.modules()):
        return

    def carry(stage: nn.Module, _: Any, y: Tensor) -> Tensor | None:
        # Without a backward pass there is nothing that would carry it.
        return WithAuxiliaryLoss.apply(y, auxiliary(stage)) if stage.training and torch.is_grad_enabled() else None

    stage.register_forward_hook(carry)


class WithAuxiliaryLoss(torch.autograd.Function):
    """y, as if `loss` were added to whatever is computed from it."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, loss: Tensor) -> Tensor:
        """y (..., D) itself. `loss`, a scalar, gets a gradient of 1 when y gets its own."""
        # Only what it looks like: with its graph the loss would keep the activations of the routers.
        ctx.like = loss.detach()
        return y.view_as(y)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, Tensor]:
        """dy unchanged, and 1 for the loss: it is added to the model's without passing through the layers behind."""
        return dy, torch.ones_like(ctx.like)


# One expert's width over several ranks

class SplitExperts(Experts):
    """This rank's part of each expert of `whole`. Forward: (M_r, D), counts -> (M_r, D). Collective.

        gather    the rows of all ranks to each of them: (n-1) M_r D numbers leave this one
        experts   F/n columns of w1 (of gate and of up), F/n rows of w2: a summand of each row's result
        home      the summands of the own M_r rows, added up: (rows - M_r) D numbers leave this one

    b2 is cut over D, and each rank adds its part: so every number of an expert has one home.
    """

    def __init__(self, whole: Experts, etp: Member) -> None:
        # Not that of Experts, which would draw numbers for whole experts.
        nn.Module.__init__(self)
        self.activation, self.first, self.member = whole.activation, whole.first, etp
        _, width, D = whole.w2.shape
        sections = [width] * (2 if whole.activation == "swiglu" else 1)
        self.cuts = {"w1": cut_evenly(sum(sections), 2, etp, "columns of an expert", sections),
                     "b1": cut_evenly(sum(sections), 1, etp, "columns of an expert", sections),
                     "w2": cut_evenly(width, 1, etp, "columns of an expert"),
                     "b2": cut_evenly(D, 1, etp, "numbers of a token")}
        for name, cut in self.cuts.items():
            value = getattr(whole, name)  # biases may be None
            self.register_parameter(name, value if value is None else nn.Parameter(cut.take(value.detach(), etp),
                                                                                   value.requires_grad))
        self.train(whole.training)

    def forward(self, rows: Tensor, counts: list[int]) -> Tensor:
        """rows (M_r, D), by expert, counts of them -> (M_r, D)."""
        me = self.member
        # Counts go first: no rank knows how many rows the others have.
        everyones = all_rows(torch.tensor([counts], device="cpu"), [1] * me.n, me).tolist()  # [rank][expert]
        there = [sum(of_rank) for of_rank in everyones]
        rows = Pair.apply(rows, partial(all_rows, there=there, me=me), partial(sums_home, there=there, me=me))
        b2 = self.b2
        # With zeros around it: in the sum over the ranks each number of b2 counts once.
        if b2 is not None:
            before, after = me.r * b2.shape[1], (me.n - 1 - me.r) * b2.shape[1]
            b2 = F.pad(b2, (before, after))  # (E_r, D)
        rows = self.compute(by_expert(rows, everyones), [sum(of_expert) for of_expert in zip(*everyones)], b2)
        rows = by_rank(rows, everyones)
        return Pair.apply(rows, partial(sums_home, there=there, me=me), partial(all_rows, there=there, me=me))


def all_rows(rows: Tensor, there: list[int], me: Member) -> Tensor:
    """The rows of all ranks, in rank order: there[j] of rank j."""
    return all_to_all_rows(rows.repeat(me.n, 1), [len(rows)] * me.n, there, me)


def sums_home(rows: Tensor, there: list[int], me: Member) -> Tensor:
    """All ranks' `rows`, each a summand, as sums of this rank's own there[r] rows."""
    summands = all_to_all_rows(rows, there, [there[me.r]] * me.n, me)
    return summands.view(me.n, there[me.r], *rows.shape[1:]).sum(0)
