"""What a rank has of the model: the layers of its stage, how many numbers these are, how ZeRO shares them out; and what
one rank of a real trainer holds at its fullest, by kind.

That is a rank of the first stage, which has most micro-batches in flight, or of the last. Parameters, gradients and the
optimiser's state are sharded; activations and logits are kept as the software keeps them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from course_lib.costs.flops import (
    activation_terms,
    attention_matrices,
    expert_matrices,
    router_matrix,
    shared_matrices,
    vectors_of_layer,
)
from course_lib.costs.memory import state_bytes_per_parameter, training_memory
from course_lib.costs.scaling import balanced_layers, first_past_the_share
from course_lib.facts import Shape
from course_lib.planner.cluster import Pass, Rates
from course_lib.planner.constants import (
    ACTIVATIONS_EAGER,
    LOGIT_BYTES,
    LOGIT_CUT,
    LOGIT_FUSED,
    LOGIT_NARROW,
    OTHER_BYTES,
)
from course_lib.planner.job import MODULES, NARROW, SCHEDULES, Job, Work, work_of
from course_lib.planner.layer import head_pass, layer_pass, term_bytes

Numbers = tuple[float, int, int]  # on a rank; how many ranks have the same; how far apart these stand


@dataclass(frozen=True)
class Stages:
    """`first`, `ordinary`, `last`: layers on a stage. A rank's numbers are those of the largest."""

    first: float
    ordinary: float
    last: float

    @property
    def most(self) -> float:
        """Layers of the largest stage, which sets the pipeline's beat."""
        return max(self.first, self.ordinary, self.last)


def stages_of(job: Job, layer: Pass, head: Pass) -> Stages:
    """Chunks of as many layers each; or the two ends have one less; or, dealt out by hand, even in time; or whole
    layers, dealt out by their numbers: the first stage is the largest, and all wait for it; or as many on each.
    """
    p, L = job.layout.pp, job.num_layers
    if job.software.whole_layers:
        head_in_layers = job.shape.vocab_size * job.shape.hidden_size / sum(layer_numbers(job.shape))
        ordinary, last = first_past_the_share(L, p, head_in_layers)
        return Stages(ordinary, ordinary, last)
    if job.software.even_layers:
        return Stages(-(-L // p), -(-L // p), L // p)
    if not job.uneven and L % (p * job.v) == 0:
        return Stages(L / p, L / p, L / p)
    if not job.uneven and (L + 2) % (p * job.v) == 0:
        even = (L + 2) / p
        return Stages(even - 1, even, even - 1)
    even, last = balanced_layers(L, p, head.total / layer.total)
    return Stages(even, even, last)


def stages_at(job: Job, rates: Rates) -> Stages:
    """stages_of, for who has no passes yet."""
    return stages_of(job, layer_pass(job, rates), head_pass(job, rates))


# How many numbers

@lru_cache(maxsize=4096)
def layer_numbers(shape: Shape, t: int = 1, ep: int = 1, etp: int = 1) -> tuple[float, float]:
    """(parameters of one layer on one rank but experts, those of its experts), on average over all layers; what is not
    a matrix is counted as if it were cut, too.
    """
    plain, of_experts, layers = 0.0, 0.0, shape.num_layers
    for count, kind in shape.kinds():
        mlp = kind.num_experts * expert_matrices(kind)
        rest = attention_matrices(kind) + shared_matrices(kind) + router_matrix(kind) + vectors_of_layer(kind)
        if kind.num_experts > 1:
            of_experts += count / layers * mlp / ep / etp
        plain += count / layers * (rest + (mlp if kind.num_experts == 1 else 0)) / t
    return plain, of_experts


def held_numbers(job: Job) -> tuple[Numbers, ...]:
    """Of a layer; those of experts, if there are any, last."""
    L = job.layout
    plain, of_experts = layer_numbers(job.shape, L.tp, L.ep, L.etp)
    return ((plain, job.plane, L.tp),) + (((of_experts, L.edp, L.ep * L.etp),) if of_experts else ())


def vocabulary_numbers(job: Job, ends: int) -> float:
    """Numbers of the embedding, of the read-out, or (ends=2) of both, on one rank."""
    return ends * job.shape.vocab_size * job.shape.hidden_size / job.ends_tp


def rank_numbers(job: Job, stages: Stages) -> list[Numbers]:
    """As held_numbers, of the rank that has most: its layers, and an end of the model, or both."""
    (plain, *where), *others = held_numbers(job)
    ends = vocabulary_numbers(job, 1 if job.layout.pp > 1 or job.shape.tied else 2)
    return [(stages.most * plain + ends, *where), *((stages.most * numbers, *where) for numbers, *where in others)]


def matrix_shares(shape: Shape) -> tuple[float, ...]:
    """The shares of a layer's numbers: q, k and v together, output, up (and gate), down."""
    h, output = shape.hidden_size, shape.num_heads * shape.d * shape.hidden_size
    sizes = (attention_matrices(shape) - output, output, (2 if shape.gated else 1) * h * shape.ffn_size,
             h * shape.ffn_size)
    return tuple(size / sum(sizes) for size in sizes)


# How ZeRO shares them out

def gathers_once(job: Job) -> bool:
    """FSDP in a pipeline: a stage's parameters are gathered once a step, and its gradients reduced once."""
    return job.software.shards_layers and job.layout.pp > 1 and job.layout.zero_stage >= 2


def scatters_often(job: Job) -> bool:
    """Gradients are scattered in each micro-batch, since nobody keeps them whole."""
    return job.plane > 1 and job.layout.zero_stage >= 2 and not gathers_once(job)


def shards_layers(job: Job) -> bool:
    """Layers are gathered one by one as they are needed."""
    stage = job.layout.zero_stage
    return job.plane > 1 and not gathers_once(job) and (stage == 3 or stage == 2 and job.software.shards_layers)


GATHERED_LAYERS = 2  # whole at a time under ZeRO-3: the one at work, the one that arrives
OF_A_LOGIT = {"eager": LOGIT_BYTES, "fused": LOGIT_FUSED, "narrow": LOGIT_NARROW, "cut": LOGIT_CUT}
READ_BY_PRODUCTS = ("input of q, k, v", "input of the MLP", "their product", "its output", "rows sent to experts")
GATHERED = ("input of q, k, v", "input of the MLP")  # by sequence parallelism, before products that it cuts
ALWAYS_KEPT = ("input of attention's norm", "input of the output projection")  # where products are chosen one by one
PRODUCTS = ("q", "k", "v", "input of the MLP's norm", "gate", "up", "input of the GELU", "input of the MLP")  # or last


def memory_bytes(job: Job, stages: Stages) -> dict[str, float]:
    """Bytes by kind on the fullest rank."""
    p = job.layout.pp
    if p == 1:
        return stage_bytes(job, stages.ordinary, 0)
    places = {0: stages.first, p - 1: stages.last} | ({1: stages.ordinary} if p > 2 else {})
    return max((stage_bytes(job, layers, place) for place, layers in places.items()),
               key=lambda held: sum(held.values()))


def stage_bytes(job: Job, layers: float, stage: int) -> dict[str, float]:
    """Bytes by kind of a rank of this stage, which has `layers` and, at an end of the pipeline, embedding or read-out.
    """
    p = job.layout.pp
    first, last = stage == 0, stage == p - 1
    held = state_bytes(job, layers, (first or last) + (first and last and not job.shape.tied))
    of_layer, whole = (kept + gathered_bytes(job, again) for kept, again in zip(
        layer_activations(job), (job.recomputed_share if job.recompute != "selective" else 1.0, 0.0)))
    held["activations"] = job.in_flight(stage) * max(0.0, layers - job.offload_layers) * of_layer
    held["logits"] = logit_bytes(job) if last else 0.0
    if job.recompute == "full":  # the layer that backward is at, when the logits are gone
        # One layer at a time is whole again. On the last stage it finds the place that the logits have left.
        held["activations"] += max(0.0, whole - held["logits"])
    # So much more is there at most of nanotron's measured peaks, whatever is in flight: the whole sums that a layer's
    # two reduce-scatters begin with. What would explain it: the code is past them, but a block that another stream
    # reads is free only when the device is past it, too (Tensor.record_stream), and a processor that runs a pass ahead
    # asks for all of them. Three runs, with 131,072 tokens a micro-batch and more, did without.
    held["other"] = OTHER_BYTES + layers * (beyond_own_part(job) if job.software.frees_late else 0.0)
    return held


def needed_bytes(held: dict[str, float]) -> float:
    """Bytes without what the allocator gets back when it waits, as it does before it gives up: of `other` all but
    buffers.
    """
    return sum(held.values()) - max(0.0, held["other"] - OTHER_BYTES)


def state_bytes(job: Job, layers: float, ends: int) -> dict[str, float]:
    """Parameters, gradients and the optimiser's state of so many layers and ends of the model. ZeRO shards experts over
    the ranks that hold the same ones.
    """
    zero = 1 if gathers_once(job) else job.layout.zero_stage
    found, whole = dict.fromkeys(("parameters", "gradients", "optimizer_state"), 0.0), 0.0
    for index, (numbers, ranks, _) in enumerate(held_numbers(job)):
        numbers = layers * numbers + (vocabulary_numbers(job, ends) if index == 0 else 0.0)
        if numbers:
            for kind, of_one in bytes_of_number(precision_of(job), zero, ranks):
                found[kind] += numbers * of_one
            whole += numbers
    copies = SCHEDULES[job.schedule].copies
    found["parameters"], found["gradients"] = copies * found["parameters"], copies * found["gradients"]
    # FSDP2 that reduces gradients after the last micro-batch adds those before up in 32 bits, unsharded
    # (set_requires_gradient_sync(False), reduce_dtype=float32).
    adds_up_whole = job.software.adds_up_whole and job.num_microbatches > 1 and shards_layers(job)
    if gathers_once(job) or adds_up_whole:
        found["gradients"] = 4 * whole
    if zero == 3 and shards_layers(job):
        share = max(matrix_shares(job.shape)) if job.software.matrix_by_matrix else 1.0
        found["parameters"] += 2 * (GATHERED_LAYERS * share * sum(numbers for numbers, _, _ in held_numbers(job)))
    return found


@lru_cache(maxsize=1024)
def bytes_of_number(precision: str, zero: int, ranks: int) -> tuple[tuple[str, float], ...]:
    """(kind, bytes) of a number that `ranks` share out."""
    return tuple((kind, of_one) for kind, of_one in training_memory(1.0, precision, zero, ranks).by_kind().items()
                 if kind in ("parameters", "gradients", "optimizer_state"))


def precision_of(job: Job) -> str:
    """What the job keeps of a number, as costs.memory.PRECISIONS calls it."""
    return "pure 16-bit" if not job.master else "mixed, fp32 gradients" if job.gradient_bytes == 4 else "mixed"


def saved_bytes(job: Job, held: dict[str, float]) -> dict[str, float]:
    """What the fullest rank would not hold, of `held`, in ways that the planner does not search: in words."""
    state, precision = held["optimizer_state"], precision_of(job)
    of_8_bits = state_bytes_per_parameter(precision, "adam8bit") / state_bytes_per_parameter(precision)
    return {"an 8-bit optimiser": state * (1 - of_8_bits), "the optimiser on the host": state,
            "adapters in place of the whole model (LoRA)": state + held["gradients"]}


def layer_activations(job: Job) -> tuple[float, float]:
    """(what one layer keeps of a micro-batch; what it would keep without recomputation), on average over all layers."""
    work = work_of(job)
    whole = mean_layer_bytes(work)
    if job.recompute == "selective" and job.flash and job.software.early_stop:
        return mean_layer_bytes(work, by_operation=True), whole
    input_only = 2 * job.tokens_per_rank * job.shape.hidden_size / (job.layout.tp if job.sequence_parallel else 1)
    return job.recomputed_share * input_only + (1 - job.recomputed_share) * whole, whole


@lru_cache(maxsize=65536)
def mean_layer_bytes(work: Work, by_operation: bool = False) -> float:
    """Bytes that a layer keeps, on average over their kinds. by_operation: its input, attention's output, and every
    other product's.
    """
    kinds, software = work.shape.kinds(), work.software
    times = ACTIVATIONS_EAGER.value if software.activations_eager and work.shape.gated else 1.0  # as Llama: q, k turned
    again = {name for module in work.modules for name in MODULES[module]} | set(software.made_again)
    # FlashAttention never stores the s x s matrices, which is what selective recomputation drops.
    policy = "selective" if work.flash or work.recompute == "selective" else "none"
    narrow = NARROW.get(work.precision, 1.0)  # what a product reads is kept as it reads it, in 8 or 4 bits
    of_few_bits = READ_BY_PRODUCTS + software.keeps_narrow
    terms = [(count * times / work.shape.num_layers, term.name,
              term_bytes(term, work, policy) * (narrow if term.name in of_few_bits else 1.0))
             for count, shape in kinds for term in activation_terms(shape, work.micro_batch, work.s // work.cp,
                                                                    dropout=work.dropout) if term.name not in again]
    if by_operation:
        return sum(share * held * (0.5 if name in PRODUCTS else 1.0) for share, name, held in terms
                   if name in (*PRODUCTS, *ALWAYS_KEPT))
    return sum(share * held for share, _, held in terms)


def gathered_bytes(job: Job, again: float = 0.0) -> float:
    """What sequence parallelism gathers for a layer of one micro-batch, beyond this rank's part of it, which autograd
    keeps for the gradient of the weights unless the software gathers it again. again: share of layers made again.
    """
    return beyond_own_part(job) * (1 - again) if job.software.keeps_gathered else 0.0


def beyond_own_part(job: Job) -> float:
    """Bytes of one micro-batch's vectors at both blocks of a layer, where sequence parallelism has them whole."""
    whole = 2 * job.tokens_per_rank * job.shape.hidden_size * len(GATHERED)
    return whole * (1 - 1 / job.layout.tp) if job.sequence_parallel else 0.0


def logit_bytes(job: Job) -> float:
    """Bytes at the loss of a micro-batch, by what a software makes of it: the logits as often as they are there, the
    input of their product if it is kept as it was gathered, and the logits of the other micro-batches where nobody
    drops them.
    """
    software, t = job.software, job.layout.tp
    numbers = job.tokens_per_rank * job.shape.vocab_size / (1 if software.gathers_logits else t)
    times = OF_A_LOGIT["eager" if software.loss == "cut" and t == 1 else software.loss]
    others = job.num_microbatches if software.keeps_outputs and job.layout.pp > 1 else 0
    return (times + 2 * others) * numbers + gathered_bytes(job) / len(GATHERED)  # the input of their product
