"""The course on pretended GPUs (tools/harness/pretend).

    python -m tests.pretend --mode nccl      every cell, solution and trial under a mode, and a table of what passed

`trials/` and tools/cells.py are what is run, exceptions.py says what may fail there and why.
"""
