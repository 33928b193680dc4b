"""Exercise 4.8: how many stages and how many micro-batches, where memory is short.

    N  devices    S  sequences of a batch    p  stages    m  micro-batches of a replica    b  sequences of a micro-batch
    M  bytes of weights, gradients and the optimiser's state    A  bytes of activations of a sequence in all layers
    C  bytes that a device has    k  sequences that take as long as what a micro-batch costs beside its own sequences
"""

import random
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from course_lib.grading.compare import describe
from course_lib.grading.exercise import Exercise, Traffic, Trial
from course_lib.grading.spent import Spent

# N, S, M, A, C, k; bytes in GB. First a model of 7B in mixed precision, 16 bytes a parameter, on devices of 80 GB.
CASES = ((64, 512, 112, 8, 80, 2), (16, 256, 112, 4, 80, 6), (16, 64, 320, 6, 40, 4), (8, 64, 40, 30, 80, 1),
         (4, 4, 30, 8, 80, 1))


class Layout(Exercise):
    number = "4.8"
    function = "my_layout"
    points = 3
    right = "the layout is possible"
    budget = "no device holds more than it has, and no other layout that fits takes a shorter step"
    hints = (
        "There are not many layouts: p divides the number of devices, and m divides the sequences of a replica. Try "
        "them all. What does the first rank hold under 1F1B, and what is the step measured in?",
        "With p stages there are N/p replicas with S p/N sequences each, and a micro-batch has b = S p/(N m) of them. "
        "Leave out where M/p + min(p, m) b A/p is more than C; of the others take the smallest (m + p - 1)(b + k)/p.",
        "layouts = []\n"
        "for p in range(1, num_devices + 1):\n"
        "    own = num_sequences * p // num_devices  # sequences of a replica\n"
        "    for m in range(1, own + 1):\n"
        "        if num_devices % p or own % m or ...:  # or it does not fit\n"
        "            continue\n"
        "        layouts.append(((m + p - 1) * ..., p, m))\n"
        "_, p, m = min(layouts)\n"
        "return p, m",
    )

    def trials(self, seed: int) -> list[Trial]:
        source = random.Random(seed)
        N = 2 ** source.randint(3, 6)
        drawn = N, 8 * N, source.randint(100, 300), source.randint(3, 20), 60, source.randint(1, 4)
        return [Trial([list(asked)], f"{asked[0]} devices of {asked[4]} GB, {asked[1]} sequences of {asked[3]} GB, "
                                     f"{asked[2]} GB of state") for asked in (*CASES, drawn)]

    @staticmethod
    def run(function: Callable, inputs: list[Any]) -> Any:
        returned = function(*inputs)
        if isinstance(returned, list | tuple) and all(type(count) is int for count in returned):
            return list(returned)
        return "nothing (None)" if returned is None else f"a {type(returned).__name__}"

    def arguments(self, trial: Trial) -> Sequence[Any]:
        return trial.inputs[0]

    def wrong(self, trial: Trial, answers: list[Any]) -> str | None:
        (N, S, *_), (given,) = trial.inputs[0], answers
        if type(given) is not list or len(given) != 2 or not all(type(count) is int for count in given):
            return f"it returned {describe(given)}: expected two whole numbers, p and m"
        p, m = given
        if p < 1 or N % p:
            return f"it returned p = {p}: expected a divisor of {N}, or some devices have nothing to do"
        if m < 1 or S * p // N % m:
            whole = f"\nm is counted for a replica, and there are {N // p} of them" if m >= 1 and S % m == 0 else ""
            return (f"it returned m = {m}: with {p} stages a replica has {S * p // N} sequences, expected a divisor of "
                    f"that{whole}")
        return None

    def spent(self, trial: Trial, answers: list[Any], traffic: Traffic) -> list[Spent]:
        asked, (p, m) = trial.inputs[0], answers[0]
        why, best = self.cause([p, m], *asked) or "", min(fitting(*asked))
        who = f"with {p} stages and {m} micro-batches"
        return [Spent("the first rank holds", held(p, m, *asked), asked[4], "", " GB", who=who, why=why),
                Spent("a step takes", step(p, m, *asked), best[0], "", " sequences' time", who=who, why=why,
                      limit="par {}", slack=1e-9)]

    def mistakes(self, *asked: Any) -> Iterable[tuple[str, list[int]]]:
        N, S, M, A, C, k = asked
        every = list(layouts(N, S))
        fit = [(p, m) for p, m in every if held(p, m, *asked) <= C]

        def best(among: Iterable[tuple[int, int]]) -> list[int]:
            found = sorted((step(p, m, *asked), p, m) for p, m in among)
            return list(found[0][1:]) if found else [0, 0]

        yield "this would be the shortest step if memory were without end", best(every)
        yield ("it holds what GPipe would: under 1F1B the first rank has at most p micro-batches in flight, not m",
               best((p, m) for p, m in every if (M + S * p / N * A) / p <= C))
        yield ("it counts one micro-batch in flight: the first rank has min(p, m) of them",
               best((p, m) for p, m in every if (M + S * p / (N * m) * A) / p <= C))
        yield "the state alone fits, and activations are left out", best((p, m) for p, m in every if M / p <= C)
        yield ("this has the least idle time of all that fit: but small micro-batches cost more time than they save, "
               "so compare steps", list(min(fit, key=lambda layout: (layout[0] - 1) / layout[1])))
        yield ("these are the fewest stages that fit: with more of them there is room for larger micro-batches, so "
               "compare all", best((p, m) for p, m in fit if p == fit[0][0]))
        yield "this is the longest step of all that fit", list(max(fit, key=lambda layout: step(*layout, *asked)))


def layouts(N: int, S: int) -> Iterable[tuple[int, int]]:
    """All (p, m) that deal out N devices and S sequences evenly."""
    return ((p, m) for p in range(1, N + 1) if N % p == 0 for m in range(1, S * p // N + 1) if S * p // N % m == 0)


def held(p: int, m: int, N: int, S: int, M: float, A: float, C: float, k: float) -> float:
    """What the first rank holds under 1F1B, in the unit of M and A."""
    return (M + min(p, m) * S * p / (N * m) * A) / p


def step(p: int, m: int, N: int, S: int, M: float, A: float, C: float, k: float) -> float:
    """How long a step takes, in the time that all layers take for a sequence."""
    return (m + p - 1) * (S * p / (N * m) + k) / p


def fitting(*asked: Any) -> Iterable[tuple[float, int, int]]:
    """(step, p, m) of every layout that fits."""
    N, S, _, _, C, _ = asked
    return ((step(p, m, *asked), p, m) for p, m in layouts(N, S) if held(p, m, *asked) <= C)
