"""Grades one submission after the other: `python -m course_lib.grading.marks.worker NAME [nbgrader's options]`.

A line on its input names a student ("[\"ada\"]" in JSON), a line on its output says what became of it. nbgrader and
torch take seconds to import, here once for many. It ends, in the middle of a submission too, when its input does: so
nothing goes on grading after whoever started it was killed.
"""

import json
import os
import queue
import signal
import sys
import threading
import time
from pathlib import Path

from nbgrader.apps import AutogradeApp
from nbgrader.converters import Autograde
from nbgrader.utils import capture_log
from sqlalchemy.engine import make_url

WAIT_FOR_GRADEBOOK_S = 120  # several workers write to one file


class GradingWorker:
    """nbgrader's own autograde, with the configuration of the folder that it is started in."""

    def __init__(self, name: str, options: list[str]) -> None:
        self.name = name
        self.app = AutogradeApp()
        self.app.initialize([name, *options])
        url = make_url(self.app.coursedir.db_url)
        if url.get_backend_name() == "sqlite":
            url = url.update_query_dict({"timeout": str(WAIT_FOR_GRADEBOOK_S)})
            self.app.coursedir.db_url = url.render_as_string(hide_password=False)
        self.app.coursedir.assignment_id = name

    def grade(self, student: str) -> dict:
        """{"error": why it failed, "" where it did not; "seconds"}."""
        start = time.monotonic()
        self.app.coursedir.student_id = student  # for nbgrader a pattern; handed_in.py lets none through
        result = capture_log(Autograde(coursedir=self.app.coursedir, parent=self.app, force=True))
        error = "" if result["success"] else last_words(result.get("log", ""), result.get("error", ""))
        return {"error": error, "seconds": time.monotonic() - start}


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


def listen(tasks: queue.Queue) -> None:
    """Put every line of the input into `tasks`; end the process when there are no more."""
    for line in sys.stdin:
        tasks.put(line)
    os._exit(0)  # whatever is under way: it has no record yet, and is graded again


def main(name: str, *options: str) -> None:
    """Serve until the input ends."""
    signal.signal(signal.SIGINT, lambda *_: None)  # Ctrl-C reaches us too; the batch decides what becomes of it
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what nbgrader prints is no answer
    worker = GradingWorker(name, list(options))
    tasks: queue.Queue = queue.Queue()
    threading.Thread(target=listen, args=(tasks,), daemon=True).start()
    print(json.dumps({"ready": os.getcwd(), "root": str(Path(worker.app.coursedir.root))}), file=answers, flush=True)
    while True:
        (student,) = json.loads(tasks.get())
        print(json.dumps(worker.grade(student)), file=answers, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
