"""Median times of ours and of PyTorch's own, on the clock and in CPU seconds per rank, and the ratios ours/theirs."""

import argparse
import sys
import textwrap
from contextlib import closing
from pathlib import Path
from types import ModuleType

from tqdm import tqdm  # not auto: in a process that has held a kernel, its bars go to stdout

import benchmarks
from benchmarks import machine
from benchmarks.harness import THEIRS, Benchmark, Goal, Result, choose, discover, store
from benchmarks.runner import results

ROW = "{:<45} {:>9} {:>9} {:>18} {:>11} {:>13} {:>18} {:>5}  {}"
HEADS = "ours ms", "theirs ms", "ratio (spread)", "ours CPU ms", "theirs CPU ms", "ratio (spread)"
DEADLINE_S = 60.0
PAGE = """\
# Speed

`make bench` writes this page, `make bench GOALS=1` only with the rows that have a goal
([how it is measured](contributing/benchmarks.md)). Ours and theirs take turns in one run. Each time is a median;
beside a ratio ours/theirs stand the least and the largest of the runs. CPU seconds, user and system, are those of one
rank, the mean of all: where ranks outnumber cores, their sum is what a step lasts on a quiet machine.

| compared | {heads} | runs | goal |
|---|{lines}---|---|
{rows}

```
{footer}
```
"""


def figures(result: Result) -> list[str]:
    """What stands below HEADS: milliseconds, and ratios with the least and the largest of the turns."""
    cells = []
    for of, ratio in (("clock", result.ratio), ("cpu", result.cpu_ratio)):
        sides, spread = [result.median_s(side, of) for side in (0, 1)], result.spread(of)
        cells += ["-" if side_s is None else f"{1000 * side_s:.2f}" for side_s in sides]
        cells += ["-" if spread is None else "{:.2f} ({:.2f}-{:.2f})".format(ratio, *spread)]
    return cells


def verdict(goal: Goal | None, result: Result) -> str:
    """What failed, or the goal of a row and whether it is met."""
    if result.failure:
        return f"failed: {textwrap.shorten(str(result.failure), 160)}"
    if goal is None or goal.at_most is None:
        return ""
    what = {"cpu_ratio": "CPU {}", "ratio": "clock {}", "ours_s": "ours {} s"}[goal.of].format(goal.at_most)
    return f"{what}: {({True: 'met', False: 'not met', None: 'not measured'})[goal.met(result)]}"


def row(planned: Benchmark, result: Result) -> str:
    """One line of the table; times in milliseconds."""
    return ROW.format(result.name, *figures(result), result.runs, verdict(planned.goal, result)).rstrip()


def page(done: list[tuple[Benchmark, Result]], footer: str) -> str:
    """The same as Markdown, with what each benchmark says of itself."""
    rows = []
    for planned, result in done:
        said = f"`{result.name}`: " + " ".join((planned.make.__doc__ or "").split())
        rows.append("| " + " | ".join([said, *figures(result), str(result.runs), verdict(planned.goal, result)]) + " |")
    return PAGE.format(heads=" | ".join(HEADS), lines="---|" * len(HEADS), rows="\n".join(rows), footer=footer)


def main(arguments: list[str], package: ModuleType = benchmarks) -> int:
    """Returns the exit status: 1 when a benchmark failed and it was not theirs that did."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="which benchmarks (default: all)")
    parser.add_argument("--goals", action="store_true", help="those that have a goal, and what stands beside them")
    parser.add_argument("--page", type=Path, metavar="FILE", help="write the table here as Markdown, in the end")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the results here, as they come")
    parser.add_argument("--deadline", type=float, metavar="SECONDS", default=DEADLINE_S,
                        help="a side in which nothing happens for so long has failed (default: %(default)g)")
    options = parser.parse_args(arguments)
    try:
        chosen = choose(options.names, discover(package))
    except ValueError as error:
        parser.error(str(error))
    if options.goals:
        chosen = [one for one in chosen if one.goal]
    load_before, done = machine.load(), []
    if options.json:
        store([], options.json)
    print(ROW.format("median of the runs", *HEADS, "runs", "goal"), flush=True)
    with tqdm(total=sum(one.runs for one in chosen), unit="turn", disable=None) as bar:

        def after_turn(name: str) -> None:
            bar.set_postfix_str(name, refresh=False)
            bar.update()

        with closing(results(chosen, options.deadline, after_turn)) as coming:
            for result, planned in zip(coming, chosen):
                bar.update(planned.runs - result.runs)
                done.append((planned, result))
                tqdm.write(row(planned, result))
                sys.stdout.flush()
                if options.json:
                    store([result.as_json() for _, result in done], options.json)
    footer = machine.footer(load_before)
    print(footer)
    if options.page:
        options.page.write_text(page(done, footer), encoding="utf-8")
    return int(any(result.failure and result.failure.side != THEIRS for _, result in done))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
