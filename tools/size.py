"""python tools/size.py [COMMIT]: lines and files of Python by package, in this tree and in a commit, beside the caps.

Without COMMIT the other side is main. It prints a table for people and decides nothing. All lines count, empty ones
and comments too.
"""

import subprocess
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CAPS = {"course_lib": 41_000, "tests": 27_000, "tools": 4_500, "benchmarks": None, "solutions": None}  # lines
CAP_OF_ALL = 92_000


def run_git(*words: str) -> list[str]:
    """The lines that git prints; none where it refuses."""
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True).stdout.splitlines()


def count(commit: str | None = None) -> tuple[Counter[str], Counter[str]]:
    """(lines, files) by package, such as "tests/zero", and by room, such as "tests"; without a commit, of the tree."""
    where = [commit] if commit else ["--no-index", "--exclude-standard"]
    lines, files = Counter(), Counter()
    for line in run_git("grep", "--count", "-e", "", *where, "--", *(f"{room}/*.py" for room in CAPS)):
        path, number = line.removeprefix(f"{commit}:").rsplit(":", 1)
        room, *folders, _ = path.split("/")
        for name in {room, "/".join([room, *folders[:1]])}:
            lines[name] += int(number)
            files[name] += 1
    return lines, files


def report(commit: str) -> str:
    (lines, files), (lines_before, files_before) = count(), count(commit)
    if not lines_before:
        raise SystemExit(f"git knows no commit {commit!r} here")
    rows = [f"{'':24}{'lines':>9}{commit[:10]:>11}{'files':>7}{commit[:10]:>11}"]
    for name in sorted({*lines, *lines_before}, key=lambda name: (list(CAPS).index(name.split("/")[0]), name)):
        room = name.split("/")[0]
        cap = f"   cap {CAPS[room]:,}" if name == room and CAPS[room] else ""
        shown = name if name == room else "  " + name.split("/")[1]
        rows.append(f"{shown:24}{lines[name]:>9,}{lines_before[name]:>11,}{files[name]:>7}{files_before[name]:>11}{cap}")
    total, before = (sum(counted[room] for room in CAPS) for counted in (lines, lines_before))
    return "\n".join([*rows, f"{'all':24}{total:>9,}{before:>11,}{'':18}   cap {CAP_OF_ALL:,}"])


if __name__ == "__main__":
    known = run_git("rev-parse", "--verify", "--quiet", "main")  # not so in a shallow copy
    print(report(sys.argv[1] if len(sys.argv) > 1 else "main" if known else "HEAD^"))
