"""What chapter 9's trainer sends and holds under any layout, before it runs: the closed forms, stage by stage.

Bytes are exact. Memory is what stays: parameters, gradients, the optimiser's state.
"""

from __future__ import annotations

from fractions import Fraction

import torch

from course_lib.costs.hybrid import StageWork, parameters_of, step_bytes
from course_lib.costs.sharding import fill_buckets, shard_size
from course_lib.facts import Shape
from course_lib.hybrid_parallel.layout import ParallelLayout
from course_lib.hybrid_parallel.metrics import shape_of
from course_lib.pipeline_parallel.partition import balanced_cuts, layer_costs, layers_of
from course_lib.reference import GPT, GPTConfig

W = 4  # bytes of a number
BUCKET_BYTES = 25 << 20


def stages(config: GPTConfig, layout: ParallelLayout, batch_size: int, num_microbatches: int = 1) -> list[StageWork]:
    """Of a plain pipeline: what a rank of each stage does in a step."""
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
    """By all ranks in a step after the first, axis by axis: TrainingReport.bytes_by_axis."""
    sizes = {axis: layout.size(axis) for axis in layout.axes}
    totals: dict[str, Fraction] = {}
    for work in stages(config, layout, batch_size, num_microbatches):
        for axis, sent in step_bytes(work, shape_of(config), sizes, layout.zero_stage, sequence_parallel).items():
            totals[axis] = totals.get(axis, Fraction(0)) + sent * (layout.world_size // layout.pp)
    return {axis: int(sent) for axis, sent in totals.items()}


def held_bytes(config: GPTConfig, layout: ParallelLayout) -> dict[str, int]:
    """Parameters and the optimiser's state on the rank that holds most of each, between two steps."""
    found = [stage_bytes(work, shape_of(config), layout) for work in stages(config, layout, layout.dp)]
    return {kind: max(held[kind] for held in found) for kind in found[0]}


def stage_bytes(work: StageWork, shape: Shape, layout: ParallelLayout) -> dict[str, int]:
    sizes = [size for layer in work.layers for size in parameters_of(layer, shape, layout.tp)]
    if "head" in work.layers and "embedding" in work.layers:
        sizes.pop()  # one matrix
    n, zero = layout.dp * layout.cp, layout.zero_stage
    parameters = sum(shard_size(size, n) for size in sizes) if zero == 3 else sum(sizes)
    state = parameters if zero in (0, 3) else sum(
        shard_size(sum(bucket), n) for bucket in fill_buckets(sizes, BUCKET_BYTES, W))
    return {"parameters": W * parameters, "optimizer_state": 2 * W * state}
