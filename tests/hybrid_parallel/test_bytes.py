"""What ranks send along each axis is the formula, to the byte."""

import pytest
import torch.distributed as dist

from course_lib.costs.hybrid import step_bytes
from course_lib.hybrid_parallel import ParallelLayout, bytes_by_axis, clip_grad_norm_
from course_lib.hybrid_parallel.forecast import stages
from course_lib.runtime import launch, record_communication
from course_lib.why_distribute import shape_of
from tests.hybrid_parallel.cases import BATCH, CONFIG, MAX_NORM, batch, laid_out

SP, M2, M3 = {"sequence_parallel": True}, {"num_microbatches": 2}, {"num_microbatches": 3}
ZB = {"schedule": "ZB-H1"}  # backward in two parts, each of which sends its own
CASES = [
    ("dp2", M3), ("dp2,zero1", M3), ("dp2,zero2", M3), ("dp2,zero3", M3), ("dp3,zero3", {}), ("tp2", M2),
    ("tp2", SP | M3), ("cp2", M2), ("cp2,zero2", M2), ("pp2", M3), ("pp3", M2), ("pp2,tp2", SP | M3),
    ("pp2,tp2", M2), ("dp2,tp2", SP),
    ("dp2,cp2", {}), ("dp2,pp2", M3), ("dp2,pp2,zero1", M3), ("dp2,pp2,zero2", M3), ("dp2,pp2,zero3", M3),
    ("cp2,tp2", SP | M2), ("pp2,cp2", M2), ("dp2,pp2,tp2,zero1", SP | M3),
    ("cp4,zero1", {}), ("tp4", SP), ("pp2,tp2", M3 | ZB), ("pp2,tp2", SP | M3 | ZB),
]
WORLD_SIZES = sorted({ParallelLayout.from_string(text).world_size for text, _ in CASES})


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
        work = stages(CONFIG, layout, BATCH, options.get("num_microbatches", 1))[model.pp.r]
        formula = step_bytes(work, shape_of(CONFIG), sizes, layout.zero_stage, "sequence_parallel" in options)
        found.append((text, options, dist.get_rank(), bytes_by_axis(log, layout), formula))
    return found


@pytest.mark.sweep("world_size", few=WORLD_SIZES[:3], all=WORLD_SIZES, words="2, 3 and 4 ranks of 8")
def test_bytes_along_each_axis_are_the_formula(world_size):
    cases = [case for case in CASES if ParallelLayout.from_string(case[0]).world_size == world_size]
    wrong = [one for of_rank in launch(counted, cases, world_size=world_size, timeout=120) for one in of_rank
             if one[3] != one[4]]
    assert not wrong, "\n".join(map(str, wrong))
