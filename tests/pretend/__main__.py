"""python -m tests.pretend --mode nccl: what of the course passes on a pretended machine, as a table."""

import argparse
import sys

from tests.pretend import trials
from tests.pretend.exceptions import complaints
from tools import cells
from tools.cells import Outcome
from tools.harness.pretend import build
from tools.harness.pretend.modes import MODES


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.pretend", description=__doc__)
    parser.add_argument("--mode", choices=MODES, default="nccl")
    parser.add_argument("--only", default="", help="notebooks and solutions whose name begins so: 03")
    parser.add_argument("--part", choices=("cells", "trials", "all"), default="all")
    options = parser.parse_args()
    if MODES[options.mode].num_gpus:
        build.build()
    sections = []
    if options.part != "cells":
        sections.append(report("trials of the library", trials_of(options.mode)))
    if options.part != "trials":
        sections += [report(title, outcomes) for title, outcomes in cells.everything(options.mode, options.only)]
    print(f"\n{options.mode}:", *summary(sections), sep="\n  ")
    unexplained = complaints(options.mode, [each for _, outcomes in sections for each in outcomes])
    print(f"  unexplained by tests/pretend/exceptions.py: {len(unexplained)}", *unexplained, sep="\n    ")
    sys.exit(bool(unexplained))


def report(title: str, outcomes: list[Outcome]) -> tuple[str, list[Outcome]]:
    """Print what there is to say about each outcome that is no plain pass."""
    print(f"{title}: {sum(each.passed for each in outcomes)} of {len(outcomes)}", flush=True)
    for each in outcomes:
        if not each.passed:
            print(f"  {each.what:24} {each.error[:150]}", flush=True)
        elif each.other_output:
            print(f"  {each.what:24} passed, but prints {each.other_output[:150]}", flush=True)
    return title, outcomes


def summary(sections: list[tuple[str, list[Outcome]]]) -> list[str]:
    """Sums over the chapters, one line a kind."""
    kinds: dict[str, list[Outcome]] = {}
    for title, outcomes in sections:
        kinds.setdefault(title.split()[0], []).extend(outcomes)
    lines = []
    for kind, outcomes in kinds.items():
        passed, changed = (sum(bool(getattr(each, what)) for each in outcomes) for what in ("passed", "other_output"))
        lines.append(f"{kind}: {passed} of {len(outcomes)} pass, {changed} of them with another output")
    return lines


if __name__ == "__main__":
    main()
