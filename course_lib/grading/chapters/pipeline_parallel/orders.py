"""Exercises 4.2, 4.4 and 4.6: what a rank does, in which order. A reader's lists are one schedule for all ranks, which
the chapter's validate and simulate judge: by idle time and memory, so that any order that is as good passes.

    p  ranks, r this one      m  micro-batches      g  micro-batches of a round      v  chunks a rank
"""

import random
import re
from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from course_lib.grading.compare import describe
from course_lib.grading.exercise import Exercise, Traffic, Trial
from course_lib.grading.spent import Spent, most

if TYPE_CHECKING:
    from course_lib.pipeline_parallel import Schedule, Simulation

ACTION = re.compile(r"([FBIW])(-?[0-9]{1,4})(?:\.([0-9]{1,2}))?")
MOST = 4000  # actions of a rank: more are no schedule
Orders = list[list[str]]  # for each rank


class OrderExercise(Exercise):
    """The function gets (rank, num_ranks, num_microbatches, ...) and returns the rank's actions as strings, "F0"."""

    right = "the order can be run"
    kinds: ClassVar[str] = "FB"
    held: ClassVar[str] = "micro-batch"  # what is counted in flight
    sizes: ClassVar[tuple[tuple[int, ...], ...]] = ((4, 8), (3, 3), (4, 2), (2, 5))  # ranks, micro-batches, what else

    @abstractmethod
    def par(self, p: int, m: int, *more: int) -> "Schedule":
        """A schedule whose idle time and memory may not be exceeded."""

    @abstractmethod
    def mistakes(self, p: int, m: int, *more: int) -> Iterable[tuple[str, Orders]]:
        """Likely mistakes: the cause, and the lists it gives."""

    def draw(self, source: random.Random) -> tuple[int, ...]:
        """One more size, at random."""
        return 4, source.randint(5, 12)

    def label(self, p: int, m: int, *more: int) -> str:
        return f"{p} ranks, {m} micro-batches"

    def num_chunks(self, p: int, m: int, *more: int) -> int:
        """Stages of a rank."""
        return 1

    def trials(self, seed: int) -> list[Trial]:
        return [Trial([[r, *asked] for r in range(asked[0])], self.label(*asked))
                for asked in (*self.sizes, self.draw(random.Random(seed)))]

    @staticmethod
    def run(function: Callable, inputs: list[Any]) -> Any:
        returned = function(*inputs)
        if isinstance(returned, list | tuple) and all(type(action) is str for action in returned):
            return [str(action) for action in returned[:MOST + 1]]
        return "nothing (None)" if returned is None else f"a {type(returned).__name__}" if not isinstance(
            returned, list | tuple) else "a list that holds something else than strings"

    def arguments(self, trial: Trial) -> Sequence[int]:
        return trial.inputs[0][1:]

    def wrong(self, trial: Trial, answers: list[Any]) -> str | None:
        from course_lib.pipeline_parallel import findings

        asked = self.arguments(trial)
        v = self.num_chunks(*asked)
        strange = next((words for r in range(asked[0]) if (words := self.unreadable(answers[r], r, v))), None)
        if strange:
            return strange
        found = findings(schedule_of(answers, asked[1], v))
        cause = self.cause(answers, *asked)
        return None if not found else f"{found[0]}\n{cause}" if cause else str(found[0])

    def unreadable(self, answer: Any, r: int, v: int = 1) -> str | None:
        if type(answer) is not list or not all(type(action) is str for action in answer):
            return f"rank {r} returned {describe(answer)}: expected a list of strings such as \"F0\""
        if len(answer) > MOST:
            return f"rank {r} returned more than {MOST} actions"
        odd = next((action for action in answer if not (read := ACTION.fullmatch(action)) or read[1] not in self.kinds
                    or int(read[3] or 0) >= v), None)
        kinds = " or ".join(f'"{kind}0"' for kind in self.kinds)
        chunks = f', chunk {v - 1} as "F0.{v - 1}"' if v > 1 else ""
        return None if odd is None else (f"rank {r} returned {odd[:20]!r} among its actions: expected {kinds} and so on"
                                         + chunks)

    def spent(self, trial: Trial, answers: list[Any], traffic: Traffic) -> list[Spent]:
        from course_lib.pipeline_parallel import simulate

        asked = self.arguments(trial)
        given, par = simulate(schedule_of(answers, asked[1], self.num_chunks(*asked))), simulate(self.par(*asked))
        allowed, why = self.allowed_in_flight(par), self.cause(answers, *asked) or ""
        rank = most(given.peak_in_flight, allowed)
        return [Spent("has", given.peak_in_flight[rank], allowed[rank], self.held, rank=rank, on=" in flight", why=why),
                Spent("idle", given.bubble_fraction, par.bubble_fraction, "share", who="all ranks together are",
                      why=why, limit="par {}", slack=1e-9)]

    def allowed_in_flight(self, par: "Simulation") -> Sequence[int]:
        """The micro-batches, or chunks of them, that each rank may hold at a time."""
        return par.peak_in_flight


def schedule_of(orders: Orders, m: int, v: int = 1) -> "Schedule":
    """The lists of all ranks as a Schedule, v stages a rank, dealt out in turn. They must be readable."""
    from course_lib.pipeline_parallel import Action, Schedule

    p = len(orders)
    parts = ([ACTION.fullmatch(action).groups(default="0") for action in order] for order in orders)
    read = tuple(tuple(Action(kind, int(i), int(chunk)) for kind, i, chunk in order) for order in parts)
    return Schedule("yours", m, tuple(tuple(range(r, v * p, p)) for r in range(p)), read)


def each(kind: str, numbers: Iterable[int]) -> list[str]:
    return [f"{kind}{number}" for number in numbers]


def in_rounds(m: int, g: int) -> list[str]:
    """g micro-batches forward, the same g back, then the next g."""
    return [action for start in range(0, m, g) for kind in "FB"
            for action in each(kind, range(start, min(start + g, m)))]


class RoundsOrder(OrderExercise):
    number = "4.2"
    function = "my_rounds"
    points = 2
    sizes = ((4, 8, 3), (3, 6, 3), (4, 2, 4), (2, 5, 1))
    budget = "k(p-1)/(m+k(p-1)) idle in k = ceil(m/g) rounds; no rank holds more than g micro-batches"
    hints = (
        "Within a round nobody may wait for a gradient as long as there is a micro-batch to send forward. Does the "
        "rank matter? And where does a round end that is not full?",
        "A round begins at 0, g, 2g ... and has the micro-batches from there on, up to g of them and never beyond m: "
        "first all of them forward, then the same ones back. Every rank does the same.",
        "order = []\n"
        "for start in range(0, num_microbatches, num_in_flight):\n"
        "    some = ...  # at most num_in_flight numbers, and the last one is below num_microbatches\n"
        "    order += [f\"F{i}\" for i in some] + ...\n"
        "return order",
    )

    def draw(self, source: random.Random) -> tuple[int, ...]:
        return 4, source.randint(5, 12), 3

    def label(self, p: int, m: int, g: int) -> str:
        return f"{p} ranks, {m} micro-batches, {g} at a time"

    def par(self, p: int, m: int, g: int) -> "Schedule":
        return schedule_of([in_rounds(m, g)] * p, m)

    def mistakes(self, p: int, m: int, g: int) -> Iterable[tuple[str, Orders]]:
        yield ("this is the naive pipeline: each micro-batch comes back before the next one starts, and one rank works "
               "at a time", [in_rounds(m, 1)] * p)
        yield ("this is one round of all micro-batches: the next round starts when the g before have come back",
               [in_rounds(m, m)] * p)
        yield ("a round has as many micro-batches as there are ranks: num_in_flight is asked", [in_rounds(m, p)] * p)
        yield ("num_in_flight is how many micro-batches a round has, not how many rounds there are",
               [in_rounds(m, max(1, m // g))] * p)
        yield ("the last round is missing: it is not full, and has to be done as well",
               [in_rounds(m // g * g, g)] * p)
        yield ("the last round goes on beyond the last micro-batch: it may have less than num_in_flight",
               [in_rounds(-(-m // g) * g, g)] * p)
        yield ("every micro-batch passes every rank: they are not dealt out to the ranks",
               [each("F", range(r, m, p)) + each("B", range(r, m, p)) for r in range(p)])


def one_f_one_b_orders(p: int, m: int, ahead: Callable[[int], int]) -> Orders:
    """1F1B where rank r does ahead(r) forwards before the turns begin."""
    orders = []
    for r in range(p):
        warmup = min(ahead(r), m)
        turns = [action for i in range(m - warmup) for action in (f"F{warmup + i}", f"B{i}")]
        orders.append([*each("F", range(warmup)), *turns, *each("B", range(m - warmup, m))])
    return orders


class OneFOneBOrder(OrderExercise):
    number = "4.4"
    function = "my_one_f_one_b"
    points = 3
    budget = "(p-1)/(m+p-1) idle as in GPipe; rank r holds min(p-r, m) micro-batches at a time"
    hints = (
        "The last rank can send a gradient back at once: F0 B0 F1 B1. How many more may the rank before it have on "
        "their way until the first gradient comes back? And what is left to do when there are no forwards any more?",
        "Three parts: some forwards as a head start, one fewer on each later rank, none on the last, and never more "
        "than there are micro-batches; then F and B in turns until the forwards are used up; then the backwards that "
        "are left.",
        "ahead = min(..., num_microbatches)\n"
        "order = [f\"F{i}\" for i in range(ahead)]\n"
        "for i in range(num_microbatches - ahead):\n"
        "    order += [f\"F{...}\", f\"B{i}\"]\n"
        "return order + ...  # as many backwards as the head start had forwards",
    )

    def par(self, p: int, m: int) -> "Schedule":
        from course_lib.pipeline_parallel import one_f_one_b

        return one_f_one_b(p, m)

    def mistakes(self, p: int, m: int) -> Iterable[tuple[str, Orders]]:
        yield ("one forward too many comes before the first backward: the turns begin with a forward, so p - 1 - r "
               "come before them", one_f_one_b_orders(p, m, lambda r: p - r))
        yield ("all ranks get the head start of the first: the later a rank is, the sooner its first gradient comes",
               one_f_one_b_orders(p, m, lambda r: p - 1))
        yield ("the head start is turned around: the first rank waits longest for a gradient, so it is the one that "
               "sends most forwards ahead", one_f_one_b_orders(p, m, lambda r: r))
        yield ("no rank has a head start: this is the naive pipeline", one_f_one_b_orders(p, m, lambda r: 0))
        yield ("this is GPipe, which keeps every micro-batch until the last one has come down",
               [each("F", range(m)) + each("B", range(m))] * p)
        yield ("when the forwards are used up, backwards are left: as many as there were forwards before the turns",
               [order[:2 * m - min(p - 1 - r, m)] for r, order in
                enumerate(one_f_one_b_orders(p, m, lambda r: p - 1 - r))])


class ParSchedule(OrderExercise):
    number = "4.6"
    function = "my_schedule"
    points = 4
    kinds = "FBIW"
    sizes = ((4, 8), (4, 12), (3, 6), (2, 4))
    budget = "(p-1)/(3m+p-1) idle where F, I and W take equally long; at most p micro-batches in flight on any rank"
    hints = (
        "Begin with your 1F1B and split each B. The stage before waits for I and nobody for W. Where are the gaps of "
        "1F1B, and on which ranks is there memory left, so that W may wait until then?",
        "1F1B leaves room for r more micro-batches on rank r. So let there be up to r of them whose W waits: the first "
        "rank does each W at once, the last one lets p - 1 wait. What still waits after the last I fills the gap at "
        "the end.",
        "order = ...  # the head start of 1F1B\n"
        "for i in range(num_microbatches):\n"
        "    ...  # the next F, where one is left\n"
        "    order += [f\"I{i}\"]\n"
        "    ...  # the oldest W that waits, once rank of them do\n"
        "return order + ...  # those that still wait",
    )

    def par(self, p: int, m: int) -> "Schedule":
        from course_lib.pipeline_parallel import zb_h1

        return zb_h1(p, m)

    def allowed_in_flight(self, par: "Simulation") -> Sequence[int]:
        return [par.schedule.num_ranks] * par.schedule.num_ranks

    def mistakes(self, p: int, m: int) -> Iterable[tuple[str, Orders]]:
        plain = one_f_one_b_orders(p, m, lambda r: p - 1 - r)
        yield ("this is 1F1B, whose backward is whole: split it, so that the stage before waits for its half alone",
               plain)
        yield ("each W comes right behind its I, where others wait for this rank: let it wait, r turns on rank r",
               [split(order, 0) for order in plain])
        yield ("all W come at the end, and the activations wait with them: on rank r, r of them may wait",
               [split(order, m) for order in plain])
        yield ("every rank lets as many W wait: the first rank has no memory left for that, the last one most",
               [split(order, p - 1) for order in plain])
        yield ("the ranks are turned around: the first has sent most forwards ahead and has no memory left for a W "
               "that waits, so rank r lets r of them wait",
               [split(order, p - 1 - r) for r, order in enumerate(plain)])


def split(order: Sequence[str], lag: int) -> list[str]:
    """Every B as I, and W `lag` micro-batches later."""
    written, waiting = [], []
    for action in order:
        if action[0] != "B":
            written.append(action)
            continue
        written.append("I" + action[1:])
        waiting.append("W" + action[1:])
        if len(waiting) > lag:
            written.append(waiting.pop(0))
    return written + waiting
