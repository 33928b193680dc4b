"""A pretended GPU for machines without one: what would fail on a GPU fails here, and numbers are the CPU's.

`modes.py` says what can be pretended, `hook.py` gives it to the ranks of `launch`, `device.py` makes a process have the
device, `build.py` compiles it (device.cpp, wire.cpp, streams.h). What runs on it: tests/pretend, tools/gpu_day.
"""
