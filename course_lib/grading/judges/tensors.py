"""Exercises whose answer is one tensor a rank, made by messages that are counted."""

from typing import Any, ClassVar

import torch
from torch import Tensor

from course_lib.grading.compare import alike, part
from course_lib.grading.exercise import SentBytes, Trial
from course_lib.grading.judges.calls import SendingExercise, too_little
from course_lib.grading.on_rank import plain
from course_lib.grading.spent import Spent, highest

AS_IT_WAS = ("every rank's tensor is as it was: an assignment `tensor = ...` only moves the name, "
             "write into the tensor itself, as tensor.copy_ and tensor += do")
RETURNED_ONLY = "the result is returned, but the tensor is as it was: write the result into it, as tensor.copy_ does"
NOT_RETURNED = "the result is in the input, and not returned: end with `return`"


class TensorExercise(SendingExercise):
    """The function gets the inputs of its rank as arguments, the first one a tensor, and makes a tensor of it."""

    in_place: ClassVar[bool] = False  # the answer is the first argument afterwards, not what is returned
    spent_on: ClassVar[str] = ""  # words after "sent ..."
    operations = frozenset({"send", "recv"})
    run = staticmethod(plain.tensor)

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
