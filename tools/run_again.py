"""python -m tools.run_again: what failed in the last run of pytest, once more and alone; names what passes then.

Continuous integration calls it where `make test` has failed: one test of 5,000 that a busy machine has failed does not
throw a day's work away, and is named UNSTABLE, so that somebody mends it. A test runs by itself; of a notebook all
cells run, since they build on one another. Exit status 0: all of it passes now.
"""

import json
import subprocess
import sys
from pathlib import Path

FAILED = Path(".pytest_cache/v/cache/lastfailed")
MOST = 12  # so many failures are not one busy moment


def to_run(failed: list[str]) -> list[list[str]]:
    """Arguments of pytest, one list for each run: the tests' names together, then each notebook as a whole."""
    tests = [name for name in failed if not is_cell(name)]
    notebooks = sorted({name.partition("::")[0] for name in failed if is_cell(name)})
    return [tests] * bool(tests) + [[notebook] for notebook in notebooks]


def is_cell(name: str) -> bool:
    return ".ipynb" in name.partition("::")[0]


def main() -> int:
    failed = sorted(json.loads(FAILED.read_text(encoding="utf-8"))) if FAILED.exists() else []
    if not failed or len(failed) > MOST:
        print(f"Not run again: {len(failed)} tests and cells failed, expected 1 to {MOST}.")
        return 1
    print("Once more, alone:", *failed, sep="\n  ", flush=True)
    for names in to_run(failed):
        if is_cell(names[0]):
            subprocess.run([sys.executable, "-m", "tools.run_notebooks", "--again", *names])
        subprocess.run([sys.executable, "-m", "pytest", *names])
    again = set(json.loads(FAILED.read_text(encoding="utf-8"))) if FAILED.exists() else set()
    for name in failed:
        print(f"{'FAILED TWICE' if name in again else 'UNSTABLE, failed once and passed alone'}: {name}")
    return int(bool(again))


if __name__ == "__main__":
    sys.exit(main())
