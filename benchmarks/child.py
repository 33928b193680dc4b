"""python -m benchmarks.child MODULE NAME ...: run benchmarks of one module, and tell the command how far they are.

`python -m benchmarks` starts it (benchmarks/runner.py), so that a peer that hangs or dies takes only its own row along.
Started by hand it prints the traceback of a benchmark that fails.
"""

import importlib
import sys
import traceback

from benchmarks.harness import REGISTERED, tell, turns


def main(module: str, names: list[str]) -> None:
    try:
        importlib.import_module(module)
        for name in names:
            for turn in turns(REGISTERED[name]):
                tell("turn", *turn)
            tell("ends")
    except BaseException as error:
        traceback.print_exc()
        tell("failed", " ".join("".join(traceback.format_exception_only(error)).split()))
        sys.exit(1)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
