"""A pretended GPU for tests on machines without one: what would fail on a GPU fails here, and numbers are the CPU's.

    python -m tests.pretend --mode nccl      every cell, solution and trial under a mode, and a table of what passed

`modes.py` says what can be pretended, `hook.py` gives it to the ranks of `launch`, `device.py` makes a process have the
device, `build.py` compiles it (device.cpp, wire.cpp, streams.h), `trials/` and `cells.py` are what is run under it.
"""
