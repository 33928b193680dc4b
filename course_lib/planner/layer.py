"""What one layer, and what the read-out, take on one rank for one micro-batch: seconds by cause, forward and backward.

    n  tokens of the micro-batch on this rank     t  tensor parallelism     h, a, d, f, V  as in costs.flops
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import lru_cache

from course_lib.costs.activations import activation_terms
from course_lib.costs.context_parallel import ring_attention_bytes
from course_lib.costs.kernels import matmul_seconds, pass_seconds
from course_lib.facts import Shape
from course_lib.planner.job import Job
from course_lib.planner.rates import Rates

LAUNCHED_BY_ATTENTION = 1 / 3  # of a layer's operations
BACKWARD_OF_FLASH = 2.5  # products of backward over those of forward: five for two, the scores are made again


@dataclass(frozen=True)
class Seconds:
    """By cause. `matmul`: all products, attention's too; `memory`: passes over memory between them."""

    matmul: float = 0.0
    memory: float = 0.0
    tp: float = 0.0
    cp: float = 0.0
    ep: float = 0.0
    launch: float = 0.0

    @property
    def total(self) -> float:
        return self.matmul + self.memory + self.tp + self.cp + self.ep + self.launch

    def __add__(self, other: Seconds) -> Seconds:
        return Seconds(self.matmul + other.matmul, self.memory + other.memory, self.tp + other.tp, self.cp + other.cp,
                       self.ep + other.ep, self.launch + other.launch)

    def __mul__(self, times: float) -> Seconds:
        return Seconds(*(getattr(self, each.name) * times for each in fields(self)))

    def launched(self, seconds: float, adds: bool = False) -> Seconds:
        """With the wait for kernels that the processor launches more slowly than the device runs them; or, `adds`,
        with the time of launching, where one processor does both.
        """
        return replace(self, launch=seconds if adds else max(0.0, seconds - self.total))


@dataclass(frozen=True)
class Pass:
    """`weight_s`: what the products of the weights' gradients take, of backward."""

    forward: Seconds
    backward: Seconds
    weight_s: float = 0.0

    @property
    def total(self) -> float:
        return self.forward.total + self.backward.total


def layer_pass(job: Job, rates: Rates) -> Pass:
    L = job.layout
    return timed_layer(job.shape, rates, L.tp, L.cp, L.ep, job.micro_batch, job.sequence_length, job.recompute,
                       job.sequence_parallel, job.flash, job.dropout, job.software.early_stop,
                       job.software.ring_layout)


def head_pass(job: Job, rates: Rates) -> Pass:
    """The read-out and the loss, whose logits have 32 bits."""
    n, columns = job.tokens_per_rank, job.shape.vocab_size / job.layout.tp
    product = matmul_seconds(n, job.shape.hidden_size, columns, rates.head_flops_per_s, rates.operand_bytes_per_s,
                             rates.number_bytes)
    passes = pass_seconds(4 * n * columns, rates.memory_bytes_per_s, rates.passes)
    summed = end_messages(job, rates)
    return Pass(Seconds(product, passes, summed), Seconds(2 * product, 2 * passes, summed), product)


def end_messages(job: Job, rates: Rates) -> float:
    """One way, of the embedding and the read-out, both cut by the vocabulary: forward what the embedding looked up is
    added up, backward the gradient of the read-out's input; the loss's three messages, of a number a token, are halved.
    """
    if job.layout.tp == 1:
        return 0.0
    group, n = rates.network.group(job.layout.tp), job.tokens_per_rank
    whole = group.seconds("all_reduce", rates.number_bytes * n * job.shape.hidden_size) + rates.gathering_s(group.n)
    return whole + 1.5 * (group.seconds("all_reduce", 4 * n) + rates.gathering_s(group.n))


@lru_cache(maxsize=65536)
def timed_layer(shape: Shape, rates: Rates, t: int, cp: int, ep: int, micro_batch: int, sequence_length: int,
                recompute: str, sequence_parallel: bool, flash: bool, dropout: bool, early_stop: bool, ring_layout: str
                ) -> Pass:
    n = micro_batch * sequence_length / cp
    linear, last = linear_seconds(shape, rates, n, t, ep)
    forward_a, backward_a = attention_seconds(shape, rates, micro_batch, sequence_length, t, cp, flash, ring_layout)
    w = rates.number_bytes
    all_kept, scores = kept_bytes(shape, micro_batch, sequence_length // cp, t, sequence_parallel, flash, dropout, w)
    memory = pass_seconds(all_kept, rates.memory_bytes_per_s, rates.passes)
    tp_forward, tp_backward = tensor_seconds(rates, w * n * shape.hidden_size, t, sequence_parallel)
    cp_forward, cp_backward = ring_seconds(shape, rates, micro_batch, sequence_length, t, cp, forward_a)
    rows = w * n * shape.active_experts * shape.hidden_size
    dispatch = 2 * rates.network.group(ep, t).seconds("all_to_all", rows)  # there and back
    forward = Seconds(linear + forward_a, memory, tp_forward, cp_forward, dispatch)
    backward = Seconds(2 * linear + backward_a, 2 * memory, tp_backward, cp_backward, dispatch)
    if recompute == "full":
        again = Seconds(forward.matmul - last, memory, tp_forward * (0.75 if sequence_parallel else 0.5), cp_forward,
                        dispatch) if early_stop else forward
        backward += again
    elif recompute == "selective" and flash and early_stop:  # operation by operation: every other product is kept
        backward += Seconds(linear / 2, memory, tp_forward / 2)
    elif recompute == "selective":
        backward += Seconds(forward_a, pass_seconds(scores, rates.memory_bytes_per_s, rates.passes))
    launch_s = rates.launch_s * (1 + LAUNCHED_BY_ATTENTION * (cp - 1))  # for each block that comes around
    passes = 2 if recompute == "full" else 1
    return Pass(forward.launched(launch_s, rates.launch_adds),
                backward.launched(passes * launch_s, rates.launch_adds), linear)


def linear_seconds(shape: Shape, rates: Rates, n: float, t: int, ep: int) -> tuple[float, float]:
    """(all products with weights, forward; the last of them). A rank's experts share k tokens for each of its own."""
    h, a, d, f = shape.hidden_size, shape.num_heads, shape.d, shape.ffn_size
    P, W, w = rates.flops_per_s, rates.operand_bytes_per_s, rates.number_bytes
    kv_heads = max(shape.num_kv_heads / t, 1)
    attention = matmul_seconds(n, h, (a / t + 2 * kv_heads) * d, P, W, w) + matmul_seconds(n, a * d / t, h, P, W, w)
    experts = shape.num_experts / ep
    rows = n * shape.active_experts / experts
    P = P * rates.expert_share if shape.num_experts > 1 else P
    last = matmul_seconds(rows, f / t, h, P, W, w, experts)
    return attention + last + matmul_seconds(rows, h, (2 if shape.gated else 1) * f / t, P, W, w, experts), last


def attention_seconds(shape: Shape, rates: Rates, micro_batch: int, s: int, t: int, cp: int, flash: bool,
                      ring_layout: str) -> tuple[float, float]:
    """(forward, backward) of scores and mixing. Stored scores are computed in full, the others under the mask."""
    heads, d = shape.num_heads / t, shape.d
    if not flash:
        W, P, w = rates.operand_bytes_per_s, rates.head_flops_per_s, rates.number_bytes
        both = matmul_seconds(s / cp, d, s, P, W, w, micro_batch * heads) + matmul_seconds(
            s / cp, s, d, P, W, w, micro_batch * heads)
        return both, 2 * both
    once = 2 * micro_batch * (s / cp) * s * heads * d / rates.flash_flops_per_s
    if cp > 1 and ring_layout == "contiguous":  # the last rank reads nearly everything, and all wait for it
        once *= 2 - 1 / cp
    return once, BACKWARD_OF_FLASH * once


def kept_bytes(shape: Shape, micro_batch: int, s: int, t: int, sequence_parallel: bool, flash: bool, dropout: bool,
               number_bytes: int = 2) -> tuple[float, float]:
    """(what forward writes and backward reads of one layer; the scores' part of it)."""
    terms = activation_terms(shape, micro_batch, s, dropout=dropout, bytes_per_number=number_bytes)
    scores = 0.0 if flash else sum(term.kept("none", t, sequence_parallel) for term in terms if term.core)
    kept = sum(term.kept("selective", t, sequence_parallel) for term in terms)
    if shape.num_experts > 1:  # rows that are sorted to their experts and back
        kept += 2 * number_bytes * micro_batch * s * shape.active_experts * shape.hidden_size
    return kept + scores, scores


def tensor_seconds(rates: Rates, message_bytes: float, t: int, sequence_parallel: bool) -> tuple[float, float]:
    """(forward, backward): two all-reduces each way. Sequence parallelism halves each, and gathers twice more unless
    messages are hidden behind products, which Megatron-Core does inside a node.
    """
    if t == 1:
        return 0.0, 0.0
    group, copies = rates.network.group(t), pass_seconds(message_bytes, rates.memory_bytes_per_s, rates.tensor_copies)
    half = group.seconds("all_gather", message_bytes) if sequence_parallel else group.seconds(
        "all_reduce", message_bytes) / 2
    hidden = rates.tensor_hidden if group.nodes == 1 else 0.0
    again, shown = 2 if sequence_parallel and not hidden else 0, 1 - hidden
    calls = (4 if sequence_parallel else 2) * rates.gathering_s(t)
    return shown * 4 * half + 4 * copies + calls, shown * (4 + again) * half + 6 * copies + calls


def ring_seconds(shape: Shape, rates: Rates, micro_batch: int, s: int, t: int, cp: int, attention_s: float
                 ) -> tuple[float, float]:
    """(forward, backward) of keys and values that go around, backward with their gradients in a message behind them,
    as far as attention does not hide them.
    """
    if cp == 1:
        return 0.0, 0.0
    group = rates.network.group(cp, t)
    heads = max(shape.num_kv_heads // t, 1)
    sent = ring_attention_bytes(micro_batch, heads, s, shape.d, cp, rates.number_bytes)
    hides = attention_s * (cp - 1) / cp
    return tuple(messages * (cp - 1) * rates.gathering_s(cp)
                 + exposed(group.seconds("ring", num_bytes, messages * (cp - 1)), hidden, rates.drag)
                 for messages, num_bytes, hidden in zip((1, 2), sent, (hides, BACKWARD_OF_FLASH * hides)))


def exposed(message_s: float, computing_s: float, drag: float = 0.0) -> float:
    """What a message costs beside computing: what is left of it, and the drag of what is hidden."""
    return max(0.0, message_s - computing_s) + drag * min(message_s, computing_s)
