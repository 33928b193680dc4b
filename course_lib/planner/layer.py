"""What one layer, and what the read-out, take on one rank for one micro-batch: seconds by cause, forward and backward.

    n  tokens of the micro-batch on this rank     t  tensor parallelism     h, a, d, f, V  as in costs.flops
    E, k  experts, and those of a token           e, x  ranks that share all experts (ep), and one expert's width (etp)

A layer that tensor parallelism cuts: each block (attention, MLP) begins with matrices that are cut by columns, q, k
and v, or gate and up, and ends with one that is cut by rows. Before the first ones ranks have the whole input: with
sequence parallelism they gather it, and backward they scatter its gradient's sum. Behind the last one they add up,
which sequence parallelism scatters. Between nodes of a cloud they meet the messages of other jobs, and take as many
times longer as an all-gather over as many nodes as the job has was measured to (costs.links.crowding). All wait for
each of these messages, thousands a step. Gradients' messages do not show it: with it, the runs that have no others
between nodes would be missed by more than twice as much, so nothing is added there.

A layer with experts: a rank sends the rows of n/t tokens to e ranks, x apart. Then x of them have parts of the same
experts and gather each other's rows. So every rank works on n k x/t rows, on E/e experts of width f/x: n k f/t numbers,
whatever e and x are. Source: Liu et al. 2025, "MoE Parallel Folding"; hybrid_parallel.layout.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache, reduce
from operator import add

from course_lib.costs.flops import ActivationTerm, activation_terms, matmul_seconds
from course_lib.costs.splitting import ring_attention_bytes
from course_lib.facts import Shape
from course_lib.planner.cluster import Pass, Rates, Seconds, hide_message
from course_lib.planner.job import MODULES, NARROW, Job, Work, work_of

ROUTER_BYTES, ROUTER_PASSES = 4, 6  # 32 bits; product, scores, the best k, their weights, and a loss that balances
LAUNCHED_BY_EXPERTS = 1.0  # of an ordinary layer's operations, besides
ROWS = ("rows sent to experts", "rows that come back")  # activation terms of costs.flops that travel to experts
LAUNCHED_BY_ATTENTION = 1 / 3  # of a layer's operations
BACKWARD_OF_FLASH = 2.5  # products of backward over those of forward: five for two, the scores are made again
terms_of = lru_cache(maxsize=4096)(activation_terms)  # a fit asks for the same layers under sixty sets of constants


def layer_pass(job: Job, rates: Rates) -> Pass:
    """Seconds of an average layer, over their kinds, and over those that are recomputed and those that are not."""
    share = job.recomputed_share
    if 0 < share < 1:
        return mean_pass(work_of(job), rates) * share + mean_pass(work_of(job, "none"), rates) * (1 - share)
    return mean_pass(work_of(job), rates)


@lru_cache(maxsize=65536)
def mean_pass(work: Work, rates: Rates) -> Pass:
    """Seconds of an average layer: of each kind as often as the model has it."""
    kinds = work.shape.kinds()
    if len(kinds) == 1:
        return time_layer(work, rates)
    counts = [count for count, _ in kinds[:-1]] + [kinds[-1][0] + work.shape.mtp_layers]
    passes = [time_layer(replace(work, shape=kind), rates) * (count / sum(counts))
              for count, (_, kind) in zip(counts, kinds)]
    return reduce(add, passes)


def time_layer(work: Work, rates: Rates) -> Pass:
    """Seconds of one layer, for a shape whose layers are all of a kind."""
    linear, last = linear_seconds(work, rates)
    forward_a, backward_a = attention_seconds(work, rates)
    all_kept, scores, rows = kept_bytes(work, rates.number_bytes)
    memory, permuted = rates.pass_s(all_kept, rates.passes), rates.pass_s(rows, rates.row_passes)
    memory += rates.pass_s(cast_bytes(work))
    if work.shape.num_experts > 1:
        tokens, experts = work.n / work.t, work.shape.num_experts  # the router
        linear += matmul_seconds(tokens, work.shape.hidden_size, experts, rates.head_flops_per_s,
                                 rates.operand_bytes_per_s, ROUTER_BYTES)
        memory += rates.pass_s(ROUTER_BYTES * (tokens * experts), ROUTER_PASSES)
    tp_forward, tp_backward = tensor_seconds(work, rates)
    cp_forward, cp_backward = ring_seconds(work, rates, forward_a)
    forward = Seconds(linear + forward_a, memory + permuted, tp_forward, cp_forward)
    backward = Seconds(2 * linear + backward_a, 2 * memory + permuted, tp_backward, cp_backward)
    forward, backward = (replace(each, ep=rows_seconds(work, rates, each)) for each in (forward, backward))
    backward += recompute_seconds(work, rates, forward, linear=linear, last=last, attention=forward_a, scores=scores)
    launch_s = rates.launch_s * (1 + LAUNCHED_BY_ATTENTION * (work.cp - 1))  # for each block that comes around
    if work.shape.num_experts > 1:
        launch_s *= 1 + LAUNCHED_BY_EXPERTS
    passes = 2 if work.recompute == "full" else 1
    forward, backward = (forward.with_launches(launch_s, rates.launch_adds),
                         backward.with_launches(passes * launch_s, rates.launch_adds))
    return Pass(forward, backward, linear)


def cast_bytes(work: Work) -> float:
    """Read and written where what products read is rounded to 8 or 4 bits: once by rows, and once by columns for the
    gradient of the weights. Backward does as much to the gradients of what the products gave, and casts them, too.
    """
    if work.precision not in NARROW:
        return 0.0
    shape, n, t, h = work.shape, work.n, work.t, work.shape.hidden_size
    routed = shape.active_experts / t if shape.num_experts > 1 else 1  # a rank has n/t tokens' rows, of whole width
    width = shape.ffn_size if shape.num_experts > 1 else shape.ffn_size / t
    numbers = sum(k for k, _ in attention_sizes(shape, t)) + routed * (h + width)
    if shape.shared_experts:
        numbers += h + shape.shared_ffn * shape.shared_experts / t
    return n * numbers * (2 + 2 * 2 * NARROW[work.precision])


def linear_seconds(work: Work, rates: Rates) -> tuple[float, float]:
    """(all products with weights, forward; the last of them). Those of shared experts are cut as an MLP is."""
    shape, n, t = work.shape, work.n, work.t
    h, f, gates = shape.hidden_size, shape.ffn_size, 2 if shape.gated else 1
    attention = sum(rates.product_s(n, k, columns) for k, columns in attention_sizes(shape, t))
    if shape.num_experts == 1:
        last = rates.product_s(n, f / t, h)
        return attention + last + rates.product_s(n, h, gates * f / t), last
    shared = shape.shared_experts * shape.shared_ffn / t
    if shared:
        attention += rates.product_s(n, h, gates * shared) + rates.product_s(n, shared, h)
    experts, last = expert_seconds(work, rates)
    return attention + experts, last


def attention_sizes(shape: Shape, t: int) -> list[tuple[float, float]]:
    """(in, out) of its matrices on one of t ranks; the narrow ones of latent attention are whole on each."""
    h, a, latent = shape.hidden_size, shape.num_heads, shape.latent
    output = (a * shape.v_width / t, h)
    if latent is None:
        return [(h, (a / t + 2 * max(shape.num_kv_heads / t, 1)) * shape.d), output]
    q = [(h, latent.q_rank), (latent.q_rank, a * shape.qk_width / t)] if latent.q_rank else [
        (h, a * shape.qk_width / t)]
    return [*q, (h, latent.kv_rank + latent.rope), (latent.kv_rank, a * (latent.nope + latent.value) / t), output]


def expert_seconds(work: Work, rates: Rates) -> tuple[float, float]:
    """(all products of a rank's experts, forward; the last of them). All wait for the rank with the most rows."""
    shape, e, x = work.shape, work.ep, work.etp
    experts, h, f = shape.num_experts / e, shape.hidden_size, shape.ffn_size / x
    rows = work.imbalance * work.n * shape.active_experts * x / work.t / experts
    how = {"count": experts, "flops_per_s": rates.flops_per_s * rates.expert_share}
    last = rates.product_s(rows, f, h, **how)
    return last + rates.product_s(rows, h, (2 if shape.gated else 1) * f, **how), last


def attention_seconds(work: Work, rates: Rates) -> tuple[float, float]:
    """(forward, backward) of scores and mixing. Stored scores are computed in full, the others under the mask."""
    shape, s, cp, heads = work.shape, work.s, work.cp, work.shape.num_heads / work.t
    if not work.flash:
        how = {"count": work.micro_batch * heads, "flops_per_s": rates.head_flops_per_s}
        both = rates.product_s(s / cp, shape.qk_width, s, **how) + rates.product_s(s / cp, s, shape.v_width, **how)
        return both, 2 * both
    width = shape.qk_width + shape.v_width
    once = work.micro_batch * (s / cp) * shape.attended_tokens(s) * heads * width / rates.flash_flops_per_s
    if cp > 1 and work.software.ring_layout == "contiguous":  # the last rank reads nearly all, and all wait for it
        once *= 2 - 1 / cp
    return once, BACKWARD_OF_FLASH * once


# What forward keeps

def kept_bytes(work: Work, number_bytes: int = 2) -> tuple[float, float, float]:
    """(what forward writes and backward reads of one layer; the scores' part of it; rows to experts and back, which are
    no part of it).
    """
    terms = terms_of(work.shape, work.micro_batch, work.s // work.cp, dropout=work.dropout,
                             bytes_per_number=number_bytes)
    scores = 0.0 if work.flash else sum(term_bytes(term, work, "none") for term in terms if term.core)
    rows = sum(term_bytes(term, work, "none") for term in terms if term.name in ROWS)
    return sum(term_bytes(term, work, "selective") for term in terms if term.name not in ROWS) + scores, scores, rows


def term_bytes(term: ActivationTerm, work: Work, recompute: str) -> float:
    """Bytes that a rank keeps of `term`."""
    if term.name in ("k", "v") and work.shape.latent is None:  # ranks that have no head of their own keep another's
        return term.num_bytes / min(work.t, work.shape.num_kv_heads)
    if term.name in ROWS:  # each rank has those of n x/t tokens, so they are not cut as the others are
        return work.imbalance * term.num_bytes * work.etp / work.t
    return term.bytes_on_rank(recompute, work.t, work.sequence_parallel)


# Messages

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
    return forward + calls, backward + calls


def entries(work: Work) -> tuple[int, ...]:
    """Messages that bring a block its input, by block. Experts, which may stand for the MLP, have their own."""
    blocks = 1 if work.shape.num_experts > 1 and not work.shape.shared_experts else 2
    return ((3, 2 if work.shape.gated else 1) if work.software.gathers_by_matrix else (1, 1))[:blocks]


def exposed_messages(work: Work, rates: Rates, one: float, in_node: bool) -> tuple[float, float]:
    """(forward, backward) seconds of gathers and scatters, of `one` each, that no product hides. Backward gathers once
    more what it has not kept: Megatron-Core behind products, as it hides most messages in a node; where only columns
    overlap, the gather runs beside the product for their input's gradient, and the scatter beside that for their own.
    """
    shape, blocks, entered = work.shape, len(entries(work)), sum(entries(work))
    if work.software.overlaps_columns:
        columns = [attention_sizes(shape, work.t)[0],  # q, k and v together; gate and up
                   (shape.hidden_size, (2 if shape.gated else 1) * shape.ffn_size / work.t)]
        products = [rates.product_s(work.n, *size) for size in columns[:blocks]]
        return (entered + blocks) * one, blocks * one + sum(2 * hide_message(one, product, rates.drag)
                                                            for product in products)
    hidden = rates.tensor_hidden if in_node else 0.0
    again = 0 if hidden or work.software.gathers_by_matrix else entered
    return (1 - hidden) * (entered + blocks) * one, (1 - hidden) * (entered + blocks + again) * one


def ring_seconds(work: Work, rates: Rates, attention_s: float) -> tuple[float, float]:
    """(forward, backward) of keys and values that go around, backward with their gradients in a message behind them,
    as far as attention does not hide them.
    """
    cp, shape = work.cp, work.shape
    if cp == 1:
        return 0.0, 0.0
    group = rates.network.group(cp, work.t)
    heads = max((shape.num_heads if shape.latent else shape.num_kv_heads) // work.t, 1)
    sent = ring_attention_bytes(work.micro_batch, heads, work.s, (shape.qk_width + shape.v_width) // 2, cp,
                                rates.number_bytes)
    hides = attention_s * (cp - 1) / cp
    return tuple(messages * (cp - 1) * rates.gathering_s(cp)
                 + hide_message(group.seconds("ring", num_bytes, messages * (cp - 1)), hidden, rates.drag)
                 for messages, num_bytes, hidden in zip((1, 2), sent, (hides, BACKWARD_OF_FLASH * hides)))


def rows_seconds(work: Work, rates: Rates, beside: Seconds) -> float:
    """Seconds of the rows to experts and back, as far as computing does not hide them. Where rows are sent once, a row
    goes once to each node, or in one node to each rank, that has experts for it.
    """
    ep, etp, k = work.ep, work.etp, work.shape.active_experts
    if work.shape.num_experts == 1:
        return 0.0
    row = (work.software.row_bytes or rates.number_bytes) * work.imbalance * work.n / work.t * work.shape.hidden_size
    group, parts = rates.network.group(ep, etp), rates.network.group(etp)
    if work.software.sends_rows_once:  # by one kernel, which does not wait for one neighbour after the other
        places = group.nodes if group.nodes > 1 else ep
        places_of_token = places * (1 - (1 - 1 / places) ** k)  # on average
        if group.nodes > 1 and work.software.nodes_of_row:
            places_of_token = min(places_of_token, work.software.nodes_of_row)
        apart = group.latency_s("send") + group.seconds_per_byte("all_to_all") * row * places_of_token
    else:
        apart = group.seconds("all_to_all", row * k) + rates.gathering_s(ep)
    gathered = parts.seconds("all_gather", row * etp * (k if ep > 1 else 1)) + rates.gathering_s(etp)
    taken = 2 * (apart + gathered)
    overlaps = work.software.overlaps_experts
    return hide_message(taken, beside.matmul + beside.memory, rates.drag) if overlaps else taken


# What backward makes again

def recompute_seconds(work: Work, rates: Rates, forward: Seconds, *, linear: float, last: float, attention: float,
               scores: float) -> Seconds:
    """What recomputation adds to backward."""
    early, flash = work.software.early_stop, work.flash
    if work.modules:
        return modules_seconds(work, rates)
    if work.recompute == "full":
        return Seconds(forward.matmul - last, forward.memory, forward.tp * repeated_share(work),
                       forward.cp, forward.ep) if early else forward
    if work.recompute == "selective" and flash and early:  # operation by operation: every other product is kept
        return Seconds(linear / 2, forward.memory, forward.tp / 2)
    if work.recompute == "selective":
        return Seconds(attention, rates.pass_s(scores, rates.passes))
    return Seconds()


def repeated_share(work: Work) -> float:
    """The share of forward's messages that recomputation repeats: the last one brings nothing that backward wants."""
    messages = 2 + (sum(entries(work)) if work.sequence_parallel else 0)
    return 1 - 1 / messages


def modules_seconds(work: Work, rates: Rates) -> Seconds:
    """Passes over what they had not kept, and the products that made it."""
    dropped = {name for module in work.modules for name in MODULES[module]}
    terms = terms_of(work.shape, work.micro_batch, work.s // work.cp, bytes_per_number=rates.number_bytes)
    memory = rates.pass_s(sum(term_bytes(term, work, "selective") for term in terms if term.name in dropped),
                          rates.passes)
    sizes = attention_sizes(work.shape, work.t)[1:-1] if "mla_up_proj" in work.modules else []
    matmul = sum(rates.product_s(work.n, k, columns) for k, columns in sizes)
    if {"mlp", "moe"} & set(work.modules):
        matmul += linear_seconds(work, rates)[0] * (1 - 1 / 3)
    return Seconds(matmul, memory)


def head_pass(job: Job, rates: Rates) -> Pass:
    """The read-out and the loss, whose logits have 32 bits; again for each token more that is predicted, behind a
    product that joins what is known of it with its embedding.

    Both ends are cut by the vocabulary: forward what the embedding looked up is added up, backward the gradient of the
    read-out's input; the loss's three messages, of a number a token, are halved.
    """
    return head_seconds(job.shape, job.tokens_per_rank, job.ends_tp, job.layout.tp, rates)


@lru_cache(maxsize=4096)
def head_seconds(shape: Shape, n: float, ends_tp: int, tp: int, rates: Rates) -> Pass:
    """head_pass, of n tokens of a micro-batch on a rank."""
    h, columns = shape.hidden_size, shape.vocab_size / ends_tp
    # At a rate of its own: the read-out stays in 16 bits where other products have 8.
    product = rates.product_s(n, h, columns, flops_per_s=rates.head_flops_per_s)
    passes = rates.pass_s(4 * n * columns, rates.passes)
    summed = 0.0
    if ends_tp > 1:
        group, calls = rates.network.group(ends_tp), rates.gathering_s(ends_tp)
        crowding = rates.crowding if group.nodes > 1 else 1.0
        whole = crowding * group.seconds("all_reduce", rates.number_bytes * n * h) + calls
        summed = whole + 1.5 * (crowding * group.seconds("all_reduce", 4 * n) + calls)
    one = Pass(Seconds(product, passes, summed), Seconds(2 * product, 2 * passes, summed), product)
    if not shape.mtp_layers:
        return one
    joined = rates.product_s(n, 2 * h, h / tp)
    join = Pass(Seconds(joined), Seconds(2 * joined), joined)
    return one * (1 + shape.mtp_layers) + join * shape.mtp_layers
