"""Kinds of exercises, which measure what most need: a number, a tensor made by messages, calls of collectives.

A rank counts its own calls of torch.distributed, by the ring convention for bytes. Where the operating system counts
too, a rank that keeps silent about its calls gains nothing, and what is shown is what the system counted.
"""

import math
import random
from abc import abstractmethod
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, ClassVar

import torch
from torch import Tensor

from course_lib.costs.links import Link
from course_lib.costs.network import Network
from course_lib.grading import on_rank
from course_lib.grading.compare import EXACT, alike, describe, is_number, part, unlike
from course_lib.grading.exercise import Exercise, SentBytes, Trial
from course_lib.grading.spent import Spent, highest, quantities, quantity
from course_lib.pictures.units import human_bytes

HEADERS = 32 * 1024  # bytes: gloo's own, of all the calls of a trial together


class SendingExercise(Exercise):
    """The ranks send bytes to one another, for which there is a budget, and a floor."""

    @abstractmethod
    def bound(self, trial: Trial) -> int:
        """The most bytes that a rank may send, of collectives by the ring convention."""

    def least(self, trial: Trial) -> int:
        """What all ranks have to send together, whatever they do: fewer bytes cannot carry the answer.

        Here what the budget allows, which fits where there is no way to send less.
        """
        return trial.world_size * self.bound(trial)


class CollectiveExercise(SendingExercise):
    """A rank answers a dict in which `calls` is what on_rank.count_calls counted."""

    imports = ("torch._dynamo",)  # backward from a given gradient, a functional collective and DDP's constructor do
    gloo_over_ring: ClassVar[float] = 1.0  # the most that gloo really sends for a byte of the ring's count
    besides: ClassVar[str] = "headers and gloo's own algorithm"  # in the operating system's count
    errors = (("NoneType", "a parameter without a gradient, here the frozen one, has .grad None: leave it out"),)

    def beforehand(self, trial: Trial) -> int:
        """Bytes that a rank sends before the reader's function is called."""
        return 0

    def local_usage(self, trial: Trial, answers: list[Any]) -> Sequence[Spent]:
        """What a rank used that is not bytes sent, where there are budgets for it: calls made, bytes held, FLOPs."""
        return ()

    def flaw(self, trial: Trial, answers: list[Any], traffic: SentBytes) -> str | None:
        together = round(sum(sent for answer in answers for _, _, sent in answer["calls"])) if traffic.exact else (
            sum(map(traffic.sent_by, range(trial.world_size))))
        return too_little(together, self.least(trial), traffic)

    def usage(self, trial: Trial, answers: list[Any], traffic: SentBytes) -> list[Spent]:
        each = [sent_by(rank, answers, traffic, self.gloo_over_ring, self.beforehand(trial))
                for rank in range(trial.world_size)]
        bound = self.bound(trial)
        spent = [*self.local_usage(trial, answers), highest("sent", each, bound, claimed=True)]
        if not traffic.exact:
            outside = [traffic.sent_by(rank) for rank in range(trial.world_size)]
            spent.append(highest("sent", outside, bound, slack=math.inf, note=traffic.note(self.besides)))
        return spent


def too_little(together: int, least: int, traffic: SentBytes) -> str | None:
    """What is wrong where all ranks together sent less than can carry the answer."""
    if together >= least - traffic.slack(least):
        return None
    return (f"the ranks sent {human_bytes(together)} together, where {human_bytes(least)} is the least that can carry "
            "it: what another rank needs has to be sent to it, at the time when it needs it")


def num_calls(answers: Sequence[dict[str, Any]], allowed: int) -> Spent:
    """The calls of the rank that made most, beside how many are allowed."""
    return Spent("took", max(len(answer["calls"]) for answer in answers), allowed, "call", claimed=True)


def sent_by(rank: int, answers: Sequence[dict[str, Any]], traffic: SentBytes, gloo_over_ring: float = 1.0,
            beforehand: int = 0) -> int:
    """Bytes that `rank` sent, collectives by the ring convention: as it says, unless the system's count denies it.

    All above HEADERS and `beforehand`, what the trial itself sent, is taken for what the function sent.
    """
    # The ring's count is the same on every machine, the system's is not: that one decides only where a rank cannot
    # have said the truth.
    own = round(sum(sent for _, _, sent in answers[rank]["calls"]))
    outside = 0 if traffic.exact else traffic.sent_by(rank) - beforehand
    return outside if outside > gloo_over_ring * own + HEADERS + traffic.slack(own) else own


AS_IT_WAS = ("every rank's tensor is as it was: an assignment `tensor = ...` only moves the name, and "
             "tensor.data = ... the memory under it; write into the tensor itself, as tensor.copy_ and tensor += do")
RETURNED_ONLY = "the result is returned, but the tensor is as it was: write the result into it, as tensor.copy_ does"
NOT_RETURNED = "the result is in the input, and not returned: end with `return`"


class TensorExercise(SendingExercise):
    """The function gets the inputs of its rank as arguments, the first one a tensor, and makes a tensor of it."""

    in_place: ClassVar[bool] = False  # the answer is the first argument afterwards, not what is returned
    spent_on: ClassVar[str] = ""  # words after "sent ..."
    operations = frozenset({"send", "recv"})
    run = staticmethod(on_rank.tensor)

    def most_messages(self, trial: Trial) -> int:
        """How many messages a rank may send."""
        return 0

    def sent_bytes(self, trial: Trial, traffic: SentBytes) -> list[int]:
        """The bytes of each rank that the budget is about, here all that it sent."""
        return [traffic.sent_by(rank) for rank in range(trial.world_size)]

    @property
    def compared(self) -> str:
        return "tensor" if self.in_place else "returned"

    @property
    def words(self) -> str:
        return "holds" if self.in_place else "returned"

    def wrong(self, trial: Trial, answers: list[Any]) -> str | None:
        wrong = super().wrong(trial, answers)
        if wrong is None:
            return None
        elsewhere = [part(answer, "returned" if self.in_place else "tensor") for answer in answers]
        if alike(elsewhere, self.solve(trial.inputs)):
            return RETURNED_ONLY if self.in_place else NOT_RETURNED
        untouched = alike(self.select_parts(answers), [tensor for tensor, *_ in trial.inputs])
        return AS_IT_WAS if self.in_place and trial.world_size > 1 and untouched else wrong

    def flaw(self, trial: Trial, answers: list[Any], traffic: SentBytes) -> str | None:
        return too_little(sum(self.sent_bytes(trial, traffic)), self.least(trial), traffic)

    def usage(self, trial: Trial, answers: list[Any], traffic: SentBytes) -> list[Spent]:
        bound, allowed = self.bound(trial), self.most_messages(trial)
        in_messages = highest("sent", counts_of(answers, "messages"), allowed, "message", claimed=True)
        in_bytes = highest("sent", self.sent_bytes(trial, traffic), bound, on=self.spent_on,
                           slack=traffic.slack(bound), note=traffic.note(), claimed=traffic.exact)
        return [in_messages, in_bytes] if allowed else [in_bytes]


def counts_of(answers: list[Any], name: str) -> list[int]:
    """What each rank counted itself, 0 where it says something else."""
    return [found if type(found := part(answer, name)) is int else 0 for answer in answers]


def whole_numbers(generator: torch.Generator, *shape: int) -> Tensor:
    """Random whole numbers as float32: sums of a few are exact, whatever the order."""
    return torch.randint(-1000, 1001, shape, generator=generator).float()


@lru_cache(maxsize=64)
def network_of_rates(per_node: int, inside: float, card: float) -> Network:
    """Nodes in which each device has a card of its own; bytes/s of a device inside, and of a card. No latency."""
    return Network(per_node, Link.of_rate(inside), Link.of_rate(card), per_node)


class NumberExercise(Exercise):
    """The function gets the arguments of the trial and returns a number, as `solve` does.

    Where that is a whole number, only this one is right; a float is, within `tolerance`.
    """

    unit: ClassVar[str] = ""
    cases: ClassVar[tuple[tuple[str, tuple[Any, ...]], ...]]  # what is asked about, arguments; the most telling first
    tolerance = (1e-6, 1e-12)  # the order of the operations does not matter, a factor does
    run = staticmethod(on_rank.number)

    @abstractmethod
    def draw(self, source: random.Random) -> tuple[str, tuple[Any, ...]]:
        """One more case, at random: published answers could be looked up."""

    def trials(self, seed: int) -> list[Trial]:
        cases = (*self.cases, self.draw(random.Random(seed)))
        return [Trial([list(arguments)], label) for label, arguments in cases]

    def arguments(self, trial: Trial) -> Sequence[Any]:
        return trial.inputs[0]

    def select_parts(self, answers: list[Any]) -> Any:
        return part(answers[0], "value") if len(answers) == 1 else None

    def wrong(self, trial: Trial, answers: list[Any]) -> str | None:
        given, right = self.select_parts(answers), self.solve(*self.arguments(trial))
        if alike(given, right, EXACT if type(right) is int else self.tolerance):
            return None
        if not is_number(given):
            return f"it returned {describe(given)}: expected a number, {quantity(right, self.unit)}"
        times = f"{given / right:.6g}" if right and math.isfinite(given) else ""
        times = unlike(given / right, 1.0)[0] if times == "1" else times
        return self.opening(trial, answers).removesuffix(": ") + f", {times} times as much" * bool(times)

    def opening(self, trial: Trial, answers: list[Any]) -> str:
        given, right = self.select_parts(answers), self.solve(*self.arguments(trial))
        if not is_number(given):
            return ""
        return "it returned {}, expected {}: ".format(*quantities(given, right, self.unit, short=False))

    def usage(self, trial: Trial, answers: list[Any], traffic: SentBytes) -> list[Spent]:
        return [Spent("returned", self.select_parts(answers), self.solve(*self.arguments(trial)), self.unit,
                      limit="expected {}", slack=math.inf)]
