"""A step from its layers: stages, bubble, the messages of data parallelism, the optimiser."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from course_lib.costs.bubbles import balanced_layers, first_past_the_share
from course_lib.costs.flops import (
    attention_matrices,
    expert_matrices,
    pass_seconds,
    router_matrix,
    shared_matrices,
    vectors_of_layer,
)
from course_lib.costs.memory import OPTIMIZERS, PRECISIONS, lora_parameters, offload_seconds
from course_lib.facts import Shape
from course_lib.planner.job import Job
from course_lib.planner.layer import head_pass, layer_pass
from course_lib.planner.rates import Pass, Rates, Seconds, exposed_seconds

CAUSES = ("matmul", "memory", "tp", "cp", "ep", "launch", "pp", "bubble", "dp", "optimiser")
MATRICES = 4  # of a layer, those that are sent on their own: q, k, v together, output, up (and gate), down
STATE_PASSES = 1.2  # over what the optimiser reads and writes


@dataclass(frozen=True)
class Stages:
    """`first`, `ordinary`, `last`: layers on a stage. A rank's numbers are those of the largest."""

    first: float
    ordinary: float
    last: float

    @property
    def most(self) -> float:
        """Layers of the largest stage, which sets the pipeline's beat."""
        return max(self.first, self.ordinary, self.last)


@lru_cache(maxsize=4096)
def layer_numbers(shape: Shape, t: int = 1, ep: int = 1, etp: int = 1) -> tuple[float, float]:
    """(parameters of one layer on one rank but experts, those of its experts), on average over all layers; what is not
    a matrix is counted as if it were cut, too.
    """
    plain, of_experts, layers = 0.0, 0.0, shape.num_layers
    for count, kind in shape.kinds():
        mlp = kind.num_experts * expert_matrices(kind)
        rest = attention_matrices(kind) + shared_matrices(kind) + router_matrix(kind) + vectors_of_layer(kind)
        if kind.num_experts > 1:
            of_experts += count / layers * mlp / ep / etp
        plain += count / layers * (rest + (mlp if kind.num_experts == 1 else 0)) / t
    return plain, of_experts


def layer_parameters(shape: Shape, t: int = 1, ep: int = 1, etp: int = 0) -> float:
    """Parameters of one layer on one rank. etp=0: experts are cut as all else is."""
    return sum(layer_numbers(shape, t, ep, etp or t))


def numbers_of(job: Job) -> tuple[tuple[float, int, int], ...]:
    """(parameters of a layer on a rank, how many ranks have the same, how far apart they stand): experts last."""
    L = job.layout
    plain, of_experts = layer_numbers(job.shape, L.tp, L.ep, L.etp)
    return ((plain, job.plane, L.tp),) + (((of_experts, L.edp, L.ep * L.etp),) if of_experts else ())


def trained_of(job: Job) -> tuple[tuple[float, int, int], ...]:
    """numbers_of what has gradients: all, or adapters of q and v."""
    if not job.lora_rank:
        return numbers_of(job)
    return ((lora_parameters(job.shape, job.lora_rank) / job.shape.num_layers / job.layout.tp, job.plane,
             job.layout.tp),)


def stages_of(job: Job, layer: Pass, head: Pass) -> Stages:
    """Chunks of as many layers each; or the two ends have one less; or, dealt out by hand, even in time; or whole
    layers, dealt out by their numbers: the first stage is the largest, and all wait for it; or as many on each.
    """
    p, L = job.layout.pp, job.num_layers
    if job.software.whole_layers:
        head_in_layers = job.shape.vocab_size * job.shape.hidden_size / layer_parameters(job.shape)
        ordinary, last = first_past_the_share(L, p, head_in_layers)
        return Stages(ordinary, ordinary, last)
    if job.software.even_layers:
        return Stages(-(-L // p), -(-L // p), L // p)
    if not job.uneven and L % (p * job.v) == 0:
        return Stages(L / p, L / p, L / p)
    if not job.uneven and (L + 2) % (p * job.v) == 0:
        even = (L + 2) / p
        return Stages(even - 1, even, even - 1)
    even, last = balanced_layers(L, p, head.total / layer.total)
    return Stages(even, even, last)


def stages_at(job: Job, rates: Rates) -> Stages:
    """stages_of, for who has no passes yet."""
    return stages_of(job, layer_pass(job, rates), head_pass(job, rates))


def vocabulary_numbers(job: Job, ends: int) -> float:
    """Numbers of the embedding, of the read-out, or (ends=2) of both, on one rank."""
    return ends * job.shape.vocab_size * job.shape.hidden_size / job.ends_tp


def rank_numbers(job: Job, stages: Stages) -> list[tuple[float, int, int]]:
    """As trained_of, of the rank that has most: its layers, and an end of the model, or both."""
    (plain, *where), *others = trained_of(job)
    ends = 0.0 if job.lora_rank else vocabulary_numbers(job, 1 if job.layout.pp > 1 or job.shape.tied else 2)
    return [(stages.most * plain + ends, *where), *((stages.most * numbers, *where) for numbers, *where in others)]


def step_seconds(job: Job, rates: Rates) -> dict[str, float]:
    """Seconds by cause, in the order of CAUSES; they add up to the step.

    The slowest stage works without a gap, m micro-batches; before and behind it the others fill the pipeline with the
    layers that they have, which is the bubble.
    """
    layer, head = layer_pass(job, rates), head_pass(job, rates)
    stages, m = stages_of(job, layer, head), job.num_microbatches
    both = layer.forward + layer.backward + Seconds(memory=accumulation_seconds(job, rates))
    ordinary = both * stages.ordinary
    last = both * stages.last + head.forward + head.backward
    # A pipeline goes at the pace of its slowest stage: that one's work counts m times, that of all others once.
    ends = job.layout.pp == 1 or last.total >= ordinary.total  # the last stage is the slowest
    slowest = last if ends else ordinary
    work = slowest * m
    others = both.total * (job.num_layers - (stages.last if ends else stages.ordinary)) + (
        0.0 if ends else head.forward.total + head.backward.total)
    return {
        "matmul": work.matmul, "memory": work.memory, "tp": work.tp, "cp": work.cp, "ep": work.ep,
        "launch": work.launch, "pp": stage_messages(job, rates),
        "bubble": bubble_seconds(job, others, slowest, layer.weight_s * stages.ordinary),
        "dp": data_seconds(job, rates, layer, head, stages),
        "optimiser": optimiser_seconds(job, rates, rank_numbers(job, stages))}


def accumulation_seconds(job: Job, rates: Rates) -> float:
    """Adding a micro-batch's gradients of one layer to those there: two reads and a write."""
    if job.num_microbatches == 1:
        return 0.0
    numbers = sum(numbers / (job.shards(ranks) if scatters_often(job) else 1) for numbers, ranks, _ in trained_of(job))
    return rates.pass_s(3 * job.gradient_bytes * numbers)


def gathers_once(job: Job) -> bool:
    """FSDP in a pipeline: a stage's parameters are gathered once a step, and its gradients reduced once."""
    return job.software.shards_layers and job.layout.pp > 1 and job.layout.zero_stage >= 2


def scatters_often(job: Job) -> bool:
    """Gradients are scattered in each micro-batch, since nobody keeps them whole."""
    return job.plane > 1 and job.layout.zero_stage >= 2 and not gathers_once(job)


def shards_layers(job: Job) -> bool:
    """Layers are gathered one by one as they are needed."""
    stage = job.layout.zero_stage
    return job.plane > 1 and not gathers_once(job) and (stage == 3 or stage == 2 and job.software.shards_layers)


def stage_messages(job: Job, rates: Rates) -> float:
    """Point-to-point: once through the pipeline and back, and each message where computing does not go on."""
    p = job.layout.pp
    if p == 1:
        return 0.0
    group = rates.network.group(p, job.layout.tp * job.plane)
    one = group.seconds("send", rates.number_bytes * job.tokens_per_rank * job.shape.hidden_size / job.layout.tp)
    waiting = 0.0 if job.software.overlaps_stages else 2 * job.v * job.num_microbatches * (one + rates.p2p_s)
    return 2 * (p - 1) * one + waiting


def bubble_seconds(job: Job, others_s: float, stage: Seconds, weight_s: float) -> float:
    """`others_s`: a micro-batch's way through all stages but the slowest. W waits in ZB-H1 (zb1p): (p-1)(F + I - W);
    ZB-2p fills all gaps with what it may hold twice as much of. A third of the waits for launches is W's. Of v chunks
    fill and drain have one, but with m < p micro-batches each round of chunks waits until the first is around:
    p - m + (m - 1)/v stages.
    """
    p, m = job.layout.pp, job.num_microbatches
    if job.schedule == "zb2p":
        return 0.0
    if job.schedule == "zb1p":
        work = stage.total - stage.launch
        return others_s * max(0.0, work - 2 * weight_s + stage.launch / 3) / stage.total
    return others_s * (max(0, p - m) + (min(p, m) - 1) / job.v) / (p - 1) if p > 1 else 0.0


def data_seconds(job: Job, rates: Rates, layer: Pass, head: Pass, stages: Stages) -> float:
    """What is left of the messages of gradients and parameters when computing has hidden what it can."""
    if job.plane == 1:
        return 0.0
    if shards_layers(job):
        return sharded_seconds(job, rates, layer, stages)
    software, stage = job.software, job.layout.zero_stage
    backward = layer.backward.total * stages.most + head.backward.total
    sent = rank_numbers(job, stages)
    if stage == 0:
        reduction = message_seconds(job, rates, "all_reduce", sent, job.gradient_bytes)
        return exposed_seconds(reduction, backward, rates.drag) if software.overlaps_gradients else reduction
    messages = MATRICES * stages.most if software.matrix_by_matrix else 0.0  # and when backward has ended
    scatter = message_seconds(job, rates, "reduce_scatter", sent, job.gradient_bytes, messages)
    gather = message_seconds(job, rates, "all_gather", sent, rates.number_bytes, messages)
    overlaps = software.overlaps_gradients and not software.matrix_by_matrix
    shown = exposed_seconds(scatter, backward, rates.drag) if overlaps else scatter
    times = job.num_microbatches if scatters_often(job) else 1  # gradients that are sharded, or that are reduced once
    if software.overlaps_parameters:
        gather = exposed_seconds(gather, backward / 2, rates.drag)
    return times * shown + gather


def message_seconds(job: Job, rates: Rates, op: str, sent: Sequence[tuple[float, int, int]], bytes_per_number: int,
                    messages: float = 0.0) -> float:
    """Seconds of `op` on parameters or gradients among the ranks that have the same. messages: 0 for the software's
    size. Sharded in groups (HSDP), a group's own; gradients are then added up across groups, each rank's shard of them.
    """
    seconds = 0.0
    for numbers, ranks, stride in sent:
        shards, num_bytes = ranks if op == "all_reduce" else job.shards(ranks), bytes_per_number * numbers
        times = messages or max(1.0, num_bytes / job.software.message_bytes)
        seconds += rates.network.group(shards, stride).seconds(op, num_bytes, times)
        if op == "reduce_scatter" and shards < ranks:
            across = rates.network.group(ranks // shards, stride * shards)
            seconds += across.seconds("all_reduce", num_bytes / shards, times)
    return seconds


def sharded_seconds(job: Job, rates: Rates, layer: Pass, stages: Stages) -> float:
    """ZeRO-3 gathers each layer before forward and before backward and scatters its gradient, in each micro-batch;
    ZeRO-2 of the same software gathers once a step. The first gather and the last scatter stand alone. Where matrices
    are sent one by one, each is fetched while the one before it works: a large one behind a small one does not hide.
    """
    messages, numbers = MATRICES if job.software.matrix_by_matrix else 1, numbers_of(job)
    gather = message_seconds(job, rates, "all_gather", numbers, rates.number_bytes, messages)
    scatter = message_seconds(job, rates, "reduce_scatter", trained_of(job), job.gradient_bytes, messages)
    once, alone = job.layout.zero_stage == 2, gather + scatter
    forward = gather / job.num_microbatches if once else gather
    backward = scatter + (0.0 if once else gather)
    shares = matrix_shares(job.shape) if job.software.matrix_by_matrix else (1.0,)
    # One behind the other, so each share is weighed against the time of the product that runs meanwhile.
    beside = shares[-1:] + shares[:-1]  # a message hides behind the matrix before it
    shown = sum(exposed_seconds(share * forward, hides * layer.forward.total, rates.drag)
                + exposed_seconds(share * backward, hides * layer.backward.total, rates.drag)
                for share, hides in zip(shares, beside))
    vocabulary = [(vocabulary_numbers(job, 1 if job.shape.tied else 2), job.plane, job.layout.tp)]
    ends = message_seconds(job, rates, "all_gather", vocabulary, rates.number_bytes, 1)
    return job.num_microbatches * (shown * stages.most + 0.75 * ends + alone)


def matrix_shares(shape: Shape) -> tuple[float, ...]:
    """The shares of a layer's numbers: q, k and v together, output, up (and gate), down."""
    h, output = shape.hidden_size, shape.num_heads * shape.d * shape.hidden_size
    sizes = (attention_matrices(shape) - output, output, (2 if shape.gated else 1) * h * shape.ffn_size,
             h * shape.ffn_size)
    return tuple(size / sum(sizes) for size in sizes)


# The optimiser

def optimiser_seconds(job: Job, rates: Rates, trained: Sequence[tuple[float, int, int]]) -> float:
    """Reads and writes 32-bit weights and moments, reads gradients, writes weights: with Adam 30 bytes a number, on the
    device or on its host. trained: (numbers, ranks that have the same, how far apart these stand).
    """
    numbers = sum(numbers / (job.shards(ranks) if job.layout.zero_stage else 1) for numbers, ranks, _ in trained)
    num_bytes, calls = numbers * touched_bytes(job), 2 * rates.gathering_s(job.layout.world_size)  # norm and loss
    own = rates.step_s + calls
    if job.offload == "none":
        return rates.pass_s(num_bytes, STATE_PASSES) + own
    return pass_seconds(num_bytes, job.cluster.host_memory_bytes_per_s, STATE_PASSES) + own + transfer_seconds(
        job, numbers, rates.number_bytes)


def touched_bytes(job: Job) -> int:
    """Bytes that the optimiser reads and writes for each number: those of Adam, less what other moments are smaller by.
    """
    kept = PRECISIONS["mixed" if job.master else "pure 16-bit"]
    smaller = OPTIMIZERS["adam"].state_bytes(kept) - OPTIMIZERS[job.optimizer].state_bytes(kept)
    return (30 if job.master else 16) - 2 * smaller


def transfer_seconds(job: Job, numbers: float, number_bytes: int) -> float:
    """Over the wire to the host, of the numbers that a rank steps on: gradients there, with ZeRO-2 and 3 in each
    micro-batch; new weights back, or, where they stay there, before both passes of each.
    """
    m, often = job.num_microbatches, job.layout.zero_stage >= 2 or job.plane == 1
    return offload_seconds(numbers, job.cluster.host_link_bytes_per_s, number_bytes * (m if often else 1),
                           number_bytes * (2 * m if job.offload == "all" else 1))
