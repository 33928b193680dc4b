"""Pipeline parallelism: one schedule, drawn, simulated and run.

    schedules.py    a schedule as data, and SCHEDULES: those that were published, from the naive one to DualPipe-V
    dependencies.py what an action needs, who sends what to whom, in which order it can run; sends that block
    timing.py       a schedule with its times: idle shares, activations in flight
    validate.py     what is wrong with a schedule, in words
    simulate.py     when each action runs, given what it costs, or as it was measured on ranks
    picture.py      schedules drawn, also a measured step under its plan
    published.py    published bubble rates, predicted from two fitted costs
    partition.py    a model cut into stages
    split_backward.py  a backward pass in two parts, I and W
    mailbox.py      messages between stages, and parameters that lie on two of them
    execute.py      PipelineParallel: a schedule run on real ranks

What the papers say about idle time and memory is in course_lib.costs.bubbles, one line a formula.

What runs on ranks and what draws loads on first use: ranks do not have to import matplotlib, and schedules as data do
not need torch.
"""

from course_lib.costs.bubbles import (
    bubble_of_ideal,
    bubble_of_total,
    naive_bubble,
    peak_1f1b,
    peak_gpipe,
    peak_interleaved,
    zb_h1_bubble,
)
from course_lib.lazy import load_on_use
from course_lib.pipeline_parallel.schedules import SCHEDULES, Action, Published, Schedule, find_schedule
from course_lib.pipeline_parallel.simulate import Simulation, measured_step, schedule_picture, simulate
from course_lib.pipeline_parallel.timing import TimedAction
from course_lib.pipeline_parallel.validate import Finding, InvalidSchedule, findings, validate

_GENERATORS = tuple(row.generate.__name__ for row in SCHEDULES.values())  # naive, gpipe, one_f_one_b, ...

load_on_use(__name__, {
    "execute": ("PipelineParallel",),
    "partition": ("Stage", "partition"),
    "picture": ("measured_under_plan",),
    "schedules": _GENERATORS,
})
