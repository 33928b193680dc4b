"""Ours against PyTorch's own (or one process) on the same work in the same run: `python -m benchmarks`.

Each module here holds benchmarks, one function each, which prepare and return two callables:

    from benchmarks.harness import benchmark

    @benchmark(runs=9)
    def launch_all_reduce():
        "One scalar all-reduce on 4 ranks, launch against accelerate's notebook_launcher."
        return ours, theirs

or one that times both in the same launch (ranks.side_by_side), where CPU seconds are counted, too. Beside them:

    harness.py   the list of benchmarks, and the turns of one
    ranks.py     timing two sides in turn on ranks
    child.py     a process that runs benchmarks and says how far it is
    runner.py    starts it, ends it when it hangs, makes results of what it says
    machine.py   what stands below the table
    compression.py  no times: what compressed gradients cost a model, on two texts and several seeds
    balancing.py  no times: how well a model learns, for each way to keep experts busy, on several seeds
"""
