"""What HybridTrainer sends and holds under a layout, before it runs: costs.hybrid, asked with a layout and a model."""

from __future__ import annotations

from collections import Counter

import torch

from course_lib.costs.hybrid import StageWork, cut_stages, stage_memory, step_bytes
from course_lib.hybrid_parallel.layout import ParallelLayout
from course_lib.pipeline_parallel.stages import balanced_cuts, layer_costs, layers_of
from course_lib.reference import GPT, GPTConfig
from course_lib.why_distribute import shape_of


def stages(config: GPTConfig, layout: ParallelLayout, batch_size: int, num_microbatches: int = 1) -> list[StageWork]:
    """What a rank of each stage of a plain pipeline does in a step."""
    with torch.device("meta"):
        model = GPT(config)
    names = [name for name, _ in layers_of(model)]
    starts = [*balanced_cuts(layer_costs(model), layout.pp), len(names)]
    return cut_stages([names[start:end] for start, end in zip(starts, starts[1:])],
                      batch_size // layout.dp // num_microbatches, num_microbatches)


def axis_sizes(layout: ParallelLayout) -> dict[str, int]:
    """The ranks along each axis of the layout."""
    return {axis: layout.size(axis) for axis in layout.axes}


def sent_bytes(config: GPTConfig, layout: ParallelLayout, batch_size: int, num_microbatches: int = 1, *,
               sequence_parallel: bool = False) -> dict[str, int]:
    """Bytes that all ranks send in a step after the first, axis by axis: TrainingReport.bytes_by_axis."""
    totals: Counter[str] = Counter()
    for work in stages(config, layout, batch_size, num_microbatches):
        sent = step_bytes(work, shape_of(config), axis_sizes(layout), layout.zero_stage, sequence_parallel)
        totals.update({axis: num_bytes * (layout.world_size // layout.pp) for axis, num_bytes in sent.items()})
    return {axis: int(num_bytes) for axis, num_bytes in totals.items()}


def held_bytes(config: GPTConfig, layout: ParallelLayout, batch_size: int, num_microbatches: int = 1
               ) -> dict[str, int]:
    """The most that any rank holds of each kind: TrainingReport.memory_by_kind without what is there for a moment.
    ValueError for ZeRO-3.
    """
    found = [stage_memory(work, shape_of(config), axis_sizes(layout), layout.zero_stage, place)
             for place, work in enumerate(stages(config, layout, batch_size, num_microbatches))]
    return {kind: max(held[kind] for held in found) for kind in found[0]}
