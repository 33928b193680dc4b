"""The command line: train the course's GPT under any layout, on this machine or, unchanged, on many under torchrun.

    python -m course_lib.train --layout dp2,pp2,tp2 --steps 50
    torchrun --nproc-per-node 8 -m course_lib.train --layout dp2,pp2,tp2 --steps 50

    arguments.py   what can be asked for, and what is refused in one line, before a rank starts
    run.py         what every rank does
    results.py     inspect, evaluate, sample, export: what a checkpoint is good for
"""

from course_lib.train.run import main, train

__all__ = ["main", "train"]
