"""What ranks send along each axis is the formula, to the byte."""

import pytest
import torch.distributed as dist

from course_lib.costs.hybrid import StageWork, step_bytes
from course_lib.hybrid_parallel import ParallelLayout, bytes_by_axis, clip_grad_norm_
from course_lib.runtime import launch, record_communication
from course_lib.why_distribute import shape_of
from tests.hybrid_parallel.cases import BATCH, CONFIG, MAX_NORM, batch, laid_out

SP, M2, M3 = {"sequence_parallel": True}, {"num_microbatches": 2}, {"num_microbatches": 3}
ZB = {"schedule": "zb-h1"}  # backward in two parts, each of which sends its own
CASES = [
    ("dp2", M3), ("dp2,zero1", M3), ("dp2,zero2", M3), ("dp2,zero3", M3), ("dp3,zero3", {}), ("tp2", M2),
    ("tp2", SP | M3), ("cp2", M2), ("cp2,zero2", M2), ("pp2", M3), ("pp3", M2), ("pp2,tp2", SP | M3),
    ("pp2,tp2", M2), ("dp2,tp2", SP),
    ("dp2,cp2", {}), ("dp2,pp2", M3), ("dp2,pp2,zero1", M3), ("dp2,pp2,zero2", M3), ("dp2,pp2,zero3", M3),
    ("cp2,tp2", SP | M2), ("pp2,cp2", M2), ("dp2,pp2,tp2,zero1", SP | M3),
    ("cp4,zero1", {}), ("tp4", SP), ("pp2,tp2", M3 | ZB), ("pp2,tp2", SP | M3 | ZB),
]
WORLD_SIZES = sorted({ParallelLayout.from_string(text).world_size for text, _ in CASES})


def work_of(model, options):
    """This rank's part of a step of a plain pipeline, for the formula."""
    p, place = model.pp.n, model.pp.r
    layers = [name for name in ("embedding", *(f"blocks.{i}" for i in range(CONFIG.num_layers)), "norm", "head")
              if any(inner.startswith(f"{name}.") for stage in model.stages for inner, _ in
                     (getattr(stage, "module", stage)).named_parameters(remove_duplicate=False))]
    dealt_out = [name.startswith("blocks") or name == "norm" for name in layers]
    m = options.get("num_microbatches", 1)
    return StageWork(layers, BATCH // model.dp.n // m, m, sends_forward=place < p - 1, sends_backward=place > 0,
                     forward_dealt_out=dealt_out[-1], backward_dealt_out=layers[0] != "blocks.0",
                     tied_elsewhere=p > 1 and ("embedding" in layers or "head" in layers),
                     passes_loss_on=place != p - 2)


def counted(cases):
    found = []
    for text, options in cases:
        layout = ParallelLayout.from_string(text)
        model, optimizer = laid_out(text, options)
        for step in range(2):  # in the first one shapes travel, too
            rows = batch(step, model.dp.r, model.dp.n)
            with record_communication() as log:
                model.forward_backward(*rows)
                clip_grad_norm_(model, MAX_NORM)
                optimizer.step()
            optimizer.zero_grad()
        sizes = {axis: layout.size(axis) for axis in layout.axes}
        formula = step_bytes(work_of(model, options), shape_of(CONFIG), sizes, layout.zero_stage,
                             options.get("sequence_parallel", False))
        found.append((text, options, dist.get_rank(), bytes_by_axis(log, layout), formula))
    return found


@pytest.mark.sweep("world_size", few=WORLD_SIZES[:3], all=WORLD_SIZES, words="2, 3 and 4 ranks of 8")
def test_bytes_along_each_axis_are_the_formula(world_size):
    cases = [case for case in CASES if ParallelLayout.from_string(case[0]).world_size == world_size]
    wrong = [one for of_rank in launch(counted, cases, world_size=world_size, timeout=120) for one in of_rank
             if one[3] != one[4]]
    assert not wrong, "\n".join(map(str, wrong))
