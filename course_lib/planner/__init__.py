"""The planner: what a step takes and holds, for any layout on any cluster, and which layout is best.

It adds up what the chapters' closed forms say (course_lib.costs), with the numbers of data sheets and measured curves
(course_lib.facts) and a few constants that are fitted on published runs; and says how far off it was on others.

    constants.py      the numbers that no data sheet holds, each with its meaning; training software, by what it does
    cluster.py        devices, nodes, wires; how fast they are with a software; seconds by cause
    job.py            what is to be trained, on what, cut how; what a pipeline schedule costs
    layer.py          seconds of one layer: products, tensor and context parallelism, experts
    memory.py         what a rank has of the model, and how ZeRO shares it out; bytes of the fullest device, by kind
    estimate.py       seconds of a step: bubble, data parallelism, optimiser; memory, MFU, money, and how sure
    candidates.py     what can be built: layouts, chunks, micro-batches; what the papers' rules of thumb choose
    search.py         those that fit, the fastest first; what nearly fits
    plan.py           the search in one call; why other layouts are slower, do not fit, or cannot be built
    frameworks.py     a model's shape from its config.json; a plan in the words of Megatron-Core and torchtitan
    command.py        python -m course_lib.planner --help
    rows.py           a published run as a job, in words, and seconds in its metric
    compare.py        published beside predicted: errors by kind of run and by group, MFU in one convention
    validate.py       published beside predicted as a command, also with sources and effects left out; measured peaks
    machine.py        this machine, measured

All but the last need nothing but Python. Names load their module on first use.
"""

from course_lib.lazy import load_on_use

load_on_use(__name__, {
    "candidates": ("Choices", "rule_of_thumb"),
    "cluster": ("Cluster", "cluster"),
    "compare": ("MeasuredError", "NoRun", "error_of"),
    "constants": ("CONSTANTS", "Constant", "Constants", "SOFTWARE", "Software", "find_software"),
    "estimate": ("CAUSES", "Estimate", "estimate"),
    "frameworks": ("shape_from_config",),
    "job": ("Job",),
    "machine": ("Machine", "measure"),
    "plan": ("Plans", "WhyNot", "plan", "reasons_for", "why_not"),
    "search": ("pareto", "ties"),
})
