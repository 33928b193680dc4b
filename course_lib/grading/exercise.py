"""What an exercise is to a grader: a function that the reader writes, the trials it goes through, what a failure means.

Two graders use the same Exercise. `check` runs the trials on ranks that `launch` starts from the reader's kernel:
feedback. `TrustedGrade` runs them in isolated processes that it starts itself, and judges in its own process: marks.
So `run` is what happens on a rank, with the reader's function in the same process; all other methods never see that
function, only tensors and numbers, and are where the decision falls.

An exercise is its trials, its reference (`expected`), its likely mistakes, and what it measures (`spent`). A likely
mistake is written down as what it makes of the inputs: an answer that equals it was made by it, or by one that does the
same, so the reader hears a cause, and not only that numbers differ.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from course_lib.grading.compare import EXACT, Tolerance, alike, describe, differences, part
from course_lib.grading.spent import Judgement, Spent


@dataclass(frozen=True)
class Trial:
    """One run of the reader's function: inputs[r] goes to rank r. Tensors, numbers, strings, lists and dicts only."""

    inputs: list[Any]
    label: str  # "3 ranks, 6 elements": for messages

    @property
    def world_size(self) -> int:
        return len(self.inputs)


def ranks_of(n: int) -> str:
    """1 rank, 2 ranks."""
    return f"{n} rank{'s' * (n > 1)}"


@dataclass(frozen=True)
class Traffic:
    """What the ranks of one trial sent to each other: sent[src][dst] in bytes.

    `exact`: counted by the ranks, message by message. Otherwise by the operating system, with the headers of messages.
    """

    sent: list[list[int]]
    exact: bool

    def sent_by(self, rank: int) -> int:
        """Bytes that `rank` sent to all others together."""
        return sum(self.sent[rank])

    def slack(self, num_bytes: int) -> int:
        """How far a count of `num_bytes` may be off: nothing, or room for headers."""
        return 0 if self.exact else num_bytes // 32 + 4096

    def note(self, besides: str = "headers") -> str:
        """What is in the count besides the reader's own bytes."""
        return "" if self.exact else f"the operating system's count, with {besides}"


class Exercise(ABC):
    """One exercise. A chapter's exercises are subclasses, registered by number."""

    number: ClassVar[str]  # "2.1", as in the notebook
    function: ClassVar[str]  # the name that the reader defines
    points: ClassVar[int]
    hints: ClassVar[tuple[str, ...]]  # a nudge, then the idea, then nearly the code
    budget: ClassVar[str]  # in words and a formula, for the reader
    operations: ClassVar[frozenset[str] | None] = None  # of torch.distributed that may be called; None: any
    tolerance: ClassVar[Tolerance] = EXACT
    compared: ClassVar[str] = ""  # the part of a rank's answer that is compared with `expected`, "" for all of it
    words: ClassVar[str] = "returned"  # between "rank 0" and its answer, where that is wrong
    right: ClassVar[str] = "the result is right"  # begins the sentence about what is right and has another fault

    @abstractmethod
    def trials(self, seed: int) -> list[Trial]:
        """The runs, from random inputs of this seed. The most telling first: a reader hears of the first that fails."""

    @staticmethod
    @abstractmethod
    def run(function: Callable, inputs: Any) -> Any:
        """On a rank: call the reader's `function`; returns what `judge` needs to see of it."""

    def expected(self, *arguments: Any) -> Any:
        """The right answers, as `given` makes them of the ranks'; with `arguments` of a trial."""
        raise NotImplementedError(f"{type(self).__name__} has no reference to compare with")

    def mistakes(self, *arguments: Any) -> Iterable[tuple[str, Any]]:
        """Likely mistakes: the cause, and the answers it gives. The most particular first."""
        return ()

    @staticmethod
    def prepare() -> None:
        """Import what each rank would otherwise import for itself: called in the process that ranks are forked from."""
        return None

    def judge(self, trial: Trial, answers: list[Any], traffic: Traffic) -> Judgement:
        """Whether the answers (one a rank) are right and within budget, else the likely cause; and what the run spent.

        The answers come from the reader's process: anything at all, of the types a Trial may hold.
        """
        wrong = self.wrong(trial, answers)
        if wrong:
            return Judgement(trial.label, f"{trial.label}: {wrong}")
        spent = self.spent(trial, answers, traffic)
        fault = self.flaw(trial, answers, traffic) or next(filter(None, (each.complaint for each in spent)), None)
        return Judgement(trial.label, fault and f"{trial.label}: {self.right}, but {fault}", spent)

    def wrong(self, trial: Trial, answers: list[Any]) -> str | None:
        """What is wrong with the results and why, None where they are right."""
        given, arguments = self.given(answers), self.arguments(trial)
        expected = self.expected(*arguments)
        if alike(given, expected, self.tolerance):
            return None
        return self.cause(given, *arguments) or self.difference(given, expected)

    def flaw(self, trial: Trial, answers: list[Any], traffic: Traffic) -> str | None:
        """What is wrong with a right answer, other than that it spent too much."""
        return None

    def spent(self, trial: Trial, answers: list[Any], traffic: Traffic) -> Sequence[Spent]:
        """What the run of a right answer used of each budget. A complaint is made of the first that is exceeded."""
        return ()

    def arguments(self, trial: Trial) -> Sequence[Any]:
        """What `expected`, `mistakes` and `cause` get to know of a trial."""
        return (trial.inputs,)

    def given(self, answers: list[Any]) -> Any:
        """What is compared of the ranks' answers."""
        return [part(answer, self.compared) for answer in answers] if self.compared else answers

    def cause(self, given: Any, *arguments: Any) -> str | None:
        """The likely cause of a wrong answer, None where no mistake gives it."""
        return next((cause for cause, would in self.mistakes(*arguments) if alike(given, would, self.tolerance)), None)

    def difference(self, given: list[Any], expected: list[Any]) -> str:
        """The first difference: where, what is there and what should be."""
        place, has, should = next(differences(given, expected, self.tolerance))
        num_wrong = sum(not alike(a, b, self.tolerance) for a, b in zip(given, expected))
        whole = f"{num_wrong} of {len(expected)} ranks are wrong; " if len(expected) > 1 else ""
        where = ", ".join(map(str, place))
        return f"{whole}rank {where} {self.words} {describe(has)}: expected {describe(should)}"
