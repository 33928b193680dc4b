"""A sketch tells answers apart and knows them again; a recorded mistake is named where the same answer comes."""

import math

import pytest
import torch

from course_lib.grading import recorded
from course_lib.grading.compare import sketch
from course_lib.grading.recorded import Mistake, Seen
from course_lib.grading.spent import Judgement, Spent

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
