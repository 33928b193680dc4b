"""For the day a GPU is there: one command that runs what only a GPU can show, and writes one table.

    python -m tools.gpu_day [TEXT ...] [--json FILE]    on the GPUs of this machine, in less than ten minutes
    python -m tools.gpu_day --mode pretended            the same steps on GPUs that tools/harness/pretend pretends

The steps, in the order in which they run; each module has `steps()` and how long one may be silent:

    checks.py       versions; fork, then a GPU in a rank; a GPT's losses against the CPU's; timeline, stopwatch, memory
    operations.py   every operation of torch.distributed, those of a world in one launch
    course.py       notebooks 00 and 06, then ours against PyTorch's own

steps.py says what a step is, and runs those of a module in a process of their own.
"""
