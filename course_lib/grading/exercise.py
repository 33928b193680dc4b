"""What an exercise is to a grader: a function that the reader writes, the trials it goes through, what a failure means.

Two graders use the same Exercise. `check` runs the trials on ranks that `launch` starts from the reader's kernel:
feedback. `TrustedGrade` runs them in isolated processes that it starts itself, and judges in its own process: marks.
So `run` is what happens on a rank, with the reader's function in the same process; `trials` and `judge` never see that
function, only tensors and numbers, and are where the decision falls.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar


@dataclass(frozen=True)
class Trial:
    """One run of the reader's function: inputs[r] goes to rank r. Tensors, numbers, strings, lists and dicts only."""

    inputs: list[Any]
    label: str  # "3 ranks, 6 elements": for messages

    @property
    def world_size(self) -> int:
        return len(self.inputs)


@dataclass(frozen=True)
class Traffic:
    """What the ranks of one trial sent to each other: sent[src][dst] in bytes.

    `exact`: counted message by message. Otherwise by the operating system, with the headers of the messages.
    """

    sent: list[list[int]]
    exact: bool

    def sent_by(self, rank: int) -> int:
        """Bytes that `rank` sent to all others together."""
        return sum(self.sent[rank])

    def slack(self, num_bytes: int) -> int:
        """How far a count of `num_bytes` may be off: nothing, or room for headers."""
        return 0 if self.exact else num_bytes // 32 + 4096


class Exercise(ABC):
    """One exercise. A chapter's exercises are subclasses, registered by number."""

    number: ClassVar[str]  # "2.1", as in the notebook
    function: ClassVar[str]  # the name that the reader defines
    points: ClassVar[int]
    hints: ClassVar[tuple[str, str]]  # a nudge, then nearly the line
    budget: ClassVar[str]  # in words and a formula, for the reader
    operations: ClassVar[frozenset[str] | None] = None  # of torch.distributed that may be called; None: any

    @abstractmethod
    def trials(self, seed: int) -> list[Trial]:
        """The runs, from random inputs of this seed. The most telling first: a reader hears of the first that fails."""

    @staticmethod
    @abstractmethod
    def run(function: Callable, inputs: Any) -> Any:
        """On a rank: call the reader's `function`; returns what `judge` needs to see of it."""

    @abstractmethod
    def judge(self, trial: Trial, answers: list[Any], traffic: Traffic) -> str | None:
        """None where the answers (one a rank) are right and within budget, else the likely cause, in teaching words.

        The answers come from the reader's process: anything at all, of the types a Trial may hold.
        """

    @staticmethod
    def prepare() -> None:
        """Import what each rank would otherwise import for itself: called in the process that ranks are forked from."""
        return None

    def figures(self, trial: Trial, traffic: Traffic) -> str:
        """What was measured beside the budget, such as "sent 768 of 768 KiB"; empty for a trial without a budget."""
        return ""
