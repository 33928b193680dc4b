"""A sketch tells answers apart and knows them again; a recorded mistake is named where the same answer comes."""

import math

import pytest
import torch

from course_lib.grading import recorded
from course_lib.grading.recorded import Mistake, Seen
from course_lib.grading.selfstudy import check_exercise
from course_lib.grading.sketch import sketch
from course_lib.grading.spent import Judgement, Spent
from tests.grading import toy_exercises as toys
from tests.grading.toy_exercises import Swap

LONG = torch.arange(1000.0, dtype=torch.float64)


@pytest.mark.parametrize("answer", [
    3.25, [1, 2, 3], {"a": torch.arange(4), "b": None}, LONG, [LONG, "F0"], torch.tensor([math.nan, 1.0, math.inf]),
    [["F0", "B0"], ["F0"]], torch.ones(3, dtype=torch.complex64), torch.empty(3, device="meta"), object,
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
    assert not sketch(LONG).is_like(sketch(LONG * 1.001))
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


@pytest.mark.parametrize("known, judged, trial, says", [
    ([mistake("turned")], wrong(SWAPPED), 0, "turned"),
    ([mistake("turned")], wrong(SWAPPED), 1, ""),
    ([mistake("turned")], wrong(SWAPPED + 1), 0, ""),
    ([mistake("turned"), mistake("mirrored")], wrong(SWAPPED), 0, "turned\nOr: mirrored"),
    ([mistake("twice", sight(96, over="sent"))], costly(96), 0, "twice"),
    ([mistake("twice", sight(32, over="sent"))], costly(96), 1, "twice"),
    ([mistake("twice", sight(32, over="sent")), mistake("whole", sight(64, over="sent"))], costly(96), 0, ""),
    ([mistake("twice", sight(96, over="holds"))], costly(96), 0, ""),
])
def test_a_cause_is_named_where_the_same_was_seen(monkeypatch, known, judged, trial, says):
    monkeypatch.setattr(recorded, "mistakes", lambda number: known)
    assert recorded.cause("0.1", (0.0, 0.0), trial, judged, lambda other: None) == says


def two_alike(*later):
    """Two mistakes that give the same on trial 0, and then what `later` says of the first."""
    return [mistake("turned", sight(SWAPPED), *later), mistake("mirrored", sight(SWAPPED), sight(SWAPPED + 7, 1))]


@pytest.mark.parametrize("known, then, says", [
    (two_alike(sight(SWAPPED + 1, 1)), {1: wrong(SWAPPED + 1)}, "turned"),
    (two_alike(sight(SWAPPED + 1, 1)), {1: wrong(SWAPPED + 7)}, "mirrored"),
    (two_alike(sight(SWAPPED + 1, 1)), {1: wrong(SWAPPED + 2)}, ""),  # neither: another mistake gives that here too
    (two_alike(sight(SWAPPED + 1, 1)), {1: None}, ""),
    (two_alike(sight("right", 1)), {1: Judgement("b")}, "turned"),
    (two_alike(sight(SWAPPED + 7, 1), sight(SWAPPED, 2)), {1: wrong(SWAPPED + 7), 2: wrong(SWAPPED)},
     "turned\nOr: mirrored"),
    (two_alike(sight(SWAPPED + 7, 1), sight(SWAPPED, 2)), {1: wrong(SWAPPED + 7), 2: wrong(SWAPPED + 9)}, "mirrored"),
    ([mistake("turned", sight(SWAPPED), sight(SWAPPED, 1), sight(SWAPPED, 2))], {1: wrong(SWAPPED)}, "turned"),
])
def test_of_mistakes_that_collide_the_next_trials_decide(monkeypatch, known, then, says):
    monkeypatch.setattr(recorded, "mistakes", lambda number: known)
    assert recorded.cause("0.1", (0.0, 0.0), 0, wrong(SWAPPED), then.__getitem__) == says


def test_a_mistake_that_was_recorded_is_told_in_its_words_and_what_is_costly_how_much_and_why(monkeypatch):
    own = Seen(0, "", sketch([tensor for tensor, in Swap().trials(0)[0].inputs]))
    known = [Mistake("nothing was swapped", (own,)), mistake("once is enough", sight(1 << 19, over="sent"))]
    monkeypatch.setattr(recorded, "mistakes", lambda number: known)
    assert check_exercise(Swap(), toys.no_swap).cause == "2 ranks: nothing was swapped"
    assert "expected float32[65536]" in check_exercise(Swap(), toys.of_another_shape).cause
    cause = check_exercise(Swap(), toys.swapped_twice_over).cause
    assert cause == ("2 ranks: the result is right, but over budget: rank 0 sent 524.3 kB, where 262.1 kB will do: "
                     "once is enough")
