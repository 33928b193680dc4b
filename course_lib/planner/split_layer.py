"""A layer that tensor parallelism cuts over t ranks: what each has of its matrices, and the messages between them.

    n  tokens of the micro-batch      h, a, d, f  as in costs.flops

Each block (attention, MLP) begins with matrices that are cut by columns, q, k and v, or gate and up, and ends with one
that is cut by rows. Before the first ones ranks have the whole input: with sequence parallelism they gather it, and
backward they scatter its gradient's sum. Behind the last one they add up, which sequence parallelism scatters.

Between nodes of a cloud they meet the messages of other jobs, and take as many times longer as an all-gather over as
many nodes as the job has was measured to (costs.reached.crowding). All wait for each of these messages, thousands a
step. Gradients' messages do not show it: with it, the runs that have no others between nodes would be missed by more
than twice as much, so nothing is added there.
"""

from __future__ import annotations

from course_lib.facts import Shape
from course_lib.planner.rates import Rates
from course_lib.planner.seconds import exposed_seconds
from course_lib.planner.work import Work


def attention_sizes(shape: Shape, t: int) -> list[tuple[float, float]]:
    """(in, out) of its matrices on one of t ranks; the narrow ones of latent attention are whole on each."""
    h, a, latent = shape.hidden_size, shape.num_heads, shape.latent
    output = (a * shape.v_width / t, h)
    if latent is None:
        return [(h, (a / t + 2 * max(shape.num_kv_heads / t, 1)) * shape.d), output]
    q = [(h, latent.q_rank), (latent.q_rank, a * shape.qk_width / t)] if latent.q_rank else [
        (h, a * shape.qk_width / t)]
    return [*q, (h, latent.kv_rank + latent.rope), (latent.kv_rank, a * (latent.nope + latent.value) / t), output]


def column_seconds(work: Work, rates: Rates) -> tuple[float, ...]:
    """Seconds of the products that a block begins with, forward, by block: q, k and v together; gate and up."""
    shape, t = work.shape, work.t
    sizes = [attention_sizes(shape, t)[0], (shape.hidden_size, (2 if shape.gated else 1) * shape.ffn_size / t)]
    return tuple(rates.product_s(work.n, k, columns) for k, columns in sizes[:len(entries(work))])


def entries(work: Work) -> tuple[int, ...]:
    """Messages that bring a block its input, by block. Experts, which may stand for the MLP, have their own."""
    blocks = 1 if work.shape.num_experts > 1 and not work.shape.shared_experts else 2
    return ((3, 2 if work.shape.gated else 1) if work.software.gathers_by_matrix else (1, 1))[:blocks]


def share_again(work: Work) -> float:
    """The share of forward's messages that recomputation repeats: the last one brings nothing that backward wants."""
    messages = 2 + (sum(entries(work)) if work.sequence_parallel else 0)
    return 1 - 1 / messages


def tensor_seconds(work: Work, rates: Rates) -> tuple[float, float]:
    """(forward, backward). An all-reduce counts as two messages: one that adds up and one that brings to all."""
    if work.t == 1:
        return 0.0, 0.0
    group, message_bytes = rates.network.group(work.t), rates.number_bytes * work.n * work.shape.hidden_size
    crowding = rates.crowding if group.nodes > 1 else 1.0
    blocks, entered = len(entries(work)), sum(entries(work))
    calls = (2 if work.sequence_parallel else 1) * blocks * rates.gathering_s(work.t)
    if not work.sequence_parallel:
        whole = crowding * group.seconds("all_reduce", message_bytes)
        hidden = rates.tensor_hidden if group.nodes == 1 else 0.0
        return (1 - hidden) * blocks * whole + calls, (1 - hidden) * entered * whole + calls
    one = crowding * group.seconds("all_gather", message_bytes)
    forward, backward = exposed_messages(work, rates, one, group.nodes == 1)
    copies = rates.pass_s(message_bytes, rates.tensor_copies) * (entered + blocks)
    return forward + copies + calls, backward + copies + calls


def exposed_messages(work: Work, rates: Rates, one: float, in_node: bool) -> tuple[float, float]:
    """(forward, backward) seconds of gathers and scatters, of `one` each, that no product hides. Backward gathers once
    more what it has not kept: Megatron-Core behind products, as it hides most messages in a node; where only columns
    overlap, the gather runs beside the product for their input's gradient, and the scatter beside that for their own.
    """
    blocks, entered = len(entries(work)), sum(entries(work))
    if work.software.overlaps_columns:
        return (entered + blocks) * one, blocks * one + sum(2 * exposed_seconds(one, product, rates.drag)
                                                            for product in column_seconds(work, rates))
    hidden = rates.tensor_hidden if in_node else 0.0
    again = 0 if hidden or work.software.gathers_by_matrix else entered
    return (1 - hidden) * (entered + blocks) * one, (1 - hidden) * (entered + blocks + again) * one
