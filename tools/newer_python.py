"""python -m tools.newer_python: print the newest Python of this machine that is newer than the one that runs this, and
that can make the course's environment. Where there is none, say so on stderr and exit with 1.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from tools import check_python

NEWEST = (3, 14)  # what requirements.lock has been tried on
ASKED = ("import sys, venv, ensurepip; assert sys.version_info.releaselevel == 'final'; "
         "print(*sys.version_info[:2], sys.executable)")


def candidates() -> list[str]:
    """python3.12 and so on from PATH, and pyenv's, most of which are in no PATH."""
    names = [f"python3.{minor}" for minor in range(check_python.LOWEST[1], NEWEST[1] + 1)]
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"), "versions")
    return [*filter(None, map(shutil.which, names)), *map(str, sorted(pyenv.glob("*/bin/python3")))]


def answer(candidate: str) -> tuple[int, int, str] | None:
    """(3, 13, its path); None for what is no Python, as pyenv's stand-ins, or lacks what makes environments."""
    finished = subprocess.run([candidate, "-c", ASKED], capture_output=True, text=True)
    found = re.fullmatch(r"(\d+) (\d+) (.+)\n", finished.stdout)
    return (int(found[1]), int(found[2]), found[3]) if found and not finished.returncode else None


def newest(found: list[tuple[int, int, str] | None], than: tuple[int, int]) -> str | None:
    newer = [each for each in found if each and than < each[:2] <= NEWEST]
    return max(newer, key=lambda each: each[:2])[2] if newer else None


def main() -> None:
    ours = sys.version_info[:2]
    path = newest([answer(each) for each in candidates()], ours)
    if not path:
        up_to = ".".join(map(str, NEWEST))
        sys.exit("No Python newer than {}.{} here, up to {}, that can make an environment.".format(*ours, up_to))
    print(path)


if __name__ == "__main__":
    main()
