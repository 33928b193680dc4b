"""python -m benchmarks [NAME ...] [--json FILE]: print median times and the ratio ours/theirs."""

import argparse
import dataclasses
import json
import sys
from pathlib import Path

import benchmarks
from benchmarks.harness import Result, choose, discover, measure

ROW = "{:<32} {:>12} {:>12} {:>8} {:>6}"


def row(result: Result) -> str:
    """One line of the table; times in milliseconds."""
    milliseconds = (f"{1000 * side_s:.2f}" for side_s in (result.ours_s, result.theirs_s))
    return ROW.format(result.name, *milliseconds, f"{result.ratio:.2f}", result.runs)


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="which benchmarks (default: all)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the results here")
    options = parser.parse_args(arguments)
    try:
        chosen = choose(options.names, discover(benchmarks))
    except ValueError as error:
        parser.error(str(error))
    print(ROW.format("median of the runs", "ours ms", "theirs ms", "ratio", "runs"))
    results = []
    for one in chosen:
        results.append(measure(one))
        print(row(results[-1]), flush=True)
    if options.json:
        rows = [dataclasses.asdict(result) for result in results]
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
