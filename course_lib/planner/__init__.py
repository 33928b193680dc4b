"""The planner: what a step takes and holds, for any layout on any cluster, and which layout is best.

It adds up what the chapters' closed forms say (course_lib.costs), with the numbers of data sheets and measured curves
(course_lib.facts) and a few constants that are fitted on published runs; and says how far off it was on others.

    constants.py      the numbers that no data sheet holds, each with its meaning and its uncertainty
    software.py       generations of training software, by what they do
    cluster.py        devices, nodes, wires
    job.py            what is to be trained, on what, cut how
    huggingface.py    a model's shape from its config.json
    rates.py          how fast a cluster is with a software
    seconds.py        seconds by cause, and the two passes that they make up
    work.py           what of a job a layer's time depends on
    layer.py          seconds of one layer, by cause, those of adapters (LoRA) among them
    split_layer.py    what tensor parallelism adds to a layer: messages, and what hides them
    expert_layer.py   what experts add to a layer: products, router, the way of the rows
    step.py           seconds of a step: stages, bubble, data parallelism, optimiser, on the device or its host
    state.py          bytes of parameters, gradients and optimiser: sharded, on the host, of adapters
    memory.py         bytes of the fullest device, by kind
    estimate.py       both, MFU, money, and how sure
    rows.py           a published run as a job, and seconds in its metric
    runs.py           published runs that were not fitted, in words
    errors.py         how far off the planner was on them, by kind
    least_squares.py  the most likely constants, in plain Python
    fit.py            the constants from the rows marked "calibration"
    guesses.py        what is not fitted: constants that no row moves, and numbers of the model
    compare.py        published beside predicted, errors by group, MFU in one convention
    peaks.py          measured memory beside predicted
    validate.py       the same as a command, and with sources and effects left out
    one_step.py       the constants of your cluster, from a step or a message or a product measured on it
    candidates.py     what can be built: layouts, chunks, micro-batches
    search.py         those that fit, the fastest first; what nearly fits
    ranking.py        ties, the simplest first; time against memory
    reasons.py        why one plan is slower than another
    why_not.py        why a layout is no plan, and what would make it fit
    nothing_fits.py   why there is no plan at all, and what would make one
    plan.py           the search in one call
    flags.py          a plan in the words of Megatron-Core and torchtitan
    report.py         plans in words, and as JSON
    command.py        python -m course_lib.planner --help
    rule.py           what the papers' rules of thumb choose
    machine.py        this machine, measured
    trainer.py        what chapter 9's trainer sends and holds, before it runs

The last two need torch, and load on first use; all else needs nothing but Python.
"""

from course_lib.lazy import load_on_use
from course_lib.planner.candidates import Choices, rule_of_thumb
from course_lib.planner.cluster import Cluster, cluster
from course_lib.planner.compare import MeasuredError, NoRun, error_of, errors_by_kind
from course_lib.planner.constants import CONSTANTS, SOFTWARE, Constant, Constants, Software, find_software
from course_lib.planner.estimate import Estimate, estimate
from course_lib.planner.huggingface import shape_from_config
from course_lib.planner.job import Job
from course_lib.planner.one_step import Learned, learn
from course_lib.planner.plan import Plans, plan, reasons_for
from course_lib.planner.search import pareto, ties
from course_lib.planner.step import CAUSES
from course_lib.planner.why_not import WhyNot, why_not

load_on_use(__name__, {"machine": ("Machine", "measure")})

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
    "Learned",
    "Machine",
    "MeasuredError",
    "NoRun",
    "Plans",
    "Software",
    "WhyNot",
    "cluster",
    "error_of",
    "errors_by_kind",
    "estimate",
    "learn",
    "measure",
    "pareto",
    "plan",
    "reasons_for",
    "rule_of_thumb",
    "shape_from_config",
    "find_software",
    "ties",
    "why_not",
]
