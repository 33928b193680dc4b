"""Exercises that may call torch.distributed's collectives: what is counted are these calls, on each rank.

A rank counts its own calls, by the ring convention for bytes. Where the operating system counts too, a rank that keeps
silent about its calls gains nothing, and what is shown is what the system counted.
"""

import math
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

from course_lib.grading.exercise import Exercise, SentBytes, Trial
from course_lib.grading.spent import Spent, highest
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
    """A rank answers a dict in which `calls` is what on_rank/plain.py counted."""

    imports = ("torch.fx.experimental.symbolic_shapes",)  # backward from a given gradient does
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
