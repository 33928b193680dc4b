"""Every cause of a step and every kind of memory of a dense model: added up here from data sheets and constants."""

from math import log, sqrt

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from course_lib.costs.links import across_step_s, reached_shares
from course_lib.facts import Shape, accelerator
from course_lib.hybrid_parallel.layout import ParallelLayout
from course_lib.planner.cluster import cluster
from course_lib.planner.constants import FITTED
from course_lib.planner.estimate import estimate

h, a, kv, f, V, s, L = 4096, 32, 8, 14_336, 32_000, 4096, 8
SHAPE, d, c = Shape(L, h, a, kv, f, V, s, gated=True), h // a, FITTED
LAYER = 2 * h * h + 2 * h * kv * d + 3 * h * f + 2 * h  # q and output; k and v; gate, up, down; two norms


@st.composite
def layouts(draw):
    """(t, p, n, ZeRO's stage, micro-batches, chunks, schedule)"""
    t, p, n = (draw(st.sampled_from((1, 2, 4))) for _ in range(3))
    m = draw(st.sampled_from((1, 2, 4, 8)))
    v = draw(st.sampled_from((1, 2))) if p > 1 and m % p == 0 else 1
    schedule = draw(st.sampled_from(("1F1B", "GPipe", "ZB-H1", "ZB-H2"))) if v == 1 else "1F1B"
    return t, p, n, draw(st.integers(0, 3)), m, v, schedule


def left(message_s, computing_s):
    """What a message takes beside computing."""
    return max(0.0, message_s - computing_s) + c.drag * min(message_s, computing_s)


def seconds_by_hand(t, p, n, zero, m, v, schedule):
    """Megatron-Core on H100, a row of s tokens a micro-batch, gradients of 4 bytes."""
    of = cluster("H100", t * p * n)
    slowed = 1 / (1 + c.spread * sqrt(2 * log(t * p * n)))
    device = accelerator("H100")
    P, flash = of.matmul_flops_per_s * c.matmul_h100 * slowed, device.peak_flops_per_s() * c.flash3 * slowed
    W, wires = device.memory_bytes_per_s, of.network(across_step_s("InfiniBand NDR"), reached_shares().card)

    def product(rows, inner, columns):
        return 2 * rows * inner * columns / P + 2 * (rows * inner + inner * columns + rows * columns) / W

    linear = sum(product(s, *sizes) for sizes in (
        (h, (a + 2 * kv) * d / t), (h / t, h), (h, 2 * f / t), (f / t, h)))
    attention = s * s * (a / t) * 2 * d / flash  # 4 s s d of each head, half of it under the mask
    memory = 2 * s * (4 * h + 2 * a * d + 2 * kv * d + 4 * f) / t * c.passes_fused / W
    summed, ends = 0.0, 0.0
    if t > 1:  # a gather in front of each block and a scatter behind it; the ends' sums, and half of the loss's three
        summed = 4 * (1 - c.tp_hidden) * wires.group(t).seconds("all_gather", 2 * s * h)
        ends = wires.group(t).seconds("all_reduce", 2 * s * h) + 1.5 * wires.group(t).seconds("all_reduce", 4 * s)
    forward = linear + attention + memory + summed
    backward = 2 * linear + 2.5 * attention + 2 * memory + summed
    scattered = n > 1 and zero >= 2
    added = 3 * 4 * LAYER / t / (n if scattered else 1) / W if m > 1 else 0.0
    read_out, loss = product(s, h, V / t), 4 * s * V / t * c.passes_fused / W
    layers, numbers = L / p, LAYER / t * L / p + V * h / t * (2 if p == 1 else 1)
    group, across = wires.group(n, t), wires.group(p, t * n)
    dp = 0.0
    if n > 1 and zero == 3:
        gather, scatter = group.seconds("all_gather", 2 * LAYER / t), group.seconds("reduce_scatter", 4 * LAYER / t)
        dp = m * (layers * (left(gather, forward) + left(gather + scatter, backward)) + gather + scatter
                  + 0.75 * group.seconds("all_gather", 2 * 2 * V * h / t))
    elif n > 1:
        behind = (layers * backward + 2 * read_out + 2 * loss + ends) * (min(p, m) * (v - 1) + 1) / v
        sends = {op: group.seconds(op, w * numbers, max(1, w * numbers / 200e6))  # messages of 200 MB
                 for op, w in (("all_reduce", 4), ("reduce_scatter", 4), ("all_gather", 2))}
        dp = left(sends["all_reduce"], behind) if zero == 0 else (
            (m if zero == 2 else 1) * left(sends["reduce_scatter"], behind) + left(sends["all_gather"], behind / 2))
    waited = (max(0, p - m) + (min(p, m) - 1) / v) / max(1, p - 1)  # of the way through all other stages
    if schedule in ("ZB-H1", "ZB-H2"):  # F + I - W; nothing
        slowest = layers * (forward + backward + added) + 3 * (read_out + loss) + 2 * ends
        share = slowest - layers * 2 * linear
        waited = share / slowest if schedule == "ZB-H1" else 0.0
    return {
        "matmul": m * (layers * (3 * linear + 3.5 * attention) + 3 * read_out),
        "memory": m * (layers * (3 * memory + added) + 3 * loss), "tp": m * (layers * 2 * summed + 2 * ends),
        "cp": 0.0, "ep": 0.0, "launch": 0.0,
        "pp": 2 * (p - 1) * across.seconds("send", 2 * s * h / t),
        "bubble": (forward + backward + added) * (L - layers) * waited,
        "dp": dp, "optimiser": 1.2 * 30 * numbers / (n if zero else 1) / W + c.step_s}


def memory_by_hand(t, p, n, zero, m, v, schedule):
    """The fullest stage: the first has most micro-batches in flight, the last has the logits."""
    numbers = LAYER / t * L / p + V * h / t * (2 if p == 1 else 1)
    kept = 2 * s * (4 * h + 2 * a * d + 2 * kv * d + 3 * f) / t  # what SiLU made is made again
    stages = []
    for stage in range(p):
        chunks = min(2 * (p - 1 - stage) + (v - 1) * p + 1, v * m) if v > 1 else min(
            {"1F1B": p - stage, "GPipe": m, "ZB-H1": p, "ZB-H2": 2 * p - 1}[schedule], m)
        logits = 6 * s * V / t if stage == p - 1 else 0.0  # one kernel's: where 32 bits become the gradient
        gathered = 2 * 2 * LAYER / t if zero == 3 and n > 1 else 0  # two layers whole
        stages.append({"parameters": 2 * numbers / (n if zero == 3 else 1) + gathered,
                       "gradients": 4 * numbers / (n if zero >= 2 else 1),
                       "optimizer_state": 12 * numbers / (n if zero else 1), "activations": chunks / v * L / p * kept,
                       "logits": logits, "other": 2**30})
    return max(stages, key=lambda held: sum(held.values()))


@settings(max_examples=60)
@given(layouts())
def test_each_cause_and_each_kind_is_what_adding_up_by_hand_gives(asked):
    t, p, n, zero, m, v, schedule = asked
    found = estimate(SHAPE, cluster("H100", t * p * n), ParallelLayout(dp=n, pp=p, tp=t, zero_stage=zero), n * m, v=v,
                     gradient_bytes=4, schedule=schedule)
    assert found.seconds == pytest.approx(seconds_by_hand(*asked), rel=1e-9, abs=1e-12)
    assert found.memory == pytest.approx(memory_by_hand(*asked), rel=1e-9)
