"""The capstone: a GPT trained under any layout by one loop, with a hole for each function of the reader's.

    python -m course_lib.train --mine workspace/exercises --layout dp2,pp2,tp2

    all  9.2  9.4              groups, one norm             cp  7.3  7.7               tokens of a row, attention
    dp   9.3  3.3 3.2  2.3     gradients: where, messages   ep  8.1 8.2 8.3 8.4        experts.py
    pp   4.1  4.2 4.4 4.6 4.7  layers, and their order      ZeRO   2.1 2.2  6.3  7.5   memory.py: what a rank keeps
    tp   5.1 5.4 5.5  7.1      parts of matrices, the loss  checkpoints   9.5          memory.py, too

@hole("5.1") marks one: my_f_and_g(among=tp) calls the reader's function, whose world are the ranks of tp; where the
reader has none that is right, or the world is a single rank, it calls what stands there, which is the course's.
Backward begins at the *sum* of the losses of this rank's tokens, and 9.3 divides by the tokens of all ranks: nothing
else has to know how many ranks there are. Numbers have 64 bits, as in the exercises.

    m micro-batches of B rows of T tokens in a step      D hidden size      V vocabulary      t, c  ranks of tp, cp
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from course_lib.collectives import all_gather_along, copy_to_group, reduce_from_group, reduce_scatter_along
from course_lib.costs.sharding import cut_buckets
from course_lib.expert_parallel import SINGLE, moe_gpt
from course_lib.groups.gradients import pack, total_norm, unpack, unpack_into
from course_lib.groups.membership import Member, group_of_ranks, member
from course_lib.hybrid_parallel import LearningRate, ParallelLayout
from course_lib.hybrid_parallel.layout import AXES
from course_lib.hybrid_parallel.parallelize import require_trainable
from course_lib.mine import memory
from course_lib.mine.experts import MoE
from course_lib.mine.holes import AnswerFailed, hole
from course_lib.mine.memory import my_recomputed, my_ring_all_gather, my_ring_reduce_scatter
from course_lib.pipeline_parallel import PipelineParallel, Schedule, Stage, find_schedule, validate
from course_lib.pipeline_parallel.schedules import Action, gpipe, interleaved_1f1b, one_f_one_b, zb_h1
from course_lib.pipeline_parallel.stages import balanced_cuts, layer_costs, layers_of
from course_lib.reference import GPT, GPTConfig, batches
from course_lib.runtime import record_communication
from course_lib.sequence_parallel import local_positions
from course_lib.tensor_parallel import Cut, vocab_parallel_cross_entropy

BUCKET_BYTES = 1 << 17  # so that the small models of the course have several buckets
RATE = LearningRate(1e-3)
Door = Callable[[Tensor], Tensor]
same = nn.Identity()


# Who is where
my_two_levels = hole("9.2", lambda axes, sizes, order, _: (ParallelLayout(**sizes, order=order).groups(*axes), []))


class Mesh:
    """mesh("dp", "cp") is this rank's place among the ranks that differ from it along these axes only."""

    def __init__(self, layout: ParallelLayout) -> None:
        self.layout, self.members = layout, {}
        self.where = layout.coordinates(dist.get_rank()) | {"edp": self("edp").r}

    def __call__(self, *axes: str) -> Member:
        if axes not in self.members:
            self.members[axes] = member(group_of_ranks(self.ranks(axes)))  # they make it together, the first time
        return self.members[axes]

    def ranks(self, axes: tuple[str, ...]) -> list[int]:
        """The global ranks of that group. "ends": first and last stage, which both have the embedding."""
        rank, layout = dist.get_rank(), self.layout
        if "ends" in axes:
            of_pp = self.ranks(tuple("pp" if axis == "ends" else axis for axis in axes))
            return [each for each in of_pp if layout.coordinates(each)["pp"] in (0, layout.pp - 1)]
        if not set(axes) <= set(AXES):  # ep and edp cut the plane of dp, cp and tp in another way
            return layout.group_of(rank, *axes)
        sizes = {axis: layout.size(axis) for axis in AXES}
        groups, _ = my_two_levels(list(axes), sizes, ",".join(layout.axes), layout.world_size)  # one node has them all
        return sorted(next(ranks for ranks in groups if rank in ranks))


# tp: parts of matrices (Shoeybi et al. 2019), and of the tokens between them (Korthikanti et al. 2022)
my_f_and_g = hole("5.1", lambda among: (partial(copy_to_group, group=among), partial(reduce_from_group, group=among)))
my_gather_and_scatter = hole("7.1", lambda among: (partial(all_gather_along, dim=1, group=among),
                                                   partial(reduce_scatter_along, dim=1, group=among)))
my_qkv_rows = hole("5.4", lambda weight, H, K, among: Cut(0, tuple(len(weight) // (H + 2 * K) * heads for heads in
                                                                   (H, K, K))).take(weight, among))


@hole("5.5")
def my_vocab_loss(logits: Tensor, targets: Tensor, c: float, among: Member) -> tuple[Tensor, Tensor]:
    """logits (B, T, V/t), targets (B, T) -> the loss, and its gradient (B, T, V/t). For c = 0, without z-loss."""
    with torch.enable_grad():
        logits = logits.detach().requires_grad_()
        loss = vocab_parallel_cross_entropy(logits, targets, among)
    return loss.detach(), *torch.autograd.grad(loss, logits)


def part(whole: nn.Parameter, tp: Member, dim: int = 0, sections: int = 1, mine: Tensor | None = None) -> nn.Parameter:
    """This rank's slice of `whole` along `dim`. `mine`: the slices of all sections, q | k | v say."""
    length, here = whole.shape[dim] // sections, whole.shape[dim] // sections // tp.n
    value = whole.chunk(tp.n, dim)[tp.r] if mine is None else mine.view(-1, *whole.shape[1:])
    parameter = nn.Parameter(value.detach().clone())
    parameter.kind, parameter.cut = "split", (dim, [start * length + tp.r * here for start in range(sections)], here)
    return parameter


class SplitLinear(nn.Module):
    """Some of the outputs, x (B, T, D) -> (B, T, F/t), behind `before`; or some of the inputs, with `behind` after."""

    def __init__(self, weight: Tensor, bias: Tensor | None, before: Door = same, behind: Door = same) -> None:
        super().__init__()
        self.weight, self.bias, self.before, self.behind = weight, bias, before, behind

    def forward(self, x: Tensor) -> Tensor:
        y = self.behind(F.linear(self.before(x), self.weight))
        return y if self.bias is None else y + self.bias  # once, behind the sum


class Embedding(nn.Module):
    """Tokens (B, T) -> (B, T, D), or (B, T/t, D): those of this rank's rows (V/t, D), and zeros for all others."""

    def __init__(self, whole: nn.Module, leave: Door, tp: Member, positions: Tensor) -> None:
        super().__init__()
        self.token, self.position, self.leave, self.tp = whole.token, whole.position, leave, tp
        self.token.weight, self.positions = part(whole.token.weight, tp), positions

    def forward(self, tokens: Tensor) -> Tensor:
        rows = tokens - self.tp.r * len(self.token.weight)
        elsewhere = (rows < 0) | (rows >= len(self.token.weight))
        x = F.embedding(rows.masked_fill(elsewhere, 0), self.token.weight).masked_fill(elsewhere.unsqueeze(-1), 0)
        return self.leave(x) + F.embedding(self.positions, self.position.weight)


class SplitLoss(torch.autograd.Function):
    """The mean loss of logits (B, T, V/t), whose gradient comes with it."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, tp: Member) -> Tensor:
        loss, gradient = my_vocab_loss(logits, targets, 0.0, among=tp)
        ctx.save_for_backward(gradient)
        return loss

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None, None]:
        return dy * ctx.saved_tensors[0], None, None


def split_matrices(model: GPT, tp: Member, positions: Tensor, sequence_parallel: bool) -> None:
    """Each rank of tp gets its heads, its features, its rows of the vocabulary."""
    enter, leave = my_gather_and_scatter(among=tp) if sequence_parallel else my_f_and_g(among=tp)
    for block in model.blocks:
        attention, mlp, qkv, H = block.attention, block.mlp, block.attention.qkv, model.config.num_heads
        weight = part(qkv.weight, tp, sections=3, mine=my_qkv_rows(qkv.weight, H, H, among=tp))
        bias = part(qkv.bias, tp, sections=3, mine=my_qkv_rows(qkv.bias.unsqueeze(1), H, H, among=tp))
        attention.qkv = SplitLinear(weight, bias, enter)
        attention.output = SplitLinear(part(attention.output.weight, tp, 1), attention.output.bias, behind=leave)
        if not isinstance(mlp, MoE):
            mlp.input = SplitLinear(part(mlp.input.weight, tp), part(mlp.input.bias, tp), enter)
            mlp.output = SplitLinear(part(mlp.output.weight, tp, 1), mlp.output.bias, behind=leave)
    own = positions.chunk(tp.n)[tp.r] if sequence_parallel else positions
    model.embedding = Embedding(model.embedding, leave, tp, own)
    model.head = SplitLinear(model.embedding.token.weight, None, enter)  # one matrix, as in the whole model


# cp: some of the tokens of each row
my_document_positions = hole("7.3", lambda lengths, among: (  # in a zigzag
    local_positions(sum(lengths), among) if among.n > 1 else torch.arange(sum(lengths))), compares=False)


@hole("7.7")
def my_whole_ring(q: Tensor, k: Tensor, v: Tensor, positions: Sequence[Tensor], among: Member) -> Tensor:
    """Attention of q (B, H, T/c, d) to the tokens of all ranks, each of which gathers all keys and values."""
    k, v = (all_gather_along(each, dim=2, group=among) for each in (k, v))  # (B, H, T, d)
    is_seen = torch.cat(positions) <= positions[among.r].unsqueeze(1)  # (T/c, T)
    return F.scaled_dot_product_attention(q, k, v, is_seen)


# pp: which layers, and in which order
my_partition = hole("4.1", lambda costs, p: [end - start for start, end in zip(
    balanced_cuts(costs, p), [*balanced_cuts(costs, p)[1:], len(costs)])])
my_rounds = hole("4.2", lambda r, p, m, num_in_flight: [*map(str, gpipe(p, m).actions[r])])  # in a single round
my_one_f_one_b = hole("4.4", lambda r, p, m: [*map(str, one_f_one_b(p, m).actions[r])])
my_schedule = hole("4.6", lambda r, p, m: [*map(str, zb_h1(p, m).actions[r])])
my_interleaved = hole("4.7", lambda r, p, m, num_chunks: [*map(str, interleaved_1f1b(p, m, num_chunks).actions[r])])
SCHEDULES = {  # an exercise, and what a rank does
    "1F1B": ("4.4", my_one_f_one_b), "GPipe": ("4.2", lambda r, p, m: my_rounds(r, p, m, m)),
    "ZB-H1": ("4.6", my_schedule), "interleaved 1F1B": ("4.7", lambda r, p, m: my_interleaved(r, p, m, 2)),
}


def make_schedule(name: str, p: int, m: int) -> Schedule:
    """The orders of all ranks. AnswerFailed for orders of the reader's that would wait for ever."""
    def read(word: str) -> Action:  # "F0", "B3" or "F0.1"
        microbatch, _, chunk = word[1:].partition(".")
        return Action(word[0], int(microbatch), int(chunk or 0))

    (number, order), chunks = SCHEDULES[name], 2 if name == "interleaved 1F1B" else 1
    actions = tuple(tuple(map(read, order(r, p, m))) for r in range(p))
    schedule = Schedule(name, m, tuple(tuple(range(r, chunks * p, p)) for r in range(p)), actions)
    try:
        validate(schedule)
    except ValueError as error:
        raise AnswerFailed.of(number, f": {error}") from error
    return schedule


# Gradients: over which ranks each kind is added up, in which messages, and their norm
SUMS = {
    "split": ("dp", "cp"),  # a slice along tp
    "replicated": ("dp", "cp"),  # all of it; the ranks of tp have computed the same with it
    "partial": ("dp", "cp", "tp"),  # all of it; each rank of tp has seen other tokens
    "tied": ("dp", "cp", "pp"),  # a slice, on the first and the last stage: embedding and head
    "expert": ("edp",),  # experts, which have seen tokens of all ranks of ep
}
COPIES = {**SUMS, "replicated": ("dp", "cp", "tp")}  # along these axes ranks end with the same numbers
SHARDED = {"dp", "cp", "edp"}  # under ZeRO they have added up already, and each has other numbers


@hole("2.3", compares=False)  # it changes what it is given, as the next two do
def my_ring_all_reduce(tensor: Tensor, among: Member) -> None:
    """`tensor` (N,) becomes the sum over the ranks, in place: by the two halves of a ring."""
    filled = F.pad(tensor, (0, -len(tensor) % (2 * among.n)))
    tensor.copy_(my_ring_all_gather(my_ring_reduce_scatter(filled, among=among), among=among)[:len(tensor)])


my_buckets = hole("3.2", lambda sizes_bytes, cap_bytes: [[len(sizes_bytes) - 1 - index for index in bucket]
                                                         for bucket in cut_buckets(sizes_bytes[::-1], cap_bytes)])


@hole("3.3", compares=False, all_reduce=my_ring_all_reduce)  # where yours calls dist.all_reduce, it is your 2.3
def my_bucketed_average(model: nn.Module, cap_bytes: int, among: Member) -> None:
    """Each .grad becomes the mean over the ranks, in messages of several."""
    gradients = [parameter.grad for parameter in model.parameters()]
    for indices in my_buckets([each.nbytes for each in gradients], cap_bytes):
        flat, _ = pack([gradients[index] for index in indices])
        my_ring_all_reduce(flat, among=among)
        unpack_into([gradients[index] for index in indices], flat / among.n)


@hole("9.3", compares=False)
def my_reduced_gradients(gradients: dict[str, Tensor], kinds: dict[str, str], num_tokens: Tensor,
                         all_reduce: Callable) -> None:
    """Each gradient becomes that of the mean over all tokens, in place."""
    all_reduce(num_tokens, "dp", "cp")
    for name, gradient in gradients.items():
        all_reduce(gradient, *SUMS[kinds[name]])
        gradient /= num_tokens


@hole("9.4")
def my_global_norm(gradients: dict[str, Tensor], kinds: dict[str, str], where: dict[str, int], norm_type: float,
                   zero: bool) -> float:
    """The norm of the whole gradient: numbers that several ranks have are counted by the first."""
    own = [each for name, each in gradients.items() if is_first_copy(kinds[name], where, zero)]
    return float(total_norm([torch.zeros(1).double(), *own], [], norm_type, member(), torch.device("cpu")))


def is_first_copy(kind: str, where: Mapping[str, int], zero: bool) -> bool:
    """Whether no rank before this one has the same numbers."""
    return not any(where[axis] for axis in set(COPIES[kind]) - (SHARDED if zero else set()))


@torch.no_grad()
def reduce_gradients(gradients: dict[str, Tensor], kinds: dict[str, str], num_tokens: int, mesh: Mesh) -> None:
    """9.3 says over which ranks, 3.3 sends. A flat tensor for each kind, in place."""
    zero = mesh.layout.zero_stage > 0
    names = {kind: some for kind in SUMS if (some := [name for name in gradients if kinds[name] == kind])}
    flats = {kind: pack([gradients[name] for name in some])[0] for kind, some in names.items()}
    parts = {id(flat): unpack(flat, [gradients[name].shape for name in names[kind]]) for kind, flat in flats.items()}

    def all_reduce(tensor: Tensor, *axes: str) -> None:
        left = [axis if axis != "pp" else "ends" for axis in axes if not (zero and axis in SHARDED)]
        if left:
            me, model = mesh(*left), nn.ParameterList(parts.get(id(tensor), [tensor]))
            for parameter in model:
                parameter.grad = parameter.data
            my_bucketed_average(model, BUCKET_BYTES, among=me)
            for parameter in model:
                parameter.data.copy_(parameter.grad * me.n)  # the sum

    seen = num_tokens * (mesh("dp", "cp").n if zero else 1)  # by what the gradients are of
    my_reduced_gradients(flats, {kind: kind for kind in flats}, torch.tensor(seen).double(), all_reduce)
    for kind, flat in flats.items():
        unpack_into([gradients[name] for name in names[kind]], flat)


# Training
def make_model(config: GPTConfig, experts: dict[str, Any] | None, seed: int) -> GPT:
    """The whole model, the same on every rank. experts: num_experts, k, balance, scoring, as moe_gpt has them."""
    torch.manual_seed(seed)
    model = GPT(config)
    return (moe_gpt(model, **experts, group=SINGLE, tokens_group=SINGLE) if experts else model).double()


def make_stages(model: GPT, schedule: Schedule, mesh: Mesh, positions: Sequence[Tensor], sequence_parallel: bool
                ) -> list[Stage]:
    """This rank's layers, and of them its parts of matrices and its experts."""
    layout, tp, cp, sequence_parallel = mesh.layout, mesh("tp"), mesh("cp"), sequence_parallel and mesh("tp").n > 1
    counts = my_partition(layer_costs(model), schedule.num_stages)  # before anything is cut
    for block in model.blocks:
        if hasattr(block.mlp, "experts"):
            block.mlp = MoE(block.mlp, mesh, model.balance, cuts_tokens=tp.n > 1 and not sequence_parallel)
        block.attention.attend = lambda q, k, v, _: my_whole_ring(q, k, v, positions, among=cp)
    split_matrices(model, tp, positions[cp.r], sequence_parallel)
    for parameter in model.parameters():
        parameter.kind = getattr(parameter, "kind", "partial" if sequence_parallel else "replicated")
    model.embedding.token.weight.kind = "tied" if layout.pp > 1 else "split"
    backward_is_whole = all(action.kind in "FB" for order in schedule.actions for action in order)
    for block in model.blocks if backward_is_whole and layout.zero_stage < 3 else ():
        block.attention.forward = partial(my_recomputed, block.attention.forward)
    ends, layers = [*accumulate(counts)], layers_of(model)
    return [Stage(layers[ends[at] - counts[at]:ends[at]], {}) for at in schedule.stages[mesh("pp").r]]


def require_fitting(config: GPTConfig, layout: ParallelLayout, schedule: str, experts: dict[str, Any] | None,
                    has_files: bool, **sizes: Any) -> None:
    """ValueError for what this loop does not know, and for what nothing in the course could train."""
    if schedule not in SCHEDULES:
        raise ValueError(f"schedule={schedule!r} is of no exercise: expected one of {', '.join(SCHEDULES)}")
    if layout.etp > 1 or config.dropout or has_files and layout.zero_stage:
        raise ValueError(f"{layout}, dropout={config.dropout}: expected etp1, no dropout, and no zero with checkpoints")
    with torch.device("meta"):
        model = make_model(config, experts, 0)
    require_trainable(model, layout, schedule=schedule, **sizes)


def train(config: GPTConfig, layout: ParallelLayout, steps: int, *, batch_size: int = 16, num_microbatches: int = 1,
          schedule: str = "1F1B", sequence_parallel: bool = False, experts: dict[str, Any] | None = None,
          learning_rate: Callable[[int], float] = RATE, max_norm: float = 1.0, tokens: Tensor | None = None,
          seed: int = 0, resume: Path | None = None, save: Path | None = None, verbose: bool = False) -> list[float]:
    """On each of the layout's ranks: the loss of each step up to `steps`, the same on all.

    batch_size: rows of all ranks together. learning_rate: of a step's number. resume, save: folders of checkpoints.
    """
    schedule = find_schedule(schedule).name
    require_fitting(config, layout, schedule, experts, bool(resume or save), batch_size=batch_size,
                    num_microbatches=num_microbatches, sequence_parallel=sequence_parallel)
    mesh = Mesh(layout)
    dp, cp, tp, pp = mesh("dp"), mesh("cp"), mesh("tp"), mesh("pp")
    positions = all_gather_along(my_document_positions([config.sequence_length], among=cp), 0, cp).chunk(cp.n)
    plan = make_schedule(schedule, pp.n, num_microbatches)
    stages = make_stages(make_model(config, experts, seed), plan, mesh, positions, sequence_parallel)
    shards = memory.Shards(stages, mesh, layout.zero_stage)
    kinds = {name: parameter.kind for name, parameter in shards.named.items()}
    adamw = torch.optim.AdamW(shards.owned.values(), betas=(0.9, 0.95), weight_decay=0.01)
    # What a run that goes on must not change: its rows, and how long its steps are.
    about = f"{config}, experts={experts}, batch_size={batch_size}, seed={seed}, {learning_rate}, max_norm={max_norm}"
    first = memory.load(resume, about, shards.named, adamw) if resume else 0
    if first >= steps:
        raise ValueError(f"the run has taken {first} steps already: expected more than these, in all, and not {steps}")
    pipeline = PipelineParallel(stages, plan, pp.group, lambda logits, targets:
                                SplitLoss.apply(logits, targets, tp) * targets.numel() * num_microbatches)
    losses = []
    for step in range(first, steps):
        # Ranks of a copy read the same rows, each rank of cp its tokens of them: a function of the step's number alone.
        inputs, targets = (rows[:, positions[cp.r]] for rows in batches(
            step, dp.r, dp.n, batch_size=batch_size, sequence_length=config.sequence_length, tokens=tokens, seed=seed))
        with record_communication() if step == steps - 1 else nullcontext():
            loss = pipeline.step(inputs, targets)  # the sum over this rank's tokens
            gradients = shards.take_gradients()
            reduce_gradients(gradients, kinds, targets.numel(), mesh)
            norm = my_global_norm(gradients, kinds, mesh.where, 2.0, layout.zero_stage > 0)
            for name, owned in shards.owned.items():
                owned.grad = gradients[name] * min(1.0, max_norm / (norm + 1e-6))
            adamw.param_groups[0]["lr"] = learning_rate(step)
            adamw.step()
            adamw.zero_grad()
            shards.publish()
            dist.all_reduce(loss, group=mesh("dp", "cp").group)
        losses.append(loss.item() / batch_size / config.sequence_length)
        if verbose and dist.get_rank() == 0:
            print(f"step {step:4}   loss {losses[-1]:.4f}   gradient norm {norm:.3f}", flush=True)
    if save:
        memory.save(save, steps, about, shards.named, adamw, lambda kind: is_first_copy(kind, mesh.where, zero=False))
    return losses
