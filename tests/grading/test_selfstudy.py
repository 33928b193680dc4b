"""`check` says correct, not written yet, or what is wrong and why; nothing else passes, and nothing hangs.

On ranks that stay (staying.py) every answer is judged as on new ones, whatever the answer before has left behind.
"""

import os
import re
import sys
from contextlib import nullcontext
from html import escape

import pytest
import torch

from course_lib.grading import check, recorded, selfstudy
from course_lib.grading.chapters import load
from course_lib.grading.exercise import SentBytes
from course_lib.grading.registry import exercises_of
from course_lib.grading.report import Report, Verdict
from course_lib.grading.selfstudy import check_exercise, circle_of, explain_context
from course_lib.grading.staying import StayingAttempts
from tests.grading import toy_exercises as toys
from tests.grading.toy_exercises import PassOn, PassOnInPlace, by_a_helper, honest


@pytest.fixture(scope="module")
def attempts():
    with StayingAttempts() as staying:
        yield staying


def draws(tensor):
    return honest(tensor) + torch.rand(())


DIVIDES = lambda tensor: tensor / (1 // 0)  # noqa: E731
DIES = lambda tensor: os._exit(0)  # noqa: E731
# In the order in which ranks that stay hear them; with a mark the words of a right answer.
ANSWERS = [
    (PassOn, honest, "✓ 0.1 pass_on: correct, 2 of 2 points\n  budget: M bytes\n"
                     "  measured: 2 ranks: sent at most 131.1 kB a rank, 131.1 kB allowed"),
    (PassOn, draws, "2 of 2 ranks are wrong"), (PassOn, draws, "2 of 2 ranks are wrong"),
    (PassOn, lambda tensor: [honest(tensor), honest(tensor)][1],
     "over budget: rank 0 sent 262.1 kB, where 131.1 kB will do"),
    (PassOn, lambda tensor: honest(tensor.half()).float(),
     "131.1 kB together, where 262.1 kB is the least that can carry it"),
    (PassOn, lambda tensor: tensor, "2 of 2 ranks are wrong; rank 0 returned float32[32768]"),
    (PassOn, lambda tensor: honest(tensor)[:3], "returned float32[3] = "),
    (PassOn, lambda tensor: tensor.as_subclass(toys.Liar), "rank 0 returned a Liar: expected float32[32768]"),
    (PassOn, lambda tensor: 3, "rank 0 returned an int"),
    (PassOn, lambda tensor: tensor.to_sparse(), "rank 0 returned a torch.sparse_coo tensor"),
    (PassOn, toys.in_place, "the result is in the input, and not returned"),
    (PassOn, toys.by_the_library, "it calls torch.distributed's own all_gather: write it with send and recv"),
    (PassOn, lambda tensor: by_a_helper(tensor), "it uses course_lib.collectives (ring_all_gather)"),
    (PassOn, toys.by_its_dots, "it uses course_lib.collectives (course_lib.collectives.ring_all_gather)"),
    (PassOn, toys.by_another_chapter_imported_inside, "it uses course_lib.data_parallel (course_lib.data_parallel)"),
    (PassOn, lambda tensor: honest(tensor).gather(0, torch.arange(len(tensor))), "✓"),  # a method, no collective
    (PassOn, DIVIDES, "tensor / (1 // 0)"), (PassOn, honest, "✓"),
    (PassOn, toys.leaves_a_message, "2 ranks are wrong"), (PassOn, honest, "✓"),
    (PassOn, lambda tensor: toys.of_a_library(tensor), "no kernel for this dtype"),
    (PassOn, lambda tensor: sys.exit(3), "SystemExit: 3"), (PassOn, honest, "✓"),
    (PassOn, DIES, "ended with exit code 0 before its function returned"), (PassOn, honest, "✓"),
    (PassOn, toys.sends_first,
     "it hangs in a circle of sends that nobody receives: rank 0 sends to rank 1, which sends to"),
    (PassOn, toys.waits_for_nobody, "it hangs: rank 0 waits for rank 1, which has already returned."),
    (PassOn, honest, "✓"), (PassOn, toys.pass_on, "○ 0.1 pass_on: not written yet, 0 of 2 points"),
    (PassOn, lambda tensor: toys.my_ring_all_gather(tensor), "it calls my_ring_all_gather, which is not written yet"),
    (PassOnInPlace, toys.in_place, "✓"), (PassOnInPlace, toys.renamed_only, "only moves the name"),
    (PassOnInPlace, lambda tensor: honest(tensor.clone()), "the result is returned, but the tensor is as it was"),
]
OF_SEVERAL = ("tensor / ", "exit code", "no kernel", "SystemExit")  # by chance the one or the other rank is told of


@pytest.mark.parametrize("asked, function, words", ANSWERS,
                         ids=[f"{place} {words[:30]}" for place, (*_, words) in enumerate(ANSWERS)])
def test_an_answer_gets_its_verdict_with_the_cause_also_on_ranks_that_stay(asked, function, words, attempts):
    report, staying = check_exercise(asked(), function), check_exercise(asked(), function, attempts=attempts)
    assert words in repr(report)
    expected = (Verdict.CORRECT if words[0] == "✓" else Verdict.NOT_WRITTEN if "not written" in words else
                Verdict.COSTLY if "over budget" in words else Verdict.WRONG)
    assert report.verdict is staying.verdict is expected
    assert report.points == {Verdict.CORRECT: 2, Verdict.COSTLY: 1}.get(expected, 0)
    assert repr(staying) == repr(report) or any(each in words for each in OF_SEVERAL)


def test_only_an_answer_that_ends_a_rank_or_leaves_a_message_costs_a_team(attempts):
    check_exercise(PassOn(), honest, attempts=attempts)
    for function, costs in ((DIVIDES, 0), (toys.waits_for_nobody, 0), (toys.leaves_a_message, 1), (DIES, 1),
                            (honest, 0)):
        before = attempts.num_teams
        check_exercise(PassOn(), function, attempts=attempts)
        check_exercise(PassOn(), honest, attempts=attempts)
        assert attempts.num_teams - before == costs, function


def test_a_warning_is_shown_once_with_the_ranks_that_it_came_from_and_not_on_stderr(capfd):
    report = check_exercise(PassOn(), toys.warns)
    assert report.passed and report.warned == (
        "all 2 ranks: FutureWarning: the old way\nrank 1: UserWarning: the odd rank")
    assert f"\n  warning: {report.warned.splitlines()[0]}" in repr(report)
    assert "Warning" not in capfd.readouterr().err


@pytest.mark.parametrize("function", [toys.wants_two, toys.calls_a_library_wrongly], ids=lambda it: it.__name__)
def test_a_traceback_shows_the_learners_lines_and_none_of_the_graders_or_a_librarys(function, snapshot):
    cause = check_exercise(PassOn(), function).cause
    assert re.sub(r"line \d+", "line N", cause) == snapshot
    assert "course_lib" not in cause and "site-packages" not in cause


def test_a_loop_without_end_is_stopped(monkeypatch):
    monkeypatch.setattr(selfstudy, "TIME_LIMIT_S", 1.0)
    report = check_exercise(PassOn(), toys.never_ends)
    assert "did not finish within 1 s" in report.cause and "Does a loop never end?" in report.cause
    assert "launch(" not in report.cause and "never_ends" in report.cause
    assert report.verdict is Verdict.NOT_JUDGED and repr(report).startswith("▷ 0.1 pass_on: not judged, try again\n")


def test_an_import_is_no_time_of_the_answers(monkeypatch, tmp_path):
    (tmp_path / "a_slow_library.py").write_text("import time\nwhile time.process_time() < 3: pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(selfstudy, "TIME_LIMIT_S", 1.0)
    assert check_exercise(PassOn(), toys.imports_a_slow_library).passed


def test_who_waits_for_no_rank_is_not_judged(monkeypatch):
    monkeypatch.setattr(selfstudy, "HANGS_S", 2.0)
    report = check_exercise(PassOn(), toys.sleeps)
    assert report.verdict is Verdict.NOT_JUDGED and "did not finish within 2 s" in report.cause and not report.points


def test_hints_are_one_inside_the_other_behind_buttons():
    report = check("2.2", toys.my_ring_all_gather)
    html, hints = report._repr_html_(), recorded.hints("2.2")
    assert report.hints == hints and len(hints) == 3
    places = [html.index(text) for number, hint in enumerate(hints, 1) for text in (f">hint {number}<", escape(hint))]
    assert places == sorted(places) and html.count("<details") == 3 and " open" not in html
    assert "</details></details></details>" in html  # hint 2 is inside hint 1, and hint 3 inside hint 2
    assert "hints: 3, behind buttons" in repr(report)
    assert not any(hint.replace("\n", "\n    ") in repr(report) for hint in hints)  # as a report indents them


def test_a_report_that_passes_has_no_hints(monkeypatch):
    right = Report("2.2", "my_ring_all_gather", Verdict.CORRECT, 3, "M bytes")
    monkeypatch.setattr(selfstudy, "check_exercise", lambda *_: right)
    assert check("2.2", toys.my_ring_all_gather) is right and "details" not in right._repr_html_()


@pytest.mark.parametrize("executes, verdict, raises, points", [
    ("", Verdict.WRONG, False, 0), ("", Verdict.COSTLY, False, 1.5), ("validate", Verdict.WRONG, True, 0),
    ("validate", Verdict.COSTLY, True, 0), ("autograde", Verdict.WRONG, True, 0),
    ("autograde", Verdict.COSTLY, False, 1.5)])
def test_where_nbgrader_executes_the_notebook_what_does_not_pass_fails_its_cell_and_has_no_hints(
        monkeypatch, executes, verdict, raises, points):
    found = Report("2.2", "my_ring_all_gather", verdict, 3, "M bytes", cause="turned")
    monkeypatch.setattr(selfstudy, "check_exercise", lambda *_: found)
    monkeypatch.setenv("NBGRADER_EXECUTION", executes) if executes else monkeypatch.delenv("NBGRADER_EXECUTION", False)
    with pytest.raises(selfstudy.NotPassed, match="turned") if raises else nullcontext() as raised:
        given = check("2.2", toys.my_ring_all_gather)
    if raises:
        assert "hint" not in str(raised.value)
    else:
        assert given == points if executes else (given.points, len(given.hints)) == (points, 3)


@pytest.mark.parametrize("call, arguments, error, words", [
    (check, ("9.9", toys.pass_on), ValueError, "there is no exercise '9.9': expected one of 1.1, 1.2"),
    (check, (2.1, toys.pass_on), TypeError, "a string such as \"2.1\": given 2.1"),
    (check, ("2.2", torch.ones(2)), TypeError, "function my_ring_all_gather itself, without a call: given a Tensor"),
    (check, ("2.2", toys.pass_on), ValueError, "expects the function my_ring_all_gather: given pass_on"),
    (exercises_of, (42,), ValueError, "chapter 42 has no exercises: expected one of 1, 2"),
])
def test_bad_use_is_an_error_that_says_what_was_given_and_expected(call, arguments, error, words):
    with pytest.raises(error) as raised:
        call(*arguments)
    assert words in str(raised.value)


def test_a_report_says_in_words_what_it_shows_in_colour_and_escapes_what_it_quotes():
    report = Report("2.1", "f", Verdict.WRONG, 3, "n-1", cause="chunks[r] < chunks[<b>]")
    html = report._repr_html_()
    assert "not right yet" in html and "✗" in html and "var(--jp-error-color1, #" in html
    assert "chunks[r] &lt; chunks[&lt;b&gt;]" in html


def test_a_circle_is_found_wherever_it_lies_and_a_forward_without_ctx_is_told_of_it():
    assert circle_of({0: ("send", 1), 1: ("send", 2), 2: ("send", 0)}) == [0, 1, 2]
    assert circle_of({0: ("recv", 3), 3: ("send", 2), 2: ("recv", 3)}) == [3, 2]
    assert circle_of({0: ("recv", 1), 2: ("recv", 0)}) == []
    said = "rank 0 failed\n  TypeError: Copy.forward() takes 1 positional argument but 2 were given"
    assert explain_context(said, toys.pass_on) == [
        "Expected forward(ctx, ...): it begins with ctx, and is a staticmethod."]


@pytest.mark.parametrize("n, told, src, steps", [
    (4, [(0, 1), (0, 2), (1, 3)], 0, 2), (4, [(0, 1), (0, 2), (0, 3)], 0, 3), (4, [(2, 3), (3, 0), (0, 1)], 2, 3),
    (1, [], 0, 0)])
def test_steps_are_counted_from_who_told_whom(n, told, src, steps):
    traffic = SentBytes([[8 * ((a, b) in told) for b in range(n)] for a in range(n)], exact=True)
    judge = load(2, "judge")
    assert judge.fewest_steps(traffic, src) == steps and (judge.steps_of_tree(4), judge.steps_of_tree(1)) == (2, 0)
