"""Exercises 2.7 and 2.8: what alpha and beta say about the algorithm, and about the largest model.

    n  ranks    g  ranks in a node, k  nodes    M  bytes of the message    T = alpha + beta M for one message
"""

import math
import random
from collections.abc import Sequence
from typing import Any

from course_lib.costs.links import Link, collective_time, hardware_link
from course_lib.facts import LINKS, STEP_LATENCY
from course_lib.grading.compare import describe, is_number
from course_lib.grading.exercise import Exercise, SentBytes, Trial
from course_lib.grading.judges.numbers import NumberExercise, network_of_rates
from course_lib.grading.on_rank import collectives as on_rank
from course_lib.grading.spent import Spent
from course_lib.pictures.units import human_bytes

A100 = [hardware_link(name).bytes_per_s for name in ("NVLink 3 (A100)", "InfiniBand HDR")]
LEAST, MOST = 1.0, float(1 << 40)  # bytes: where a choice is looked at
TWO_RANKS = "two ranks move the same bytes either way: no beta to pay, so the ring never wins, math.inf"


class Crossover(Exercise):
    """Right is what chooses well: the time lost to the better choice, at the worst size of each link."""

    number = "2.7"
    budget = "on no link, and for no message, more than 1 % slower than the better of the two"
    tolerance = (1e-6, 0.0)
    run = staticmethod(on_rank.numbers)
    errors = (("ZeroDivisionError", TWO_RANKS),)
    ALLOWED = 0.01

    def trials(self, seed: int) -> list[Trial]:
        example = Trial([[[10e-6, 1e-10, 4]]], "the example, 10 us, 10 GB/s, 4 ranks")
        source = random.Random(seed)
        links = [hardware_link(wire.name) for wire in LINKS if wire.technology in STEP_LATENCY]
        known, pairs = ([[link.alpha_s, link.beta_s_per_byte, n] for link in links for n in world_sizes]
                        for world_sizes in ((4, 8, 64, 1024), (2,)))
        drawn = [[10 ** source.uniform(-6, -3), 10 ** source.uniform(-12, -8), 2 ** source.randint(2, 14)]
                 for _ in range(200)]
        return [example, Trial([known], f"{len(known)} links and worlds of course_lib.facts"),
                Trial([drawn], "200 random ones"), Trial([pairs], f"two ranks, {len(pairs)} links")]

    def wrong(self, trial: Trial, answers: list[Any]) -> str | None:
        (given,), (cases,) = answers, trial.inputs
        if type(given) is not list or len(given) != len(cases):
            return f"it returned {describe(given)}: expected a number of bytes for each of the {len(cases)} cases"
        if bad := [value for value in given if not is_number(value) or math.isnan(value)]:
            return f"it returned {describe(bad[0])}: expected a number of bytes"
        loss, (alpha, beta, n), value = max((lost_share(case, value), case, value) for case, value in zip(cases, given))
        if loss <= self.ALLOWED:
            return None
        at = human_bytes(value) if math.isfinite(value) else "no size"
        why = TWO_RANKS if n == 2 else "which of the two times is too short?"
        return (f"alpha {1e6 * alpha:.3g} us, 1/beta {1 / beta / 1e9:.3g} GB/s, {n} ranks: who changes at {at} takes "
                f"up to {100 * loss:.3g} % longer than the better choice: {why}")

    def usage(self, trial: Trial, answers: list[Any], traffic: SentBytes) -> list[Spent]:
        worst = max(lost_share(case, value) for case, value in zip(trial.inputs[0], answers[0]))
        return [Spent("takes", worst, self.ALLOWED, "share", on=" longer than the better choice, at worst")]


def lost_share(case: Sequence[Any], crossover: float) -> float:
    """The share of time lost, at the worst size, by whoever takes doubling below `crossover` bytes and the ring above.

    case: alpha_s, beta_s_per_byte, n. Between the right crossover and the chosen one the wrong algorithm runs, worst
    right beside the chosen one.
    """
    alpha_s, beta_s_per_byte, n = case
    M = min(max(crossover, LEAST), MOST)
    doubling, ring = (collective_time("all_reduce", algorithm, M, n, Link(alpha_s, beta_s_per_byte))
                      for algorithm in ("recursive_doubling", "ring"))
    taken = [doubling] * (crossover > LEAST) + [ring] * (crossover < MOST)  # just below M, and just above
    return max(taken) / min(doubling, ring) - 1


class LargestModel(NumberExercise):
    """An all-reduce in rings: over NVLink in a node, over all cards of whole nodes (costs.network)."""

    number = "2.8"
    unit = "parameter"
    tolerance = (0.02, 0.0)
    budget = "a number of parameters, to 2 %"
    cases = (("the example, 3 nodes of 2", (3, 2, 10.0, 4.0, 1.0)),
             ("64 nodes of 8 A100, one second", (64, 8, 1.0, *A100)),
             ("2 nodes of 8 A100, one second", (2, 8, 1.0, *A100)),
             ("one node of 8 A100, one second", (1, 8, 1.0, *A100)),
             ("16 nodes of one A100, 2 seconds", (16, 1, 2.0, *A100)),
             ("4 nodes of 8 devices on PCIe 4.0, half a second", (4, 8, 0.5, 31.5e9, 25e9)))

    def solve(self, num_nodes: int, g: int, seconds: float, nvlink: float, card: float) -> float:
        gradient_bytes = 2
        wires = network_of_rates(g, nvlink, card)
        return seconds / wires.group(num_nodes * g).all_reduces_s(1.0)["ring"] / gradient_bytes

    def draw(self, source: random.Random) -> tuple[str, tuple[Any, ...]]:
        k, g, seconds = source.randint(3, 9), 2 ** source.randint(1, 2), source.randint(20, 60) / 10
        nvlink, card = source.randint(100, 900) * 1e9, source.randint(10, 60) * 1e9
        return (f"{k} nodes of {g}, {seconds:g} s, {nvlink / 1e9:g} and {card / 1e9:g} GB/s",
                (k, g, seconds, nvlink, card))
