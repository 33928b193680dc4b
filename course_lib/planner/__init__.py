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
"""
