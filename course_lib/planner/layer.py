"""What one layer, and what the read-out, take on one rank for one micro-batch: seconds by cause, forward and backward.

    n  tokens of the micro-batch on this rank     t  tensor parallelism     h, a, d, f, V  as in costs.flops
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache, reduce
from operator import add

from course_lib.costs.activations import ActivationTerm, activation_terms
from course_lib.costs.context_parallel import ring_attention_bytes
from course_lib.planner.expert_layer import (
    LAUNCHED_BY_EXPERTS,
    dispatch_seconds,
    expert_seconds,
    is_row,
    router_seconds,
)
from course_lib.planner.job import MODULES, Job
from course_lib.planner.rates import Rates
from course_lib.planner.seconds import Pass, Seconds, exposed_seconds
from course_lib.planner.split_layer import attention_sizes, share_again, tensor_seconds
from course_lib.planner.work import Work, work_of

LAUNCHED_BY_ATTENTION = 1 / 3  # of a layer's operations
BACKWARD_OF_FLASH = 2.5  # products of backward over those of forward: five for two, the scores are made again


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
        return timed_layer(work, rates)
    counts = [count for count, _ in kinds[:-1]] + [kinds[-1][0] + work.shape.mtp_layers]
    passes = [timed_layer(replace(work, shape=kind), rates) * (count / sum(counts))
              for count, (_, kind) in zip(counts, kinds)]
    return reduce(add, passes)


def head_pass(job: Job, rates: Rates) -> Pass:
    """The read-out and the loss, whose logits have 32 bits; again for each token more that is predicted, behind a
    product that joins what is known of it with its embedding.
    """
    n, h, columns = job.tokens_per_rank, job.shape.hidden_size, job.shape.vocab_size / job.ends_tp
    # At a rate of its own: the read-out stays in 16 bits where other products have 8.
    product = rates.product_s(n, h, columns, flops_per_s=rates.head_flops_per_s)
    passes = rates.pass_s(4 * n * columns, rates.passes)
    summed = end_messages(job, rates)
    weights = 0.0 if job.lora_rank else product  # of frozen ones nobody wants the gradient
    one = Pass(Seconds(product, passes, summed), Seconds(product + weights, 2 * passes, summed), weights)
    if not job.shape.mtp_layers:
        return one
    joined = rates.product_s(n, 2 * h, h / job.layout.tp)
    join = Pass(Seconds(joined), Seconds(2 * joined), joined)
    return one * (1 + job.shape.mtp_layers) + join * job.shape.mtp_layers


def end_messages(job: Job, rates: Rates) -> float:
    """One way, of the embedding and the read-out, both cut by the vocabulary: forward what the embedding looked up is
    added up, backward the gradient of the read-out's input; the loss's three messages, of a number a token, are halved.
    """
    if job.ends_tp == 1:
        return 0.0
    group, n = rates.network.group(job.ends_tp), job.tokens_per_rank
    crowding, gathering_s = rates.crowding if group.nodes > 1 else 1.0, rates.gathering_s(group.n)
    whole = crowding * group.seconds("all_reduce", rates.number_bytes * n * job.shape.hidden_size) + gathering_s
    return whole + 1.5 * (crowding * group.seconds("all_reduce", 4 * n) + gathering_s)


def timed_layer(work: Work, rates: Rates) -> Pass:
    """Seconds of one layer, for a shape whose layers are all of a kind."""
    linear, last = linear_seconds(work, rates)
    forward_a, backward_a = attention_seconds(work, rates)
    all_kept, scores, rows = kept_bytes(work, rates.number_bytes)
    memory = rates.pass_s(all_kept, rates.passes) + rates.pass_s(rows, rates.row_passes)
    if work.shape.num_experts > 1:
        routed, passed = router_seconds(work, rates)
        linear, memory = linear + routed, memory + passed
    tp_forward, tp_backward = tensor_seconds(work, rates)
    cp_forward, cp_backward = ring_seconds(work, rates, forward_a)
    adapters = adapter_seconds(work, rates)
    weights = adapters if work.lora_rank else linear  # of frozen ones nobody wants the gradient
    linear += adapters
    forward = Seconds(linear + forward_a, memory, tp_forward, cp_forward)
    backward = Seconds(linear + weights + backward_a, 2 * memory, tp_backward, cp_backward)
    forward, backward = (replace(each, ep=rows_seconds(work, rates, each)) for each in (forward, backward))
    backward += made_again(work, rates, forward, linear=linear, last=last, attention=forward_a, scores=scores)
    launch_s = rates.launch_s * (1 + LAUNCHED_BY_ATTENTION * (work.cp - 1))  # for each block that comes around
    if work.shape.num_experts > 1:
        launch_s *= 1 + LAUNCHED_BY_EXPERTS
    passes = 2 if work.recompute == "full" else 1
    forward, backward = (forward.with_launches(launch_s, rates.launch_adds),
                         backward.with_launches(passes * launch_s, rates.launch_adds))
    if work.shape.num_experts > 1:
        forward, backward = forward + Seconds(launch=rates.rows_s), backward + Seconds(launch=passes * rates.rows_s)
    return Pass(forward, backward, weights)


def made_again(work: Work, rates: Rates, forward: Seconds, *, linear: float, last: float, attention: float,
               scores: float) -> Seconds:
    """What recomputation adds to backward."""
    early, flash = work.software.early_stop, work.flash
    if work.modules:
        return modules_again(work, rates)
    if work.recompute == "full":
        return Seconds(forward.matmul - last, forward.memory, forward.tp * share_again(work),
                       forward.cp, forward.ep) if early else forward
    if work.recompute == "selective" and flash and early:  # operation by operation: every other product is kept
        return Seconds(linear / 2, forward.memory, forward.tp / 2)
    if work.recompute == "selective":
        return Seconds(attention, rates.pass_s(scores, rates.passes))
    return Seconds()


def modules_again(work: Work, rates: Rates) -> Seconds:
    """Passes over what they had not kept, and the products that made it."""
    dropped = {name for module in work.modules for name in MODULES[module]}
    terms = activation_terms(work.shape, work.micro_batch, work.s // work.cp, bytes_per_number=rates.number_bytes)
    memory = rates.pass_s(sum(term_bytes(term, work, "selective") for term in terms if term.name in dropped),
                          rates.passes)
    sizes = attention_sizes(work.shape, work.t)[1:-1] if "mla_up_proj" in work.modules else []
    matmul = sum(rates.product_s(work.n, k, columns) for k, columns in sizes)
    if {"mlp", "moe"} & set(work.modules):
        matmul += linear_seconds(work, rates)[0] * (1 - 1 / 3)
    return Seconds(matmul, memory)


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


def rows_seconds(work: Work, rates: Rates, beside: Seconds) -> float:
    """Seconds of the rows to experts and back, as far as computing does not hide them."""
    if work.shape.num_experts == 1:
        return 0.0
    taken = dispatch_seconds(work, rates)
    if not work.software.overlaps_experts:
        return taken
    return exposed_seconds(taken, beside.matmul + beside.memory, rates.drag)


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


def kept_bytes(work: Work, number_bytes: int = 2) -> tuple[float, float, float]:
    """(what forward writes and backward reads of one layer; the scores' part of it; rows to experts and back, which are
    no part of it).
    """
    terms = activation_terms(work.shape, work.micro_batch, work.s // work.cp, dropout=work.dropout,
                             bytes_per_number=number_bytes)
    scores = 0.0 if work.flash else sum(term_bytes(term, work, "none") for term in terms if term.core)
    rows = sum(term_bytes(term, work, "none") for term in terms if is_row(term.name))
    return sum(term_bytes(term, work, "selective") for term in terms if not is_row(term.name)) + scores, scores, rows


def term_bytes(term: ActivationTerm, work: Work, recompute: str) -> float:
    """Bytes that a rank keeps of `term`."""
    if term.name in ("k", "v") and work.shape.latent is None:  # ranks that have no head of their own keep another's
        return term.num_bytes / min(work.t, work.shape.num_kv_heads)
    if is_row(term.name):
        return work.imbalance * term.num_bytes * work.etp / work.t
    return term.bytes_on_rank(recompute, work.t, work.sequence_parallel)


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
                 + exposed_seconds(group.seconds("ring", num_bytes, messages * (cp - 1)), hidden, rates.drag)
                 for messages, num_bytes, hidden in zip((1, 2), sent, (hides, BACKWARD_OF_FLASH * hides)))


def adapter_seconds(work: Work, rates: Rates) -> float:
    """Forward, of n tokens, by adapters of q and v: two narrow products beside each, down to `rank` numbers and up to
    this rank's heads (Hu et al. 2021, "LoRA", section 4.1). 0 without adapters.
    """
    shape, rank = work.shape, work.lora_rank
    columns = (shape.num_heads * shape.d / work.t, max(shape.num_kv_heads / work.t, 1) * shape.d)
    return sum(rates.product_s(work.n, shape.hidden_size, rank) + rates.product_s(work.n, rank, out)
               for out in columns) if rank else 0.0
