"""What is to be trained, on what, cut how: everything that an estimate depends on, checked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from course_lib.costs.flops import RECOMPUTE
from course_lib.costs.scaling import peak_1f1b, peak_gpipe, peak_interleaved
from course_lib.facts import Model, Shape
from course_lib.facts.fact import at_least
from course_lib.hybrid_parallel.layout import ParallelLayout
from course_lib.planner.cluster import Cluster, Rates, rates_of
from course_lib.planner.constants import FITTED, MEGATRON_CORE, Constants, Software


@dataclass(frozen=True)
class ScheduleCost:
    """What a pipeline schedule costs. in_flight(p, m, stage): micro-batches that a rank holds at most, where it has one
    chunk. unfilled(F + I + W, W, launches, p): of these seconds of a stage, those in which it waits for each other
    stage; None: all, as far as chunks and micro-batches fill them.
    """

    in_flight: Callable[[int, int, int], int]
    unfilled: Callable[[float, float, float, int], float] | None = None
    copies: int = 1  # of each stage's parameters and gradients


def dual_pipe(all_s: float, W: float, launch_s: float, p: int) -> float:
    """(p/2 - 1) (F&B + B - 3 W), shared out over p - 1 stages: DeepSeek-V3, table 2, with F = W."""
    return max(0.0, p / 2 - 1) / (p - 1) * max(0.0, 2 * all_s - 4 * W)


# By the names of pipeline_parallel.schedules. What a rank has of v chunks: v > 1 is interleaved 1F1B. W waits in ZB-H1,
# so F + I - W are left, of whose launches W has a third; ZB-H2 fills all gaps with what it may hold twice as much of.
SCHEDULES: dict[str, ScheduleCost] = {
    "1F1B": ScheduleCost(peak_1f1b),
    "GPipe": ScheduleCost(peak_gpipe),
    "ZB-H1": ScheduleCost(lambda p, m, stage: min(p, m),
                          lambda all_s, W, launch_s, p: max(0.0, all_s - launch_s - 2 * W + launch_s / 3)),
    "ZB-H2": ScheduleCost(lambda p, m, stage: min(2 * p - 1, m), lambda all_s, W, launch_s, p: 0.0),
    "DualPipe": ScheduleCost(lambda p, m, stage: min(p + 1, m), dual_pipe, copies=2),
}
PRECISION_NAMES = ("bf16", "fp16", "fp8", "mxfp8", "nvfp4")
NARROW = {"fp8": 1 / 2, "mxfp8": 33 / 64, "nvfp4": 9 / 32}  # of 16 bits, with the scales of blocks
BITS = {"bf16": 16, "fp16": 16, "nvfp4": 4}  # all others have 8
# What Megatron-Core can run again alone -> what of costs.flops is then not kept
MODULES: dict[str, tuple[str, ...]] = {
    "core_attn": (), "layernorm": ("input of q, k, v", "input of the MLP"), "mla_up_proj": ("q", "k", "v"),
    "moe_act": ("their product", "its output"), "shared_experts": (),
    "mlp": ("gate", "up", "their product", "input of the GELU", "its output"),
    "moe": ("gate", "up", "their product", "rows sent to experts", "rows that come back")}
FIRST_WITH_FLASH = 2020  # FlashAttention-2 asks for an A100 or later


@dataclass(frozen=True)
class Job:
    """One way of training `shape`: ValueError where the layout cannot be.

    global_batch, micro_batch: rows. v: chunks of layers on each stage (interleaved 1F1B). recompute: "none",
    "selective" or "full"; recompute_layers: with "full", in how many layers of each stage, 0 for all of them. flash:
    attention stores no scores. dropout: its masks are kept, too. precision: of linear layers; gradient_bytes: of a
    gradient where it is kept and reduced. master: there are 32-bit weights beside the 16-bit ones. expert_imbalance:
    rows of the fullest expert over the mean. recompute_modules: what alone is run again, of MODULES. offload_layers: of
    how many of a stage's layers the activations wait in the host's memory, while others compute. uneven: layers are
    dealt out by hand, and need not make whole chunks.

    A device without bf16 trains in fp16, and one that is too old for FlashAttention stores scores, whatever was asked.
    """

    shape: Shape
    cluster: Cluster
    layout: ParallelLayout
    global_batch: int
    micro_batch: int = 1
    sequence_length: int = 0  # 0: the shape's
    v: int = 1
    schedule: str = "1F1B"
    recompute: str = "none"
    sequence_parallel: bool = False
    precision: str = "bf16"
    gradient_bytes: int = 0  # 0: the software's
    master: bool = True
    flash: bool = True
    dropout: bool = False
    software: Software = field(default=MEGATRON_CORE)
    recompute_layers: int = 0
    expert_imbalance: float = 1.0
    recompute_modules: tuple[str, ...] = ()
    offload_layers: int = 0
    uneven: bool = False

    def __post_init__(self) -> None:
        for name, known in (("schedule", SCHEDULES), ("recompute", RECOMPUTE), ("precision", PRECISION_NAMES)):
            if getattr(self, name) not in known:
                raise ValueError(f"{name}={getattr(self, name)!r}: expected one of {', '.join(known)}")
        if not self.gradient_bytes:
            object.__setattr__(self, "gradient_bytes", self.software.gradient_bytes)
        if not self.sequence_length:
            object.__setattr__(self, "sequence_length", self.shape.sequence_length)
        for name in ("global_batch", "micro_batch", "sequence_length", "v"):
            at_least(getattr(self, name), 1, name)
        at_least(self.recompute_layers, 0, "recompute_layers")
        at_least(self.offload_layers, 0, "offload_layers")
        if unknown := set(self.recompute_modules) - set(MODULES):
            raise ValueError(f"recompute_modules={sorted(unknown)}: expected some of {', '.join(MODULES)}")
        if not 1 <= self.expert_imbalance < float("inf"):
            raise ValueError(f"expert_imbalance={self.expert_imbalance!r}: expected 1, all get as many rows, or more")
        if self.recompute_layers and self.recompute != "full":
            raise ValueError(f"recompute_layers={self.recompute_layers} with recompute={self.recompute!r}: expected "
                             "recompute='full', it says in how many layers")
        if reason := job_problem(self.shape, self.cluster, self.layout, self.global_batch, self.micro_batch,
                                 self.sequence_length, self.v, uneven=self.uneven or self.software.whole_layers):
            raise ValueError(reason)
        device = self.cluster.device  # formats and kernels that it has
        if self.precision == "bf16":
            object.__setattr__(self, "precision", device.half_precision)
        self.cluster.peak_flops_per_s(self.precision)
        if device.year < FIRST_WITH_FLASH:
            object.__setattr__(self, "flash", False)

    def changed(self, **fields: Any) -> Job:
        """The job with other fields of which none can be wrong: not checked again, which a search has no time for."""
        other = object.__new__(Job)
        other.__dict__.update(self.__dict__ | fields)
        return other

    @property
    def num_microbatches(self) -> int:
        """Micro-batches of each replica in a step."""
        return self.global_batch // (self.layout.dp * self.micro_batch)

    @property
    def tokens(self) -> int:
        """Tokens of a step."""
        return self.global_batch * self.sequence_length

    @property
    def tokens_per_rank(self) -> float:
        """Tokens of a micro-batch that one rank has."""
        return self.micro_batch * self.sequence_length / self.layout.cp

    @property
    def plane(self) -> int:
        """Ranks that hold the same parameters (experts apart)."""
        return self.layout.dp * self.layout.cp

    @property
    def ends_tp(self) -> int:
        """Ranks that the embedding and the read-out are cut over."""
        return 1 if self.layout.pp > 1 and self.software.whole_ends else self.layout.tp

    def bubble_seconds(self, others_s: float, stage_s: float, weight_s: float, launch_s: float) -> float:
        """Seconds of a step in which the slowest stage waits. others_s: a micro-batch's way through all stages but that
        one. stage_s: of it on the slowest, of which weight_s for gradients of weights, launch_s waiting for launches.

        Of v chunks fill and drain have one, but with m < p micro-batches each round of chunks waits until the first is
        around: p - m + (m - 1)/v stages.
        """
        p, m, unfilled = self.layout.pp, self.num_microbatches, SCHEDULES[self.schedule].unfilled
        if unfilled:
            return others_s * unfilled(stage_s, weight_s, launch_s, p) / stage_s if p > 1 else 0.0
        return others_s * (max(0, p - m) + (min(p, m) - 1) / self.v) / (p - 1) if p > 1 else 0.0

    def in_flight(self, stage: int) -> Fraction:
        """Micro-batches in flight on a stage, each as large as the whole stage's: with v chunks each counts 1/v."""
        p, m = self.layout.pp, self.num_microbatches
        if self.v > 1 and p > 1 and self.schedule != "GPipe":
            return Fraction(peak_interleaved(p, m, self.v, stage), self.v)
        return Fraction(SCHEDULES[self.schedule].in_flight(p, m, stage))

    @property
    def num_layers(self) -> int:
        """Layers of the model, those for multi-token prediction among them."""
        return self.shape.num_layers + self.shape.mtp_layers

    @property
    def recomputed_share(self) -> float:
        """The share of the layers that are run again, wholly, in backward."""
        if self.recompute != "full":
            return 0.0
        return min(1.0, self.recompute_layers * self.layout.pp / self.num_layers) if self.recompute_layers else 1.0


@dataclass(frozen=True)
class Work:
    """All of a job that the time and the memory of one layer depend on, so that they are computed once.

    n: tokens of the micro-batch on this rank. Others as in Job.
    """

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

    def __hash__(self) -> int:  # what differs within a search: hashing all of a shape takes longer than a look-up
        return hash((self.t, self.cp, self.ep, self.etp, self.micro_batch, self.recompute))

    @property
    def n(self) -> float:
        """Tokens of a micro-batch."""
        return self.micro_batch * self.s / self.cp


def work_of(job: Job, recompute: str = "") -> Work:
    """The part of a job that decides the time of one layer; `recompute` in the place of the job's own, if given."""
    L = job.layout
    return Work(shape=job.shape, t=L.tp, cp=L.cp, ep=L.ep, etp=L.etp, micro_batch=job.micro_batch,
                s=job.sequence_length, recompute=recompute or job.recompute, sequence_parallel=job.sequence_parallel,
                flash=job.flash, dropout=job.dropout, imbalance=job.expert_imbalance, software=job.software,
                precision=job.precision, modules=job.recompute_modules)


def rates_of_job(job: Job, constants: Constants = FITTED) -> Rates:
    """How fast the job's cluster is with its software and precision."""
    return rates_of(job.cluster, job.software, job.precision, constants)


def job_problem(shape: Shape, cluster: Cluster, layout: ParallelLayout, global_batch: int, micro_batch: int,
                sequence_length: int, v: int = 1, uneven: bool = False) -> str | None:
    """Why a layout cannot be, given and expected; None where it can. uneven: chunks need not have as many layers."""
    tp, pp, dp = layout.tp, layout.pp, layout.dp
    world = tp * pp * dp * layout.cp
    if world > cluster.num_devices:
        return f"{layout} is {world} ranks: expected at most the cluster's {cluster.num_devices} devices"
    if shape.num_heads % tp or shape.ffn_size % tp:
        return (f"tp={tp}: expected a number that divides the {shape.num_heads} heads and the MLP's width of "
                f"{shape.ffn_size}")
    layers, chunks = shape.num_layers + shape.mtp_layers, pp * v
    if pp == 1 and v > 1:
        return f"v={v} with pp=1: expected v=1, one stage has nobody to pass chunks to"
    if chunks > layers + 2:
        return f"pp={pp} with v={v}: expected at most {layers + 2} chunks, layers and both ends"
    if not (uneven or layers % chunks == 0 or (layers + 2) % chunks == 0):  # each end then counts as a layer
        return (f"pp={pp} with v={v}: expected chunks that divide the {layers} layers, or {layers + 2} with both ends; "
                f"{chunks} would have {layers / chunks:.3g} layers each")
    if shape.num_experts % layout.ep:
        return f"ep={layout.ep}: expected a number that divides the {shape.num_experts} experts"
    if shape.num_experts == 1 and layout.etp > 1:
        return f"etp={layout.etp}: expected 1, the model has no experts that it could cut"
    if shape.ffn_size % layout.etp:
        return f"etp={layout.etp}: expected a number that divides an expert's width of {shape.ffn_size}"
    if global_batch % (dp * micro_batch):
        return f"global_batch={global_batch}: expected a multiple of dp x micro_batch = {dp * micro_batch}"
    if sequence_length % layout.cp:
        return f"cp={layout.cp}: expected a number that divides the {sequence_length} tokens of a row"
    return None


def shape_of(model: Model | Shape) -> Shape:
    """ValueError for a model whose shape was never published."""
    if isinstance(model, Shape):
        return model
    if model.shape is None:
        raise ValueError(f"{model.name} has no published shape: expected a model with one, or a Shape")
    return model.shape


# What kind of run it is

def features_of(job: Job) -> tuple[str, ...]:
    """What makes a run another kind, in words."""
    L, bits = job.layout, BITS.get(job.precision, 8)
    found = {"experts": job.shape.num_experts > 1, "8- or 4-bit products": bits < 16,
             "context parallelism": L.cp > 1,
             "tensor parallelism across nodes": L.tp > job.cluster.devices_per_node and not job.cluster.is_torus}
    return tuple(words for words, has in found.items() if has)


def kinds_of(job: Job) -> list[str]:
    """Its kind and each wider one: a software on a generation of devices at a scale, where experts, few bits, context
    parallelism and tensor parallelism across nodes make kinds of their own. Another software may answer for plain
    layouts and for long rows; not for experts, few bits, or tensor parallelism across nodes.
    """
    features, generation, n = features_of(job), job.cluster.device.generation, job.layout.world_size
    software = job.software.like or job.software.name
    scale = ("one node" if n <= job.cluster.devices_per_node else "up to 512 devices" if n <= 512 else
             "more than 512 devices")
    wider = [f"all software on {generation}, {scale}", f"all software on {generation}"]
    also = f" with {' and '.join(features)}" if features else ""
    if set(features) - {"context parallelism"}:
        wider = [f"{software} on all devices"]
    narrow = [f"{software} on {generation}, {scale}", f"{software} on {generation}"]
    found = [kind + also for kind in narrow + wider]
    # A ring's messages are hidden by attention whatever stands in the MLP's place.
    return found + [f"all models on {generation} with context parallelism"] * (job.layout.cp > 1)


def describe_recompute(job: Job) -> str:
    """What is made again: "none", "selective", "full", "3 layers" of each stage, or modules of each layer."""
    layers = job.recompute_layers
    if job.recompute_modules:
        return "+".join(job.recompute_modules)
    return job.recompute if not layers else f"{layers} layer{'s' * (layers > 1)}"
