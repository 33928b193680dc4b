"""python -m tests.pretend --mode nccl: what of the course passes on a pretended machine, as a table."""

import argparse
import sys
from collections import defaultdict

from tests.pretend import trials
from tests.pretend.exceptions import complaints
from tools import cells
from tools.harness.pretend import build
from tools.harness.pretend.hook import pretended
from tools.harness.pretend.modes import MODES


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.pretend", description=__doc__)
    parser.add_argument("--mode", choices=MODES, default="nccl")
    parser.add_argument("--only", default="", help="notebooks and solutions whose name begins so: 03")
    asked = parser.parse_args()
    if MODES[asked.mode].num_gpus:
        build.build()
    of_kinds = defaultdict(list)  # outcomes of lessons, of solutions, of trials
    with pretended(MODES[asked.mode]):
        of_kinds["trials"] += tell("trials of the library", map(trials.run, trials.TRIALS))
    for title, outcomes in cells.everything(asked.mode, asked.only):
        of_kinds[title.split()[0]] += tell(title, outcomes)
    print(f"\n{asked.mode}:")
    for kind, outcomes in of_kinds.items():
        passed, changed = sum(each.passed for each in outcomes), sum(bool(each.other_output) for each in outcomes)
        print(f"  {kind}: {passed} of {len(outcomes)} pass, {changed} of them with another output")
    unexplained = complaints(asked.mode, sum(of_kinds.values(), []))
    print(f"  unexplained by tests/pretend/exceptions.py: {len(unexplained)}", *unexplained, sep="\n    ")
    sys.exit(bool(unexplained))


def tell(title: str, outcomes: object) -> list[cells.Outcome]:
    """Print what there is to say about each outcome that is no plain pass."""
    outcomes = list(outcomes)
    print(f"{title}: {sum(each.passed for each in outcomes)} of {len(outcomes)}", flush=True)
    for each in outcomes:
        if each.error or each.other_output:
            print(f"  {each.what:24} {each.error[:150] or 'passed, but prints ' + each.other_output[:150]}", flush=True)
    return outcomes


if __name__ == "__main__":
    main()
