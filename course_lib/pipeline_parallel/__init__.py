"""Pipeline parallelism: one schedule, drawn, simulated and run.

    actions.py      what a schedule is made of
    schedules.py    those that were published, from the naive one to DualPipe-V
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

__all__ = [
    "Action",
    "Schedule",
    "dualpipe_v",
    "gpipe",
    "interleaved_1f1b",
    "naive",
    "one_f_one_b",
    "zb_h1",
    "zb_h2",
    "zb_v",
]
