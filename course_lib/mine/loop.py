"""The capstone: a GPT trained under dp, pp, cp, tp and ZeRO by one loop, with a hole for each function of the reader's.

    python -m course_lib.train --mine workspace/exercises --layout dp2,pp2,tp2

    who is where    9.2                      gradients    3.2 what travels together, 9.3 over which ranks, 9.4 the norm
    the order       4.4 4.6                  messages     2.1 2.2 2.3, a ring
    a rank's part   4.1  5.1 5.4 5.5         ZeRO         6.3 before the step, 2.2 behind it
    (model.py)      7.3 7.7

@hole("9.3") marks one: my_reduced_gradients(...) calls the reader's function; where the reader has none that is right,
it calls what stands there, which is the course's. `among` is the group that a function works for. Backward begins at
the *sum* of the losses of this rank's tokens, and 9.3 divides by the tokens of all ranks: nothing else has to know how
many ranks there are. Numbers have 64 bits, as in the exercises.

    p  ranks of pp, r this one      m micro-batches of B rows of T tokens in a step
    n  ranks of dp and cp together, which share a parameter of N numbers under ZeRO: S = N/n, rounded up
"""

from collections import defaultdict
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from math import prod

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from course_lib.collectives import all_gather_along, ring_all_gather, ring_reduce_scatter
from course_lib.costs.sharding import cut_buckets
from course_lib.groups.gradients import pack, total_norm, unpack_into
from course_lib.groups.membership import Member, group_of_ranks, member
from course_lib.hybrid_parallel import ParallelLayout
from course_lib.hybrid_parallel.layout import AXES
from course_lib.mine.holes import hole
from course_lib.mine.model import SplitLoss, make_model, make_stage, my_document_positions
from course_lib.pipeline_parallel import SCHEDULES, PipelineParallel, Schedule, Stage
from course_lib.pipeline_parallel.schedules import Action, one_stage_each
from course_lib.reference import GPTConfig, batches
from course_lib.runtime import record_communication

BUCKET_BYTES = 1 << 17  # so that the small models of the course have several buckets
MAX_NORM = 1.0


# Who is where

@hole("9.2")
def my_two_levels(axes: list[str], sizes: dict[str, int], order: str, ranks_per_node: int) -> tuple[list, list]:
    """The groups of ranks that differ along `axes` only. For a single node, which has all of them."""
    return ParallelLayout(**sizes, order=order).groups(*axes), []


class Mesh:
    """mesh("dp", "cp") is this rank's place among the ranks that differ from it along these axes only."""

    def __init__(self, layout: ParallelLayout) -> None:
        self.layout, self.members = layout, {}
        self.where = {**layout.coordinates(dist.get_rank()), "edp": 0}  # there are no experts

    def __call__(self, *axes: str) -> Member:
        if axes not in self.members:
            self.members[axes] = member(group_of_ranks(self.ranks(axes)))  # they make it together, the first time
        return self.members[axes]

    def ranks(self, axes: tuple[str, ...]) -> list[int]:
        """The global ranks of that group. "ends": first and last stage, which both have the embedding."""
        if "ends" in axes:
            of_pp = self.ranks(tuple("pp" if axis == "ends" else axis for axis in axes))
            return [each for each in of_pp if self.layout.coordinates(each)["pp"] in (0, self.layout.pp - 1)]
        sizes, world = {axis: self.layout.size(axis) for axis in AXES}, self.layout.world_size
        groups, _ = my_two_levels(list(axes), sizes, ",".join(self.layout.axes), world)
        return sorted(next(ranks for ranks in groups if dist.get_rank() in ranks))


# In which order stages work

@hole("4.4")
def my_one_f_one_b(r: int, p: int, m: int) -> list[str]:
    """1F1B: ["F0", "F1", "B0", "B1"] of the first of two stages."""
    return [*map(str, SCHEDULES["1F1B"](p, m).actions[r])]


@hole("4.6")
def my_schedule(r: int, p: int, m: int) -> list[str]:
    """ZB-H1, whose backward is cut in two: "I0" and "W0" for "B0"."""
    return [*map(str, SCHEDULES["ZB-H1"](p, m).actions[r])]


ORDERS = {"1F1B": my_one_f_one_b, "ZB-H1": my_schedule}


def make_schedule(name: str, p: int, m: int) -> Schedule:
    """The orders of all ranks."""
    return one_stage_each(name, p, m, lambda r: [Action(word[0], int(word[1:])) for word in ORDERS[name](r, p, m)])


# Messages: a ring

@hole("2.1")
def my_ring_reduce_scatter(tensor: Tensor, among: Member) -> Tensor:
    """Block r of the sum of all ranks' `tensor`: (N,) -> (N/n,)."""
    return ring_reduce_scatter(tensor, group=among.group)


@hole("2.2")
def my_ring_all_gather(tensor: Tensor, among: Member) -> Tensor:
    """All ranks' `tensor`, one after the other: (S,) -> (n S,)."""
    return ring_all_gather(tensor, group=among.group)


@hole("2.3")
def my_ring_all_reduce(tensor: Tensor, among: Member) -> None:
    """`tensor` (N,) becomes the sum over the ranks, in place: by the two halves of a ring."""
    filled = F.pad(tensor, (0, -len(tensor) % (2 * among.n)))
    tensor.copy_(my_ring_all_gather(my_ring_reduce_scatter(filled, among=among), among=among)[:len(tensor)])


# Gradients: over which ranks each kind is added up, what travels together, and the norm

SUMS = {
    "split": ("dp", "cp"),  # a slice along tp
    "replicated": ("dp", "cp"),  # all of it; the ranks of tp have computed the same with it
    "tied": ("dp", "cp", "pp"),  # a slice, on the first and the last stage: embedding and head
}
COPIES = {**SUMS, "replicated": ("dp", "cp", "tp")}  # along these axes ranks end with the same numbers
SHARDED = {"dp", "cp"}  # under ZeRO they have added up already, and each has other numbers


@hole("3.2")
def my_buckets(sizes_bytes: list[int], cap_bytes: int) -> list[list[int]]:
    """Which gradients travel together: indices, the last gradient first."""
    last = len(sizes_bytes) - 1
    return [[last - index for index in bucket] for bucket in cut_buckets(sizes_bytes[::-1], cap_bytes)]


@hole("9.3")
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
    counted = [torch.zeros(1).double(), *(gradient for name, gradient in gradients.items() if not any(
        where[axis] for axis in set(COPIES[kinds[name]]) - (SHARDED if zero else set())))]
    return float(total_norm(counted, [], norm_type, member(), torch.device("cpu")))


@torch.no_grad()
def reduce_gradients(gradients: dict[str, Tensor], kinds: dict[str, str], num_tokens: int, mesh: Mesh, zero: bool
                     ) -> None:
    """3.2 says which travel together, 9.3 over which ranks, and 2.3 sends. In place."""
    def all_reduce(tensor: Tensor, *axes: str) -> None:
        left = ["ends" if axis == "pp" else axis for axis in axes if not (zero and axis in SHARDED)]
        if left:
            my_ring_all_reduce(tensor.view(-1), among=mesh(*left))

    messages, travellers, kind_of = {}, {}, {}  # by a message's name: its numbers (N,), the gradients in it, their kind
    for kind in sorted(set(kinds.values())):
        of_kind = [gradient for name, gradient in gradients.items() if kinds[name] == kind]
        for indices in my_buckets([gradient.nbytes for gradient in of_kind], BUCKET_BYTES):
            name = f"{kind} {indices}"
            travellers[name], kind_of[name] = [of_kind[index] for index in indices], kind
            messages[name], _ = pack(travellers[name])
    seen = num_tokens * (mesh("dp", "cp").n if zero else 1)  # by all whose gradients these are sums of
    my_reduced_gradients(messages, kind_of, torch.tensor(seen).double(), all_reduce)
    for name, flat in messages.items():
        unpack_into(travellers[name], flat)


# ZeRO: what AdamW steps on

def blocks_of(tensor: Tensor, me: Member) -> Tensor:
    """A tensor of N numbers as (n, S), with zeros at the end: rank r's is block r."""
    return F.pad(tensor.detach().flatten(), (0, -tensor.numel() % me.n)).view(me.n, -1)


@hole("6.3")
def my_scattered_gradients(model: nn.Module, among: Member) -> dict[str, Tensor]:
    """A dict that hooks fill in backward: name -> this rank's piece (S,) of the mean gradient, which is then gone."""
    pieces: dict[str, Tensor] = {}

    def scatter(name: str, parameter: nn.Parameter) -> None:
        blocks = blocks_of(parameter.grad, among)
        even = F.pad(blocks, (0, blocks.shape[1] % 2)).flatten()  # 2.1 cuts each block in two
        pieces[name] = my_ring_reduce_scatter(even, among=among)[:blocks.shape[1]] / among.n
        parameter.grad = None

    for name, parameter in model.named_parameters():
        parameter.register_post_accumulate_grad_hook(partial(scatter, name))
    return pieces


class Shards:
    """`named`: what this rank has of the model; `owned`: what AdamW steps on, under ZeRO (S,) of each of these."""

    def __init__(self, stage: Stage, zero: bool, me: Member) -> None:
        self.zero, self.me, self.sums = zero, me, defaultdict(float)
        self.named = dict(stage.named_parameters())
        self.owned = {name: nn.Parameter(blocks_of(parameter, me)[me.r].clone())
                      for name, parameter in self.named.items()} if zero else self.named
        if zero:
            pieces = my_scattered_gradients(nn.ParameterList(self.named.values()), among=me)
            for key, (name, parameter) in enumerate(self.named.items()):  # 6.3's hook is there, and so runs before
                parameter.register_post_accumulate_grad_hook(partial(self.keep, pieces, str(key), name))

    def keep(self, pieces: dict[str, Tensor], key: str, name: str, parameter: nn.Parameter) -> None:
        """In backward: pieces are means over the ranks; their sums, over micro-batches too, are kept."""
        self.sums[name] += pieces.pop(key) * self.me.n

    def take_gradients(self) -> dict[str, Tensor]:
        """What backward has added up since the last step, of this rank's tokens; under ZeRO (S,) of all ranks'."""
        sums, self.sums = self.sums, defaultdict(float)
        return {name: sums[name] if self.zero else parameter.grad for name, parameter in self.named.items()}

    @torch.no_grad()
    def publish(self) -> None:
        """All ranks get what each has stepped on."""
        for name, parameter in self.named.items() if self.zero else ():
            whole = my_ring_all_gather(self.owned[name].detach(), among=self.me)
            parameter.copy_(whole[:prod(parameter.shape)].view_as(parameter))


# Training

def train(config: GPTConfig, layout: ParallelLayout, steps: int, *, batch_size: int = 16, num_microbatches: int = 1,
          schedule: str = "1F1B", learning_rate: float = 1e-3, tokens: Tensor | None = None, seed: int = 0,
          verbose: bool = False) -> list[float]:
    """On each of the layout's ranks: the loss of each step, the same on all. batch_size: rows of all ranks together."""
    mesh, zero = Mesh(layout), layout.zero_stage == 2
    dp, pp, cp, tp = (mesh(axis) for axis in AXES)
    positions = all_gather_along(my_document_positions([config.sequence_length], among=cp), 0, cp).chunk(cp.n)
    stage = make_stage(make_model(config, seed), pp, tp, cp, positions)
    shards = Shards(stage, zero, mesh("dp", "cp"))
    kinds = {name: parameter.kind for name, parameter in shards.named.items()}
    adamw = torch.optim.AdamW(shards.owned.values(), learning_rate, betas=(0.9, 0.95))

    def sum_of_losses(logits: Tensor, targets: Tensor) -> Tensor:
        mean = SplitLoss.apply(logits, targets, tp)
        return mean * targets.numel() * num_microbatches  # the pipeline takes the mean of its micro-batches

    pipeline = PipelineParallel([stage], make_schedule(schedule, pp.n, num_microbatches), pp.group, sum_of_losses)
    losses = []
    for step in range(steps):
        # Ranks of a copy read the same rows, each rank of cp its tokens of them: a function of the step's number alone.
        inputs, targets = (rows[:, positions[cp.r]] for rows in batches(
            step, dp.r, dp.n, batch_size=batch_size, sequence_length=config.sequence_length, tokens=tokens, seed=seed))
        with record_communication() if step == steps - 1 else nullcontext():
            loss = pipeline.step(inputs, targets)  # the sum over this rank's tokens
            gradients = shards.take_gradients()
            reduce_gradients(gradients, kinds, targets.numel(), mesh, zero)
            norm = my_global_norm(gradients, kinds, mesh.where, 2.0, zero)
            for name, owned in shards.owned.items():
                owned.grad = gradients[name] * min(1.0, MAX_NORM / (norm + 1e-6))
            adamw.step()
            adamw.zero_grad()
            shards.publish()
            dist.all_reduce(loss, group=mesh("dp", "cp").group)
        losses.append(loss.item() / batch_size / config.sequence_length)
        if verbose and dist.get_rank() == 0:
            print(f"step {step:4}   loss {losses[-1]:.4f}   gradient norm {norm:.3f}", flush=True)
    return losses
