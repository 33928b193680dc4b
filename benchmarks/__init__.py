"""Ours against PyTorch's own (or one process) on the same work in the same run: `python -m benchmarks`.

Each module here holds benchmarks, one function each:

    from benchmarks.harness import benchmark

    @benchmark(runs=9)
    def launch_all_reduce():
        "One scalar all-reduce on 4 ranks, launch against accelerate's notebook_launcher."
        return ours, theirs
"""
