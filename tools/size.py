"""python tools/size.py [COMMIT]: lines of Python by package, in this tree and in a commit, and what has changed.

Without COMMIT the other side is the branch main; on main itself the last commit, or, where nothing has changed since,
the one before. It prints a table for people and decides nothing. Lines are all lines, empty ones and comments too; what
git ignores is not counted.
"""

import argparse
import subprocess
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ("course_lib", "tests", "tools", "benchmarks", "solutions")
LIMIT = 38_000  # lines of course_lib


def run_git(root: Path, *words: str) -> list[str] | None:
    """The lines that git prints, None where it refuses; a search that finds nothing prints none."""
    done = subprocess.run(["git", *words], cwd=root, capture_output=True, text=True)
    return done.stdout.splitlines() if done.returncode == 0 or "grep" in words and done.returncode == 1 else None


def count_lines(root: Path, commit: str | None = None) -> Counter[str] | None:
    """Lines by package, such as "tests/zero"; "tests" for files in no package. Without `commit`, of the tree."""
    where = ["-e", "", commit] if commit else ["--no-index", "--exclude-standard", "-e", ""]
    found = run_git(root, "grep", "--count", *where, "--", *(f"{room}/*.py" for room in ROOMS))
    if found is None:
        return None
    lines = Counter()
    for line in found:
        path, count = line.removeprefix(f"{commit}:").rsplit(":", 1)
        room, *folders, _ = path.split("/")
        lines["/".join([room, *folders[:1]])] += int(count)
    return lines


def other_side(root: Path) -> str | None:
    """main. Where this tree's commit is main's own: that commit if files have changed since, else the one before.
    None where none of these is here.
    """
    head, *mains = (run_git(root, "rev-parse", "--verify", "--quiet", f"{name}^{{commit}}")
                    for name in ("HEAD", "main", "origin/main"))
    names = [name for name, commit in zip(("main", "origin/main"), mains) if commit and commit != head]
    if names:
        return names[0]
    if head and run_git(root, "status", "--porcelain", "--", *ROOMS):
        return "HEAD"
    return "HEAD^" if run_git(root, "rev-parse", "--verify", "--quiet", "HEAD^{commit}^") else None


def table(now: Counter[str], before: Counter[str] | None = None, name: str = "") -> str:
    """A line per package, a sum per room and of all; `before` is what the commit `name` had."""
    width = max(len(package) for package in (*now, *(before or ()), *ROOMS)) + 2

    def row(package: str, lines: int, lines_before: int, indent: str = "") -> str:
        text, change = f"{indent + package:{width}} {lines:>9,}", lines - lines_before
        if before is not None:
            text += f" {lines_before:>12,}" + (f" {change:>+8,}" if change else "")
        return text

    rows = [f"{'lines of Python':{width}} {'this tree':>9}" + ("" if before is None else f" {name:>12} {'change':>8}")]
    old = before or Counter()
    for room in ROOMS:
        packages = [package for package in {**now, **old} if package.split("/")[0] == room]
        rows.append(row(room, sum(now[each] for each in packages), sum(old[each] for each in packages)))
        for each in sorted(packages, key=lambda each: -now[each]):
            rows.append(row("files of its own" if each == room else each.split("/")[1], now[each], old[each], "  "))
    rows.append(row("all", now.total(), old.total()))
    course = sum(lines for package, lines in now.items() if package.split("/")[0] == "course_lib")
    over = f"{course - LIMIT:,} too many" if course > LIMIT else f"{LIMIT - course:,} left"
    return "\n".join([*rows, f"course_lib: {course:,} lines, its limit is {LIMIT:,}: {over}"])


def report(root: Path = ROOT, commit: str | None = None) -> str:
    """What is printed. A ValueError says which side cannot be counted."""
    now, name = count_lines(root), commit or other_side(root)
    before = count_lines(root, name) if name else None
    if now is None:
        raise ValueError("git cannot count the lines of this tree")
    if commit and before is None:
        raise ValueError(f"git knows no commit {commit!r} here")
    return table(now, before, name or "")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commit", nargs="?", help="what to compare with (main)")
    try:
        print(report(commit=parser.parse_args().commit))
    except ValueError as error:
        sys.exit(str(error))
