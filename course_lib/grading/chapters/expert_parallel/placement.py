"""Exercise 8.6, open-ended: which experts live on which rank, and which of them twice, so that no rank is late.

    E  experts on R ranks of S slots    l (B, E)  rows for each expert in each of B batches    c_e  copies of e
    a rank has sum of l_e / c_e to do in a batch, of the experts it holds; everybody waits for the busiest
    score: mean over the batches of the busiest rank's rows, over the mean rank's; 1 is the least

Sources: DeepSeek-AI 2024, DeepSeek-V3, section 3.4 (redundant experts); DeepSeek-AI 2025, EPLB, which looks at the sums
over all batches only.
"""

import random
from collections.abc import Callable, Sequence
from typing import Any

from course_lib.grading.compare import describe
from course_lib.grading.exercise import Exercise, Traffic, Trial
from course_lib.grading.spent import Spent

Loads = list[list[float]]  # of each batch, by expert
Placement = list[list[int]]  # of each rank, its experts
PAR = 1.15


class Placed(Exercise):
    number = "8.6"
    function = "my_placement"
    points = 5
    right = "every expert has a place"
    budget = "par: over the batches, the busiest rank has on average 1.15 times the rows of the mean rank"
    hints = (
        "What is even over all batches together may be uneven in each of them. Which experts should not live on one "
        "rank? And what does a free slot do for an expert that fills a rank by itself?",
        "Copies first: a free slot goes to whoever has most rows for each copy. Then place one after the other, the "
        "largest first, where there is room; then exchange two experts of two ranks as long as the score gets better. "
        "The score is the mean over the batches, so look at each of them.",
        "def score(ranks):  # the busiest rank of each batch\n"
        "    return sum(max(sum(load[e] / copies[e] for e in own) for own in ranks) for load in loads)\n"
        "...  # copies, and a first placement\n"
        "better = True\n"
        "while better:\n"
        "    better = False\n"
        "    for a, b in itertools.combinations(ranks, 2):\n"
        "        for i, j in itertools.product(range(len(a)), range(len(b))):\n"
        "            ...  # exchange a[i] and b[j]; back again, unless the score is lower",
    )

    def trials(self, seed: int) -> list[Trial]:
        source = random.Random(seed)
        return [Trial([{"loads": planted(source, E, R, S, B, hot), "slots": [R, S]}],
                      f"{E} experts on {R} ranks of {S} slots, {B} batches")
                for E, R, S, B, hot in ((24, 4, 7, 8, 2), (6, 3, 2, 4, 0), (32, 4, 9, 8, 2))]

    @staticmethod
    def run(function: Callable, inputs: dict[str, Any]) -> Any:
        returned = function([list(load) for load in inputs["loads"]], *inputs["slots"])
        if not isinstance(returned, list | tuple):
            return "nothing (None)" if returned is None else f"a {type(returned).__name__}"
        if not all(isinstance(own, list | tuple) and all(type(e) is int for e in own) for own in returned):
            return "a list of something else than lists of whole numbers"
        return [list(own) for own in returned]

    def wrong(self, trial: Trial, answers: list[Any]) -> str | None:
        (R, S), E, (given,) = trial.inputs[0]["slots"], len(trial.inputs[0]["loads"][0]), answers
        if type(given) is not list or not all(type(own) is list for own in given) or len(given) != R:
            said = f"{len(given)} parts" if type(given) is list else describe(given)
            return f"it returned {said}: expected for each of the {R} ranks a list of its experts"
        for rank, own in enumerate(given):
            if len(own) > S:
                return f"rank {rank} has {len(own)} experts, and {S} slots"
            stranger = next((e for e in own if type(e) is not int or not 0 <= e < E), None)
            if stranger is not None:
                return f"rank {rank} holds expert {describe(stranger)}: they are called 0 to {E - 1}"
            if len(set(own)) < len(own):
                return f"rank {rank} holds an expert twice: a second copy helps on another rank only"
        homeless = set(range(E)).difference(*map(set, given))
        return f"expert {min(homeless)} is on no rank: each needs a place at least once" if homeless else None

    def spent(self, trial: Trial, answers: list[Any], traffic: Traffic) -> Sequence[Spent]:
        loads, given = trial.inputs[0]["loads"], answers[0]
        return [Spent("busiest rank has, of the mean rank's rows,", score(loads, given), PAR, "share", who="the",
                      limit="par {}", slack=1e-9, why=self.why(loads, given, *trial.inputs[0]["slots"]))]

    @staticmethod
    def why(loads: Loads, given: Placement, R: int, S: int) -> str:
        """What probably makes the busiest rank so busy."""
        if R * S > len(loads[0]) == sum(map(len, given)):
            return "a slot is free and the hottest expert has no copy: its rows would be shared out between both"
        together = [sum(each) for each in zip(*loads)]
        if score([together], given) < PAR - 0.05:
            return ("over all batches together the ranks have equally much, but experts that are hot in the same batch "
                    "live on one rank. Everybody waits in every batch, so look at each")
        copies = copies_of(given)
        rows = [sum(together[e] / copies[e] for e in own) for own in given]
        rank = max(range(R), key=lambda r: rows[r])
        hottest = max(given[rank], key=lambda e: together[e] / copies[e])
        return (f"over all batches rank {rank} has {rows[rank] * R / sum(rows):.3g} times the mean, most of it for "
                f"expert {hottest}: place those with most rows first, always where least is to do")


def copies_of(placement: Placement) -> dict[int, int]:
    """How many ranks hold each expert."""
    held = [e for own in placement for e in own]
    return {e: held.count(e) for e in held}


def score(loads: Loads, placement: Placement) -> float:
    """Mean over the batches of the busiest rank's rows, over the mean rank's."""
    copies = copies_of(placement)
    busiest = [max(sum(load[e] / copies[e] for e in own) for own in placement) for load in loads]
    return sum(busiest) * len(placement) / sum(map(sum, loads))


def planted(source: random.Random, E: int, R: int, S: int, B: int, hot: int) -> Loads:
    """Loads for which some placement has score 1: it is drawn first, with copies of the `hot` experts in free slots."""
    copies = [1] * E
    for extra in range(R * S - E):
        copies[extra % hot] += 1
    ranks: Placement = [[] for _ in range(R)]
    for e in range(E):  # those with copies first
        for own in sorted(ranks, key=lambda own: (len(own), source.random()))[:copies[e]]:
            own.append(e)
    names, loads = source.sample(range(E), E), []
    for _ in range(B):
        rows = [source.uniform(0.15, 0.35) for _ in range(E)]  # for each copy
        for own in ranks:
            alone = [e for e in own if copies[e] == 1]
            shares = [source.expovariate(1.0) for _ in alone]
            left = 1 - sum(rows[e] for e in own if copies[e] > 1)
            for e, share in zip(alone, shares):
                rows[e] = left * share / sum(shares)
        loads.append([1000 * rows[names[e]] * copies[names[e]] for e in range(E)])
    return loads
