"""Pipeline parallelism: one schedule, drawn, simulated and run.

    schedules.py    a schedule as data, and SCHEDULES: those that were published, from the naive one to DualPipe-V
    validate.py     what an action needs, in which order a schedule can run; what is wrong with one, in words
    simulate.py     when each action runs, given what it costs or as measured: idle shares; published rates, predicted
    picture.py      schedules drawn, also a measured step under its plan
    stages.py       a model cut into stages, a backward pass in two parts, I and W, parameters that two stages hold
    mailbox.py      messages between stages
    execute.py      PipelineParallel: a schedule run on real ranks

What the papers say about idle time and memory is in course_lib.costs.scaling, one line a formula.

What runs on ranks and what draws loads on first use: ranks do not have to import matplotlib, and schedules as data do
not need torch.
"""

from course_lib.costs.scaling import (
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
from course_lib.pipeline_parallel.simulate import (
    PREDICTED,
    Simulation,
    TimedAction,
    fit_costs,
    measured_step,
    predict_rates,
    simulate,
)
from course_lib.pipeline_parallel.validate import Finding, InvalidSchedule, findings, validate

_GENERATORS = tuple(row.generate.__name__ for row in SCHEDULES.values())  # naive, gpipe, one_f_one_b, ...

load_on_use(__name__, {
    "execute": ("PipelineParallel",),
    "picture": ("measured_under_plan", "schedule_picture"),
    "schedules": _GENERATORS,
    "stages": ("Stage", "partition"),
})
