"""Numbers and tensors in sentences: any number that is right is taken, what looks the same is told apart, and what a
report calls measured was measured. A sketch tells answers apart, and a mistake that was recorded is named.
"""

import math
import re
from collections import deque
from contextlib import suppress
from decimal import Decimal
from fractions import Fraction
from itertools import count

import numpy
import pytest
import torch

from course_lib.grading import recorded
from course_lib.grading.compare import alike, contrast, sketch
from course_lib.grading.exercise import SentBytes
from course_lib.grading.kinds import NumberExercise
from course_lib.grading.on_rank import data, number
from course_lib.grading.recorded import Mistake, Seen
from course_lib.grading.registry import every_exercise, exercise
from course_lib.grading.selfstudy import check
from course_lib.grading.spent import Judgement, Spent
from tools.answers import rows
from tools.solutions import SOLUTIONS

NUMBERS = [each for each in every_exercise()
           if isinstance(each, NumberExercise) and each.number != "3.9"]  # whose range holds what was measured, too


@pytest.mark.parametrize("asked", NUMBERS, ids=lambda each: each.number)
def test_the_right_number_passes_every_trial_and_one_beyond_its_tolerance_or_no_number_none(asked):
    def cause(trial, value):
        return asked.judge(trial, [number(lambda *_: value, [])], SentBytes([[0]], exact=True)).cause

    beyond = max(0.001, 1.1 * asked.tolerance[0])
    for trial in asked.trials(0):
        right = asked.solve(*trial.inputs[0])
        assert cause(trial, right) is None and cause(trial, torch.tensor(right, dtype=torch.float64)) is None
        assert cause(trial, right * (1 + beyond) + 0.001)
        assert type(right) is not int or cause(trial, right + 1)
        for value in (math.nan, math.inf, -math.inf, "12", None, [1.0], True, 10**400, {}):
            assert "expected" in cause(trial, value)


@pytest.mark.parametrize("value, as_data", [
    (numpy.int64(3), 3), (numpy.float32(0.5), 0.5), (Fraction(1, 2), 0.5), (torch.tensor(7), 7), (True, 1),
    (torch.tensor([1.5, 2.5]), [1.5, 2.5]), (numpy.array([[1, 2], [3, 4]]), [[1, 2], [3, 4]]), ("F0", "F0"),
    ((1, [2, (3,)]), [1, [2, [3]]]), (range(3), [0, 1, 2]),
    ({"tp": numpy.int32(2), "dp": 4}, {"dp": 4, "tp": 2}), (None, None), ({2, 1}, [1, 2]),
    ([object()], ["an object"]), (1j, "a complex"), (numpy.array(2.5), 2.5), (Decimal("0.5"), 0.5),
    ({frozenset([3, 2]), (1,)}, [[1], [2, 3]]), (deque([1]), [1]), ({"b": 1}.keys(), ["b"]), (b"F0", "a bytes"),
    (count(), "a count without an end"),
])
def test_whole_and_real_numbers_of_any_type_are_data_and_the_rest_are_words(value, as_data):
    assert data(value) == as_data and type(data(value)) is type(as_data)


# ---- compared

THIRDS, NAN = torch.arange(1, 9).double() / 3, float("nan")


def with_element(index, value):
    """Eight zeros but for one."""
    return torch.zeros(8, dtype=torch.float64).index_fill(0, torch.tensor(index), value)


@pytest.mark.parametrize("given, expected, words", [
    (torch.tensor([1.0]), torch.tensor([2.0]), "float32[1] = [1]: expected float32[1] = [2]"),
    (with_element(7, 0.0182), with_element(7, 0.0171),
     "float64[8] with 0.0182 at [7]: expected 0.0171; the largest difference is 0.0011"),
    (THIRDS.float().double(), THIRDS, "float64[8] with 0.33333334 at [0]: expected 0.33333333; the largest difference "
     "is 7.9e-08, as after a way through float32"),
    (with_element(6, NAN), with_element(6, 0.0), "float64[8] with nan at [6]: expected 0"),
    (torch.tensor([[2**60]]), torch.tensor([[2**60 + 1]]), "at [0, 0]: expected 1152921504606846977"),
    (torch.arange(8) < 7, torch.arange(8) < 8, "bool[8] with 0 at [7]: expected 1"),
    (torch.tensor(1 + 1e-9, dtype=torch.float64), torch.tensor(1.0, dtype=torch.float64),
     "float64[] with 1.000000001: expected 1;"),
    (1 + 1e-9, 1.0, "1.000000001: expected 1"),
    (2**1001, 2**1002, "a huge number: expected a huge number"), ([1], [2], "a list: expected a list"),
    (None, torch.zeros(2), "nothing (None): expected float32[2] = [0, 0]"), (NAN, 1.0, "nan: expected 1"),
    (torch.zeros(8), torch.zeros(8).half(), "float32[8] = [0, 0, 0, 0, 0, 0, ...]: expected float16[8]"),
])
def test_what_looks_the_same_is_told_apart(given, expected, words):
    assert not alike(given, expected) and words in contrast(given, expected)
    within = contrast(with_element(6, 1e-12), with_element(7, 1e-3), (0.0, 1e-9))
    assert " at [7]: expected 0.001;" in within  # and not what is within tolerance


def nudge(answer, relative):
    """The first number of `answer` that may be wrong by so little is; of a tensor the largest."""
    if type(answer) is float:
        return answer * (1 + relative)
    if isinstance(answer, torch.Tensor) and answer.is_floating_point():
        largest = answer.abs() == answer.abs().max()
        return answer + largest * answer * max(relative, 1.2 * torch.finfo(answer.dtype).eps)
    if isinstance(answer, list) and answer:
        return [nudge(answer[0], relative), *answer[1:]]
    if isinstance(answer, dict):
        return {name: nudge(value, relative) for name, value in answer.items()}
    return answer + 1 if type(answer) is int else answer


def test_no_exercise_says_of_two_numbers_that_look_the_same_that_one_was_expected():
    same, reached = re.compile(r"(?:is|are|returned|has) ([^:;]+?)(?: GB)?[,:] expected \1(?!\S)"), set()
    for asked in every_exercise():
        for trial in asked.trials(0)[:3]:
            for relative in (1e-12, 1e-9, 1e-7, 1e-5):
                with suppress(NotImplementedError, LookupError, TypeError):  # no reference, or more than the answers
                    expected = (asked.solve(*trial.inputs[0]) if isinstance(asked, NumberExercise)
                                else asked.solve(trial.inputs))
                    answers = [nudge(answer, relative) for answer in (
                        expected if isinstance(expected, list) else [expected])]
                    cause = asked.judge(trial, answers, SentBytes([[0] * len(answers)] * len(answers), True)).cause
                    assert not cause or not same.search(cause), cause
                    reached.add(asked.number)
    assert len(reached) > 40


# ---- measured

@pytest.mark.parametrize("number, name, words", [
    ("2.1", "reduce_scatter_sends_whole_tensors", "sent at most 32 B to one neighbour a rank, 8 B allowed"),
    ("3.1", "average_of_weights_too", "took 3 calls, 2 allowed; sent at most 36 B a rank, 144 B allowed"),
])
def test_a_right_but_wasteful_answer_sees_its_own_figures_beside_the_bound(number, name, words):
    row, = (row for row in rows(SOLUTIONS[int(number[0])], "wrong", number) if row.name == name)
    report = check(number, row.function)
    assert not report.passed and ", but over budget: " in report.cause
    assert words in report.measured


def test_what_ranks_claim_is_left_out_where_it_proves_nothing():
    judged = Judgement("2 ranks", None, [Spent("took", 3, 4, "call", claimed=True), Spent("sent", 1 << 20, 1 << 20)])
    assert judged.figures() == "2 ranks: took 3 calls, 4 allowed; sent 1.0 MB, 1.0 MB allowed"
    assert judged.figures(believed=False) == "2 ranks: sent 1.0 MB, 1.0 MB allowed"


@pytest.mark.parametrize("spent, words", [
    (Spent("took", 1, 1, "call"), None),
    (Spent("took", 2, 1, "call", why="once will do"), "over budget: it took 2 calls, where 1 will do: once will do"),
    (Spent("sent", 1100, 1024, rank=2, slack=100), None),
    (Spent("sent", 100_001, 100_000, rank=2), "over budget: rank 2 sent 100,001 B, where 100,000 B will do"),
    (Spent("took", 1.0000004, 1, "second"), "over budget: it took 1.0000004 seconds, where 1 will do"),
    (Spent("idle", 0.12504, 0.125, "share"), "over budget: it idle 12.504 %, where 12.5 % will do"),
    (Spent("sent", 1200, 1024, rank=2, slack=100), "over budget: rank 2 sent 1.2 kB, where 1.0 kB will do"),
    (Spent("idle", 0.162, 0.125, "share", who="the ranks are"),
     "over budget: the ranks are idle 16.2 %, where 12.5 % will do"),
])
def test_a_budget_complains_of_what_is_beyond_its_slack_and_of_nothing_else(spent, words):
    assert spent.complaint == words


def test_headers_are_allowed_and_said_to_be_in_the_systems_count_and_small_ones_are_not_shown():
    asked = exercise("2.1")
    small, *_, large = asked.trials(0)

    def judged(trial, exact, scale=1.0, more=100):
        n, bound = trial.world_size, asked.bound(trial)
        sent = [[int(scale * bound) + more if to in ((rank + 1) % n, (rank - 1) % n) else 0 for to in range(n)]
                for rank in range(n)]
        answers = [{"returned": chunk} for chunk in asked.solve(trial.inputs)]
        return asked.judge(trial, answers, SentBytes(sent, exact))

    for trial, shown in ((small, False), (large, True)):
        assert ("with headers" in judged(trial, False).figures(believed=False)) == shown
        assert judged(trial, True).figures(believed=False) == ""  # the ranks' own
    assert judged(large, True, more=0).cause is None and judged(large, False, 1.02).cause is None
    assert "where" in judged(large, True, 1.02).cause and "where" in judged(large, False, 1.1).cause
    assert "least that can carry it" in judged(large, False, 0.8).cause


# ---- sketches, and recorded mistakes

LONG = torch.arange(1000.0, dtype=torch.float64)


@pytest.mark.parametrize("answer", [
    3.25, [1, 2, 3], {"a": torch.arange(4), "b": None}, LONG, [LONG, "F0"], torch.tensor([math.nan, 1.0, math.inf]),
    [["F0", "B0"], ["F0"]], torch.ones(3, dtype=torch.complex64), torch.empty(3, device="meta"), object(),
    10**400, [10**400, 1],
])
def test_the_same_answer_has_the_same_sketch(answer):
    assert sketch(answer).is_like(sketch(answer))


@pytest.mark.parametrize("one, other", [
    (3.25, 3.26), ([1, 2, 3], [1, 3, 2]), ([1, 2], [1, 2, 0]), ({"a": 1}, {"b": 1}), (None, "None"), (None, 0),
    (LONG, LONG.flip(0)), (LONG, LONG * 1.0001), (LONG, LONG.float()), (LONG, LONG.view(10, 100)),
    (LONG, torch.cat([LONG[1:2], LONG[:1], LONG[2:]])), (["F0", "B0"], ["B0", "F0"]),
    (torch.tensor([math.nan, 1.0]), torch.tensor([1.0, math.nan])), (math.inf, -math.inf),
])
def test_another_answer_has_another_sketch(one, other):
    assert not sketch(one).is_like(sketch(other))


def test_sums_in_another_order_have_the_same_sketch_and_a_looser_exercise_takes_looser_ones():
    assert sketch(LONG).is_like(sketch(LONG * (1 + 1e-13) + 1e-13))
    assert sketch(LONG).is_like(sketch(LONG * 1.001), tolerance=(1e-2, 0.0))


SWAPPED = torch.tensor([1.0, 2.0])
OVER = Spent("sent", 96, 16)


def sight(answer, trial=0, over=""):
    return Seen(trial, over, sketch([over, answer] if over else answer))


def mistake(says, *each):
    return Mistake(says, each or (sight(SWAPPED),))


def wrong(answer):
    return Judgement("a", "x", sketch=sketch(answer))


def costly(num_bytes):
    return Judgement("a", "x", over=OVER, sketch=sketch(["sent", num_bytes]))


def two_alike(*later):
    """Two mistakes that give the same on trial 0, and then what `later` says of the first."""
    return [mistake("turned", sight(SWAPPED), *later), mistake("mirrored", sight(SWAPPED), sight(SWAPPED + 7, 1))]


TURNED, AT_FIRST = mistake("turned"), (0, wrong(SWAPPED))


# What is known, the trial that failed and what it gave, what other trials give, what is said.
@pytest.mark.parametrize("known, failed, then, says", [
    ([TURNED], AT_FIRST, {}, "turned"), ([TURNED], (1, wrong(SWAPPED)), {}, ""),
    ([TURNED], (0, wrong(SWAPPED + 1)), {}, ""), ([TURNED, mistake("mirrored")], AT_FIRST, {}, "turned\nOr: mirrored"),
    ([mistake("twice", sight(96, over="sent"))], (0, costly(96)), {}, "twice"),
    ([mistake("twice", sight(32, over="sent"))], (1, costly(96)), {}, "twice"),
    ([mistake("twice", sight(32, over="sent")), mistake("whole", sight(64, over="sent"))], (0, costly(96)), {}, ""),
    ([mistake("twice", sight(96, over="holds"))], (0, costly(96)), {}, ""),
    # of mistakes that collide the next trials decide
    (two_alike(sight(SWAPPED + 1, 1)), AT_FIRST, {1: wrong(SWAPPED + 1)}, "turned"),
    (two_alike(sight(SWAPPED + 1, 1)), AT_FIRST, {1: wrong(SWAPPED + 7)}, "mirrored"),
    (two_alike(sight(SWAPPED + 1, 1)), AT_FIRST, {1: wrong(SWAPPED + 2)}, ""),  # neither: it is another mistake
    (two_alike(sight(SWAPPED + 1, 1)), AT_FIRST, {1: None}, ""),
    (two_alike(sight("right", 1)), AT_FIRST, {1: Judgement("b")}, "turned"),
    (two_alike(sight(SWAPPED + 7, 1), sight(SWAPPED, 2)), AT_FIRST, {1: wrong(SWAPPED + 7), 2: wrong(SWAPPED)},
     "turned\nOr: mirrored"),
    (two_alike(sight(SWAPPED + 7, 1), sight(SWAPPED, 2)), AT_FIRST, {1: wrong(SWAPPED + 7), 2: wrong(SWAPPED + 9)},
     "mirrored"),
    ([mistake("turned", *(sight(SWAPPED, trial) for trial in range(3)))], AT_FIRST, {1: wrong(SWAPPED)}, "turned"),
])
def test_a_cause_is_named_where_the_same_was_seen(monkeypatch, known, failed, then, says):
    monkeypatch.setattr(recorded, "mistakes", lambda number: known)
    assert recorded.cause("0.1", (0.0, 0.0), *failed, lambda other: then.get(other)) == says
