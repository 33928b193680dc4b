"""Exercise 4.1: which layers go together."""

import random
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from typing import Any

from course_lib.grading.compare import describe
from course_lib.grading.exercise import Exercise, Traffic, Trial
from course_lib.grading.spent import Spent

CASES = (([1, 2, 6, 3, 5, 7], 3), ([1, 4, 4, 4, 4, 7], 3), ([2, 2, 2, 2, 2, 2, 10], 4), ([5, 1, 1, 1, 1, 1], 2),
         ([3, 3, 3], 3), ([8], 1))


class Partition(Exercise):
    number = "4.1"
    function = "my_partition"
    points = 3
    right = "the cut is possible"
    budget = "the most expensive stage as cheap as any cut of the chain allows"
    hints = (
        "A cut is a choice of num_stages - 1 places out of the len(costs) - 1 gaps between layers. There are not many: "
        "look at all of them. What do you compare them by?",
        "itertools.combinations(range(1, len(costs)), num_stages - 1) has all cuts. With 0 before it and len(costs) "
        "behind it, a cut's neighbours bound its stages; take the cut whose most expensive stage is the cheapest.",
        "best = None\n"
        "for cuts in itertools.combinations(range(1, len(costs)), num_stages - 1):\n"
        "    bounds = [0, *cuts, len(costs)]\n"
        "    worst = ...  # over the pairs of neighbours in bounds\n"
        "    if best is None or worst < best[0]:\n"
        "        best = worst, bounds\n"
        "return ...  # numbers of layers, not places",
    )

    def trials(self, seed: int) -> list[Trial]:
        source = random.Random(seed)
        drawn = [source.randint(1, 30) for _ in range(14)], 4
        return [Trial([[list(costs), n]], f"{len(costs)} layers, {n} stage{'s' * (n > 1)}")
                for costs, n in (*CASES, drawn)]

    @staticmethod
    def run(function: Callable, inputs: list[Any]) -> Any:
        costs, num_stages = inputs
        returned = function(list(costs), num_stages)
        if isinstance(returned, list | tuple) and all(type(count) is int for count in returned):
            return list(returned)
        return "nothing (None)" if returned is None else f"a {type(returned).__name__}"

    def arguments(self, trial: Trial) -> Sequence[Any]:
        return trial.inputs[0]

    def wrong(self, trial: Trial, answers: list[Any]) -> str | None:
        (costs, n), (given,) = trial.inputs[0], answers
        if type(given) is not list or not all(type(count) is int for count in given):
            return f"it returned {describe(given)}: expected a list of {n} numbers of layers"
        return self.fault(given, costs, n)

    def spent(self, trial: Trial, answers: list[Any], traffic: Traffic) -> list[Spent]:
        costs, n = trial.inputs[0]
        return [Spent("the most expensive stage costs", worst_of(costs, answers[0]),
                      worst_of(costs, best_counts(costs, n)), unit="", who=f"with {answers[0]}",
                      why=self.cause(answers[0], costs, n) or "")]

    @staticmethod
    def fault(given: list[int], costs: Sequence[int], n: int) -> str | None:
        """Why these counts are no cut of the chain into n stages."""
        if len(given) != n:
            ends = len(given) == n - 1
            return f"there are {len(given)} stages, expected {n}" + (": the last one ends with the last layer" * ends)
        if min(given) < 1:
            return f"stage {given.index(min(given))} has {min(given)} layers: every stage needs at least one"
        if sum(given) != len(costs):
            return f"the stages have {sum(given)} layers together, and the model has {len(costs)}"
        return None

    def mistakes(self, costs: Sequence[int], n: int) -> Iterable[tuple[str, list[int]]]:
        L = len(costs)
        yield ("all stages have as many layers, and layers do not cost the same: count costs",
               [L // n + (stage < L % n) for stage in range(n)])
        yield ("all stages have as many layers, and layers do not cost the same: count costs",
               [L // n] * (n - 1) + [L - L // n * (n - 1)])
        for over in (False, True):
            yield ("each stage is filled up to the average and the last one takes what is left: what is best for the "
                   "first stages need not be best for all, so compare whole cuts", filled(costs, n, over))
        yield ("this is the cut with the most expensive dearest stage: the smallest is asked",
               max(all_counts(costs, n), key=lambda counts: worst_of(costs, counts)))


def filled(costs: Sequence[int], n: int, over: bool) -> list[int]:
    """Counts of stages filled from the first on, up to the average; `over`: until it is reached."""
    average, counts, held = sum(costs) / n, [0], 0
    for index, cost in enumerate(costs):
        full = held >= average if over else held + cost > average
        must = len(costs) - index <= n - len(counts)  # as many layers left as stages
        if counts[-1] and len(counts) < n and (full or must):
            counts.append(0)
            held = 0
        counts[-1] += 1
        held += cost
    return counts


def all_counts(costs: Sequence[int], n: int, layers: int | None = None) -> Iterable[list[int]]:
    """Every way to cut the chain into n stages of at least one layer."""
    layers = len(costs) if layers is None else layers
    if n == 1:
        yield [layers]
        return
    for first in range(1, layers - n + 2):
        for rest in all_counts(costs, n - 1, layers - first):
            yield [first, *rest]


def best_counts(costs: Sequence[int], n: int) -> list[int]:
    return min(all_counts(costs, n), key=lambda counts: worst_of(costs, counts))


def worst_of(costs: Sequence[int], counts: Sequence[int]) -> int:
    ends = list(accumulate(counts))
    return max(sum(costs[end - count:end]) for end, count in zip(ends, counts))
