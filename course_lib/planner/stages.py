"""What a rank has of the model: the layers of its stage, how many numbers these are, and how ZeRO shares them out.

step.py makes seconds of it, memory.py bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from course_lib.costs.flops import (
    attention_matrices,
    expert_matrices,
    router_matrix,
    shared_matrices,
    vectors_of_layer,
)
from course_lib.costs.scaling import balanced_layers, first_past_the_share
from course_lib.facts import Shape
from course_lib.planner.job import Job
from course_lib.planner.layer import head_pass, layer_pass
from course_lib.planner.rates import Pass, Rates

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
