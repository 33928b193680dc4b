"""Exercises 2.7 and 2.8: what alpha and beta say about the algorithm, and about the largest model.

    n  ranks    g  ranks in a node, k  nodes    M  bytes of the message    T = alpha + beta M for one message
"""

import math
import random
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from course_lib.facts import LINKS, NCCL_STEP_LATENCY, interconnect
from course_lib.grading.compare import describe
from course_lib.grading.exercise import Exercise, Traffic, Trial
from course_lib.grading.numbers import NumberExercise
from course_lib.grading.spent import Spent, amount

LEAST, MOST = 1.0, float(1 << 40)  # bytes: where a choice is looked at
Case = tuple[float, float, int]  # alpha_s, beta_s_per_byte, n


def doubling_s(alpha_s: float, beta_s_per_byte: float, n: int, M: float) -> float:
    """Recursive doubling: log2 n messages of the whole."""
    return math.log2(n) * (alpha_s + beta_s_per_byte * M)


def ring_s(alpha_s: float, beta_s_per_byte: float, n: int, M: float) -> float:
    """The ring: 2(n-1) messages of an n-th."""
    return 2 * (n - 1) * (alpha_s + beta_s_per_byte * M / n)


class Crossover(Exercise):
    """Right is what chooses well: the time lost to the better choice, at the worst size of each link."""

    number = "2.7"
    function = "my_crossover_bytes"
    points = 4
    budget = "on no link, and for no message, more than 1 % slower than the better of the two"
    tolerance = (1e-6, 0.0)
    right = "the choice is good on most links"
    ALLOWED = 0.01
    hints = (
        "Write both times as (a number) alpha + (a number) beta M. Which one has more alphas, which one more betas? "
        "They meet where the alphas that one saves cost as much as the betas that it adds.",
        "Doubling: log2 n messages of M. The ring: 2(n-1) messages of M/n. Set them equal and solve for M: a "
        "difference of alphas over a difference of betas. And what is the difference of betas for two ranks?",
        "L = math.log2(n)\n"
        "more_alphas = 2 * (n - 1) - L   # of the ring\n"
        "more_betas = ...   # of doubling, for each byte of M\n"
        "if ...:\n"
        "    return math.inf   # the ring never wins\n"
        "return alpha_s * more_alphas / (...)",
    )

    def trials(self, seed: int) -> list[Trial]:
        source = random.Random(seed)
        named = [(NCCL_STEP_LATENCY[wire.kind].value * 1e-6, 1 / wire.one_way_bytes_per_s)
                 for wire in LINKS if wire.kind in NCCL_STEP_LATENCY]
        known = [(alpha, beta, n) for alpha, beta in named for n in (4, 8, 64, 1024)]
        drawn = [(10 ** source.uniform(-6, -3), 10 ** source.uniform(-12, -8), 2 ** source.randint(2, 14))
                 for _ in range(200)]
        pairs = [(alpha, beta, 2) for alpha, beta in named]
        return [Trial([[list(case) for case in cases]], label) for label, cases in (
            (f"{len(known)} links and worlds of course_lib.facts", known), ("200 random ones", drawn),
            (f"two ranks, {len(pairs)} links", pairs))]

    @staticmethod
    def run(function: Callable, inputs: list[list[Any]]) -> list[Any]:
        try:
            values = [function(*case) for case in inputs]
        except ZeroDivisionError as error:
            error.add_note("two ranks move the same bytes either way: no beta to pay, so the ring never wins, math.inf")
            raise
        return [float(value) if isinstance(value, int | float) and not isinstance(value, bool)
                else f"a {type(value).__name__}" if value is not None else None for value in values]

    def arguments(self, trial: Trial) -> Sequence[Any]:
        return ([tuple(case) for case in trial.inputs[0]],)

    def given(self, answers: list[Any]) -> Any:
        return answers[0] if len(answers) == 1 else None

    def expected(self, cases: Sequence[Case]) -> list[float]:
        return [crossing(alpha, beta, 2 * (n - 1) - math.log2(n), math.log2(n) - 2 * (n - 1) / n)
                for alpha, beta, n in cases]

    def wrong(self, trial: Trial, answers: list[Any]) -> str | None:
        given, (cases,) = self.given(answers), self.arguments(trial)
        values = given if type(given) is list and len(given) == len(cases) else [given]
        bad = [value for value in values if type(value) is not float or math.isnan(value)]
        if bad:
            return f"it returned {describe(bad[0])}: expected a number of bytes"
        each = [lost(case, value) for case, value in zip(cases, given)]
        if max(each) <= self.ALLOWED:
            return None
        return self.cause(given, cases) or self.at_its_worst(cases, given, each)

    @staticmethod
    def at_its_worst(cases: Sequence[Case], given: Sequence[float], each: Sequence[float]) -> str:
        worst = max(range(len(cases)), key=lambda i: each[i])
        (alpha, beta, n), value = cases[worst], given[worst]
        at = amount(value) if math.isfinite(value) else "no size"
        return (f"alpha {1e6 * alpha:.3g} us, 1/beta {1 / beta / 1e9:.3g} GB/s, {n} ranks: who changes at {at} takes "
                f"up to {100 * each[worst]:.3g} % longer than the better choice. Which of the two times is too short?")

    def mistakes(self, cases: Sequence[Case]) -> Iterable[tuple[str, list[float]]]:
        def all_of(alphas: Callable[[int], float], betas: Callable[[int], float]) -> list[float]:
            return [crossing(alpha, beta, alphas(n), betas(n)) for alpha, beta, n in cases]

        def ring(n: int) -> float:
            return 2 * (n - 1)

        yield "these are elements of 4 bytes: bytes are asked", [value / 4 for value in self.expected(cases)]
        yield "these are bytes of one chunk: M is the whole message", [
            value / n for value, (_, _, n) in zip(self.expected(cases), cases)]
        yield ("the ring has two loops of n-1 steps, the reduce-scatter and the all-gather: one is missing. Or "
               "doubling has twice its steps, as a tree there and back: all exchange at once, log2 n steps are all",
               all_of(lambda n: n - 1 - math.log2(n), lambda n: math.log2(n) - (n - 1) / n))
        yield ("every step of the ring is taken to move the whole message: it moves one chunk, M/n, so that its bytes "
               "are 2(n-1)/n M", [-alpha / beta for alpha, beta, _ in cases])
        yield ("that is alpha over beta: where one message's latency costs as much as its bytes, whatever n is",
               [alpha / beta for alpha, beta, _ in cases])
        yield ("the ring's alphas alone are weighed: doubling pays log2 n of them too",
               all_of(ring, lambda n: math.log2(n) - ring(n) / n))

    def spent(self, trial: Trial, answers: list[Any], traffic: Traffic) -> list[Spent]:
        (cases,) = self.arguments(trial)
        each = [lost(case, value) for case, value in zip(cases, self.given(answers))]
        return [Spent("takes", max(each), self.ALLOWED, "share", on=" longer than the better choice, at worst")]


def crossing(alpha_s: float, beta_s_per_byte: float, more_alphas: float, more_betas: float) -> float:
    """M at which so many alphas cost as much as so many betas; never, where there are no betas to pay."""
    return max(0.0, alpha_s * more_alphas / (beta_s_per_byte * more_betas)) if more_betas > 1e-9 else math.inf


def lost(case: Case, crossover: float) -> float:
    """The share of time lost, at the worst size, by whoever takes doubling below `crossover` bytes and the ring above.

    Between the right crossover and the chosen one the wrong algorithm runs, worst right beside the chosen one.
    """
    M = min(max(crossover, LEAST), MOST)
    doubling, ring = doubling_s(*case, M), ring_s(*case, M)
    taken_just_below = doubling / min(doubling, ring) if crossover > LEAST else 1.0
    taken_just_above = ring / min(doubling, ring) if crossover < MOST else 1.0
    return max(taken_just_below, taken_just_above) - 1


class LargestModel(NumberExercise):
    number = "2.8"
    function = "my_largest_model"
    points = 3
    unit = "parameter"
    tolerance = (0.02, 0.0)
    budget = "a number of parameters, to 2 %"
    G, INSIDE, BETWEEN, GRADIENT_BYTES = 8, "NVLink 4 (H100)", "InfiniBand NDR", 2
    hints = (
        "Three things follow one another: in the node, across, in the node again. Each takes a multiple of M; the sum "
        "is what you have, and M is what you look for. The latencies hardly count here.",
        "A reduce-scatter or an all-gather of M in a node of g moves (g-1)/g M over NVLink; across, each rank "
        "all-reduces M/g over its own card with k nodes, 2(k-1)/k of it. Add the seconds of one byte, divide, and mind "
        "the bytes of a parameter's gradient.",
        "inside = 2 * (g - 1) / g / nvlink             # seconds for each byte of M; nvlink in bytes a second\n"
        "across = 2 * (k - 1) / k * ... / card\n"
        "num_bytes = seconds / (inside + across)\n"
        "return num_bytes / ...",
    )
    cases = (("512 H100 in 64 nodes, one second", (64, 1.0)), ("4 nodes, half a second", (4, 0.5)),
             ("200 nodes, two seconds", (200, 2.0)))

    def expected(self, num_nodes: int, seconds: float) -> float:
        return seconds / self.per_byte(num_nodes, *self.wires()) / self.GRADIENT_BYTES

    def wires(self) -> tuple[float, float]:
        """Bytes a second one way: NVLink, and the network card that each device has."""
        return tuple(interconnect(name).one_way_bytes_per_s for name in (self.INSIDE, self.BETWEEN))

    def per_byte(self, k: int, nvlink: float, card: float) -> float:
        """Seconds that each byte of M takes on two levels."""
        g = self.G
        return 2 * (g - 1) / g / nvlink + 2 * (k - 1) / k / g / card

    def draw(self, source: random.Random) -> tuple[str, tuple[Any, ...]]:
        k, seconds = source.randint(9, 200), source.randint(20, 60) / 10
        return f"{k} nodes, {seconds:g} s", (k, seconds)

    def mistakes(self, num_nodes: int, seconds: float) -> Iterable[tuple[str, float]]:
        (nvlink, card), k, g = self.wires(), num_nodes, self.G
        size = seconds / self.GRADIENT_BYTES
        n = g * k
        yield ("twice too large. Is it M in bytes, where a gradient in bf16 has 2? Or is everything counted once, "
               "where inside there are a reduce-scatter and an all-gather, and across an all-reduce, which is both?",
               seconds / self.per_byte(k, nvlink, card))
        yield "a gradient in bf16 has 2 bytes, not 4", size / self.per_byte(k, nvlink, card) / 2
        yield ("one ring over all devices, which leaves each node over one card: seven of eight cards have nothing to "
               "do", size / (2 * (n - 1) / n / card))
        yield ("the whole M crosses between the nodes: after the reduce-scatter each rank has an eighth of it to take "
               "across", size / self.per_byte(k, nvlink, card / g))
        yield "only the network is counted: before and after it M moves inside the node", size / (
            2 * (k - 1) / k / g / card)
        yield "only NVLink is counted: an eighth of M goes over each card", size / (2 * (g - 1) / g / nvlink)
        yield ("NVLink is counted in both directions, 900 GB/s as on the data sheet: one way it has 450",
               size / self.per_byte(k, 2 * nvlink, card))
        yield ("gigabits are taken for gigabytes: the card's 400 Gbit/s are 50 GB/s",
               size / self.per_byte(k, nvlink, 8 * card))


