"""Steps of a made-up day: one for each way in which a step can end."""

import os
import threading

from benchmarks.harness import EVENTS
from tools.gpu_day.steps import Step, now_at, require

DEADLINE_S = 1.5
RUIN = "MADE_UP_RUIN"  # in the environment: the process of these steps ends while it imports them

if {EVENTS, RUIN} <= {*os.environ}:
    os._exit(7)


def steps(mode):
    ways = passes, misses, raises, hangs, dies, ends
    return [Step(run.__name__, f"a step that {run.__name__}", run) for run in ways]


def passes():
    return "7 of 7"


def misses():
    return require(False, "6 of 7")


def raises():
    raise RuntimeError("no such\ndevice")


def hangs():
    now_at("cell 00[3]")
    threading.Event().wait()


def dies():
    os.kill(os.getpid(), 9)


def ends():
    return "still here"
