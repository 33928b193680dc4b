"""What chapter 9's trainer sends and holds under any layout, before it runs: the closed forms, stage by stage.

Bytes are exact, memory within 1 %: what is there for a moment only is not counted.
"""

from __future__ import annotations

from fractions import Fraction

import torch

from course_lib.costs.activations import activation_bytes_per_layer
from course_lib.costs.bubbles import peak_1f1b
from course_lib.costs.hybrid import StageWork, parameters_of, step_bytes
from course_lib.costs.sharding import fill_buckets, shard_size
from course_lib.facts import Shape
from course_lib.hybrid_parallel.layout import ParallelLayout
from course_lib.pipeline_parallel.partition import balanced_cuts, layer_costs, layers_of
from course_lib.reference import GPT, GPTConfig
from course_lib.why_distribute import shape_of

W = 4  # bytes of a number
BUCKET_BYTES = 25 << 20


def stages(config: GPTConfig, layout: ParallelLayout, batch_size: int, num_microbatches: int = 1) -> list[StageWork]:
    """What a rank of each stage of a plain pipeline does in a step."""
    with torch.device("meta"):
        model = GPT(config)
    names, p, m = [name for name, _ in layers_of(model)], layout.pp, num_microbatches
    starts = [*balanced_cuts(layer_costs(model), p), len(names)]
    found = []
    for place in range(p):
        layers = names[starts[place]:starts[place + 1]]
        dealt_out = layers[-1].startswith("blocks") or layers[-1] == "norm"
        found.append(StageWork(
            layers, batch_size // layout.dp // m, m, sends_forward=place < p - 1, sends_backward=place > 0,
            forward_dealt_out=dealt_out, backward_dealt_out=layers[0] != "blocks.0",
            tied_elsewhere=p > 1 and ("embedding" in layers or "head" in layers), passes_loss_on=place != p - 2))
    return found


def sent_bytes(config: GPTConfig, layout: ParallelLayout, batch_size: int, num_microbatches: int = 1, *,
               sequence_parallel: bool = False) -> dict[str, int]:
    """Bytes that all ranks send in a step after the first, axis by axis: TrainingReport.bytes_by_axis."""
    sizes = {axis: layout.size(axis) for axis in layout.axes}
    totals: dict[str, Fraction] = {}
    for work in stages(config, layout, batch_size, num_microbatches):
        for axis, sent in step_bytes(work, shape_of(config), sizes, layout.zero_stage, sequence_parallel).items():
            totals[axis] = totals.get(axis, Fraction(0)) + sent * (layout.world_size // layout.pp)
    return {axis: int(sent) for axis, sent in totals.items()}


def held_bytes(config: GPTConfig, layout: ParallelLayout, batch_size: int, num_microbatches: int = 1
               ) -> dict[str, int]:
    """The most that any rank holds of each kind: TrainingReport.memory_by_kind without what is there for a moment.

    Of 1F1B, and of ZeRO's stages 0 to 2: stage 3 gathers layers besides (costs.peak).
    """
    if layout.zero_stage == 3:
        raise ValueError("zero_stage=3: expected 0 to 2, the most that stage 3 holds is in costs.peak")
    found = [stage_bytes(work, shape_of(config), layout, place)
             for place, work in enumerate(stages(config, layout, batch_size, num_microbatches))]
    return {kind: max(held[kind] for held in found) for kind in found[0]}


def stage_bytes(work: StageWork, shape: Shape, layout: ParallelLayout, place: int) -> dict[str, int]:
    """Bytes by kind of a rank on stage `place`."""
    n, zero = layout.dp * layout.cp, layout.zero_stage
    sizes = [size for layer in work.layers for size in parameters_of(layer, shape, layout.tp)]
    if "head" in work.layers and "embedding" in work.layers:
        sizes.pop()  # one matrix
    whole, tied = sum(sizes), parameters_of("head", shape, layout.tp)[0] if work.tied_elsewhere else 0
    blocks = sum(shard_size(sum(bucket), n) for bucket in fill_buckets(sizes, BUCKET_BYTES, W))
    gradients = whole + (whole - tied if n > 1 else tied)  # buckets, or room for the other rank's part of the tied one
    return {"parameters": W * whole, "gradients": W * (gradients, whole, blocks)[zero],
            "optimizer_state": 2 * W * (blocks if zero else whole),
            "activations": activations(work, shape, layout, place)}


def activations(work: StageWork, shape: Shape, layout: ParallelLayout, place: int) -> int:
    """Bytes that the micro-batches in flight keep. A ring of cp stores no scores."""
    tokens, t = shape.sequence_length // layout.cp, layout.tp
    layer = activation_bytes_per_layer(shape, work.rows, tokens, recompute="selective" if layout.cp > 1 else "none",
                                       bytes_per_number=W, tensor_parallel=t)
    ends = (2 * W * shape.hidden_size + 4 * shape.vocab_size // t) * tokens * work.rows if "head" in work.layers else 0
    blocks = sum(name.startswith("blocks") for name in work.layers)
    return peak_1f1b(layout.pp, work.num_microbatches, place) * (blocks * layer + ends)
