"""python -m tools.run_again: what failed in the last run of pytest, once more and alone.

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


def main() -> int:
    failed = sorted(json.loads(FAILED.read_text(encoding="utf-8"))) if FAILED.exists() else []
    if not failed or len(failed) > MOST:
        print(f"Not run again: {len(failed)} tests and cells failed, expected 1 to {MOST}.")
        return 1
    print("Once more, alone; what is PASSED now is UNSTABLE:", *failed, sep="\n  ", flush=True)
    files = sorted({name.partition("::")[0] for name in failed})
    if notebooks := [file for file in files if file.endswith(".ipynb")]:
        subprocess.run([sys.executable, "-m", "tools.run_notebooks", "--again", *notebooks])
    return subprocess.run([sys.executable, "-m", "pytest", "--last-failed", "-rpfE", *files]).returncode


if __name__ == "__main__":
    sys.exit(main())
