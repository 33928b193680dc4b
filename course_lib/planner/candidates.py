"""What a search may try: every layout of a model on a cluster that can be built, with its chunks and micro-batches.

    tp       divides heads and the MLP's width, up to two nodes
    pp, v    whole chunks: pp v divides the layers, or the layers and both ends, each of which then counts as one
    cp       pieces of a row in a zigzag, of at least SHORTEST_PIECE tokens
    dp       the largest number of replicas among which the devices that are left can deal out the rows
    ep, etp  of experts: whole ones over dp, cp and tp (etp 1), or each cut over tp as attention is
    v > 1    only where pp divides the micro-batches, as Megatron's interleaved schedule asks

Sources: Megatron-Core (megatron/training/arguments.py, core/pipeline_parallel/schedules.py); Llama Team 2024, 3.3.2.
Beside the search, as a baseline: what the papers' rule of thumb chooses.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

from course_lib.costs.flops import count_parameters
from course_lib.costs.memory import USABLE
from course_lib.facts import Model, Shape
from course_lib.facts.fact import at_least, positive_share
from course_lib.hybrid_parallel.layout import ParallelLayout
from course_lib.planner.cluster import Cluster, Rates, rates_of
from course_lib.planner.constants import MEGATRON_CORE
from course_lib.planner.job import Job, shape_of

BYTES_PER_PARAMETER = 18  # 2 weights, 4 gradients, 12 Adam in mixed precision
SHARE_FOR_STATE = 0.7  # of the data sheet's memory; activations get the rest


def divisors(n: int) -> list[int]:
    """Whole numbers that divide n, ascending."""
    return [d for d in range(1, n + 1) if n % d == 0]


def rule_of_thumb(model: Model | Shape, cluster: Cluster) -> ParallelLayout:
    """Takeaways 1 to 3 of Narayanan et al. 2021 (SC'21): tensor parallelism first, up to a node; then as few pipeline
    stages as let the model fit; everything else is data parallelism. ValueError where nothing fits.

    Fits: 18 bytes a parameter take at most 70 % of the memory.
    """
    shape = shape_of(model)
    state, room = BYTES_PER_PARAMETER * count_parameters(shape), SHARE_FOR_STATE * cluster.device.memory_bytes
    tensor = [t for t in divisors(cluster.devices_per_node) if not (shape.num_heads % t or shape.ffn_size % t)]
    for t in tensor:
        if state / t <= room and cluster.num_devices % t == 0:
            return ParallelLayout(dp=cluster.num_devices // t, tp=t)
    t = tensor[-1]
    for p in divisors(shape.num_layers):
        if state / (t * p) <= room and cluster.num_devices % (t * p) == 0:
            return ParallelLayout(dp=cluster.num_devices // (t * p), pp=p, tp=t)
    raise ValueError(f"{state / 1e12:.2f} TB of state on {cluster.num_devices} {cluster.device.name}: no tensor and "
                     f"pipeline parallelism that divides the model lets it fit in {room / 1e9:.0f} GB each")


MOST_ROWS = 16  # of a micro-batch
SHORTEST_PIECE = 256  # tokens of a row on one rank: below, a product of matrices is far from its speed
SMALL_BUBBLE = 0.005  # of the step: more chunks would gain less than that
NEARLY = 1.1  # times what a device can allocate


@dataclass(frozen=True)
class Choices:
    """What plan tries. (): all that can be. An axis that is named is kept to these numbers. light: where attention
    stores no scores, "selective" makes norms and the like again, if the software can; nobody published what that costs
    alone, so it has to be asked for. whole: "full" makes all layers again, and not the fewest that let it fit.
    """

    recompute: tuple[str, ...] = ("none", "selective", "full")
    zero_stages: tuple[int, ...] = (0, 1, 2, 3)
    micro_batches: tuple[int, ...] = ()
    chunks: tuple[int, ...] = ()
    tensor: tuple[int, ...] = ()
    pipeline: tuple[int, ...] = ()
    context: tuple[int, ...] = ()
    experts: tuple[int, ...] = ()
    data: tuple[int, ...] = ()
    light: bool = False
    whole: bool = False


ALL = Choices()


@dataclass(frozen=True)
class Asked:
    """What a plan is for: all but the layout. how: fields of a Job that are the same for all layouts."""

    shape: Shape
    cluster: Cluster
    global_batch: int
    sequence_length: int
    how: dict[str, Any]
    choices: Choices = ALL
    room: float = USABLE

    @cached_property
    def rates(self) -> Rates:
        """How fast the cluster is with the software that was asked for."""
        return rates_of(self.cluster, self.how["software"], self.how["precision"])

    @cached_property
    def limit_bytes(self) -> float:
        """Bytes of a device that an estimate may fill: `room` of what can be allocated."""
        return self.room * self.cluster.usable_bytes

    @cached_property
    def nearly_bytes(self) -> float:
        """Up to here a plan counts as one that nearly fits."""
        return NEARLY * self.cluster.usable_bytes

    @property
    def num_layers(self) -> int:
        """Layers that a pipeline has to place: those that predict further tokens count, too."""
        return self.shape.num_layers + self.shape.mtp_layers

    @property
    def sequence_parallel(self) -> bool:
        """Whether ranks of tensor parallelism deal out tokens."""
        return self.how.get("sequence_parallel", True)

    def chunk_counts(self, layout: ParallelLayout, num_microbatches: int) -> list[int]:
        """v; other schedules than 1F1B have one chunk on each stage."""
        found = chunk_counts(self.num_layers, layout.pp, num_microbatches, self.choices)
        return found if self.how.get("schedule", "1F1B") == "1F1B" else [v for v in found if v == 1]

    def job(self, layout: ParallelLayout, micro_batch: int, v: int) -> Job:
        """It under one layout, with nothing made again."""
        together = self.sequence_parallel and layout.tp > 1
        return Job(self.shape, self.cluster, layout, self.global_batch, micro_batch, self.sequence_length, v,
                   **self.how | {"sequence_parallel": together})


def ask(model: Model | Shape, cluster: Cluster, global_batch: int, *, choices: Choices = ALL, room: float = USABLE,
        sequence_length: int = 0, **how: Any) -> Asked:
    """What plan and why_not are asked for. ValueError for a model without a shape, and for numbers that cannot be."""
    shape = shape_of(model)
    return Asked(shape, cluster, at_least(global_batch, 1, "global_batch"), sequence_length or shape.sequence_length,
                 {"precision": "bf16", "software": MEGATRON_CORE} | how, choices, positive_share(room, "room"))


def restrict(numbers: list[int], choices: tuple[int, ...]) -> list[int]:
    """`numbers`, or those among them that are in `choices`, if it names any."""
    return [n for n in numbers if n in choices] if choices else numbers


def splits_keys(shape: Shape, t: int) -> bool:
    """Whole heads of keys and values on each rank, or each head on the same number of ranks."""
    return bool(shape.latent) or shape.num_kv_heads % t == 0 or t % shape.num_kv_heads == 0


def whole_chunks(layers: int, chunks: int) -> bool:
    """Whether each of `chunks` gets as many layers, or the first and the last one fewer each."""
    return layers % chunks == 0 or (layers + 2) % chunks == 0 and chunks > 1


def piece_counts(sequence_length: int, most: int, choices: Choices = ALL) -> list[int]:
    """cp: a row is cut in 2 cp pieces, of which each rank has one from either end."""
    longest = max(1, min(most, sequence_length // SHORTEST_PIECE))
    return restrict([c for c in range(1, longest + 1) if c == 1 or sequence_length % (2 * c) == 0], choices.context)


def layouts(asked: Asked, counts: range) -> Iterator[ParallelLayout]:
    """All that use as many devices as `counts` has, at ZeRO stage 0; dp is the largest that there is room for."""
    shape, choices, world, layers = asked.shape, asked.choices, asked.cluster.num_devices, asked.num_layers
    replicas = restrict(divisors(asked.global_batch), choices.data)
    experts = restrict(divisors(shape.num_experts), choices.experts) if shape.num_experts > 1 else [1]
    # Up to two nodes, since tensor parallelism rarely pays beyond one.
    for tp in choices.tensor or divisors(2 * asked.cluster.devices_per_node):
        if shape.num_heads % tp or shape.ffn_size % tp or not splits_keys(shape, tp):
            continue
        stages = [p for p in range(1, min(layers, world // tp) + 1) if whole_chunks(layers, p)]
        for pp in restrict(stages, choices.pipeline):
            for cp in piece_counts(asked.sequence_length, world // (tp * pp), choices):
                plane = tp * cp * max((d for d in replicas if d * cp * tp * pp <= world), default=0)
                if plane * pp not in counts:
                    continue
                for ep, etp in ((ep, etp) for ep in experts for etp in ({1, tp} if shape.num_experts > 1 else {1})):
                    if plane % (ep * etp) == 0 and shape.ffn_size % etp == 0:
                        yield ParallelLayout(dp=plane // (tp * cp), pp=pp, cp=cp, tp=tp, ep=ep, etp=etp)


def chunk_counts(layers: int, pp: int, num_microbatches: int, choices: Choices = ALL) -> list[int]:
    """v, until the bubble is too small to be worth more."""
    if pp == 1 or num_microbatches % pp:
        return restrict([1], choices.chunks)
    found = [v for v in range(1, (layers + 2) // pp + 1) if whole_chunks(layers, pp * v)]
    if choices.chunks:
        return restrict(found, choices.chunks)
    enough = (pp - 1) / (SMALL_BUBBLE * num_microbatches)
    return [v for v in found if v < enough] + [v for v in found if v >= enough][:1]


def micro_batch_sizes(rows: int, choices: Choices = ALL) -> list[int]:
    """Rows of a micro-batch, at most MOST_ROWS, that divide `rows`."""
    return restrict([b for b in range(1, min(rows, MOST_ROWS) + 1) if rows % b == 0], choices.micro_batches)


def zero_stages(layout: ParallelLayout, choices: Choices = ALL) -> list[int]:
    """Under pipelines up to stage 2, as in Llama 3: sharded parameters would be gathered with every micro-batch. Stage
    0 alone where there is nothing to shard over."""
    if layout.dp * layout.cp == 1:
        return [0] if 0 in choices.zero_stages else []
    return [zero for zero in choices.zero_stages if zero < 3 or layout.pp == 1]


def schedules(asked: Asked, counts: range) -> Iterator[Job]:
    """A Job for each layout on as many devices as `counts` has, micro-batch and v, with nothing sharded and nothing
    made again.
    """
    choices = asked.choices
    # Who asks for one of these cannot turn pieces of a row into rows of more replicas.
    fixes_rows = choices.data or choices.context or choices.micro_batches
    for layout in layouts(asked, counts):
        if asked.sequence_parallel and asked.sequence_length // layout.cp % layout.tp:
            continue
        rows = asked.global_batch // layout.dp
        for micro_batch in micro_batch_sizes(rows, choices):
            if layout.cp > 1 and micro_batch > 1 and not fixes_rows:
                continue  # whole rows of more replicas give a rank as many tokens, or nearly, and need no ring
            for v in asked.chunk_counts(layout, rows // micro_batch):
                yield asked.job(layout, micro_batch, v)


def build_problem(asked: Asked, layout: ParallelLayout, micro_batch: int, v: int) -> str | None:
    """Why no trainer runs a layout that can be estimated; None where one does."""
    shape, sequence_length, layers = asked.shape, asked.sequence_length, asked.num_layers
    tp, pp, cp = layout.tp, layout.pp, layout.cp
    num_microbatches = asked.global_batch // (layout.dp * micro_batch)
    if not splits_keys(shape, tp):
        return f"tp={tp}: expected a divisor or a multiple of the {shape.num_kv_heads} heads of keys and values"
    if not whole_chunks(layers, pp * v) or v > 1 and pp == 1:
        return (f"pp={pp} with v={v}: expected pp x v that divides the {layers} layers, or the {layers + 2} with both "
                f"ends, since a chunk has whole layers")
    if v > 1 and num_microbatches % pp:
        return f"v={v} with {num_microbatches} micro-batches: expected a multiple of pp={pp}, or v=1"
    if cp > 1 and sequence_length % (2 * cp):
        return f"cp={cp}: expected a row of {sequence_length} tokens to be a multiple of {2 * cp}, for a zigzag"
    if asked.sequence_parallel and sequence_length // cp % tp:
        return f"tp={tp}: expected to divide the {sequence_length // cp} tokens of a row on each rank"
    return None


def with_zero(job: Job, zero: int) -> Job:
    """The job with another ZeRO stage."""
    return job if job.layout.zero_stage == zero else job.changed(layout=layout_with_zero(job.layout, zero))


@lru_cache(maxsize=65536)
def layout_with_zero(layout: ParallelLayout, zero: int) -> ParallelLayout:
    """The layout with another ZeRO stage."""
    return replace(layout, zero_stage=zero)
