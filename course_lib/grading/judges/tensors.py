"""Exercises whose answer is one tensor a rank, made by messages that are counted."""

from abc import abstractmethod
from typing import Any, ClassVar

import torch
from torch import Tensor

from course_lib.grading.compare import alike, part
from course_lib.grading.exercise import Exercise, SentBytes, Trial
from course_lib.grading.judges.calls import too_little
from course_lib.grading.on_rank import plain
from course_lib.grading.spent import Spent, most

AS_IT_WAS = ("every rank's tensor is as it was: an assignment `tensor = ...` only moves the name, "
             "write into the tensor itself, as tensor.copy_ and tensor += do")
RETURNED_ONLY = "the result is returned, but the tensor is as it was: write the result into it, as tensor.copy_ does"
NOT_RETURNED = "the result is in the input, and not returned: end with `return`"


class TensorExercise(Exercise):
    """The function gets the inputs of its rank as arguments, the first one a tensor, and makes a tensor of it."""

    in_place: ClassVar[bool] = False  # the answer is the first argument afterwards, not what is returned
    spent_on: ClassVar[str] = ""  # words after "sent ..."
    operations = frozenset({"send", "recv"})
    run = staticmethod(plain.tensor)

    @abstractmethod
    def bound(self, trial: Trial) -> int:
        """The most bytes that a rank may send."""

    def least(self, trial: Trial) -> int:
        """What all ranks have to send together, whatever they do: fewer bytes cannot carry the answer."""
        return 0

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
        together, least = sum(self.sent_bytes(trial, traffic)), self.least(trial)
        return too_little(together, least, traffic)

    def usage(self, trial: Trial, answers: list[Any], traffic: SentBytes) -> list[Spent]:
        each, bound = self.sent_bytes(trial, traffic), self.bound(trial)
        messages = [found if type(found := part(answer, "messages")) is int else 0 for answer in answers]
        sender, rank, allowed = most(messages), most(each), self.most_messages(trial)
        in_messages = Spent("sent", messages[sender], allowed, "message", rank=sender, claimed=True)
        return [
            *([in_messages] if allowed else []),
            Spent(
                "sent",
                each[rank],
                bound,
                on=self.spent_on,
                rank=rank,
                slack=traffic.slack(bound),
                note=traffic.note(),
                claimed=traffic.exact,
            ),
        ]


def whole_numbers(generator: torch.Generator, *shape: int) -> Tensor:
    """Random whole numbers as float32: sums of a few are exact, whatever the order."""
    return torch.randint(-1000, 1001, shape, generator=generator).float()
