"""TrustedGrade and honest students: right answers keep their marks however they look; others hear why they have none.

What dishonest ones try is in test_cheats.py.
"""

import os
import socket
import subprocess
from dataclasses import replace
from types import SimpleNamespace

import pytest
from nbformat.v4 import new_code_cell, new_output
from nbgrader import utils

from course_lib.grading import registry
from course_lib.grading.report import Verdict
from course_lib.grading.spent import Spent
from course_lib.grading.trusted import preprocessor, replies, sandbox
from course_lib.grading.trusted.grader import Grader
from course_lib.grading.trusted.inside.main import WAITED
from course_lib.grading.trusted.inside.rank import ANSWER
from course_lib.grading.trusted.replies import GraderBroken, NoAnswers
from course_lib.grading.trusted.worker import IsolatedWorker
from tests.grading.class_exercise import (
    BEST,
    CALLS_HONEST,
    EXERCISE,
    HONEST,
    IMPATIENT,
    LIMITS,
    MODES,
    WRONG,
    notebook,
    points,
)
from tests.grading.toy_exercises import PassOn
from tools.solutions import SOLUTIONS, code_cells

# ---- honest answers keep their marks

# Each of them alone would end a notebook's kernel or the cells below it.
ABOVE = ["import warnings, sys\nwarnings.warn('old')\nprint('hm', file=sys.stderr)", "this does not parse (",
         "while True: pass", "import os\nos._exit(3)", "raise SystemExit",
         "%matplotlib inline\n!ls\nx = !ls\nimport torch", "%%bash\nrm -rf somewhere",
         "import a_package_that_nobody_has\nimport torch"]
NOISE = ("    import sys, warnings; warnings.warn('old'); print('!', file=sys.stderr)\n"
         "    [print('x' * 100_000) for _ in range(300)]\n    r, n")
RIGHT = {
    "alone": (HONEST, *ABOVE),
    "noise around": ("%%time\n" + HONEST.replace("    r, n", NOISE) + "\n%timeit pass_on\n", *ABOVE),
    "a cell that fails below": (HONEST.replace("return received", "return torch.nn.Parameter(received)")
                                + "\npass_on(torch.ones(2), torch.ones(3))\nimport sys\nsys.exit(1)\n", *ABOVE),
    "a helper and a plain value": (HONEST.replace("(r + 1) % n", "right()"), "import torch.distributed as dist\n"
                                   "STEP = 1 + 0\nright = lambda: (dist.get_rank() + STEP) % 2\n"),
    "words like a library's": (HONEST + "\nfrom functools import reduce\ngather = torch.gather\n"
                               "def scatter(x): return x.broadcast_to(2)\n",),
}


@pytest.mark.parametrize("cells", RIGHT)
def test_what_stands_in_other_cells_and_beside_a_right_answer_costs_nothing(grade, cells):
    assert points(grade(*RIGHT[cells])) == 2


def test_a_definition_below_the_stub_counts_as_it_does_in_the_notebook(grade):
    nb, check = notebook("def pass_on(tensor):\n    raise NotImplementedError\n")
    nb.cells.insert(check, new_code_cell(HONEST))
    cells = preprocessor.cells_above(nb, check + 1)
    with Grader(BEST, LIMITS) as grader:
        assert grader.report(EXERCISE, cells, 1).passed


# ---- no answer, no marks

def body(line: str) -> str:
    return f"import os, sys, time\nimport torch\nimport torch.distributed as dist\ndef pass_on(tensor):\n    {line}\n"


UNWRITTEN = "def helper(x):\n    raise NotImplementedError()\n"
IN_BOTH_MODES = [
    (WRONG, "2 of 2 ranks are wrong; rank 0 returned float32[32768]"),
    (body("sys.exit(0)"), "SystemExit"), (body("os._exit(0)"), "ended without an answer"),
    (body("return torch.ones(1 << 36)"), "allocate"), (body("x = bytearray(1 << 32)"), "MemoryError"),
    (body("return 1 / 0"), "ZeroDivisionError"), (body("return None"), "nothing (None)"),
    (body("return torch.sparse_coo_tensor(size=(3,))"), "torch.sparse_coo tensor"),
]
IN_BEST_MODE = [
    ("", "not written yet, 0 of"), (UNWRITTEN.replace("helper", "pass_on"), "not written yet, 0 of"),
    ("pass_off = 3", "not written yet, 0 of"),
    (UNWRITTEN + body("return helper(tensor)"), "it calls helper, which is not written yet"),
    (body("return torch.empty(2, device='meta').cpu()"), "NotImplementedError"),  # torch's own: it is written
    ("def pass_on(tensor:\n    pass", "does not parse: '(' was never closed (line 1: def pass_on(tensor:"),
    (body("os._exit(0) if dist.get_rank() == 1 else time.sleep(1000)"), "rank 1 ended without an answer"),
]
LATE, HANGS = Verdict.NOT_JUDGED, Verdict.WRONG
IN_TWO_SECONDS = [
    pytest.param(body("while True: pass"), LATE, "did not finish within 2 s. Does a loop never end?",
                 marks=pytest.mark.ci),
    (body("time.sleep(1000)"), LATE, "rank 0 was at pass_on, line 5: time.sleep(1000)"),
    (body("dist.recv(tensor, 1) if dist.get_rank() == 0 else time.sleep(1000)"), LATE, "it had computed for "),
    pytest.param("while True: pass", LATE, "the solution cell itself did not end", marks=pytest.mark.ci),
    pytest.param(CALLS_HONEST + body("time.sleep(3); return honest(tensor)"), LATE, "only the time limit speaks",
                 marks=pytest.mark.ci),
    (body("dist.recv(tensor, 1 - dist.get_rank())"), HANGS,
     "rank 1 was at pass_on, line 5: dist.recv(tensor, 1 - dist.get_rank())"),
    (body("dist.get_rank() or dist.irecv(tensor, 1).wait()"), HANGS, "it hangs: rank 0 waits for another rank"),
]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("own, words", IN_BOTH_MODES)
def test_an_answer_that_is_wrong_or_fails_costs_its_own_points_and_hears_why(grade, mode, own, words):
    require_no_points(grade(own, mode=mode), words)


@pytest.mark.parametrize("own, words", IN_BEST_MODE)
def test_what_is_not_written_or_ends_early_is_called_so(grade, own, words):
    require_no_points(grade(own), words)


@pytest.mark.parametrize("own, verdict, words", IN_TWO_SECONDS)
def test_an_endless_run_is_ended_at_the_limit_and_judged_only_where_its_ranks_wait_for_one_another(
        grade, own, verdict, words):
    require_no_points(grade(own, limits=IMPATIENT), words, verdict)


def test_a_slow_right_answer_has_all_its_points(grade):
    assert points(grade(CALLS_HONEST + body("time.sleep(1); return honest(tensor)"), limits=IMPATIENT)) == 2


def require_no_points(report, words, verdict=Verdict.WRONG):
    assert points(report) == 0 and words in repr(report)
    assert report.verdict is (Verdict.NOT_WRITTEN if "not written" in words else verdict)


def test_a_judge_that_raises_gives_no_points_and_the_teacher_hears_of_it(monkeypatch):
    monkeypatch.setattr(PassOn, "judge", lambda *_: 1 / 0)
    with Grader(BEST, LIMITS) as grader:
        report = grader.report(EXERCISE, preprocessor.cells_above(*notebook(HONEST)), 1)
        assert not report.points and grader.broken is None and report.verdict is Verdict.WRONG
        assert report.cause.endswith("the answers are not of the form that was asked (ZeroDivisionError)")


# ---- the notebook around it

def test_outputs_that_came_with_the_submission_are_removed_and_never_scored(monkeypatch):
    monkeypatch.setattr(registry, "exercise", lambda number: EXERCISE)
    nb, check = notebook(WRONG)
    for cell in nb.cells:
        cell.outputs = [new_output("execute_result", {"text/plain": "2"}, execution_count=1)]
    graded, _ = preprocessor.TrustedGrade(isolation=BEST, seed=1).preprocess(nb, {})
    assert graded.cells[0].outputs == []
    assert [output.output_type for output in graded.cells[check].outputs] == ["error"]
    assert utils.determine_grade(graded.cells[check])[0] == 0


@pytest.mark.parametrize("source", ["", "pass", 'check("9.9", f)', 'check("2.1", other)', "check('2.1')"])
def test_a_check_cell_without_its_check_is_an_error_and_not_full_marks(source):
    with pytest.raises(ValueError, match="expected"):
        preprocessor.exercise_of(source)


# ---- the protection that was asked for, or a word about what is missing

def test_where_unshare_works_the_full_isolation_is_there():
    user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    try:
        works = subprocess.run(["unshare", *user, "--mount", "--pid", "--net", "--fork", "--mount-proc", "true"],
                               capture_output=True).returncode == 0
    except OSError:
        works = False
    assert not works or sandbox.why_no_namespaces() is None


def test_required_isolation_is_never_replaced_by_less_and_the_feedback_says_what_is_missing(monkeypatch):
    monkeypatch.setattr(sandbox, "why_no_namespaces", lambda: "no such thing")
    with pytest.raises(RuntimeError, match="no such thing"):
        sandbox.choose("required")
    monkeypatch.setattr(sandbox, "why_no_filter", lambda: "libseccomp.so.2: cannot open")
    less = preprocessor.footnotes(7, sandbox.choose("auto"))
    assert "system calls are not filtered (libseccomp.so.2: cannot open)" in less
    assert "no such thing" in less and "less protection" in less and "seed 7" in less
    with pytest.raises(ValueError, match="expected"):
        sandbox.choose("some")


def test_where_nobody_outside_can_count_the_ranks_do_and_it_is_said(monkeypatch):
    tool = sandbox.tool
    monkeypatch.setattr(sandbox, "tool", lambda name: None if name == "ss" else tool(name))
    isolation = sandbox.choose("none")
    assert any("forged" in line for line in isolation.missing)
    with IsolatedWorker(isolation, LIMITS) as worker:
        worker.prepare(EXERCISE, preprocessor.cells_above(*notebook(HONEST)))
        _, traffic = worker.trial(EXERCISE.trials(1)[0])
    assert traffic.exact and traffic.sent == [[0, 4 * EXERCISE.N], [4 * EXERCISE.N, 0]]


class CountsCalls(PassOn):
    """Which counts calls, too, that ranks claim."""

    number = "0.3"

    def usage(self, *judged):
        return [Spent("took", 3, 4, "call", claimed=True), *super().usage(*judged)]


def test_for_marks_only_what_the_system_or_the_grader_counted_is_shown():
    with Grader(BEST, LIMITS) as grader:
        report = grader.report(CountsCalls(), preprocessor.cells_above(*notebook(HONEST)), seed=7)
    assert report.passed and "calls" not in report.measured
    assert ("the operating system's count, with headers" in report.measured) == bool(sandbox.tool("ss"))


# ---- the count

RING = "\n".join(cell.source for cell in code_cells(SOLUTIONS[2])[:3])  # the solution of 2.1
ONE_MORE = RING.replace("    return torch.cat", "    exchange(rightwards, right, torch.empty_like(rightwards), left)\n"
                        "    return torch.cat")


@pytest.mark.parametrize("mode", MODES)
def test_the_systems_count_of_a_ring_is_within_one_percent_of_the_formula(mode):
    exercise = registry.exercise("2.1")
    trial = next(trial for trial in exercise.trials(1) if 4 * trial.inputs[0][0].numel() >= 1 << 18)
    n, M = trial.world_size, 4 * trial.inputs[0][0].numel()
    with IsolatedWorker(sandbox.choose(mode), LIMITS) as worker:
        worker.prepare(exercise, [{"source": ONE_MORE, "name": "ring", "own": True}])
        over_budget = exercise.judge(trial, *worker.trial(trial)).cause
        worker.prepare(exercise, [{"source": RING, "name": "ring", "own": True}])
        answers, traffic = worker.trial(trial)
    assert "over budget" in over_budget
    assert exercise.judge(trial, answers, traffic).cause is None
    assert not traffic.exact
    for rank in range(n):
        for on in (1, -1):
            assert traffic.sent[rank][(rank + on) % n] == pytest.approx((n - 1) / n * M / 2, rel=0.01)
        assert traffic.sent_by(rank) == pytest.approx((n - 1) / n * M, rel=0.01)


# ---- a busy machine

@pytest.mark.parametrize("lost_s, at_most_s, elapsed, left", [
    (0.0, None, 19.0, 1.0), (0.0, None, 20.0, 0.0), (7.0, None, 19.0, 1.0), (7.0, None, 20.0, 7.0),
    (7.0, None, 30.0, -3.0), (500.0, None, 219.0, 1.0), (10.0, 0.5, 0.75, -0.25)])  # when a rank has failed: nothing
def test_seconds_in_which_others_had_the_cores_are_given_back_up_to_ten_times_the_limit(
        monkeypatch, lost_s, at_most_s, elapsed, left):
    clock = [100.0]
    monkeypatch.setattr(replies, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    deadline = replies.Deadline(20.0, lambda elapsed_s: lost_s)
    if at_most_s:
        deadline.at_most(at_most_s)
    clock[0] += elapsed
    assert deadline.left_s() == pytest.approx(left)
    assert deadline.starved is (lost_s == 500.0)  # and then the time decides nothing


def test_a_rank_that_gets_no_core_is_not_judged():
    ours, theirs = socket.socketpair()
    with ours, theirs, pytest.raises(GraderBroken, match="too much to do"):
        replies.RankConnections([ours], 0.01, 1 << 20, lambda elapsed_s: 100.0).wait(ANSWER, 0.01)


@pytest.mark.parametrize("mode", MODES)
def test_of_ranks_that_wait_for_one_another_nothing_is_lost_to_a_core(mode):
    asked = []
    with IsolatedWorker(sandbox.choose(mode), replace(LIMITS, trial_s=1.0)) as worker:
        ask = worker._ask
        worker._ask = lambda kind, *more: asked.append((kind, ask(kind, *more))) or asked[-1][1]
        worker.prepare(EXERCISE, preprocessor.cells_above(*notebook(
            "import torch.distributed as dist\ndef pass_on(mine):\n    dist.recv(mine, 1 - dist.get_rank())\n")))
        with pytest.raises(NoAnswers, match="it hangs"):
            worker.trial(EXERCISE.trials(1)[0])
    waited = [seconds for kind, seconds in asked if kind == WAITED]
    assert waited and all(seconds >= 0 for seconds in waited)
