"""Pipeline parallelism: one schedule, drawn, simulated and run.

    actions.py      what a schedule is made of
    schedules.py    those that were published, from the naive one to DualPipe-V
    dependencies.py what an action needs, and in which order a schedule can run at all
    validate.py     what is wrong with a schedule, in words
    memory.py       activations in flight
"""

from course_lib.pipeline_parallel.actions import Action, Schedule
from course_lib.pipeline_parallel.schedules import (
    dualpipe_v,
    gpipe,
    interleaved_1f1b,
    naive,
    one_f_one_b,
    zb_h1,
    zb_h2,
    zb_v,
)
from course_lib.pipeline_parallel.validate import Finding, InvalidSchedule, findings, validate

__all__ = [
    "Action",
    "Finding",
    "InvalidSchedule",
    "Schedule",
    "dualpipe_v",
    "findings",
    "gpipe",
    "interleaved_1f1b",
    "naive",
    "one_f_one_b",
    "validate",
    "zb_h1",
    "zb_h2",
    "zb_v",
]
