"""What only a GPU can show, run on the GPUs of this machine: one table, in seven minutes."""

import argparse
import importlib
import re
import sys
import textwrap
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from torch.utils.collect_env import get_pretty_env_info

from benchmarks.harness import store
from course_lib.runtime import backends
from course_lib.runtime.doctor import why_no_gpu
from tools.gpu_day.steps import ON, PASSED, Row, Step, machine, rows
from tools.harness.pretend import build

MODULES = [f"tools.gpu_day.{name}" for name in ("checks", "operations", "speed", "overlap", "hardware", "course")]
# What the course claims, the most valuable first: a run may be cut. Names begin so; those that do not come last.
ORDER = (
    "fork", "default device", r"\S+ \d+: ",  # does anything work: ranks, and every operation
    r"step(?!.*recompute)", "memory",  # MFU, and bytes against the formulas
    "spin", "pipeline", "step",  # what waits for a kernel; recomputation
    "copies", "connections", "timeline", "bars",  # overlap
    "losses", r"\S+, (dp|tp|pp|cp)",
    "products", "attention", "ring", "bf16 sums", "offload", "launches", "graph", "waiting hosts", "experts",
    "torch.compile", "stopwatch")
WITHIN_S = 420.0  # so that a second run fits into a quarter of an hour
LINE = "{:<39} {:<44} {:<7} {:>6}  {}"


def main(arguments: list[str], modules: Sequence[str] = MODULES) -> int:
    """Returns the exit status: 0 where all steps passed, 1 where one did not, 2 where there is no GPU."""
    parser = argparse.ArgumentParser(prog="python -m tools.gpu_day", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="TEXT", help="steps whose name holds one of these (default: all)")
    parser.add_argument("--mode", choices=ON, default="gpu", help="pretended: on GPUs of tools/harness/pretend")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the rows here, as they come")
    parser.add_argument("--within", type=float, default=WITHIN_S, metavar="SECONDS",
                        help="steps that are not over by then are left out (default: %(default)g)")
    options = parser.parse_args(arguments)
    if options.mode == "pretended":
        build.build()
    with machine(options.mode):
        if not backends.count_gpus():
            print(f"There is no GPU that torch could use here ({why_no_gpu()}): run this on a machine that has one, or "
                  "try the steps on pretended GPUs with --mode pretended.", file=sys.stderr)
            return 2
        steps = [step for step in plan(modules, options.mode)
                 if not options.names or any(text in step.name for text in options.names)]
        if not steps:
            parser.error(f"no step has a name that holds {' or '.join(options.names)}")
        done = list[Row]()

        def progress(step: Step) -> None:
            print(f"[{len(done) + 1}/{len(steps)}] {step.name} ...", file=sys.stderr, flush=True)

        print(LINE.format("step", "what was run", "result", "s", "figure"), flush=True)
        for row in rows(steps, options.within, progress):
            done.append(row)
            print(LINE.format(row.step, textwrap.shorten(row.ran, 44, placeholder=" ..."), row.result,
                              f"{row.seconds:.1f}", row.figure), flush=True)
            if options.json:
                store([vars(each) for each in done], options.json)
    print(f"\n{summary(done)}\n", get_pretty_env_info().partition("\nCPU:")[0], sep="\n")
    if options.mode == "pretended":
        print("pretended GPUs: their numbers and times are the CPU's, and nothing here says what a real one does")
    return int(any(row.result != PASSED for row in done))


def plan(modules: Sequence[str], mode: str) -> list[Step]:
    """Their steps in ORDER. A module that cannot be imported here is a step that fails, with the reason."""
    return sorted((step for module in modules for step in steps_of(module, mode)), key=lambda step: next(
        (place for place, begin in enumerate(ORDER) if re.match(begin, step.name)), len(ORDER)))


def steps_of(module: str, mode: str) -> list[Step]:
    try:
        return importlib.import_module(module).steps(mode)
    except ImportError as error:
        reason = error

    def fail() -> str:
        raise reason

    return [Step(module, "import", fail)]


def summary(rows: Sequence[Row]) -> str:
    """How many steps came out how, and which did not pass."""
    counts = Counter(row.result for row in rows)
    said = ", ".join(f"{count} {result}" for result, count in counts.items())
    others = [row.step for row in rows if row.result != PASSED]
    return f"{len(rows)} steps: {said}" + (f"; look at {', '.join(others)}" if others else "")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
