"""Median times of ours and of PyTorch's own, and the ratio ours/theirs."""

import argparse
import sys
import textwrap
from contextlib import closing
from pathlib import Path
from types import ModuleType

from tqdm import tqdm  # not auto: in a process that has held a kernel, its bars go to stdout

import benchmarks
from benchmarks import machine
from benchmarks.harness import THEIRS, Result, choose, discover, store
from benchmarks.runner import results

ROW = "{:<34} {:>11} {:>11} {:>7} {:>5}"
DEADLINE_S = 60.0


def row(result: Result) -> str:
    """One line of the table; times in milliseconds."""
    milliseconds = ("-" if side_s is None else f"{1000 * side_s:.2f}" for side_s in (result.ours_s, result.theirs_s))
    ratio = "-" if result.ratio is None else f"{result.ratio:.2f}"
    line = ROW.format(result.name, *milliseconds, ratio, result.runs)
    return f"{line}  failed: {textwrap.shorten(str(result.failure), 160)}" if result.failure else line


def main(arguments: list[str], package: ModuleType = benchmarks) -> int:
    """Returns the exit status: 1 when a benchmark failed and it was not theirs that did."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="which benchmarks (default: all)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the results here, as they come")
    parser.add_argument("--deadline", type=float, metavar="SECONDS", default=DEADLINE_S,
                        help="a side in which nothing happens for so long has failed (default: %(default)g)")
    options = parser.parse_args(arguments)
    try:
        chosen = choose(options.names, discover(package))
    except ValueError as error:
        parser.error(str(error))
    load_before, done = machine.load(), []
    if options.json:
        store([result.as_json() for result in done], options.json)
    print(ROW.format("median of the runs", "ours ms", "theirs ms", "ratio", "runs"), flush=True)
    with tqdm(total=sum(one.runs for one in chosen), unit="turn", disable=None) as bar:

        def after_turn(name: str) -> None:
            bar.set_postfix_str(name, refresh=False)
            bar.update()

        with closing(results(chosen, options.deadline, after_turn)) as coming:
            for result, planned in zip(coming, chosen):
                bar.update(planned.runs - result.runs)
                done.append(result)
                tqdm.write(row(result))
                sys.stdout.flush()
                if options.json:
                    store([result.as_json() for result in done], options.json)
    print(machine.footer(load_before))
    return int(any(result.failure and result.failure.side != THEIRS for result in done))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
