"""`make grade NAME=02_collectives JOBS=4`: a class graded unattended, submissions side by side.

    python -m course_lib.grading.marks.batch NAME [--jobs 4] [--again] [--student ID ...] [--quiet] [-- OPTIONS]

Every submission goes through nbgrader's own steps into nbgrader's own gradebook. What is graded already stays; what was
not, or was handed in again, or was interrupted, is graded now. So it may be killed at any moment and started again.
--again grades all of them once more: the same submission gets the same inputs, and so the same marks. OPTIONS go to
nbgrader, such as --TrustedGrade.isolation=auto. At the end the report, and marks/NAME.csv.
"""

import argparse
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue

from tqdm import tqdm

from course_lib.grading.marks.figures import expected_cost, forecast, memory_of
from course_lib.grading.marks.record import digest_of, key_of
from course_lib.grading.marks.standing import CourseFolder, Standing, Status, grade_ids, standings
from course_lib.grading.marks.table import report, write_csv

ATTEMPTS = 2  # of a submission with which its worker died
LIMIT_S = 3600.0  # for one submission: far more than all its exercises' own limits
LOOK_S = 0.25  # between two looks at the memory, and at what a signal has asked for


class WorkerProcess:
    """One worker and the way to ask it. It is started when it is first asked, and again when it died."""

    def __init__(self, course: CourseFolder, name: str, options: list[str], limit_s: float = LIMIT_S) -> None:
        self.command = [sys.executable, "-m", "course_lib.grading.marks.worker", name, *options]
        self.course, self.limit_s = course, limit_s
        self.log = course.root / ".grading" / name / "log.txt"
        self.process: subprocess.Popen | None = None
        self.peak_bytes, self.took_too_long, self.stopped = 0, False, False

    def grade(self, student: str) -> dict:
        """{"error", "seconds", "peak_bytes"} of one submission; an error where the worker died or took too long."""
        process = self.process if self.process and self.process.poll() is None else self.start()
        done = threading.Event()
        self.peak_bytes, self.took_too_long = 0, False
        watch = threading.Thread(target=self.watch, args=(process, done), daemon=True)
        watch.start()
        try:
            with suppress(BrokenPipeError):
                process.stdin.write(json.dumps([student]) + "\n")
                process.stdin.flush()
            line = process.stdout.readline()
        finally:
            done.set()
            watch.join()
        if line:
            return {**json.loads(line), "peak_bytes": self.peak_bytes}
        code = process.wait()
        if self.took_too_long:
            return {"error": f"it took longer than {self.limit_s:g} s, and was ended"}
        return {"error": f"the grader's process ended in the middle ({end_in_words(code)})", "died": True}

    def start(self) -> subprocess.Popen:
        """A worker that is ready. RuntimeError with its last words where it does not come up."""
        with open(self.log, "ab") as log:
            process = self.process = subprocess.Popen(self.command, cwd=self.course.root, stdin=subprocess.PIPE,
                                                      stdout=subprocess.PIPE, stderr=log, text=True)
        if self.stopped:  # by another thread, which may not have seen the process
            process.kill()
        if not process.stdout.readline():
            process.wait()
            words = self.log.read_bytes()[-2000:].decode(errors="replace")
            raise RuntimeError(f"nbgrader does not start: {words}")
        return process

    def watch(self, process: subprocess.Popen, done: threading.Event) -> None:
        """Note the peak of the memory until `done`; end the worker after its limit."""
        looks = 0
        while not done.wait(LOOK_S):
            self.peak_bytes = max(self.peak_bytes, memory_of(process.pid))
            looks += 1
            if looks * LOOK_S > self.limit_s:
                self.took_too_long = True
                process.kill()

    def stop(self) -> None:
        """Kill the worker, from any thread: what it was asked has no answer, and no other one takes its place."""
        self.stopped = True
        if self.process:
            self.process.kill()

    def close(self) -> None:
        """End the worker: it ends when its input does."""
        if self.process:
            with suppress(BrokenPipeError):
                self.process.stdin.close()
            self.process.wait()
            self.process.stdout.close()


def end_in_words(code: int) -> str:
    """An exit status in words."""
    return f"signal {-code}, as the system does when memory runs out" if code == -9 else f"exit status {code}"


def grade_all(course: CourseFolder, name: str, students: Iterable[str], jobs: int, options: list[str],
              on_done: Callable[[str, dict], None]) -> None:
    """Grade each of `students`, `jobs` at a time; what became of each is kept, and told to `on_done`.

    KeyboardInterrupt ends it: submissions under way have no record, and are graded the next time.
    """
    waiting: SimpleQueue = SimpleQueue()
    for student in students:
        waiting.put(student)
    lock = threading.Lock()
    workers = [WorkerProcess(course, name, options) for _ in range(jobs)]

    def work(worker: WorkerProcess) -> None:
        try:
            while not worker.stopped:
                try:
                    student = waiting.get_nowait()
                except Empty:
                    return
                for _ in range(ATTEMPTS):
                    found = worker.grade(student)
                    if worker.stopped:
                        return
                    if not found.get("died"):
                        break
                keep(course, name, student, found)
                with lock:
                    on_done(student, found)
        finally:
            worker.close()

    with ThreadPoolExecutor(jobs) as pool:
        try:
            running = {pool.submit(work, worker) for worker in workers}
            while running:  # a signal in the moment in which a wait begins does not end that wait
                done, running = wait(running, LOOK_S, FIRST_EXCEPTION)
                for one in done:
                    one.result()
        except KeyboardInterrupt:
            for worker in workers:
                worker.stop()
            raise


def keep(course: CourseFolder, name: str, student: str, found: dict) -> None:
    """Remember what a grading took, and its error beside the digest of the file that it belongs to."""
    path = course.last_try(student, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps({**found, "digest": digest_of(course.submitted_notebook(student, name))})
    part = path.with_suffix(".part")
    part.write_text(text, encoding="utf-8")
    os.replace(part, path)  # whole or not at all


def kept_figures(course: CourseFolder, name: str) -> list[dict]:
    """What earlier gradings of the assignment took here."""
    found = []
    for path in sorted((course.root / ".grading" / name).glob("*.json")):
        with suppress(ValueError):
            found.append(json.loads(path.read_text(encoding="utf-8")))
    return [each for each in found if not each.get("error") and each.get("peak_bytes")]


def make_assignment(course: CourseFolder, name: str) -> None:
    """Let nbgrader note the assignment and its points, if it has not. SystemExit with its words where it refuses.

    It notes cell after cell: one that was killed on the way knows the assignment and not all of it.
    """
    if course.knows(name) and source_ids(course, name) <= grade_ids(course, name):
        return
    done = subprocess.run([sys.executable, "-m", "nbgrader", "generate_assignment", name, "--force"], cwd=course.root,
                          capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"nbgrader could not make {name}:\n{done.stderr[-3000:]}")


def source_ids(course: CourseFolder, name: str) -> set[str]:
    """nbgrader's ids of the cells in the teacher's notebook; none where it lies elsewhere."""
    path = course.root / "solutions" / name / f"{name}.ipynb"
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"] if path.exists() else []
    return {cell["metadata"]["nbgrader"]["grade_id"] for cell in cells if "nbgrader" in cell["metadata"]}


def to_grade(found: list[Standing], again: bool, students: list[str]) -> list[str]:
    """Whom to grade: open ones, or with `again` all that have something to grade."""
    gradable = {Status.GRADED, Status.BY_HAND} if again else set()
    return [each.student for each in found if (each.status.is_open or each.status in gradable)
            and (not students or each.student in students)]


class OneAtATime:
    """`with OneAtATime(path)`: no second batch on the same course. SystemExit where one is at work."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __enter__(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.file = open(self.path, "a")
        try:
            import fcntl

            fcntl.flock(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # goes with the process, however that ends
        except ImportError:  # Windows has no class grader
            pass
        except OSError:
            raise SystemExit(f"another `make grade` is at work in {self.path.parent.parent}") from None

    def __exit__(self, *_: object) -> None:
        self.file.close()


def main(arguments: list[str] | None = None) -> int:
    """Grade what is open and print the report; 1 where something has to be looked at."""
    parser = argparse.ArgumentParser(prog="python -m course_lib.grading.marks.batch", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", help="an assignment, such as 02_collectives")
    parser.add_argument("--jobs", type=int, default=1, help="submissions side by side")
    parser.add_argument("--again", action="store_true", help="also those that are graded already")
    parser.add_argument("--student", action="append", default=[], help="this one alone; may be repeated")
    parser.add_argument("--quiet", action="store_true", help="a line for each, no progress bar")
    arguments = sys.argv[1:] if arguments is None else arguments
    cut = arguments.index("--") if "--" in arguments else len(arguments)
    asked = parser.parse_args(arguments[:cut])
    if asked.jobs < 1:
        parser.error(f"--jobs {asked.jobs}: expected 1 or more")
    course = CourseFolder.at()
    with OneAtATime(course.root / ".grading" / "lock"):
        make_assignment(course, asked.name)
        key_of(course.root)  # before several workers would make it
        (course.root / ".grading" / asked.name).mkdir(exist_ok=True)
        students = to_grade(standings(course, asked.name), asked.again, asked.student)
        print(forecast(len(students), asked.jobs, expected_cost(kept_figures(course, asked.name), asked.name)))
        with tqdm(total=len(students), unit="submission", disable=asked.quiet or not students) as bar:
            def show(student: str, found: dict) -> None:
                bar.set_postfix_str(student)
                bar.update()
                if asked.quiet:
                    print(f"{student}: {found['error'] or 'done'}", flush=True)

            try:
                grade_all(course, asked.name, students, min(asked.jobs, max(1, len(students))), arguments[cut + 1:],
                          show)
            except KeyboardInterrupt:
                raise SystemExit("interrupted: the same command goes on where it was") from None
            except RuntimeError as error:  # a worker does not come up; what the others have graded stands
                print(error, file=sys.stderr)
        found = standings(course, asked.name)
        path = write_csv(course, asked.name, found)
    print(report(asked.name, found))
    print(f"The table: {path.relative_to(course.root)}")
    return int(any(each.status.is_open for each in found))


if __name__ == "__main__":
    sys.exit(main())
