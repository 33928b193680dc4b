"""A step from its layers: the pipeline's bubble, the messages of data parallelism, the optimiser."""

from __future__ import annotations

from collections.abc import Sequence

from course_lib.planner.job import Job
from course_lib.planner.layer import head_pass, layer_pass
from course_lib.planner.rates import Pass, Rates, Seconds, hide_message
from course_lib.planner.stages import (
    Numbers,
    Stages,
    held_numbers,
    matrix_shares,
    rank_numbers,
    scatters_often,
    shards_layers,
    stages_of,
    vocabulary_numbers,
)

CAUSES = ("matmul", "memory", "tp", "cp", "ep", "launch", "pp", "bubble", "dp", "optimiser")
MATRICES = 4  # of a layer, those that are sent on their own: q, k, v together, output, up (and gate), down
STATE_PASSES = 1.2  # over what the optimiser reads and writes


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
        "bubble": job.bubble_seconds(others, slowest.total, layer.weight_s * stages.ordinary, slowest.launch),
        "dp": data_seconds(job, rates, layer, head, stages),
        "optimiser": optimiser_seconds(job, rates, rank_numbers(job, stages))}


def accumulation_seconds(job: Job, rates: Rates) -> float:
    """Adding a micro-batch's gradients of one layer to those there: two reads and a write."""
    if job.num_microbatches == 1:
        return 0.0
    scattered = scatters_often(job)
    numbers = sum(numbers / (ranks if scattered else 1) for numbers, ranks, _ in held_numbers(job))
    return rates.pass_s(3 * job.gradient_bytes * numbers)


def stage_messages(job: Job, rates: Rates) -> float:
    """Point-to-point: once through the pipeline and back, and each message where computing does not go on."""
    p = job.layout.pp
    if p == 1:
        return 0.0
    group = rates.network.group(p, job.layout.tp * job.plane)
    one = group.seconds("send", rates.number_bytes * job.tokens_per_rank * job.shape.hidden_size / job.layout.tp)
    waiting = 0.0 if job.software.overlaps_stages else 2 * job.v * job.num_microbatches * (one + rates.p2p_s)
    return 2 * (p - 1) * one + waiting


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
        return hide_message(reduction, backward, rates.drag) if software.overlaps_gradients else reduction
    messages = MATRICES * stages.most if software.matrix_by_matrix else 0.0  # and when backward has ended
    scatter = message_seconds(job, rates, "reduce_scatter", sent, job.gradient_bytes, messages)
    gather = message_seconds(job, rates, "all_gather", sent, rates.number_bytes, messages)
    overlaps = software.overlaps_gradients and not software.matrix_by_matrix
    shown = hide_message(scatter, backward, rates.drag) if overlaps else scatter
    times = job.num_microbatches if scatters_often(job) else 1  # gradients that are sharded, or that are reduced once
    if software.overlaps_parameters:
        gather = hide_message(gather, backward / 2, rates.drag)
    return times * shown + gather


def message_seconds(job: Job, rates: Rates, op: str, sent: Sequence[Numbers], bytes_per_number: int,
                    messages: float = 0.0) -> float:
    """Seconds of `op` on parameters or gradients among the ranks that have the same. messages: 0 for the software's
    size.
    """
    return sum(rates.network.group(ranks, stride).seconds(
        op, bytes_per_number * numbers, messages or max(1.0, bytes_per_number * numbers / job.software.message_bytes))
        for numbers, ranks, stride in sent)


def sharded_seconds(job: Job, rates: Rates, layer: Pass, stages: Stages) -> float:
    """ZeRO-3 gathers each layer before forward and before backward and scatters its gradient, in each micro-batch;
    ZeRO-2 of the same software gathers once a step. The first gather and the last scatter stand alone. Where matrices
    are sent one by one, each is fetched while the one before it works: a large one behind a small one does not hide.
    """
    messages, numbers = MATRICES if job.software.matrix_by_matrix else 1, held_numbers(job)
    gather = message_seconds(job, rates, "all_gather", numbers, rates.number_bytes, messages)
    scatter = message_seconds(job, rates, "reduce_scatter", numbers, job.gradient_bytes, messages)
    once, alone = job.layout.zero_stage == 2, gather + scatter
    forward = gather / job.num_microbatches if once else gather
    backward = scatter + (0.0 if once else gather)
    shares = matrix_shares(job.shape) if job.software.matrix_by_matrix else (1.0,)
    # One behind the other, so each share is weighed against the time of the product that runs meanwhile.
    beside = shares[-1:] + shares[:-1]  # a message hides behind the matrix before it
    shown = sum(hide_message(share * forward, hides * layer.forward.total, rates.drag)
                + hide_message(share * backward, hides * layer.backward.total, rates.drag)
                for share, hides in zip(shares, beside))
    vocabulary = [(vocabulary_numbers(job, 1 if job.shape.tied else 2), job.plane, job.layout.tp)]
    ends = message_seconds(job, rates, "all_gather", vocabulary, rates.number_bytes, 1)
    return job.num_microbatches * (shown * stages.most + 0.75 * ends + alone)


def optimiser_seconds(job: Job, rates: Rates, held: Sequence[Numbers]) -> float:
    """Reads and writes 32-bit weights and moments, reads gradients, writes weights: with Adam 30 bytes a number, 16
    where there are no 32-bit weights.
    """
    numbers = sum(numbers / (ranks if job.layout.zero_stage else 1) for numbers, ranks, _ in held)
    own = rates.step_s + 2 * rates.gathering_s(job.layout.world_size)  # norm and loss
    return rates.pass_s(numbers * (30 if job.master else 16), STATE_PASSES) + own
