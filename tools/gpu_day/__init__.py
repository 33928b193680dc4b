"""For the day a GPU is there: one command that runs what only a GPU can show, and writes one table.

    python -m tools.gpu_day [TEXT ...] [--json FILE]    on the GPUs of this machine, in seven minutes
    python -m tools.gpu_day --mode pretended            the same steps on GPUs that tools/harness/pretend pretends

A step runs for 25 s at most, and one that compiles or runs notebooks a little longer; __main__.py has their order, by
what the course claims, and steps.py says what one is:

    checks.py       fork, then a GPU in a rank; a GPT's losses against the CPU's; stopwatch, memory
    operations.py   every operation of torch.distributed, those of a world on one team of ranks
    speed.py        a training step, products, attention: seconds and bytes against the formulas
    overlap.py      what runs while something else does: kernels that spin, copies, a pipeline's first step
    hardware.py     launches, waits and graphs; sums in 16 bits; offload; experts
    course.py       every kind of parallelism against one process, and every notebook

This process touches no GPU: what fails, hangs or dies is a rank, its step is a row, and the next one runs.
"""
