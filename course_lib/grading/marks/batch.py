"""`make grade NAME=02_collectives JOBS=4`: a class graded unattended, submissions side by side.

    python -m course_lib.grading.marks.batch NAME [--jobs 4] [--again] [--student ID ...] [--report] [-- OPTIONS]

Every submission goes through nbgrader's own steps into nbgrader's own gradebook. What is graded already stays; what was
not, or was handed in again, or was interrupted, is graded now. So it may be killed at any moment and started again.
--again grades all of them once more: the same submission gets the same inputs, and so the same marks. OPTIONS go to
nbgrader, such as --TrustedGrade.isolation=auto. At the end the report, and marks/NAME.csv; --report writes these alone.

nbgrader and torch take seconds to import, so a worker (--worker NAME OPTIONS) does that once, and then grades one
student after the other: a line on its input names one, a line on its output says what became of it. It ends, in the
middle of a submission too, when its input does: nothing goes on grading after whoever started it was killed.
"""

import argparse
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from pathlib import Path

from nbgrader.apps import AutogradeApp
from nbgrader.converters import Autograde
from nbgrader.utils import capture_log
from sqlalchemy.engine import make_url
from tqdm import tqdm

from course_lib.grading.marks.record import digest_of, key_of
from course_lib.grading.marks.standing import CourseFolder, Standing, Status, one_line, report, standings, write_csv

LIMIT_S = 3600.0  # for one submission: far more than all its exercises' own limits
LOOK_S = 0.25  # between two looks at what a signal has asked for
WAIT_FOR_GRADEBOOK_S = 120  # several workers write to one file


class GradingWorker:
    """nbgrader's own autograde, with the configuration of the folder that it is started in."""

    def __init__(self, name: str, options: list[str]) -> None:
        self.app = AutogradeApp()
        self.app.initialize([name, *options])
        url = make_url(self.app.coursedir.db_url)
        if url.get_backend_name() == "sqlite":
            url = url.update_query_dict({"timeout": str(WAIT_FOR_GRADEBOOK_S)})
            self.app.coursedir.db_url = url.render_as_string(hide_password=False)
        self.app.coursedir.assignment_id = name

    def grade(self, student: str) -> str:
        """Why it failed, "" where it did not."""
        self.app.coursedir.student_id = student  # for nbgrader a pattern; take_in lets none through
        result = capture_log(Autograde(coursedir=self.app.coursedir, parent=self.app, force=True))
        return "" if result["success"] else last_words(result.get("log", ""), result.get("error", ""))


def last_words(log: str, error: str) -> str:
    """The line that says what was wrong: the last of a traceback in nbgrader's log, else of its own.

    >>> last_words("[ERROR] Traceback (most recent call last):\\n  File ...\\nKeyError: 'grade_id'\\n[ERROR]", "")
    "KeyError: 'grade_id'"
    """
    for text in (log, error):
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        raised = [line for line in lines if line.split(":")[0].rpartition(".")[2].endswith(("Error", "Exception"))
                  and not line.startswith("[")]
        if raised:
            return raised[-1][:500]
    return "nbgrader gave no reason; its log is in .grading/"


def serve(name: str, *options: str) -> None:
    """Be a worker until the input ends."""
    signal.signal(signal.SIGINT, lambda *_: None)  # Ctrl-C reaches us too; the batch decides what becomes of it
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what nbgrader prints is no answer
    worker = GradingWorker(name, list(options))
    tasks: queue.Queue = queue.Queue()

    def listen() -> None:
        for line in sys.stdin:
            tasks.put(line)
        os._exit(0)  # whatever is under way: it has no record yet, and is graded again

    threading.Thread(target=listen, daemon=True).start()
    print(json.dumps("ready"), file=answers, flush=True)
    while True:
        print(json.dumps(worker.grade(json.loads(tasks.get()))), file=answers, flush=True)


class WorkerProcess:
    """One worker and the way to ask it. It is started when it is first asked, and again when it died."""

    def __init__(self, course: CourseFolder, name: str, options: list[str], limit_s: float = LIMIT_S) -> None:
        self.command = [sys.executable, "-P", "-m", "course_lib.grading.marks.batch", "--worker", name, *options]
        self.course, self.limit_s = course, limit_s
        self.log = course.root / ".grading" / name / "log.txt"
        self.process: subprocess.Popen | None = None
        self.stopped = False

    def grade(self, student: str) -> str:
        """Why it failed, "" where it did not."""
        process = self.process if self.process and self.process.poll() is None else self.start()
        start = time.monotonic()
        timer = threading.Timer(self.limit_s, process.kill)
        timer.start()
        try:
            with suppress(BrokenPipeError):
                process.stdin.write(json.dumps(student) + "\n")
                process.stdin.flush()
            line = process.stdout.readline()
        finally:
            timer.cancel()
        if line:
            return json.loads(line)
        code = process.wait()
        if time.monotonic() - start >= self.limit_s:
            return f"it took longer than {self.limit_s:g} s, and was ended"
        how = "signal 9, as the system does when memory runs out" if code == -9 else f"exit status {code}"
        return f"the grader's process ended in the middle ({how})"

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


def grade_all(course: CourseFolder, name: str, students: Iterable[str], jobs: int, options: list[str],
              on_done: Callable[[str, str], None]) -> None:
    """Grade each of `students`, `jobs` at a time; an error is kept, and told to `on_done` with its student ("": none).

    KeyboardInterrupt ends it: submissions under way have no record, and are graded the next time.
    """
    waiting: queue.SimpleQueue = queue.SimpleQueue()
    for student in students:
        waiting.put(student)
    lock = threading.Lock()
    workers = [WorkerProcess(course, name, options) for _ in range(jobs)]

    def work(worker: WorkerProcess) -> None:
        try:
            while not worker.stopped:
                try:
                    student = waiting.get_nowait()
                except queue.Empty:
                    return
                error = worker.grade(student)
                if worker.stopped:
                    return
                keep(course, name, student, error)
                with lock:
                    on_done(student, error)
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


def keep(course: CourseFolder, name: str, student: str, error: str) -> None:
    """Remember an error beside the digest of the file that it belongs to; forget an earlier one where there is none."""
    path = course.last_error(student, name)
    path.unlink(missing_ok=True)
    if error:
        text = json.dumps({"error": error, "digest": digest_of(course.submitted_notebook(student, name))})
        path.write_text(text, encoding="utf-8")  # one that is cut off is read as none


def make_assignment(course: CourseFolder, name: str) -> None:
    """Let nbgrader note the assignment and its points, if it has not. SystemExit with its words where it refuses.

    It notes cell after cell: one that was killed on the way knows the assignment and not all of it.
    """
    source = course.root / "solutions" / name / f"{name}.ipynb"
    cells = json.loads(source.read_text(encoding="utf-8"))["cells"] if source.exists() else []
    ids = {cell["metadata"]["nbgrader"]["grade_id"] for cell in cells if "nbgrader" in cell["metadata"]}
    if course.knows(name) and ids <= course.grade_ids(name):
        return
    done = subprocess.run([sys.executable, "-m", "nbgrader", "generate_assignment", name, "--force"], cwd=course.root,
                          capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"nbgrader could not make {name}:\n{done.stderr[-3000:]}")


def to_grade(found: list[Standing], again: bool, students: list[str]) -> list[str]:
    """Whom to grade: open ones, or with `again` all that have something to grade."""
    gradable = {Status.GRADED, Status.BY_HAND} if again else set()
    return [each.student for each in found if (each.status.is_open or each.status in gradable)
            and (not students or each.student in students)]


@contextmanager
def only_one(path: Path) -> Iterator[None]:
    """No second batch on the same course while this one is at work. SystemExit where one is."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "a") as file:
        try:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # goes with the process, however that ends
        except ImportError:  # Windows has no class grader
            pass
        except OSError:
            raise SystemExit(f"another `make grade` is at work in {path.parent.parent}") from None
        yield


def grade_open(course: CourseFolder, asked: argparse.Namespace, options: list[str]) -> None:
    """Grade whom the command line asks for, with a bar that says how many are done."""
    make_assignment(course, asked.name)
    key_of(course.root)  # before several workers would make it
    (course.root / ".grading" / asked.name).mkdir(exist_ok=True)
    students = to_grade(standings(course, asked.name), asked.again, asked.student)
    print(f"{len(students)} submission{'s' * (len(students) != 1)} to grade, {asked.jobs} at a time")
    with tqdm(total=len(students), unit="submission", disable=asked.quiet or not students) as bar:
        def show(student: str, error: str) -> None:
            bar.set_postfix_str(one_line(student))
            bar.update()
            if asked.quiet:
                print(f"{one_line(student)}: {one_line(error) or 'done'}", flush=True)

        try:
            grade_all(course, asked.name, students, min(asked.jobs, max(1, len(students))), options, show)
        except KeyboardInterrupt:
            raise SystemExit("interrupted: the same command goes on where it was") from None
        except RuntimeError as error:  # a worker does not come up; what the others have graded stands
            print(error, file=sys.stderr)


def main(arguments: list[str]) -> int:
    """Grade what is open and print the report; 1 where something has to be looked at."""
    parser = argparse.ArgumentParser(prog="python -m course_lib.grading.marks.batch", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", help="an assignment, such as 02_collectives")
    parser.add_argument("--jobs", type=int, default=1, help="submissions side by side")
    parser.add_argument("--again", action="store_true", help="also those that are graded already")
    parser.add_argument("--student", action="append", default=[], help="this one alone; may be repeated")
    parser.add_argument("--report", action="store_true", help="grade nothing: the report and the table alone")
    parser.add_argument("--quiet", action="store_true", help="a line for each, no progress bar")
    cut = arguments.index("--") if "--" in arguments else len(arguments)
    asked = parser.parse_args(arguments[:cut])
    if asked.jobs < 1:
        parser.error(f"--jobs {asked.jobs}: expected 1 or more")
    course = CourseFolder.at()
    if not asked.report:
        with only_one(course.root / ".grading" / "lock"):
            grade_open(course, asked, arguments[cut + 1:])
    elif not course.knows(asked.name):
        parser.error(f"nothing of {asked.name} was graded in {course.root}")
    found = standings(course, asked.name)
    path = write_csv(course, asked.name, found)
    print(f"{report(asked.name, found)}\nThe table: {path.relative_to(course.root)}")
    return int(any(each.status.is_open for each in found))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        serve(*sys.argv[2:])
    sys.exit(main(sys.argv[1:]))
