"""For the day a GPU is there: one command that runs what only a GPU can show, and writes one table.

    python -m tools.gpu_day [TEXT ...] [--json FILE]    on the GPUs of this machine, in less than ten minutes
    python -m tools.gpu_day --mode pretended            the same steps on GPUs that tools/harness/pretend pretends

The steps, in the order in which they run; steps.py says what one is:

    checks.py       fork, then a GPU in a rank; a GPT's losses against the CPU's; timeline, stopwatch, memory
    operations.py   every operation of torch.distributed, those of a world on one team of ranks
    course.py       notebooks 00 and 06, then ours against PyTorch's own

This process touches no GPU: what fails, hangs or dies is a rank, its step is a row, and the next one runs.
"""
