"""Pipeline parallelism: one schedule, drawn, simulated and run.

    actions.py      what a schedule is made of
    schedules.py    those that were published, from the naive one to DualPipe-V
    dependencies.py what an action needs, who sends what to whom, and in which order a schedule can run at all
    validate.py     what is wrong with a schedule, in words
    blocking.py     what would happen if sends blocked
    partition.py    a model cut into stages
    execute.py      PipelineParallel: a schedule run on real ranks
    split_backward.py  a backward pass in two parts, I and W
    mailbox.py      messages between stages; shared.py: parameters on two stages; delay.py: waiting like for a GPU
    checks.py       what cannot work, said on every rank
    timing.py       a schedule with its times: idle shares, activations in flight
    simulate.py     when each action runs, given what it costs, or as it was measured on ranks
    published.py    published bubble rates, predicted from two fitted costs
    picture.py      schedules drawn, also a measured step under its plan

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
from course_lib.pipeline_parallel.schedules import (
    Action,
    Schedule,
    dualpipe_v,
    gpipe,
    interleaved_1f1b,
    naive,
    one_f_one_b,
    zb_h1,
    zb_h2,
    zb_v,
)
from course_lib.pipeline_parallel.simulate import Simulation, measured_step, schedule_picture, simulate
from course_lib.pipeline_parallel.timing import TimedAction
from course_lib.pipeline_parallel.validate import Finding, InvalidSchedule, findings, validate

load_on_use(__name__, {
    "execute": ("PipelineParallel",),
    "partition": ("Stage", "partition"),
    "picture": ("measured_under_plan",),
})

__all__ = [
    "Action",
    "Finding",
    "InvalidSchedule",
    "PipelineParallel",
    "Schedule",
    "Simulation",
    "Stage",
    "TimedAction",
    "bubble_of_ideal",
    "bubble_of_total",
    "dualpipe_v",
    "findings",
    "gpipe",
    "interleaved_1f1b",
    "measured_step",
    "measured_under_plan",
    "naive",
    "naive_bubble",
    "one_f_one_b",
    "partition",
    "peak_1f1b",
    "peak_gpipe",
    "peak_interleaved",
    "schedule_picture",
    "simulate",
    "validate",
    "zb_h1",
    "zb_h1_bubble",
    "zb_h2",
    "zb_v",
]
