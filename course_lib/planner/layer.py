"""What one layer, and what the read-out, take on one rank for one micro-batch: seconds by cause, forward and backward.

    n  tokens of the micro-batch on this rank     t  tensor parallelism     h, a, d, f, V  as in costs.flops
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache, reduce
from operator import add

from course_lib.costs.activations import ActivationTerm, activation_terms
from course_lib.costs.context_parallel import ring_attention_bytes
from course_lib.costs.kernels import matmul_seconds, pass_seconds
from course_lib.facts import Shape
from course_lib.planner.expert_layer import (
    LAUNCHED_BY_EXPERTS,
    dispatch_seconds,
    expert_seconds,
    is_row,
    router_seconds,
)
from course_lib.planner.job import MODULES, Job
from course_lib.planner.rates import Rates
from course_lib.planner.seconds import Pass, Seconds, exposed
from course_lib.planner.software import Software

LAUNCHED_BY_ATTENTION = 1 / 3  # of a layer's operations
BACKWARD_OF_FLASH = 2.5  # products of backward over those of forward: five for two, the scores are made again


@dataclass(frozen=True)
class Work:
    """All of a job that the time of its layers depends on."""

    shape: Shape
    t: int
    cp: int
    ep: int
    etp: int
    micro_batch: int
    s: int
    recompute: str
    sequence_parallel: bool
    flash: bool
    dropout: bool
    imbalance: float
    software: Software
    precision: str
    modules: tuple[str, ...]

    @property
    def n(self) -> float:
        """Tokens of a micro-batch."""
        return self.micro_batch * self.s / self.cp


def layer_pass(job: Job, rates: Rates) -> Pass:
    """Of a layer, on average over their kinds, and over those that are recomputed and those that are not."""
    share = job.recomputed_share
    if 0 < share < 1:
        return mean_pass(work_of(job), rates) * share + mean_pass(work_of(job, "none"), rates) * (1 - share)
    return mean_pass(work_of(job), rates)


def work_of(job: Job, recompute: str = "") -> Work:
    L = job.layout
    return Work(job.shape, L.tp, L.cp, L.ep, L.etp, job.micro_batch, job.sequence_length, recompute or job.recompute,
                job.sequence_parallel, job.flash, job.dropout, job.expert_imbalance, job.software,
                job.precision, job.recompute_modules)


@lru_cache(maxsize=65536)
def mean_pass(work: Work, rates: Rates) -> Pass:
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
    n, h, columns = job.tokens_per_rank, job.shape.hidden_size, job.shape.vocab_size / job.layout.tp
    W, w = rates.operand_bytes_per_s, rates.number_bytes
    product = matmul_seconds(n, h, columns, rates.head_flops_per_s, W, w)
    passes = pass_seconds(4 * n * columns, rates.memory_bytes_per_s, rates.passes)
    summed = end_messages(job, rates)
    one = Pass(Seconds(product, passes, summed), Seconds(2 * product, 2 * passes, summed), product)
    if not job.shape.mtp_layers:
        return one
    joined = matmul_seconds(n, 2 * h, h / job.layout.tp, rates.flops_per_s, W, w)
    join = Pass(Seconds(joined), Seconds(2 * joined), joined)
    return one * (1 + job.shape.mtp_layers) + join * job.shape.mtp_layers


def end_messages(job: Job, rates: Rates) -> float:
    """One way, of the embedding and the read-out, both cut by the vocabulary: forward what the embedding looked up is
    added up, backward the gradient of the read-out's input; the loss's three messages, of a number a token, are halved.
    """
    if job.layout.tp == 1:
        return 0.0
    group, n = rates.network.group(job.layout.tp), job.tokens_per_rank
    whole = group.seconds("all_reduce", rates.number_bytes * n * job.shape.hidden_size) + rates.gathering_s(group.n)
    return whole + 1.5 * (group.seconds("all_reduce", 4 * n) + rates.gathering_s(group.n))


def timed_layer(work: Work, rates: Rates) -> Pass:
    """Of a shape whose layers are all of a kind."""
    linear, last = linear_seconds(work, rates)
    forward_a, backward_a = attention_seconds(work, rates)
    all_kept, scores, rows = kept_bytes(work, rates.number_bytes)
    memory = pass_seconds(all_kept, rates.memory_bytes_per_s, rates.passes) + pass_seconds(
        rows, rates.memory_bytes_per_s, rates.row_passes)
    if work.shape.num_experts > 1:
        routed, passed = router_seconds(work.shape, rates, work.n, work.t)
        linear, memory = linear + routed, memory + passed
    tp_forward, tp_backward = tensor_seconds(work, rates)
    cp_forward, cp_backward = ring_seconds(work, rates, forward_a)
    forward = Seconds(linear + forward_a, memory, tp_forward, cp_forward)
    backward = Seconds(2 * linear + backward_a, 2 * memory, tp_backward, cp_backward)
    forward, backward = (replace(each, ep=rows_seconds(work, rates, each)) for each in (forward, backward))
    backward += made_again(work, rates, forward, linear, last, forward_a, scores)
    launch_s = rates.launch_s * (1 + LAUNCHED_BY_ATTENTION * (work.cp - 1))  # for each block that comes around
    if work.shape.num_experts > 1:
        launch_s *= 1 + LAUNCHED_BY_EXPERTS
    passes = 2 if work.recompute == "full" else 1
    forward, backward = (forward.launched(launch_s, rates.launch_adds),
                         backward.launched(passes * launch_s, rates.launch_adds))
    if work.shape.num_experts > 1:
        forward, backward = forward + Seconds(launch=rates.rows_s), backward + Seconds(launch=passes * rates.rows_s)
    return Pass(forward, backward, linear)


def made_again(work: Work, rates: Rates, forward: Seconds, linear: float, last: float, attention: float, scores: float
               ) -> Seconds:
    """What recomputation adds to backward."""
    early, flash = work.software.early_stop, work.flash
    if work.modules:
        return modules_again(work, rates)
    if work.recompute == "full":
        return Seconds(forward.matmul - last, forward.memory, forward.tp * (0.75 if work.sequence_parallel else 0.5),
                       forward.cp, forward.ep) if early else forward
    if work.recompute == "selective" and flash and early:  # operation by operation: every other product is kept
        return Seconds(linear / 2, forward.memory, forward.tp / 2)
    if work.recompute == "selective":
        return Seconds(attention, pass_seconds(scores, rates.memory_bytes_per_s, rates.passes))
    return Seconds()


def modules_again(work: Work, rates: Rates) -> Seconds:
    """Passes over what they had not kept, and the products that made it."""
    dropped = {name for module in work.modules for name in MODULES[module]}
    terms = activation_terms(work.shape, work.micro_batch, work.s // work.cp, bytes_per_number=rates.number_bytes)
    memory = pass_seconds(sum(kept(term, work, "selective") for term in terms if term.name in dropped),
                          rates.memory_bytes_per_s, rates.passes)
    sizes = attention_sizes(work.shape, work.t)[1:-1] if "mla_up_proj" in work.modules else []
    matmul = sum(matmul_seconds(work.n, k, columns, rates.flops_per_s, rates.operand_bytes_per_s, rates.number_bytes)
                 for k, columns in sizes)
    if {"mlp", "moe"} & set(work.modules):
        matmul += linear_seconds(work, rates)[0] * (1 - 1 / 3)
    return Seconds(matmul, memory)


def linear_seconds(work: Work, rates: Rates) -> tuple[float, float]:
    """(all products with weights, forward; the last of them). Those of shared experts are cut as an MLP is."""
    shape, n, t = work.shape, work.n, work.t
    h, f, gates = shape.hidden_size, shape.ffn_size, 2 if shape.gated else 1

    def product(k: float, columns: float) -> float:
        return matmul_seconds(n, k, columns, rates.flops_per_s, rates.operand_bytes_per_s, rates.number_bytes)

    attention = sum(product(k, columns) for k, columns in attention_sizes(shape, t))
    if shape.num_experts == 1:
        last = product(f / t, h)
        return attention + last + product(h, gates * f / t), last
    shared = shape.shared_experts * shape.shared_ffn / t
    if shared:
        attention += product(h, gates * shared) + product(shared, h)
    experts, last = expert_seconds(shape, rates, n, t, work.ep, work.etp, work.imbalance)
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


def rows_seconds(work: Work, rates: Rates, beside: Seconds) -> float:
    """Of the rows to experts and back, as far as computing does not hide them."""
    if work.shape.num_experts == 1:
        return 0.0
    taken = dispatch_seconds(work.shape, rates, work.n, work.t, work.ep, work.etp, work.imbalance,
                             work.software.sends_rows_once)
    return exposed(taken, beside.matmul + beside.memory, rates.drag) if work.software.overlaps_experts else taken


def attention_seconds(work: Work, rates: Rates) -> tuple[float, float]:
    """(forward, backward) of scores and mixing. Stored scores are computed in full, the others under the mask."""
    shape, s, cp, heads = work.shape, work.s, work.cp, work.shape.num_heads / work.t
    if not work.flash:
        W, P, w = rates.operand_bytes_per_s, rates.head_flops_per_s, rates.number_bytes
        both = matmul_seconds(s / cp, shape.qk_width, s, P, W, w, work.micro_batch * heads) + matmul_seconds(
            s / cp, s, shape.v_width, P, W, w, work.micro_batch * heads)
        return both, 2 * both
    width = shape.qk_width + shape.v_width
    once = work.micro_batch * (s / cp) * shape.attended(s) * heads * width / rates.flash_flops_per_s
    if cp > 1 and work.software.ring_layout == "contiguous":  # the last rank reads nearly all, and all wait for it
        once *= 2 - 1 / cp
    return once, BACKWARD_OF_FLASH * once


def kept_bytes(work: Work, number_bytes: int = 2) -> tuple[float, float, float]:
    """(what forward writes and backward reads of one layer; the scores' part of it; rows to experts and back, which are
    no part of it).
    """
    terms = activation_terms(work.shape, work.micro_batch, work.s // work.cp, dropout=work.dropout,
                             bytes_per_number=number_bytes)
    scores = 0.0 if work.flash else sum(kept(term, work, "none") for term in terms if term.core)
    rows = sum(kept(term, work, "none") for term in terms if is_row(term.name))
    return sum(kept(term, work, "selective") for term in terms if not is_row(term.name)) + scores, scores, rows


def kept(term: ActivationTerm, work: Work, recompute: str) -> float:
    """Bytes of it on a rank."""
    if term.name in ("k", "v") and work.shape.latent is None:  # ranks that have no head of their own keep another's
        return term.num_bytes / min(work.t, work.shape.num_kv_heads)
    if is_row(term.name):
        return work.imbalance * term.num_bytes * work.etp / work.t
    return term.kept(recompute, work.t, work.sequence_parallel)


def tensor_seconds(work: Work, rates: Rates) -> tuple[float, float]:
    """(forward, backward): two all-reduces each way, one where experts take the place of the MLP. Sequence parallelism
    halves each, and gathers twice more unless messages are hidden behind products, which Megatron-Core does inside a
    node.
    """
    t, sequence_parallel = work.t, work.sequence_parallel
    if t == 1:
        return 0.0, 0.0
    message_bytes = rates.number_bytes * work.n * work.shape.hidden_size
    group, copies = rates.network.group(t), pass_seconds(message_bytes, rates.memory_bytes_per_s, rates.tensor_copies)
    half = group.seconds("all_gather", message_bytes) if sequence_parallel else group.seconds(
        "all_reduce", message_bytes) / 2
    hidden = rates.tensor_hidden if group.nodes == 1 else 0.0
    again, shown = 2 if sequence_parallel and not hidden else 0, 1 - hidden
    calls = (4 if sequence_parallel else 2) * rates.gathering_s(t)
    blocks = 1 if work.shape.num_experts == 1 or work.shape.shared_experts else 1 / 2
    return (blocks * (shown * 4 * half + 4 * copies + calls),
            blocks * (shown * (4 + again) * half + 6 * copies + calls))


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
                 + exposed(group.seconds("ring", num_bytes, messages * (cp - 1)), hidden, rates.drag)
                 for messages, num_bytes, hidden in zip((1, 2), sent, (hides, BACKWARD_OF_FLASH * hides)))
