"""Answers that no function on honest ranks gives: forged, silent and costly ones, and the sentence that each is told.

Those that learners give stand in solutions/, each with its sentence.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from course_lib.grading.chapters import load
from course_lib.grading.exercise import Exercise, SentBytes, Trial
from course_lib.grading.registry import exercise

Answers = list[Any]
Case = tuple[Answers, list[list[int]]]  # the answers and what the ranks sent
ROWS: dict[str, tuple[str, int, Callable[[Exercise, Trial, Answers], Case]]] = {}


def silent(n: int) -> list[list[int]]:
    return [[0] * n for _ in range(n)]


def told(words: str, number: str, place: int, change: Callable[[Exercise, Trial, Answers], Answers]) -> None:
    """A row: `change` makes the answers of right ones, and nobody sent anything that the answers do not tell of."""
    ROWS[f"{number}, {words}"] = number, place, lambda asked, trial, right: (
        change(asked, trial, right), silent(trial.world_size))


# ---- chapter 4: whose gradients nobody sent, and who makes others wait

def passed_on(change: Callable[[list[dict], list[list[int]]], Any]) -> Callable[[Exercise, Trial, Answers], Case]:
    """Three ranks that send each gradient as soon as it is there, but for `change`."""
    def make(asked: Exercise, trial: Trial, right: Answers) -> Case:
        tied, needed, both = load(4, "judge_backward").needed_bytes(trial)
        assert both == tied + needed
        answers = [{"gradients": gradients, "messages": [["send", rank - 1, 48]] * 4 if rank else [],
                    "order": [[number, number * bool(rank), number] for number in range(4)]}
                   for rank, gradients in enumerate(right)]
        sent = [[0, 0, tied], [needed, 0, 0], [tied, needed, 0]]
        change(answers, sent)
        return answers, sent
    return make


ROWS["4.5, sent late"] = "4.5", 1, passed_on(lambda its, sent: its[1]["order"].__setitem__(3, [3, 1, 3]))
ROWS["4.5, received early"] = "4.5", 1, passed_on(lambda its, sent: its[1]["order"].__setitem__(0, [0, 0, 4]))
ROWS["4.5, nobody sent"] = "4.5", 1, passed_on(lambda its, sent: sent.__setitem__(slice(None), silent(3)))
ROWS["4.5, rank 1 is silent"] = "4.5", 1, passed_on(lambda its, sent: sent.__setitem__(1, [0, 0, 0]))
ROWS["4.5, 8 bytes more"] = "4.5", 1, passed_on(lambda its, sent: sent[0].__setitem__(1, 8))
ROWS["4.5, right"] = "4.5", 1, passed_on(lambda its, sent: None)

# ---- chapters 5, 6 and 9

CALL = "all_reduce"


def with_call(answers: Answers, name: str, num_bytes: float, **more: Any) -> Answers:
    return [{**answer, "calls": [[name, 0, float(num_bytes)]], **more} for answer in answers]


told("all products on each rank", "5.2", 1, lambda asked, trial, right: with_call(
    right, CALL, asked.bound(trial), flops=3 * 2 * 3 * 2 * 2 * 4 * 5 * 2))  # allowed: 2 by 3 products of B T D part
told("a rank's own products", "5.2", 1, lambda asked, trial, right: with_call(
    right, CALL, asked.bound(trial), flops=2 * 3 * 2 * 2 * 4 * 5 * 2))
told("twice the bytes", "5.7", -1, lambda asked, trial, right: with_call(right, CALL, 2 * asked.bound(trial)))
told("silent about its calls", "6.2", 3, lambda asked, trial, right: [
    {"weights": own, "calls": [], "kind": "AdamW", "held": [], "of_all": 0,
     "state": 2 * trial.inputs[0]["weights"].nbytes // trial.world_size} for own in right])
told("a norm of 0 that nobody divides by", "6.6", -1, lambda asked, trial, right: with_call(right, CALL, 8))
told("right, and added up by nobody", "9.3", 1, lambda asked, trial, right: [
    {"gradients": each, "sent": 0} for each in right])


@pytest.mark.parametrize("row", ROWS)
def test_an_odd_answer_is_told_what_is_wrong_with_it(row, snapshot):
    number, place, make = ROWS[row]
    asked = exercise(number)
    trial = asked.trials(seed=0)[place]
    answers, sent = make(asked, trial, asked.solve(*asked.arguments(trial)))
    judged = asked.judge(trial, answers, SentBytes(sent, exact=True))
    assert str(judged.cause) == snapshot
    assert (judged.cause is None) == row.endswith((" right", "own products", "that nobody divides by"))


# Answers of the right form that are none: a row is the exercise, the trial, and what is made of the right answers.
NONE = {
    "the same tokens on all ranks": ("7.3", 0, lambda right: [{"returned": torch.arange(6)}] * 2),
    "tokens that there are not": ("7.3", 0, lambda right: [{"returned": torch.arange(6) + r * 99} for r in range(2)]),
    "three experts for two slots": ("8.6", 0, lambda right: [[[0, 2, 1], [1, 3]]]),
    "an expert that there is not": ("8.6", 0, lambda right: [[[0, 2], [1, 4]]]),
    "the same expert twice": ("8.6", 0, lambda right: [[[0, 2], [1, 1]]]),
    "a group twice": ("9.2", 1, lambda right: [[right[0][0] + right[0][0][:1], right[0][1]]]),
    "a group fewer": ("9.2", 1, lambda right: [[right[0][0][1:], right[0][1]]]),
}


@pytest.mark.parametrize("row", NONE)
def test_what_has_the_form_of_an_answer_and_is_none_is_refused(row):
    number, place, make = NONE[row]
    asked = exercise(number)
    trial = asked.trials(seed=0)[place]
    right = [] if number in ("7.3", "8.6") else asked.solve(*asked.arguments(trial))  # plans have no one right answer
    assert asked.judge(trial, make(right), SentBytes(silent(trial.world_size), exact=True)).fault
