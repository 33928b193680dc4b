"""Steps of a made-up day: one for each way in which a step can end."""

import threading

from tools.gpu_day.steps import Step, require


def steps(mode):
    ways = passes, misses, raises, hangs, ends
    return [Step(run.__name__, f"a step that {run.__name__}", run, 1.5) for run in ways]


def passes():
    return "7 of 7"


def misses():
    return require(False, "6 of 7")


def raises():
    raise RuntimeError("no such\ndevice")


def hangs():
    threading.Event().wait()


def ends():
    return "still here"
