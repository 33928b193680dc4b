"""python -m tools.gpu_day.child MODULE MODE NAME ...: run steps of one module, and tell the command how far they are.

`python -m tools.gpu_day` starts it (runner.py). Started by hand it prints the traceback of a step that fails.
"""

import importlib
import sys
import time
import traceback

from benchmarks.harness import tell
from tools.gpu_day.steps import FAILED, NOT_MET, PASSED, NotMet, Step, machine, words


def main(module: str, mode: str, names: list[str]) -> None:
    with machine(mode):
        known = {step.name: step for step in importlib.import_module(module).steps(mode)}
        for name in names:
            tell("begins")
            started = time.perf_counter()
            result, figure = outcome(known[name])
            tell("ends", result, figure, time.perf_counter() - started)
            print(f"{name}: {result}: {figure}", flush=True)


def outcome(step: Step) -> tuple[str, str]:
    try:
        return PASSED, step.run()
    except NotMet as figure:
        return NOT_MET, str(figure)
    except Exception as error:
        traceback.print_exc()
        return FAILED, words(error)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
