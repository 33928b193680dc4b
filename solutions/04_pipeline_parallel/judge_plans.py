"""Exercises 4.1 and 4.8: which layers go together; how many stages and micro-batches, where memory is short.

    N  devices    S  sequences of a batch    p  stages    m  micro-batches of a replica    b  sequences of a micro-batch
    M  bytes of weights, gradients and the optimiser's state    A  bytes of activations of a sequence in all layers
    C  bytes that a device has    k  sequences that take as long as what a micro-batch costs beside its own sequences

Exercises 4.2, 4.4, 4.6 and 4.7: what a rank does, in which order. A reader's lists are one schedule for all ranks,
which the chapter's validate and simulate judge: by idle time and memory, so that any order that is as good passes.

    p  ranks, r this one      m  micro-batches      g  micro-batches of a round
    v  chunks of a rank, its stages r, p + r, 2p + r ...: "F3.1" is micro-batch 3 on its chunk 1, "F3" on its chunk 0
"""

import random
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, ClassVar

from course_lib.costs.scaling import peak_1f1b
from course_lib.grading.compare import describe, is_list_of
from course_lib.grading.exercise import Exercise, SentBytes, Trial, ranks_of, trials_of
from course_lib.grading.spent import Spent, most
from course_lib.pipeline_parallel import Action, Schedule, findings, interleaved_1f1b, one_f_one_b, simulate, zb_h1
from course_lib.pipeline_parallel.schedules import one_stage_each
from course_lib.pipeline_parallel.stages import balanced_cuts

from . import on_rank


class PlanExercise(Exercise):
    """The answer is a plan, judged by what comes of it: any plan that is as good as the best passes."""

    run = staticmethod(on_rank.counts_or_actions)
    is_plan = True


class Partition(PlanExercise):
    number = "4.1"
    right = "the cut is possible"
    budget = "the most expensive stage as cheap as any cut of the chain allows"
    # The example; one that cuts near equal shares, least squares and moving single cuts all miss; and others.
    cases = (
        ([1, 4, 4, 4, 4, 7], 3),
        ([9, 4, 1, 4, 9, 9, 4, 7], 3),
        ([1, 2, 6, 3, 5, 7], 3),
        ([2, 2, 2, 2, 2, 2, 10], 4),
        ([5, 1, 1, 1, 1, 1], 2),
        ([3, 3, 3], 3),
        ([8], 1))  # costs of the layers, stages

    def trials(self, seed: int) -> list[Trial]:
        source = random.Random(seed)
        drawn = [source.randint(1, 30) for _ in range(14)], 4
        return trials_of((*self.cases, drawn), lambda costs, n: f"{len(costs)} layers, {n} stage{'s' * (n > 1)}")

    def wrong(self, trial: Trial, answers: list[Any]) -> str | None:
        (costs, n), (given,) = trial.inputs[0], answers
        if not is_list_of(given, int):
            return f"it returned {describe(given)}: expected a list of {n} numbers of layers"
        if len(given) != n:
            ends = ": the last one ends with the last layer" if len(given) == n - 1 else ""
            return f"there are {len(given)} stages, expected {n}{ends}"
        if min(given) < 1:
            return f"stage {given.index(min(given))} has {min(given)} layers: every stage needs at least one"
        if sum(given) != len(costs):
            return f"the stages have {sum(given)} layers together, and the model has {len(costs)}"
        return None

    def usage(self, trial: Trial, answers: list[Any], traffic: SentBytes) -> list[Spent]:
        (costs, n), (given,) = trial.inputs[0], answers
        starts = [sum(given[:stage]) for stage in range(n)]
        return [Spent("the most expensive stage costs", slowest(costs, starts), slowest(costs, balanced_cuts(costs, n)),
                      unit="", who=f"with {given}")]


def slowest(costs: Sequence[int], starts: Sequence[int]) -> int:
    """What the most expensive stage costs if the stages begin at the layers `starts`."""
    return max(sum(costs[start:end]) for start, end in pairwise([*starts, len(costs)]))


class Layout(PlanExercise):
    number = "4.8"
    right = "every device and sequence has its place"
    budget = "no device holds more than it has, and no other layout that fits takes a shorter step"
    # N, S, M, A, C, k; bytes in GB. After the example: fewer micro-batches than stages; one turn too many; one too few,
    # and all devices, an odd number, in one pipeline; GiB. Then a model of 7B in mixed precision, 16 bytes for each
    # parameter, on devices of 80 GB; others; and few GB, less than stages or micro-batches, with an m
    # that divides the batch and no replica's part of it.
    cases = (
        (4, 4, 30, 8, 80, 1),
        (8, 8, 40, 12, 40, 2),
        (4, 4, 40, 1, 80, 3),
        (9, 18, 61, 5, 30, 2),
        (16, 64, 40, 8, 40, 4),
        (64, 512, 112, 8, 80, 2),
        (16, 256, 112, 4, 80, 6),
        (16, 64, 320, 6, 40, 4),
        (8, 64, 40, 30, 80, 1),
        (12, 24, 3, 0.125, 0.8, 1))

    def trials(self, seed: int) -> list[Trial]:
        source = random.Random(seed)
        N = 2 ** source.randint(3, 6)
        drawn = N, 8 * N, source.randint(100, 300), source.randint(3, 20), 60, source.randint(1, 4)
        return trials_of((*self.cases, drawn), "{0} devices of {4} GB, {1} sequences of {3} GB, {2} GB of state".format)

    def wrong(self, trial: Trial, answers: list[Any]) -> str | None:
        (N, S, *_), (given,) = trial.inputs[0], answers
        if not is_list_of(given, int, length=2):
            return f"it returned {describe(given)}: expected two whole numbers, p and m"
        p, m = given
        if p < 1 or N % p:
            return f"it returned p = {p}: expected a divisor of {N}, or some devices have nothing to do"
        if m < 1 or S * p // N % m:
            whole = f"\nm is counted for a replica, and there are {N // p} of them" if m >= 1 and S % m == 0 else ""
            return (f"it returned m = {m}: with {p} stages a replica has {S * p // N} sequences, expected a divisor of "
                    f"that{whole}")
        return None

    def usage(self, trial: Trial, answers: list[Any], traffic: SentBytes) -> list[Spent]:
        asked, (p, m) = trial.inputs[0], answers[0]
        who, (best, _, _) = f"with {p} stages and {m} micro-batches", min(fitting(*asked))
        return [Spent("the first rank holds", held_gb(p, m, *asked), asked[4], "", " GB", who=who, decides=True),
                Spent("a step takes", step(p, m, *asked), best, "", " sequences' time", who=who, limit="par {}",
                      slack=1e-9)]


def held_gb(p: int, m: int, N: int, S: int, M: float, A: float, C: float, k: float) -> float:
    """GB that the first rank holds under 1F1B: its part of the state, and activations of what is in flight."""
    return (M + peak_1f1b(p, m, 0) * S * p / (N * m) * A) / p


def step(p: int, m: int, N: int, S: int, M: float, A: float, C: float, k: float) -> float:
    """How long a step takes, in the time that all layers take for a sequence."""
    return (m + p - 1) * (S * p / (N * m) + k) / p


def fitting(*asked: Any) -> Iterable[tuple[float, int, int]]:
    """(step, p, m) of every layout that deals out devices and sequences evenly and fits."""
    N, S, _, _, C, _ = asked
    return ((step(p, m, *asked), p, m) for p in range(1, N + 1) if N % p == 0 for m in range(1, S * p // N + 1)
            if S * p // N % m == 0 and held_gb(p, m, *asked) <= C)


ACTION = re.compile(r"([FBIW])(-?[0-9]{1,4})(?:\.([0-9]{1,2}))?")


class OrderExercise(PlanExercise):
    """The function gets (rank, num_ranks, num_microbatches, ...) and returns the rank's actions as strings, "F0"."""

    right = "the order can be run"
    par: ClassVar[Callable[..., Schedule]]  # of a size: its idle time and memory may not be exceeded
    kinds: ClassVar[str] = "FB"
    held: ClassVar[str] = "micro-batch"  # what is counted in flight
    # p, m, and what else is asked: the docstring's example first
    sizes: ClassVar[tuple[tuple[int, ...], ...]] = ((2, 3), (3, 7), (4, 8), (3, 3), (4, 2), (2, 5))
    label: ClassVar[str] = "{}, {} micro-batches"

    def allowed_in_flight(self, par: Schedule) -> Sequence[int]:
        """The micro-batches, or chunks of them, that each rank may hold at a time."""
        return simulate(par).peak_in_flight

    def trials(self, seed: int) -> list[Trial]:
        source = random.Random(seed)
        p, m, *more = source.choice(self.sizes[1:])
        drawn = p, m + p * source.randint(1, 9), *more
        return [Trial([[r, p, *more] for r in range(p)],
                      "the example, " * (number == 0) + self.label.format(ranks_of(p), *more))
                for number, (p, *more) in enumerate((*self.sizes, drawn))]

    def wrong(self, trial: Trial, answers: list[Any]) -> str | None:
        par = self.par(*trial.inputs[0][1:])
        v = len(par.stages[0])
        unreadable = [words for r, answer in enumerate(answers) if (words := self.unreadable(answer, r, v))]
        return unreadable[0] if unreadable else next(map(str, findings(schedule_of(answers, par))), None)

    def opening(self, trial: Trial, answers: list[Any]) -> str:
        return f"{self.wrong(trial, answers)}\n"

    def unreadable(self, answer: Any, r: int, v: int) -> str | None:
        """Why this is no list of actions on v chunks."""
        if not is_list_of(answer, str):
            return f"rank {r} returned {describe(answer)}: expected a list of strings such as \"F0\""
        if len(answer) > on_rank.MOST:
            return f"rank {r} returned more than {on_rank.MOST} actions"
        kinds = " or ".join(f'"{kind}0"' for kind in self.kinds)
        chunks = f', chunk {v - 1} as "F0.{v - 1}"' if v > 1 else ""
        for action in answer:
            read = ACTION.fullmatch(action)
            if not read or read[1] not in self.kinds or int(read[3] or 0) >= v:
                return f"rank {r} returned {action[:20]!r} among its actions: expected {kinds} and so on{chunks}"
        return None

    def usage(self, trial: Trial, answers: list[Any], traffic: SentBytes) -> list[Spent]:
        par = self.par(*trial.inputs[0][1:])
        given, allowed = simulate(schedule_of(answers, par)), self.allowed_in_flight(par)
        rank = most(given.peak_in_flight, allowed)
        return [Spent("has", given.peak_in_flight[rank], allowed[rank], self.held, rank=rank, on=" in flight"),
                Spent("idle", given.bubble_fraction, simulate(par).bubble_fraction, "share",
                      who="all ranks together are", limit="par {}", slack=1e-9)]


def schedule_of(orders: list[list[str]], par: Schedule) -> Schedule:
    """The schedule of the orders that all ranks returned, on the stages of `par`. The lists must be readable."""
    parts = ([ACTION.fullmatch(action).groups(default="0") for action in order] for order in orders)
    read = tuple(tuple(Action(kind, int(i), int(chunk)) for kind, i, chunk in order) for order in parts)
    return replace(par, name="yours", actions=read)


class RoundsOrder(OrderExercise):
    number = "4.2"
    sizes = ((2, 3, 2), (5, 8, 3), (3, 6, 3), (4, 2, 4), (2, 5, 1))
    label = "{}, {} micro-batches, {} at a time"
    budget = "k(p-1)/(m+k(p-1)) idle in k = ceil(m/g) rounds; no rank holds more than g micro-batches"

    def par(self, p: int, m: int, g: int) -> Schedule:
        """The last round may be smaller: `one_stage_each` leaves out what is beyond m."""
        order = [Action(kind, i) for start in range(0, m, g) for kind in "FB" for i in range(start, start + g)]
        return one_stage_each("rounds", p, m, lambda r: order)


class OneFOneBOrder(OrderExercise):
    number = "4.4"
    budget = "(p-1)/(m+p-1) idle as in GPipe; rank r holds min(p-r, m) micro-batches at a time"
    par = staticmethod(one_f_one_b)


class ParSchedule(OrderExercise):
    number = "4.6"
    kinds = "FBIW"
    sizes = ((1, 2), (3, 6), (4, 8), (4, 12), (2, 4))
    budget = "(p-1)/(3m+p-1) idle where F, I and W take equally long; at most p micro-batches in flight on any rank"
    par = staticmethod(zb_h1)

    def allowed_in_flight(self, par: Schedule) -> Sequence[int]:
        return [par.num_ranks] * par.num_ranks


class InterleavedOrder(OrderExercise):
    number = "4.7"
    held = "chunk"
    sizes = ((2, 2, 2), (3, 6, 3), (4, 8, 2), (2, 6, 3), (3, 3, 2), (4, 8, 1))  # m is a multiple of p
    label = "{}, {} micro-batches, chunks per rank: {}"
    budget = "(p-1)/(vm+p-1) idle; rank r holds at most vp - r chunks of activations at a time"
    par = staticmethod(interleaved_1f1b)

    def allowed_in_flight(self, par: Schedule) -> Sequence[int]:
        """Less than par has: the papers' head start gives messages time on their way, and here they need none."""
        return [par.num_stages - r for r in range(par.num_ranks)]
