"""What is to be trained, on what, cut how: everything that an estimate depends on, checked."""

from __future__ import annotations

from dataclasses import dataclass, field

from course_lib.costs.activations import RECOMPUTE
from course_lib.costs.checks import at_least
from course_lib.facts import Model, Shape
from course_lib.hybrid_parallel.layout import ParallelLayout
from course_lib.planner.cluster import Cluster
from course_lib.planner.software import MEGATRON_CORE, Software

SCHEDULES = ("1f1b", "gpipe", "zb1p", "zb2p")
PRECISION_NAMES = ("bf16", "fp16", "fp8")


@dataclass(frozen=True)
class Job:
    """One way of training `shape`: ValueError where the layout cannot be.

    global_batch, micro_batch: rows. v: chunks of layers on each stage (interleaved 1F1B). recompute: "none",
    "selective" or "full". flash: attention stores no scores. dropout: its masks are kept, too. gradient_bytes: of a
    gradient where it is kept and reduced. master: there are 32-bit weights beside the 16-bit ones.
    """

    shape: Shape
    cluster: Cluster
    layout: ParallelLayout
    global_batch: int
    micro_batch: int = 1
    sequence_length: int = 0  # 0: the shape's
    v: int = 1
    schedule: str = "1f1b"
    recompute: str = "none"
    sequence_parallel: bool = False
    precision: str = "bf16"
    gradient_bytes: int = 2
    master: bool = True
    flash: bool = True
    dropout: bool = False
    software: Software = field(default=MEGATRON_CORE)

    def __post_init__(self) -> None:
        for name, known in (("schedule", SCHEDULES), ("recompute", RECOMPUTE), ("precision", PRECISION_NAMES)):
            if getattr(self, name) not in known:
                raise ValueError(f"{name}={getattr(self, name)!r}: expected one of {', '.join(known)}")
        if not self.sequence_length:
            object.__setattr__(self, "sequence_length", self.shape.sequence_length)
        for name in ("global_batch", "micro_batch", "sequence_length", "v"):
            at_least(getattr(self, name), 1, name)
        if reason := why_not(self.shape, self.cluster, self.layout, self.global_batch, self.micro_batch,
                             self.sequence_length, self.v):
            raise ValueError(reason)

    @property
    def num_microbatches(self) -> int:
        return self.global_batch // (self.layout.dp * self.micro_batch)

    @property
    def tokens(self) -> int:
        """Of a step."""
        return self.global_batch * self.sequence_length

    @property
    def tokens_per_rank(self) -> float:
        """Of a micro-batch."""
        return self.micro_batch * self.sequence_length / self.layout.cp

    @property
    def plane(self) -> int:
        """Ranks that hold the same parameters (experts apart)."""
        return self.layout.dp * self.layout.cp


def why_not(shape: Shape, cluster: Cluster, layout: ParallelLayout, global_batch: int, micro_batch: int,
            sequence_length: int, v: int = 1) -> str | None:
    """Why a layout cannot be, given and expected; None where it can."""
    tp, pp, dp = layout.tp, layout.pp, layout.dp
    world = tp * pp * dp * layout.cp
    if world > cluster.num_devices:
        return f"{layout} is {world} ranks: expected at most the cluster's {cluster.num_devices} devices"
    if shape.num_heads % tp or shape.ffn_size % tp:
        return (f"tp={tp}: expected a number that divides the {shape.num_heads} heads and the MLP's width of "
                f"{shape.ffn_size}")
    if pp * v > shape.num_layers + 2:
        return f"pp={pp} with v={v}: expected at most {shape.num_layers + 2} chunks, layers and both ends"
    if shape.num_experts % layout.ep:
        return f"ep={layout.ep}: expected a number that divides the {shape.num_experts} experts"
    if layout.etp != (tp if shape.num_experts > 1 else 1):
        return (f"etp={layout.etp} with tp={tp}: expected etp={tp if shape.num_experts > 1 else 1}, since the planner "
                "counts experts as cut over tp, as attention is")
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
