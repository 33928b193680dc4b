"""A class that nobody teaches: submissions of every kind over all chapters, with the points that each deserves.

    python -m tools.simulated_class DIR --submissions 200 --jobs 2 --kills 3 --gradescope 10 --json FILE
    python -m tools.simulated_class DIR --figures      a solved notebook of each chapter alone; writes figures.json

DIR, a new folder, becomes a course with submissions: right, half, stubs, syntax errors, endless loops, floods of
output, deleted and doubled cells, hostile ones, second downloads and files that were cut off. They are graded by `make
grade`'s command, which is killed on the way and started again; then the points of each exercise are compared with the
truth. --gradescope grades some of them once more as Gradescope's autograder would, without namespaces where root can
give them up. Interrupted and started again with the same options, all of this goes on where it was.
"""

import argparse
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from math import gcd
from pathlib import Path
from statistics import median

from course_lib.grading.marks import figures
from course_lib.grading.marks.standing import CourseFolder, Standing, standings
from course_lib.pictures.units import human_seconds
from tools.exercises import ROOT, assignments
from tools.simulated_class.submissions import KINDS, TRACE, Deserved, make_class

CONTAINER = ["setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin"]
STATE = "simulated_class.json"  # in the folder: what has been made and done so far


@dataclass
class SimulatedClass:
    """The folder, what every submission in it deserves, and what was done with it, which outlives an interruption."""

    folder: Path
    count: int
    seed: int
    truth: dict[str, Deserved]
    killed: list[str]  # assignments in which grading was killed
    seconds: float  # of grading, so far

    @classmethod
    def at(cls, folder: Path, count: int, seed: int) -> "SimulatedClass":
        """The class in `folder`, made where it is new. SystemExit where another one lies there."""
        path = folder / STATE
        if not path.exists():
            if folder.exists():
                raise SystemExit(f"{folder} holds no simulated class, or half of one: expected a new folder")
            made = cls(folder, count, seed, make_class(folder, count, seed), [], 0.0)
            made.save()
            return made
        kept = json.loads(path.read_text(encoding="utf-8"))
        if (kept["count"], kept["seed"]) != (count, seed):
            raise SystemExit(f"{folder} holds a class of {kept['count']} with seed {kept['seed']}: given {count} with "
                             f"seed {seed}")
        return cls(folder, **kept)

    def save(self) -> None:
        """Whole or not at all."""
        kept = {key: value for key, value in vars(self).items() if key != "folder"}
        part = self.folder / f"{STATE}.part"
        part.write_text(json.dumps(kept, indent=1), encoding="utf-8")
        os.replace(part, self.folder / STATE)

    def deserves(self, name: str, student: str) -> float | None:
        """The mark; None for no mark at all."""
        points = self.truth[name][student]
        return None if points is None else sum(points.values())


class Progress:
    """A line for each submission: how many are done, and how long the rest will take by what the others took."""

    def __init__(self, simulated: SimulatedClass) -> None:
        recorded = json.loads(figures.RECORDED.read_text(encoding="utf-8"))
        gradable = {name: [student for student, points in deserved.items() if points is not None]
                    for name, deserved in simulated.truth.items()}
        # What is graded by now took `simulated.seconds`: a chapter's own figures say how much of the whole that is.
        self.weights = {name: recorded.get(name, {}).get("seconds", 1.0) for name in gradable}
        self.total = sum(map(len, gradable.values()))
        self.left = {(name, student) for name, students in gradable.items() for student in students}
        self.before = self.weight(self.left)
        self.simulated, self.start, self.earlier_s = simulated, time.monotonic(), simulated.seconds

    def weight(self, those: set[tuple[str, str]]) -> float:
        """How much work they are."""
        return sum(self.weights[name] for name, _ in those)

    def note(self, name: str, student: str) -> None:
        """Take a submission as done, without a word."""
        self.left.discard((name, student))

    def say(self, name: str, student: str, what: str) -> None:
        """Take it as done and print the line."""
        self.note(name, student)
        spent = self.simulated.seconds = self.earlier_s + time.monotonic() - self.start
        self.simulated.save()
        left = self.weight(self.left)
        rest = f"{human_seconds(spent * left / (self.before - left))} left" if self.before > left else "first of all"
        print(f"[{self.total - len(self.left)}/{self.total}, {human_seconds(spent)}, about {rest}] "
              f"{name}, {student}: {what}", flush=True)


def environment() -> dict[str, str]:
    """Of the commands: this course."""
    return os.environ | {"PYTHONPATH": str(ROOT)}


def grade(folder: Path, name: str, jobs: int, options: list[str], on_done: Callable[[str, str], None],
          kill_after: int | None = None) -> None:
    """`make grade`'s command; killed after so many submissions where asked for. `on_done` hears of each. SystemExit
    where it ends before its report."""
    command = [sys.executable, "-m", "course_lib.grading.marks.batch", name, "--jobs", str(jobs), "--quiet",
               *(["--", *options] if options else [])]
    process = subprocess.Popen(command, cwd=folder, env=environment(), stdout=subprocess.PIPE, text=True)
    done, report, killed = 0, False, False
    for line in process.stdout:
        student, _, what = line.rstrip("\n").partition(": ")
        report = report or line.startswith(f"{name}, ")  # the batch has come to its end and says how it went
        if not report and student and (folder / "submitted" / student).is_dir():
            on_done(student, what)
            done += 1
        else:
            print(f"    {line}", end="", flush=True)
        if kill_after is not None and done >= kill_after:
            process.send_signal(signal.SIGKILL)
            print("    killed", flush=True)
            killed = True
            break
    process.stdout.close()
    process.wait()
    if not (report or killed):
        raise SystemExit(f"grading {name} ended early, with exit status {process.returncode}: start this again")


def wait_for_earlier(folder: Path) -> None:
    """Where this tool was killed, what it had started ends after the submission that it grades."""
    lock = folder / ".grading" / "lock"
    lock.parent.mkdir(exist_ok=True)
    with open(lock, "a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)


def grade_class(simulated: SimulatedClass, jobs: int, kills: int, options: list[str]) -> None:
    """Grade all of it; in `kills` chapters grading is killed, a little later each time, and started again."""
    progress = Progress(simulated)
    names = list(simulated.truth)
    to_kill = [names[place * len(names) // kills] for place in range(min(kills, len(names)))]
    course = CourseFolder.at(simulated.folder)
    for name in names:
        if course.knows(name):  # from before an interruption
            for each in standings(course, name):
                if not each.status.is_open:
                    progress.note(name, each.student)

        def on_done(student: str, what: str, name: str = name) -> None:
            progress.say(name, student, what)

        if name in to_kill and name not in simulated.killed:
            late = min(1 + 4 * to_kill.index(name), max(1, len(simulated.truth[name]) - 2))
            simulated.killed.append(name)
            grade(simulated.folder, name, jobs, options, on_done, kill_after=late)
        grade(simulated.folder, name, jobs, options, on_done)


def compare(simulated: SimulatedClass) -> list[str]:
    """In words, each submission whose points, exercise by exercise, or whose mark in the gradebook are not those that
    it deserves."""
    wrong = []
    for name, deserved in simulated.truth.items():
        found = {each.student: each for each in standings(CourseFolder.at(simulated.folder), name)}
        for student, points in deserved.items():
            standing = found[student]
            mark = simulated.deserves(name, student)
            if points_of(standing) != points or standing.mark != mark:
                wrong.append(f"{name}, {student}: {standing.mark} and {points_of(standing)}, deserved {mark} and "
                             f"{points} ({standing.status.word}: {standing.why})")
    return wrong


def points_of(standing: Standing) -> dict[str, float] | None:
    """By exercise, as they were judged."""
    record = standing.record
    return None if record is None else {each.number: each.points for each in record.exercises}


def grade_on_platform(folder: Path, name: str, student: str) -> dict[str, float] | None:
    """By exercise the points in Gradescope's results.json of one submission, without namespaces; None where it says
    that nothing was judged. An empty dict where there is no result."""
    result = folder / "results" / f"{name} {student}.json"
    if not result.exists():
        result.parent.mkdir(exist_ok=True)
        prefix = CONTAINER if os.geteuid() == 0 and shutil.which("setpriv") else []
        subprocess.run([*prefix, sys.executable, "-m", "course_lib.grading.marks.alone", name,
                        folder / "submitted" / student / name, "--course", folder, "--gradescope", "--to", result],
                       env=environment(), stdout=subprocess.DEVNULL)
    if not result.exists():
        return {}
    found = json.loads(result.read_text(encoding="utf-8"))
    return {each["number"]: each["score"] for each in found["tests"]} or None


def choose_for_platform(simulated: SimulatedClass, count: int) -> list[tuple[str, str]]:
    """(assignment, student) of `count` submissions, from all chapters, of as many kinds as there can be."""
    everybody = [(name, student) for name, deserved in simulated.truth.items() for student in deserved]
    step = max(1, len(everybody) // max(1, count))
    while step > 1 and gcd(step, len(KINDS)) > 1:  # or the kinds would come round too soon
        step -= 1
    return everybody[::step][:count]


def try_platform(simulated: SimulatedClass, count: int, jobs: int) -> list[str]:
    """In words, each of `count` submissions that the platform's autograder gives other points than the class's."""
    def differs(place: int, name: str, student: str) -> str:
        start = time.monotonic()
        there = grade_on_platform(simulated.folder, name, student)
        here = points_of(next(each for each in standings(CourseFolder.at(simulated.folder), name)
                              if each.student == student))
        print(f"[platform {place}/{count}] {name}, {student}: {human_seconds(time.monotonic() - start)}, "
              f"{'the same points' if there == here else 'other points'}", flush=True)
        return "" if there == here else f"{name}, {student}: {there} there, {here} here"

    chosen = choose_for_platform(simulated, count)
    with ThreadPoolExecutor(jobs) as pool:
        waiting = [pool.submit(differs, place, *each) for place, each in enumerate(chosen, 1)]
        return [found for each in waiting if (found := each.result())]


def costs(folder: Path) -> dict[str, dict[str, dict[str, float]]]:
    """By assignment and by kind, median and highest seconds and the highest peak of a submission, as they were kept."""
    kept: dict[str, dict[str, list[dict]]] = {"assignment": {}, "kind": {}}
    for path in sorted((folder / ".grading").glob("*/*.json")):
        found = json.loads(path.read_text(encoding="utf-8"))
        if "seconds" in found:
            for key, name in (("assignment", path.parent.name), ("kind", path.stem.partition(" ")[2])):
                kept[key].setdefault(name, []).append(found)
    return {key: {name: {"submissions": len(those), "seconds": median(each["seconds"] for each in those),
                         "longest_s": max(each["seconds"] for each in those),
                         "peak_bytes": max(each.get("peak_bytes", 0) for each in those)}
                  for name, those in groups.items()} for key, groups in kept.items()}


def run_class(simulated: SimulatedClass, jobs: int, kills: int, on_platform: int, options: list[str]) -> dict:
    """Grade, kill and compare; everything that was found, for people and as JSON."""
    TRACE.unlink(missing_ok=True)
    wait_for_earlier(simulated.folder)
    grade_class(simulated, jobs, kills, options)
    wrong = compare(simulated)
    outside = TRACE.exists()  # before the platform, where whoever may write into /tmp does
    start = time.monotonic()
    differ = try_platform(simulated, on_platform, jobs)
    TRACE.unlink(missing_ok=True)
    return {"submissions": simulated.count, "jobs": jobs, "killed_in": simulated.killed, "seconds": simulated.seconds,
            "seconds_each": simulated.seconds / simulated.count, "wrong": wrong, "wrote_outside": outside,
            "on_platform": on_platform, "platform_seconds": time.monotonic() - start, "differ": differ,
            "by": costs(simulated.folder)}


def record_figures(folder: Path, options: list[str]) -> None:
    """Grade a solved notebook of each chapter alone, and write what it took for `make grade` to say beforehand."""
    make_class(folder, 0, 0)
    for name in assignments():
        own = folder / "submitted" / "right" / name
        own.mkdir(parents=True)
        shutil.copy(ROOT / "solutions" / name / f"{name}.ipynb", own)
        grade(folder, name, 1, options, lambda student, what, name=name: print(f"{name}: {what}", flush=True))
    found = {name: {"seconds": round(each["seconds"], 1), "peak_bytes": round(each["peak_bytes"], -6)}
             for name, each in costs(folder)["assignment"].items()}
    figures.RECORDED.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(found, indent=1))


def main() -> int:
    arguments = sys.argv[1:]
    cut = arguments.index("--") if "--" in arguments else len(arguments)
    parser = argparse.ArgumentParser(prog="python -m tools.simulated_class", description=__doc__.splitlines()[0],
                                     epilog="What follows -- goes to nbgrader.")
    parser.add_argument("folder", type=Path, help="a new folder, or one that was begun")
    parser.add_argument("--submissions", type=int, default=200)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--kills", type=int, default=3, help="how often grading is killed on the way")
    parser.add_argument("--gradescope", type=int, default=0, help="submissions to grade as Gradescope would, too")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="a file for the figures")
    parser.add_argument("--figures", action="store_true", help="a solved notebook of each chapter; writes figures.json")
    asked = parser.parse_args(arguments[:cut])
    folder, options = asked.folder.resolve(), arguments[cut + 1:]
    if asked.figures:
        record_figures(folder, options)
        return 0
    simulated = SimulatedClass.at(folder, asked.submissions, asked.seed)
    found = run_class(simulated, asked.jobs, asked.kills, asked.gradescope, options)
    text = json.dumps(found, indent=1)
    if asked.json:
        asked.json.write_text(text + "\n", encoding="utf-8")
    print(text)
    return int(bool(found["wrong"] or found["differ"] or found["wrote_outside"]))


if __name__ == "__main__":
    sys.exit(main())
