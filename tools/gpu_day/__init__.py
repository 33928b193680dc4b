"""For the day a GPU is there: one command that runs what only a GPU can show, and writes one table.

    python -m tools.gpu_day [TEXT ...] [--json FILE]    on the GPUs of this machine, in less than ten minutes
    python -m tools.gpu_day --mode pretended            the same steps on GPUs that tools/harness/pretend pretends

The steps, in the order in which they run; each module has `steps()` and how long one may be silent:

    machine.py      versions; fork, then a GPU in a rank
    operations.py   every operation of torch.distributed, each in a launch of its own
    numbers.py      a GPT's losses against the CPU's
    looks.py        timeline, stopwatch and memory
    lessons.py      notebooks 00 and 06
    speed.py        ours against PyTorch's own

steps.py says what a step is; runner.py runs them in processes of their own, and child.py is such a process.
"""
