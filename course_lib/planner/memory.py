"""What one rank holds at its fullest, by kind: the first stage, which has most micro-batches in flight, or the last."""

from __future__ import annotations

from fractions import Fraction

from course_lib.costs.activations import activation_terms
from course_lib.costs.bubbles import peak_1f1b, peak_gpipe, peak_interleaved
from course_lib.costs.flops import expert_matrices
from course_lib.costs.memory import training_memory
from course_lib.planner.constants import ACTIVATIONS_EAGER, LOGIT_BYTES, OTHER_BYTES
from course_lib.planner.job import Job
from course_lib.planner.step import Stages, layer_parameters, shards_layers

KINDS = ("parameters", "gradients", "optimizer_state", "activations", "logits", "other")
MADE_AGAIN = ("SiLU of the gate",)  # in backward, by kernels that do gate, SiLU and product in one
GATHERED_LAYERS = 2  # whole at a time under ZeRO-3: the one at work, the one that arrives


def memory_bytes(job: Job, stages: Stages) -> dict[str, float]:
    """Bytes by kind on the fullest rank."""
    p = job.layout.pp
    if p == 1:
        return stage_bytes(job, stages.ordinary, 0)
    return max((stage_bytes(job, stages.ordinary, 0), stage_bytes(job, stages.last, p - 1)),
               key=lambda held: sum(held.values()))


def stage_bytes(job: Job, layers: float, stage: int) -> dict[str, float]:
    """Of a rank of this stage, which has `layers` and, at an end of the pipeline, embedding or read-out."""
    p, t = job.layout.pp, job.layout.tp
    first, last = stage == 0, stage == p - 1
    held = state_bytes(job, layers, (first or last) + (first and last and not job.shape.tied))
    kept, whole = layer_activations(job)
    in_flight = micro_batches_in_flight(job, stage)
    held["activations"] = in_flight * layers * kept + (whole if job.recompute == "full" else 0.0)
    held["logits"] = LOGIT_BYTES * job.tokens_per_rank * job.shape.vocab_size / t if last else 0.0
    held["other"] = float(OTHER_BYTES)
    return held


def state_bytes(job: Job, layers: float, ends: int) -> dict[str, float]:
    """Parameters, gradients and the optimiser's state. ZeRO shards experts over the ranks that hold the same ones."""
    t, ep, zero = job.layout.tp, job.layout.ep, job.layout.zero_stage
    experts = layers * job.shape.num_experts * expert_matrices(job.shape) / t / ep if job.shape.num_experts > 1 else 0.0
    dense = layers * layer_parameters(job.shape, t, ep) - experts + ends * job.shape.vocab_size * (
        job.shape.hidden_size / t)
    precision = "pure 16-bit" if not job.master else "mixed, fp32 gradients" if job.gradient_bytes == 4 else "mixed"
    found = dict.fromkeys(("parameters", "gradients", "optimizer_state"), 0.0)
    for numbers, ranks in ((dense, job.plane), (experts, job.plane // ep)):
        if numbers:
            of_these = training_memory(numbers, precision, zero, ranks).by_kind()
            found = {kind: found[kind] + of_these[kind] for kind in found}
    if zero == 3 and shards_layers(job):
        found["parameters"] += GATHERED_LAYERS * 2 * layer_parameters(job.shape, t, ep)
    return found


def layer_activations(job: Job) -> tuple[float, float]:
    """(what one layer keeps of a micro-batch; what it would keep without recomputation)."""
    s, t = job.sequence_length // job.layout.cp, job.layout.tp
    eager = job.software.activations_eager
    terms = [term for term in activation_terms(job.shape, job.micro_batch, s, dropout=job.dropout)
             if eager or term.name not in MADE_AGAIN]
    policy = "selective" if job.flash or job.recompute == "selective" else "none"
    whole = sum(term.kept(policy, t, job.sequence_parallel) for term in terms)
    whole *= ACTIVATIONS_EAGER.value if eager else 1.0
    if job.recompute == "full":
        split = t if job.sequence_parallel else 1
        return 2 * job.tokens_per_rank * job.shape.hidden_size / split, whole
    return whole, whole


def micro_batches_in_flight(job: Job, stage: int) -> Fraction:
    """Of the whole stage: with v chunks each counts 1/v. ZB-2p holds twice what 1F1B does."""
    p, m = job.layout.pp, job.num_microbatches
    if job.schedule == "gpipe":
        return Fraction(peak_gpipe(p, m, stage))
    if job.v > 1 and p > 1:
        return Fraction(peak_interleaved(p, m, job.v, stage), job.v)
    if job.schedule == "zb1p":
        return Fraction(min(p, m))
    return Fraction(min(2 * p - 1, m) if job.schedule == "zb2p" else peak_1f1b(p, m, stage))
