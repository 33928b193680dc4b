"""Answers that no function on honest ranks gives, or that nobody has recorded, and the sentence that each is told.

Those that learners give stand in solutions/, each with its sentence; here are forged, silent and costly ones.
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

# ---- chapters 5 to 9

CALL, GATHER = "all_reduce", "all_gather"


def with_call(answers: Answers, name: str, num_bytes: float, **more: Any) -> Answers:
    return [{**answer, "calls": [[name, 0, float(num_bytes)]], **more} for answer in answers]


told("all products on each rank", "5.2", 1, lambda asked, trial, right: with_call(
    right, CALL, asked.bound(trial), flops=3 * 2 * 3 * 2 * 2 * 4 * 5 * 2))  # allowed: 2 by 3 products of B T D part
told("a rank's own products", "5.2", 1, lambda asked, trial, right: with_call(
    right, CALL, asked.bound(trial), flops=2 * 3 * 2 * 2 * 4 * 5 * 2))
told("twice the bytes", "5.7", -1, lambda asked, trial, right: with_call(right, CALL, 2 * asked.bound(trial)))


told("silent about its calls", "6.2", 3, lambda asked, trial, right: [
    {"weights": own, "calls": [], "kind": "AdamW", "held": [],
     "state": 2 * trial.inputs[0]["weights"].nbytes // trial.world_size} for own in right])


def masters(of_rank: Callable[[torch.Tensor], Any], off: float = 0.0) -> Callable[[Exercise, Trial, Answers], Answers]:
    """The whole weights, rounded, the first one off by `off`; `of_rank` makes what a rank shows of its masters."""
    def make(asked: Exercise, trial: Trial, right: Answers) -> Answers:
        rounded = torch.cat(right).bfloat16()
        rounded[0] += off
        return [{"weights": rounded, "master": of_rank(own), "held": [],
                 "calls": [[GATHER, 2, float(asked.bound(trial))]]} for own in torch.cat(right).chunk(trial.world_size)]
    return make


told("right", "6.5", 1, masters(lambda own: own))
told("masters of 64 bits", "6.5", 1, masters(torch.Tensor.double))
told("no masters", "6.5", 1, masters(lambda own: None))
told("one weight a bit off", "6.5", 1, masters(lambda own: own, off=1 / 64))
told("a norm of 0 that nobody divides by", "6.6", -1, lambda asked, trial, right: with_call(right, CALL, 8))
told("divided by a norm of 0", "6.6", -1, lambda asked, trial, right: with_call(
    [{**each, "pieces": [piece / 0.0 for piece in each["pieces"]]} for each in right], CALL, 8))
told("DTensors", "6.7", 1, lambda asked, trial, right: [{"pieces": ["a DTensor"] * 4, "calls": []}] * 3)


def positions(change: Callable[[list[torch.Tensor]], Answers]) -> Callable[[Exercise, Trial, Answers], Answers]:
    def make(asked: Exercise, trial: Trial, _: Answers) -> Answers:
        own = torch.arange(sum(trial.inputs[0][0])).chunk(trial.world_size)
        return [{"returned": each} for each in change(list(own))]
    return make


told("the same tokens on all ranks", "7.3", 0, positions(lambda own: [own[0]] * len(own)))
told("tokens that there are not", "7.3", 0, positions(lambda own: [own[0] - 99, *own[1:]]))
for words, strange in (("no positions", lambda own: None), ("real numbers", torch.Tensor.float),
                       ("one too few", lambda own: own[1:]), ("without memory", lambda own: own.to("meta"))):
    told(words, "7.3", 0, positions(lambda own, strange=strange: [strange(own[0]), *own[1:]]))

PLACED = {"three experts for two slots": [[0, 2, 1], [1, 3]], "an expert that there is not": [[0, 2], [1, 4]],
          "the same twice": [[0, 2], [1, 1]], "one on no rank": [[0, 2], [1, 2]], "too few ranks": [[0, 1, 2, 3]]}
for words, placed in PLACED.items():
    told(words, "8.6", 0, lambda asked, trial, right, placed=placed: [placed])

GROUPS = {"a group twice": lambda inside: inside + inside[:1], "a group fewer": lambda inside: inside[1:],
          "a group that is none": lambda inside: [[0, 1], *inside[1:]]}
for words, change in GROUPS.items():
    told(words, "9.2", 1, lambda asked, trial, right, change=change: [[change(right[0][0]), right[0][1]]])
told("right, and added up by nobody", "9.3", 1, lambda asked, trial, right: [
    {"gradients": each, "sent": 0} for each in right])
KEYS = ("dp", "pp", "tp", "rows", "zero", "recompute")
for words, place, layout in (("does not fit", 1, (32, 1, 4, 1, 0, 0)), ("stage 2", 0, (1, 1, 1, 1, 2, 0))):
    told(words, "9.7", place, lambda asked, trial, right, layout=layout: [
        {"layout": dict(zip(KEYS, layout)), "asked": 0}])
told("does not fit", "10.3", 3, lambda asked, trial, right: [[1, 1, 0]])


@pytest.mark.parametrize("row", ROWS)
def test_an_odd_answer_is_told_what_is_wrong_with_it(row, snapshot):
    number, place, make = ROWS[row]
    asked = exercise(number)
    trial = asked.trials(seed=0)[place]
    try:
        right = asked.solve(*asked.arguments(trial))
    except NotImplementedError:  # a plan has no one right answer
        right = []
    answers, sent = make(asked, trial, right)
    judged = asked.judge(trial, answers, SentBytes(sent, exact=True))
    assert str(judged.cause) == snapshot
    assert (judged.cause is None) == row.endswith((" right", "own products", "that nobody divides by"))
