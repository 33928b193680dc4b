"""What one rank holds at its fullest, by kind: the first stage, which has most micro-batches in flight, or the last."""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache

from course_lib.costs.activations import ActivationTerm, activation_terms
from course_lib.costs.bubbles import peak_1f1b, peak_gpipe, peak_interleaved
from course_lib.costs.memory import training_memory
from course_lib.planner.constants import ACTIVATIONS_EAGER, LOGIT_BYTES, LOGIT_FUSED, OTHER_BYTES
from course_lib.planner.job import MODULES, Job
from course_lib.planner.layer import Work, kept, work_of
from course_lib.planner.step import (
    Stages,
    matrix_shares,
    numbers_of,
    shards_layers,
    stays_gathered,
    vocabulary_numbers,
)

KINDS = ("parameters", "gradients", "optimizer_state", "activations", "logits", "other")
MADE_AGAIN = ("SiLU of the gate",)  # in backward, by kernels that do gate, SiLU and product in one
READ_BY_PRODUCTS = ("input of q, k, v", "input of the MLP", "their product", "its output", "rows sent to experts")
NARROW = {"fp8": 1 / 2, "mxfp8": 33 / 64, "nvfp4": 9 / 32}  # of 16 bits, with the scales of blocks
GATHERED = ("input of q, k, v", "input of the MLP")  # by sequence parallelism, before products that it cuts
ALWAYS_KEPT = ("input of attention's norm", "input of the output projection")  # where products are chosen one by one
PRODUCTS = ("q", "k", "v", "input of the MLP's norm", "gate", "up", "input of the GELU", "input of the MLP")  # or last
GATHERED_LAYERS = 2  # whole at a time under ZeRO-3: the one at work, the one that arrives


def memory_bytes(job: Job, stages: Stages) -> dict[str, float]:
    """Bytes by kind on the fullest rank."""
    p = job.layout.pp
    if p == 1:
        return stage_bytes(job, stages.ordinary, 0)
    places = {0: stages.first, p - 1: stages.last} | ({1: stages.ordinary} if p > 2 else {})
    return max((stage_bytes(job, layers, place) for place, layers in places.items()),
               key=lambda held: sum(held.values()))


def stage_bytes(job: Job, layers: float, stage: int) -> dict[str, float]:
    """Of a rank of this stage, which has `layers` and, at an end of the pipeline, embedding or read-out."""
    p, t = job.layout.pp, job.layout.tp
    first, last = stage == 0, stage == p - 1
    held = state_bytes(job, layers, (first or last) + (first and last and not job.shape.tied))
    of_layer, whole = layer_activations(job)
    in_flight = micro_batches_in_flight(job, stage)
    held["activations"] = in_flight * max(0.0, layers - job.offload_layers) * of_layer
    held["activations"] += layers * gathered_bytes(job)
    of_logit = LOGIT_FUSED if job.software.fuses_loss else LOGIT_BYTES
    held["logits"] = of_logit * job.tokens_per_rank * job.shape.vocab_size / t if last else 0.0
    if job.recompute == "full":  # the layer that backward is at, when the logits are gone
        held["activations"] += max(0.0, whole - held["logits"])
    held["other"] = float(OTHER_BYTES)
    return held


def state_bytes(job: Job, layers: float, ends: int) -> dict[str, float]:
    """Parameters, gradients and the optimiser's state. ZeRO shards experts over the ranks that hold the same ones."""
    zero = 1 if stays_gathered(job) else job.layout.zero_stage
    wide = job.gradient_bytes == 4 or stays_gathered(job)  # FSDP adds gradients up in 32 bits
    precision = "pure 16-bit" if not job.master else "mixed, fp32 gradients" if wide else "mixed"
    found = dict.fromkeys(("parameters", "gradients", "optimizer_state"), 0.0)
    for index, (numbers, ranks, _) in enumerate(numbers_of(job)):
        numbers = layers * numbers + (vocabulary_numbers(job, ends) if index == 0 else 0.0)
        of_these = training_memory(numbers, precision, zero, ranks).by_kind() if numbers else {}
        found = {kind: found[kind] + of_these.get(kind, 0.0) for kind in found}
    if zero == 3 and shards_layers(job):
        found["parameters"] += 2 * gathered_numbers(job)
    return found


def gathered_bytes(job: Job) -> float:
    """What sequence parallelism gathers for a layer of one micro-batch, beyond this rank's part of it: so much more is
    there at the measured peaks, whatever is in flight.
    """
    if not (job.software.keeps_gathered and job.sequence_parallel):
        return 0.0
    whole = 2 * job.tokens_per_rank * job.shape.hidden_size * len(GATHERED)
    return whole * (1 - 1 / job.layout.tp)


def gathered_numbers(job: Job) -> float:
    """Parameters that ZeRO-3 has whole at a time."""
    share = max(matrix_shares(job.shape)) if job.software.matrix_by_matrix else 1.0
    return GATHERED_LAYERS * share * sum(numbers for numbers, _, _ in numbers_of(job))


def layer_activations(job: Job) -> tuple[float, float]:
    """(what one layer keeps of a micro-batch; what it would keep without recomputation), on average over all layers."""
    work = work_of(job)
    whole = mean_kept(work)
    if job.recompute == "selective" and job.flash and job.software.early_stop:
        return mean_kept(work, by_operation=True), whole
    input_only = 2 * job.tokens_per_rank * job.shape.hidden_size / (job.layout.tp if job.sequence_parallel else 1)
    return job.recomputed_share * input_only + (1 - job.recomputed_share) * whole, whole


@lru_cache(maxsize=65536)
def mean_kept(work: Work, by_operation: bool = False) -> float:
    """Of a layer, on average over their kinds. by_operation: its input, attention's output, and every other product's.
    """
    kinds, software = work.shape.kinds(), work.software
    times = ACTIVATIONS_EAGER.value if software.activations_eager and work.shape.gated else 1.0  # as Llama: q, k turned
    again = {name for module in work.modules for name in MODULES[module]} | (
        set() if software.activations_eager else set(MADE_AGAIN))
    terms = [(count * times / work.shape.num_layers, term.name, kept_of(term, work))
             for count, shape in kinds for term in activation_terms(shape, work.micro_batch, work.s // work.cp,
                                                                    dropout=work.dropout) if term.name not in again]
    if by_operation:
        return sum(share * held * (0.5 if name in PRODUCTS else 1.0) for share, name, held in terms
                   if name in (*PRODUCTS, *ALWAYS_KEPT))
    return sum(share * held for share, _, held in terms)


def kept_of(term: ActivationTerm, work: Work) -> float:
    """What a product reads is kept as the product reads it, in 8 or 4 bits."""
    policy = "selective" if work.flash or work.recompute == "selective" else "none"
    return kept(term, work, policy) * (NARROW.get(work.precision, 1.0) if term.name in READ_BY_PRODUCTS else 1.0)


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
