"""A class that nobody teaches: submissions of every kind over all chapters, with the mark that each deserves.

    python -m tools.simulated_class DIR --submissions 200 --jobs 2 --kills 3 [--gradescope 10] [--json FILE]
    python -m tools.simulated_class DIR --figures      a solved notebook of each chapter alone; writes figures.json

DIR, a new folder, becomes a course with submissions: right, half, stubs, syntax errors, endless loops, floods of
output, deleted and doubled cells, hostile ones, second downloads and files that were cut off. They are graded by `make
grade`'s command, which is killed on the way and started again; then each mark is compared with the truth. --gradescope
grades as many of them once more as Gradescope's autograder would, without namespaces where root can give them up.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

from course_lib.grading.marks import figures
from course_lib.grading.marks.standing import CourseFolder, standings
from tools.exercises import ROOT, assignments
from tools.simulated_class.submissions import make_class

CONTAINER = ["setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin"]


def environment() -> dict[str, str]:
    """Of the commands: this course."""
    return os.environ | {"PYTHONPATH": str(ROOT)}


def grade(folder: Path, name: str, jobs: int, options: list[str], kill_after: int | None = None) -> bool:
    """`make grade`'s command; killed after so many submissions where asked for. Whether it came to its end."""
    command = [sys.executable, "-m", "course_lib.grading.marks.batch", name, "--jobs", str(jobs), "--quiet",
               *(["--", *options] if options else [])]
    process = subprocess.Popen(command, cwd=folder, env=environment(), stdout=subprocess.PIPE, text=True)
    done = 0
    for line in process.stdout:
        print(f"    {line}", end="", flush=True)
        done += line.endswith(": done\n")
        if kill_after is not None and done >= kill_after:
            process.send_signal(signal.SIGKILL)
            print("    killed", flush=True)
            break
    process.stdout.close()
    return process.wait() >= 0


def grade_on_platform(folder: Path, name: str, student: str) -> float | None:
    """The points in Gradescope's results.json of one submission, without namespaces; None where there is no result."""
    result = folder / "results" / f"{name} {student}.json"
    result.parent.mkdir(exist_ok=True)
    prefix = CONTAINER if os.geteuid() == 0 and shutil.which("setpriv") else []
    subprocess.run([*prefix, sys.executable, "-m", "course_lib.grading.marks.alone", name,
                    folder / "submitted" / student / name, "--course", folder, "--gradescope", "--to", result],
                   env=environment(), stdout=subprocess.DEVNULL)
    if not result.exists():
        return None
    found = json.loads(result.read_text(encoding="utf-8"))
    return sum(each["score"] for each in found["tests"]) if found["tests"] else None


def compare(folder: Path, truth: dict[str, dict[str, float | None]]) -> list[str]:
    """Each mark that is not the deserved one, in words."""
    wrong = []
    for name, marks in truth.items():
        found = {each.student: each for each in standings(CourseFolder.at(folder), name)}
        wrong += [f"{name}, {student}: {found[student].mark}, deserved {mark} ({found[student].status.word})"
                  for student, mark in marks.items() if found[student].mark != mark]
    return wrong


def costs(folder: Path) -> dict[str, dict[str, float]]:
    """By assignment, median and highest seconds and the highest peak of a submission, as they were kept."""
    found = {}
    for path in sorted((folder / ".grading").glob("*/")):
        kept = [json.loads(each.read_text(encoding="utf-8")) for each in path.glob("*.json")]
        if seconds := [each["seconds"] for each in kept if "seconds" in each]:
            found[path.name] = {"submissions": len(kept), "seconds": median(seconds), "longest_s": max(seconds),
                                "peak_bytes": max(each.get("peak_bytes", 0) for each in kept)}
    return found


def run_class(folder: Path, count: int, jobs: int, kills: int, on_platform: int, options: list[str], seed: int) -> dict:
    """Make, grade, kill and compare; everything that was found, for people and as JSON."""
    truth = make_class(folder, count, seed)
    names = list(truth)
    start = time.monotonic()
    for place, name in enumerate(names):
        print(f"{name}: {len(truth[name])} submissions", flush=True)
        if place < kills:
            grade(folder, name, jobs, options, kill_after=1)
        grade(folder, name, jobs, options)
    seconds = time.monotonic() - start
    wrong = compare(folder, truth)
    tried = [(name, student, mark) for name, marks in truth.items() for student, mark in marks.items()][:on_platform]
    differ = [f"{name}, {student}: {points} there, {mark} here" for name, student, mark in tried
              if (points := grade_on_platform(folder, name, student)) != mark]
    return {"submissions": count, "jobs": jobs, "kills": min(kills, len(names)), "seconds": seconds,
            "seconds_each": seconds / count, "wrong": wrong, "on_platform": len(tried), "differ": differ,
            "by_assignment": costs(folder)}


def record_figures(folder: Path, options: list[str]) -> None:
    """Grade a solved notebook of each chapter alone, and write what it took for `make grade` to say beforehand."""
    make_class(folder, 0, 0)
    for name in assignments():
        own = folder / "submitted" / "right" / name
        own.mkdir(parents=True)
        shutil.copy(ROOT / "solutions" / name / f"{name}.ipynb", own)
        grade(folder, name, 1, options)
    found = {name: {"seconds": round(each["seconds"], 1), "peak_bytes": round(each["peak_bytes"], -6)}
             for name, each in costs(folder).items()}
    figures.RECORDED.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(found, indent=1))


def main() -> int:
    arguments = sys.argv[1:]
    cut = arguments.index("--") if "--" in arguments else len(arguments)
    parser = argparse.ArgumentParser(prog="python -m tools.simulated_class", description=__doc__.splitlines()[0],
                                     epilog="What follows -- goes to nbgrader.")
    parser.add_argument("folder", type=Path, help="a new folder")
    parser.add_argument("--submissions", type=int, default=200)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--kills", type=int, default=3, help="how often grading is killed on the way")
    parser.add_argument("--gradescope", type=int, default=0, help="submissions to grade as Gradescope would, too")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="a file for the figures")
    parser.add_argument("--figures", action="store_true", help="a solved notebook of each chapter; writes figures.json")
    asked = parser.parse_args(arguments[:cut])
    if asked.figures:
        record_figures(asked.folder.resolve(), arguments[cut + 1:])
        return 0
    found = run_class(asked.folder.resolve(), asked.submissions, asked.jobs, asked.kills, asked.gradescope,
                      arguments[cut + 1:], asked.seed)
    text = json.dumps(found, indent=1)
    if asked.json:
        asked.json.write_text(text + "\n", encoding="utf-8")
    print(text)
    return int(bool(found["wrong"] or found["differ"]))


if __name__ == "__main__":
    sys.exit(main())
