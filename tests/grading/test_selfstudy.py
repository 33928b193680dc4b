"""`check` says correct, not written yet, or what is wrong and why; nothing else passes, and nothing hangs."""

import re
from dataclasses import replace
from html import escape

import pytest
import torch

from course_lib.grading import check, recorded, selfstudy
from course_lib.grading.exercise import SentBytes
from course_lib.grading.explain import circle_of, explain_parameters
from course_lib.grading.judges.collectives.plans import fewest_steps, steps_of_tree
from course_lib.grading.registry import exercises_of
from course_lib.grading.report import Report, Verdict
from course_lib.grading.selfstudy import check_exercise
from tests.grading import toy_exercises as toys
from tests.grading.toy_exercises import Swap, SwapInPlace

CHAPTER_2 = exercises_of(2)


def test_a_correct_answer_passes_with_its_points_and_the_measured_bytes_beside_the_budget():
    report = check_exercise(Swap(), toys.swap_halves)
    assert report.passed and report.points == 5
    assert repr(report) == ("✓ 0.1 swap: correct, 5 of 5 points\n  budget: M bytes\n"
                            "  measured: 2 ranks: sent at most 262.1 kB a rank, 262.1 kB allowed")


@pytest.mark.parametrize("function, words", [
    (toys.swapped_twice_over, "over budget: rank 0 sent 524.3 kB, where 262.1 kB will do"),
    (toys.swapped_in_half_precision, "262.1 kB together, where 524.3 kB is the least that can carry it"),
    (toys.no_swap, "2 of 2 ranks are wrong; rank 0 returned float32[65536]"),
    (toys.of_another_shape, "returned float32[3] = "),
    (toys.liar, "rank 0 returned a Liar: expected float32[65536]"),
    (toys.a_number, "rank 0 returned an int"),
    (toys.a_sparse_tensor, "rank 0 returned a torch.sparse_coo tensor"),
    (toys.put_into_the_input, "the result is in the input, and not returned"),
    (toys.by_the_library, "it calls torch.distributed's own all_gather: write it with send and recv"),
    (toys.by_the_course, "it uses course_lib.collectives (ring_all_gather)"),
    (toys.by_the_course_with_its_dots, "it uses course_lib.collectives (course_lib.collectives.ring_all_gather)"),
    (toys.by_another_chapter_imported_inside, "it uses course_lib.data_parallel (course_lib.data_parallel)"),
    (toys.divides_by_zero, "return tensor / (1 // 0)"),
    (toys.not_implemented_elsewhere, "no kernel for this dtype"),
    (toys.exits, "called sys.exit"),
    (toys.dies, "ended with exit code 0 before its function returned"),
    (toys.sends_first, "it hangs in a circle of sends that nobody receives: rank 0 sends to rank 1, which sends to"),
    (toys.waits_for_nobody, "it hangs: rank 0 waits for rank 1, which has already returned."),
])
def test_a_wrong_answer_is_refused_with_its_cause(function, words):
    report = check_exercise(Swap(), function)
    costly = "over budget" in words
    assert report.verdict is (Verdict.COSTLY if costly else Verdict.WRONG) and report.points == 2.5 * costly
    assert words in report.cause


def test_a_warning_is_shown_once_with_the_ranks_that_it_came_from_and_not_on_stderr(capfd):
    report = check_exercise(Swap(), toys.warns)
    assert report.passed and report.warned == (
        "all 2 ranks: FutureWarning: the old way\nrank 1: UserWarning: the odd rank")
    assert f"\n  warning: {report.warned.splitlines()[0]}" in repr(report)
    assert "Warning" not in capfd.readouterr().err


@pytest.mark.parametrize("function", [toys.wants_two, toys.calls_a_library_wrongly], ids=lambda it: it.__name__)
def test_a_traceback_shows_the_learners_lines_and_none_of_the_graders_or_a_librarys(function, snapshot):
    cause = check_exercise(Swap(), function).cause
    assert re.sub(r"line \d+", "line N", cause) == snapshot
    assert "course_lib" not in cause and "site-packages" not in cause


def test_a_forward_without_ctx_is_told_of_it():
    said = "rank 0 failed\n  TypeError: Copy.forward() takes 1 positional argument but 2 were given"
    assert explain_parameters(said, toys.swap) == [
        "Expected forward(ctx, ...): it begins with ctx, and is a staticmethod."]


def test_a_method_called_like_a_collective_is_none():
    assert check_exercise(Swap(), toys.swapped_by_a_method_called_like_a_collective).passed


@pytest.mark.parametrize("function, words", [
    (toys.swapped_in_place, ""), (toys.renamed_only, "only moves the name"),
    (toys.returned_only, "the result is returned, but the tensor is as it was"),
])
def test_an_answer_in_place_is_read_from_the_tensor_itself(function, words):
    report = check_exercise(SwapInPlace(), function)
    assert report.passed == (words == "") and words in report.cause


def test_a_loop_without_end_is_stopped(monkeypatch):
    monkeypatch.setattr(selfstudy, "TIME_LIMIT_S", 1.0)
    report = check_exercise(Swap(), toys.never_ends)
    assert "did not finish within 1 s" in report.cause and "Does a loop never end?" in report.cause
    assert "launch(" not in report.cause


def test_a_stub_is_not_written_yet_and_an_answer_that_calls_another_exercise_s_stub_is_told_which():
    assert repr(check_exercise(Swap(), toys.swap)).startswith("○ 0.1 swap: not written yet, 0 of 5 points")
    report = check_exercise(Swap(), toys.calls_another_stub)
    assert report.verdict is Verdict.NOT_WRITTEN
    assert report.cause == "it calls my_ring_all_gather, which is not written yet"


def test_hints_are_given_on_request_or_one_inside_the_other_behind_buttons():
    hints = [hint.replace("\n", "\n    ") for hint in recorded.hints("2.2")]  # as a report indents them
    text = repr(check("2.2", toys.my_ring_all_gather, hint=2))
    assert [hint in text for hint in hints] == [False, True, False]
    report = check("2.2", toys.my_ring_all_gather)
    html, hints = report._repr_html_(), recorded.hints("2.2")
    assert report.hints == hints and len(hints) == 3
    places = [html.index(text) for number, hint in enumerate(hints, 1) for text in (f">hint {number}<", escape(hint))]
    assert places == sorted(places) and html.count("<details") == 3 and " open" not in html
    assert "</details></details></details>" in html  # hint 2 is inside hint 1, and hint 3 inside hint 2
    assert "hints: 3, behind buttons" in repr(report) and not any(hint in repr(report) for hint in hints)


def test_neither_a_report_that_passes_nor_one_under_nbgrader_has_hints(monkeypatch):
    right = Report("2.2", "my_ring_all_gather", Verdict.CORRECT, 3, "M bytes")
    monkeypatch.setattr(selfstudy, "check_exercise", lambda *_: right)
    assert check("2.2", toys.my_ring_all_gather) is right and "details" not in right._repr_html_()
    monkeypatch.setattr(selfstudy, "check_exercise", lambda *_: replace(right, verdict=Verdict.WRONG))
    monkeypatch.setenv("NBGRADER_EXECUTION", "validate")
    with pytest.raises(selfstudy.NotPassed) as raised:
        check("2.2", toys.my_ring_all_gather)
    assert "hint" not in str(raised.value)


@pytest.mark.parametrize("arguments, error, words", [
    (("9.9", toys.swap), ValueError, "there is no exercise '9.9': expected one of 1.1, 1.2"),
    ((2.1, toys.swap), TypeError, "a string such as \"2.1\": given 2.1"),
    (("2.2", torch.ones(2)), TypeError, "the function my_ring_all_gather itself, without a call: given a Tensor"),
    (("2.2", toys.swap), ValueError, "expects the function my_ring_all_gather: given swap"),
    (("2.2", toys.my_ring_all_gather, 4), ValueError, "hint=4: expected 0 to "),
    (("2.2", toys.my_ring_all_gather, True), ValueError, "hint=True: expected 0 to "),
])
def test_bad_use_is_an_error_that_says_what_was_given_and_expected(arguments, error, words):
    with pytest.raises(error) as raised:
        check(*arguments)
    assert words in str(raised.value)


def test_exercises_of_a_chapter_are_in_order_and_a_chapter_without_is_an_error():
    assert [each.number for each in CHAPTER_2] == ["2.1", "2.2", "2.3", "2.4", "2.5", "2.6", "2.7", "2.8"]
    with pytest.raises(ValueError, match="chapter 42 has no exercises: expected one of 1, 2"):
        exercises_of(42)


def test_a_report_says_in_words_what_it_shows_in_colour_and_escapes_what_it_quotes():
    report = Report("2.1", "f", Verdict.WRONG, 3, "n-1", cause="chunks[r] < chunks[<b>]")
    html = report._repr_html_()
    assert "not right yet" in html and "✗" in html and "var(--jp-error-color1, #" in html
    assert "chunks[r] &lt; chunks[&lt;b&gt;]" in html


def test_a_circle_is_found_wherever_it_lies():
    assert circle_of({0: ("send", 1), 1: ("send", 2), 2: ("send", 0)}) == [0, 1, 2]
    assert circle_of({0: ("recv", 3), 3: ("send", 2), 2: ("recv", 3)}) == [3, 2]
    assert circle_of({0: ("recv", 1), 2: ("recv", 0)}) == []


@pytest.mark.parametrize("asked", [each for each in CHAPTER_2 if hasattr(each, "bound")], ids=lambda each: each.number)
def test_headers_are_allowed_where_the_system_counts_and_nothing_more(asked):
    large = asked.trials(0)[-1]
    n = large.world_size
    answers = [{"returned": t, "tensor": t} for t in asked.solve(large.inputs)]
    needed = asked.bound(large)

    def complaint_at(scale, exact):
        sent = [[0] * n for _ in range(n)]
        for r in range(n):
            for on in {"2.1": (1, -1), "2.6": (2,)}.get(asked.number, (1,)):
                sent[r][(r + on) % n] = int(scale * needed)
        if asked.number == "2.4":  # to dst = v 0: from v 1, from v 2, and from v 3 by way of v 1
            sent, dst = [[0] * n for _ in range(n)], large.inputs[0][1]
            for to, source in ((0, 1), (0, 2), (1, 3)):
                sent[(dst + source) % n][(dst + to) % n] = int(scale * needed)
        return asked.judge(large, answers, SentBytes(sent, exact)).cause

    assert complaint_at(1, exact=True) is None and complaint_at(1.02, exact=False) is None
    assert "where" in complaint_at(1.02, exact=True) and "where" in complaint_at(1.1, exact=False)
    assert "least that can carry it" in complaint_at(0.8, exact=False)


def test_steps_are_counted_from_who_told_whom():
    def traffic(n, *told):
        return SentBytes([[8 * ((a, b) in told) for b in range(n)] for a in range(n)], exact=True)

    assert fewest_steps(traffic(4, (0, 1), (0, 2), (1, 3)), src=0) == 2 == steps_of_tree(4)
    assert fewest_steps(traffic(4, (0, 1), (0, 2), (0, 3)), src=0) == 3
    assert fewest_steps(traffic(4, (2, 3), (3, 0), (0, 1)), src=2) == 3
    assert fewest_steps(traffic(1), src=0) == 0 == steps_of_tree(1)
