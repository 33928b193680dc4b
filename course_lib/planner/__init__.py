"""The planner: what a step takes and holds, for any layout on any cluster, and which layout is best.

It adds up what the chapters' closed forms say (course_lib.costs), with the numbers of data sheets and measured curves
(course_lib.facts) and a few constants that are fitted on published runs; and says how far off it was on others.

    constants.py  the numbers that no data sheet holds, each with its meaning and its uncertainty
    software.py   generations of training software, by what they do
    cluster.py    devices, nodes, wires
    job.py        what is to be trained, on what, cut how
    rates.py      how fast a cluster is with a software
    layer.py      seconds of one layer, by cause
    step.py       seconds of a step: stages, bubble, data parallelism, optimiser
    memory.py     bytes of the fullest device, by kind
    estimate.py   both, MFU, money, and how sure
    rows.py       a published run as a job, and seconds in its metric
    errors.py     how far off the planner was, by kind of run
    fit.py        the constants from the rows marked "calibration"
    validate.py   published against predicted
    plan.py       all legal layouts, best first, with reasons
    rule.py       what the papers' rules of thumb choose
    machine.py    this machine, measured
    trainer.py    what chapter 9's trainer sends and holds, before it runs
"""

from course_lib.planner.cluster import Cluster, cluster
from course_lib.planner.constants import CONSTANTS, Constant, Constants
from course_lib.planner.errors import MeasuredError, error_of, errors_by_kind
from course_lib.planner.estimate import Estimate, estimate
from course_lib.planner.job import Job
from course_lib.planner.machine import Machine, measure
from course_lib.planner.plan import Choices, pareto, plan, reasons_for
from course_lib.planner.rule import rule_of_thumb
from course_lib.planner.software import SOFTWARE, Software, software_named
from course_lib.planner.step import CAUSES

__all__ = [
    "CAUSES",
    "CONSTANTS",
    "SOFTWARE",
    "Choices",
    "Cluster",
    "Constant",
    "Constants",
    "Estimate",
    "Job",
    "Machine",
    "MeasuredError",
    "Software",
    "cluster",
    "error_of",
    "errors_by_kind",
    "estimate",
    "measure",
    "pareto",
    "plan",
    "reasons_for",
    "rule_of_thumb",
    "software_named",
]
