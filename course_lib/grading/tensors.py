"""Exercises whose answer is one tensor a rank: compare it, name the mistake that gives the same, hold the budget.

A likely mistake is written down as what it makes of the inputs. An answer that equals it was made by it, or by one that
does the same; so the reader hears a cause, and not only that numbers differ.
"""

from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from course_lib.grading.exercise import Exercise, Traffic, Trial

READABLE = {torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.bool}
AS_IT_WAS = ("every rank's tensor is as it was: an assignment `tensor = ...` only moves the name, "
             "write into the tensor itself, as tensor.copy_ and tensor += do")
SMALLEST_BUDGET = 64 * 1024  # bytes; where less is sent, the budget is held but not shown


class TensorExercise(Exercise):
    """The function gets the inputs of its rank as arguments, the first one a tensor, and makes a tensor of it."""

    in_place: ClassVar[bool] = False  # the answer is the first argument afterwards, not what is returned
    spent_on: ClassVar[str] = ""  # words after "sent ..."
    operations = frozenset({"send", "recv"})

    @abstractmethod
    def expected(self, inputs: list[list[Any]]) -> list[Tensor]:
        """The right answers, one a rank."""

    @abstractmethod
    def mistakes(self, inputs: list[list[Any]]) -> Iterable[tuple[str, list[Tensor]]]:
        """Likely mistakes: the cause, and the answers it gives. The most particular first."""

    @abstractmethod
    def bound(self, trial: Trial) -> int:
        """The largest number that `spent` may have."""

    def spent(self, trial: Trial, traffic: Traffic) -> list[int]:
        """What each rank has used of the budget, here the bytes it sent."""
        return [traffic.sent_by(rank) for rank in range(trial.world_size)]

    def least(self, trial: Trial) -> int:
        """What all ranks have to spend together, whatever they do: fewer bytes cannot carry the answer."""
        return 0

    def waste(self, trial: Trial, traffic: Traffic) -> str:
        """Where the bytes above the budget probably went."""
        return ""

    @staticmethod
    def run(function: Callable, inputs: list[Any]) -> dict[str, Any]:
        returned = function(*inputs)
        return {"returned": plain(returned), "tensor": plain(inputs[0])}

    def judge(self, trial: Trial, answers: list[Any], traffic: Traffic) -> str | None:
        key, other = ("tensor", "returned") if self.in_place else ("returned", "tensor")
        given, elsewhere = ([taken(answer, name) for answer in answers] for name in (key, other))
        expected = self.expected(trial.inputs)
        if all_same(given, expected):
            return self.over_budget(trial, traffic)
        if all_same(elsewhere, expected):
            return self._wrong_place()
        if self.in_place and trial.world_size > 1 and all_same(given, [tensor for tensor, *_ in trial.inputs]):
            return f"{trial.label}: {AS_IT_WAS}"
        cause = self.cause(trial.inputs, given) or first_difference(given, expected, self.in_place)
        return f"{trial.label}: {cause}"

    def cause(self, inputs: list[list[Any]], given: list[Any]) -> str | None:
        """The likely cause of a wrong answer, None where no mistake gives it."""
        return next((cause for cause, would_give in self.mistakes(inputs) if all_same(given, would_give)), None)

    def _wrong_place(self) -> str:
        if self.in_place:
            return "the result is returned, but the tensor is as it was: write the result into it, as tensor.copy_ does"
        return "the result is in the input, and not returned: end with `return`"

    def figures(self, trial: Trial, traffic: Traffic) -> str:
        bound = self.bound(trial)
        if bound < SMALLEST_BUDGET:
            return ""
        most = amount(max(self.spent(trial, traffic)))
        return f"{trial.label}: sent at most {most}{self.spent_on} a rank, {amount(bound)} allowed"

    def over_budget(self, trial: Trial, traffic: Traffic) -> str | None:
        """What is wrong with the traffic of a right answer, None where nothing is."""
        spent, bound, least = self.spent(trial, traffic), self.bound(trial), self.least(trial)
        most = max(range(len(spent)), key=lambda rank: spent[rank])
        if spent[most] > bound + traffic.slack(bound):
            why = self.waste(trial, traffic)
            return (f"{trial.label}: the result is right, but over budget: rank {most} sent {amount(spent[most])}"
                    f"{self.spent_on}, where {amount(bound)} will do" + (f": {why}" if why else ""))
        if sum(spent) < least - traffic.slack(least):
            return (f"{trial.label}: the result is right, but the ranks sent {amount(sum(spent))} together, where "
                    f"{amount(least)} is the least that can carry it: send the elements themselves, by send and recv")
        return None


def plain(value: Any) -> Any:
    """`value` as data: a tensor, None, or words that say what else it is."""
    if type(value) is Tensor or type(value) is torch.nn.Parameter:
        dense = value.detach()
        return dense.to("cpu", copy=True).contiguous() if dense.layout is torch.strided else f"a {dense.layout} tensor"
    return None if value is None else f"a {type(value).__name__}"


def taken(answer: Any, name: str) -> Any:
    """The part `name` of a rank's answer, which may be anything: a tensor that can be compared, None, or words."""
    part = answer.get(name) if type(answer) is dict else answer
    if type(part) is Tensor:
        comparable = part.layout is torch.strided and part.device.type == "cpu"
        return part if comparable else f"a {part.layout} tensor on {part.device}"
    return part[:80] if type(part) is str else None if part is None else f"a {type(part).__name__}"


def same(given: Any, expected: Tensor) -> bool:
    """Whether both hold the same numbers in the same shape and dtype."""
    return isinstance(given, Tensor) and given.dtype == expected.dtype and torch.equal(given, expected)


def all_same(given: Sequence[Any], expected: Sequence[Tensor]) -> bool:
    return len(given) == len(expected) and all(map(same, given, expected))


def first_difference(given: Sequence[Any], expected: Sequence[Tensor], in_place: bool) -> str:
    """The first rank that is wrong, what it has and what it should have."""
    wrong = [rank for rank in range(len(expected)) if not same(given[rank], expected[rank])]
    rank = wrong[0]
    verb = "holds" if in_place else "returned"
    whole = f"{len(wrong)} of {len(expected)} ranks are wrong; " if len(expected) > 1 else ""
    return f"{whole}rank {rank} {verb} {described(given[rank])}: expected {described(expected[rank])}"


def described(value: Any) -> str:
    """`float32[3] = [1, 2, 3]`, of a long tensor the first elements."""
    if not isinstance(value, Tensor):
        return value or "nothing (None)"
    form = f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    if value.dtype not in READABLE:
        return form
    elements = ", ".join(f"{element:g}" for element in value.flatten()[:6].tolist())
    return f"{form} = [{elements}{', ...' if value.numel() > 6 else ''}]"


def amount(num_bytes: int) -> str:
    """Bytes for a reader: 24 bytes, 768 KiB, 1.5 MiB."""
    for size, unit in ((1 << 20, "MiB"), (1 << 10, "KiB")):
        if num_bytes >= size:
            return f"{num_bytes / size:.4g} {unit}"
    return f"{num_bytes} bytes"


def whole_numbers(generator: torch.Generator, *shape: int) -> Tensor:
    """Random whole numbers as float32: sums of a few are exact, whatever the order."""
    return torch.randint(-1000, 1001, shape, generator=generator).float()
