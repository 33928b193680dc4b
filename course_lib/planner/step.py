"""A step from its layers: stages, bubble, the messages of data parallelism, the optimiser."""

from __future__ import annotations

from dataclasses import dataclass

from course_lib.costs.bubbles import balanced_layers, whole_layers
from course_lib.costs.flops import attention_matrices, expert_matrices, router_matrix, vectors_of_layer
from course_lib.costs.kernels import pass_seconds
from course_lib.facts import Shape
from course_lib.planner.job import Job
from course_lib.planner.layer import Pass, Seconds, exposed, head_pass, layer_pass
from course_lib.planner.rates import Rates

CAUSES = ("matmul", "memory", "tp", "cp", "ep", "launch", "pp", "bubble", "dp", "optimiser")
MATRICES = 4  # of a layer, those that are sent on their own: q, k, v together, output, up (and gate), down
STATE_PASSES = 1.2  # over what the optimiser reads and writes


@dataclass(frozen=True)
class Stages:
    """`ordinary`, `last`: layers on a stage. A rank's numbers are those of the larger of the two."""

    ordinary: float
    last: float

    @property
    def most(self) -> float:
        return max(self.ordinary, self.last)


def layer_parameters(shape: Shape, t: int = 1, ep: int = 1) -> float:
    """Of one layer on one rank; what is not a matrix is counted as if it were cut, too."""
    experts = shape.num_experts / ep * expert_matrices(shape)
    return (attention_matrices(shape) + experts + router_matrix(shape) + vectors_of_layer(shape)) / t


def stages_of(job: Job, layer: Pass, head: Pass) -> Stages:
    """Even in time; or whole layers, dealt out by the numbers in their matrices."""
    if not job.software.whole_layers:
        return Stages(*balanced_layers(job.shape.num_layers, job.layout.pp, head.total / layer.total))
    head_in_layers = job.shape.vocab_size * job.shape.hidden_size / layer_parameters(job.shape)
    return Stages(*whole_layers(job.shape.num_layers, job.layout.pp, head_in_layers))


def rank_parameters(job: Job, stages: Stages) -> float:
    """On the rank that has most: its layers, and an end of the model, or both."""
    layer = layer_parameters(job.shape, job.layout.tp, job.layout.ep)
    end = job.shape.vocab_size * job.shape.hidden_size / job.layout.tp
    ends = 1 if job.layout.pp > 1 or job.shape.tied else 2
    return stages.most * layer + ends * end


def step_seconds(job: Job, rates: Rates) -> dict[str, float]:
    """By cause, in the order of CAUSES; they add up to the step.

    The slowest stage works without a gap, m micro-batches; before and behind it the others fill the pipeline with the
    layers that they have, which is the bubble.
    """
    layer, head = layer_pass(job, rates), head_pass(job, rates)
    stages, m = stages_of(job, layer, head), job.num_microbatches
    both = layer.forward + layer.backward + Seconds(memory=accumulation_seconds(job, rates))
    ordinary = both * stages.ordinary
    last = both * stages.last + head.forward + head.backward
    ends = job.layout.pp == 1 or last.total >= ordinary.total  # the last stage is the slowest
    slowest = last if ends else ordinary
    work = slowest * m
    others = both.total * (job.shape.num_layers - (stages.last if ends else stages.ordinary)) + (
        0.0 if ends else head.forward.total + head.backward.total)
    return {
        "matmul": work.matmul, "memory": work.memory, "tp": work.tp, "cp": work.cp, "ep": work.ep,
        "launch": work.launch, "pp": stage_messages(job, rates),
        "bubble": bubble_seconds(job, others, slowest, layer.weight_s * stages.ordinary),
        "dp": data_seconds(job, rates, layer, head, stages),
        "optimiser": optimiser_seconds(job, rates, stages)}


def accumulation_seconds(job: Job, rates: Rates) -> float:
    """Adding a micro-batch's gradients of one layer to those there: two reads and a write."""
    if job.num_microbatches == 1:
        return 0.0
    numbers = layer_parameters(job.shape, job.layout.tp, job.layout.ep) / (job.plane if shards_layers(job) else 1)
    return pass_seconds(3 * job.gradient_bytes * numbers, rates.memory_bytes_per_s)


def shards_layers(job: Job) -> bool:
    """Layers are gathered one by one as they are needed."""
    stage = job.layout.zero_stage
    return job.plane > 1 and (stage == 3 or stage == 2 and job.software.shards_layers)


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
    ZB-2p fills all gaps with what it may hold twice as much of. A third of the waits for launches is W's.
    """
    if job.schedule == "zb2p":
        return 0.0
    if job.schedule == "zb1p":
        work = stage.total - stage.launch
        return others_s * max(0.0, work - 2 * weight_s + stage.launch / 3) / stage.total
    return others_s / job.v


def data_seconds(job: Job, rates: Rates, layer: Pass, head: Pass, stages: Stages) -> float:
    """What is left of the messages of gradients and parameters when computing has hidden what it can."""
    if job.plane == 1:
        return 0.0
    group = rates.network.group(job.plane, job.layout.tp)
    if shards_layers(job):
        return sharded_seconds(job, rates, layer, stages)
    software, stage = job.software, job.layout.zero_stage
    numbers = rank_parameters(job, stages)
    gradients, parameters = job.gradient_bytes * numbers, rates.number_bytes * numbers
    backward = layer.backward.total * stages.most + head.backward.total
    messages = max(1.0, gradients / software.message_bytes)
    if stage == 0:
        reduction = group.seconds("all_reduce", gradients, messages)
        return exposed(reduction, backward, rates.drag) if software.overlaps_gradients else reduction
    if software.matrix_by_matrix:  # and in the optimiser, when backward has ended
        messages = MATRICES * stages.most
        return group.seconds("reduce_scatter", gradients, messages) + group.seconds("all_gather", parameters, messages)
    scatter = group.seconds("reduce_scatter", gradients, messages)
    gather = group.seconds("all_gather", parameters, messages)
    return (exposed(scatter, backward, rates.drag) if software.overlaps_gradients else scatter) + (
        exposed(gather, backward / 2, rates.drag) if software.overlaps_parameters else gather)


def sharded_seconds(job: Job, rates: Rates, layer: Pass, stages: Stages) -> float:
    """ZeRO-3 gathers each layer before forward and before backward and scatters its gradient, in each micro-batch;
    ZeRO-2 of the same software gathers once a step. The first gather and the last scatter stand alone. Where matrices
    are sent one by one, each is fetched while the one before it works: a large one behind a small one does not hide.
    """
    group, numbers = rates.network.group(job.plane, job.layout.tp), layer_parameters(
        job.shape, job.layout.tp, job.layout.ep)
    messages = MATRICES if job.software.matrix_by_matrix else 1
    gather = group.seconds("all_gather", rates.number_bytes * numbers, messages)
    scatter = group.seconds("reduce_scatter", job.gradient_bytes * numbers, messages)
    once, alone = job.layout.zero_stage == 2, gather + scatter
    forward = gather / job.num_microbatches if once else gather
    shares = matrix_shares(job.shape) if job.software.matrix_by_matrix else (1.0,)
    beside = shares[-1:] + shares[:-1]  # a message hides behind the matrix before it
    shown = sum(exposed(share * forward, hides * layer.forward.total, rates.drag)
                + exposed(share * (scatter + (0.0 if once else gather)), hides * layer.backward.total, rates.drag)
                for share, hides in zip(shares, beside))
    vocabulary = job.shape.vocab_size * job.shape.hidden_size / job.layout.tp
    ends = group.seconds("all_gather", rates.number_bytes * vocabulary)
    ends *= 1 if job.shape.tied else 2
    return job.num_microbatches * (shown * stages.most + 0.75 * ends + alone)


def matrix_shares(shape: Shape) -> tuple[float, ...]:
    """Of a layer's numbers: q, k and v together, output, up (and gate), down."""
    h, output = shape.hidden_size, shape.num_heads * shape.d * shape.hidden_size
    sizes = (attention_matrices(shape) - output, output, (2 if shape.gated else 1) * h * shape.ffn_size,
             h * shape.ffn_size)
    return tuple(size / sum(sizes) for size in sizes)


def optimiser_seconds(job: Job, rates: Rates, stages: Stages) -> float:
    """Reads and writes 32-bit weights and both moments, reads gradients, writes weights: 30 bytes a number."""
    numbers = rank_parameters(job, stages) / (job.plane if job.layout.zero_stage else 1)
    calls = 2 * rates.gathering_s(job.layout.world_size)  # the norm and the loss are agreed upon
    return pass_seconds(numbers * (30 if job.master else 16), rates.memory_bytes_per_s, STATE_PASSES) + (
        rates.step_s + calls)
