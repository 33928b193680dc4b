"""What an exercise is to a grader: a function that the reader writes, the trials it goes through, what a failure means.

An exercise has two sides, and a wall between them. `run` stands in the chapter's on_rank.py, or in ours: it calls the
reader's function on a rank, and is all of the grader that a rank can see. Everything else here is the judge's: trials,
right answers, budgets. It never sees the reader's function, only tensors and numbers, and is where the decision falls.

Two graders use the same Exercise. `check` runs the trials on ranks that `launch` starts from the reader's kernel:
feedback. `TrustedGrade` runs them in isolated processes that it starts itself, and judges in its own process: marks.

The likely mistakes of an exercise stand elsewhere, as code, in solutions/. What each gives was recorded (recorded.py),
so that whoever gives the same is told the cause, and not only that numbers differ.
"""

from abc import ABC
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from course_lib.grading import recorded
from course_lib.grading.chapters import text_for_ranks
from course_lib.grading.compare import EXACT, Tolerance, alike, contrast, differences, part, sketch
from course_lib.grading.spent import Judgement, Spent

SEED = 0  # of the trials in self-study: the same for everybody, and those that mistakes were recorded on
TIME_LIMIT_S = 20.0  # of computing for a trial, at home and in class: right answers need a tenth of a second
HANGS_S = 6 * TIME_LIMIT_S  # on the wall: long enough for imports, and for ranks that wait for a core


@dataclass(frozen=True)
class Trial:
    """One run of the reader's function: inputs[r] goes to rank r. Tensors, numbers, strings, lists and dicts only."""

    inputs: list[Any]
    label: str  # "3 ranks, 6 elements": for messages
    hidden: Any = None  # what only the judge knows, and `reply` answers questions from

    @property
    def world_size(self) -> int:
        """How many ranks the trial runs on."""
        return len(self.inputs)


def ranks_of(n: int) -> str:
    """"1 rank", "2 ranks"."""
    return f"{n} rank{'s' * (n > 1)}"


def trials_of(cases: Iterable[Sequence[Any]], label: Callable[..., str]) -> list[Trial]:
    """A trial on one rank for the arguments in each of the cases, of which the first is the docstring's example."""
    return [Trial([list(case)], "the example, " * (number == 0) + label(*case)) for number, case in enumerate(cases)]


@dataclass(frozen=True)
class SentBytes:
    """What the ranks of one trial sent to each other: sent[src][dst] in bytes.

    `exact`: counted by the ranks, message by message. Otherwise by the operating system, with the headers of messages.
    """

    sent: list[list[int]]
    exact: bool

    def sent_by(self, rank: int) -> int:
        """Bytes that `rank` sent to all others together."""
        return sum(self.sent[rank])

    def slack(self, num_bytes: int) -> int:
        """By how many bytes a count near `num_bytes` may be off: 0 if it is exact, else room for headers."""
        return 0 if self.exact else num_bytes // 32 + 4096

    def note(self, besides: str = "headers") -> str:
        """What is in the count besides the reader's own bytes."""
        return "" if self.exact else f"the operating system's count, with {besides}"


class Exercise(ABC):
    """One exercise. A chapter's exercises are subclasses, registered by number."""

    number: ClassVar[str]  # "2.1", as in the notebook, which has the function's name and the points
    budget: ClassVar[str]  # in words and a formula, for the reader
    run: ClassVar[Callable[[Callable, Any], Any]]  # of on_rank.py: (the reader's function, inputs of a rank) -> answer
    imports: ClassVar[tuple[str, ...]] = ()  # modules that each rank would otherwise take seconds to import for itself
    is_judged: ClassVar[bool] = True  # False in a copy without judges
    asks: ClassVar[bool] = False  # `run` gets a third argument, ask(question): what `reply` says to it
    operations: ClassVar[frozenset[str] | None] = None  # of torch.distributed that may be called; None: any
    tolerance: ClassVar[Tolerance] = EXACT
    compared: ClassVar[str] = ""  # the part of a rank's answer that is compared, "" for all of it
    parts: ClassVar[Iterable[str]] = ()  # the parts of it that are compared, where they are several
    words: ClassVar[str] = "returned"  # between "rank 0" and its answer, where that is wrong
    right: ClassVar[str] = "the result is right"  # begins the sentence about what is right and has another fault
    is_plan: ClassVar[bool] = False  # of many plans that cost the same, a mistake is known by the whole plan
    errors: ClassVar[tuple[tuple[str, str], ...]] = ()  # (part of an error's words, what it means in this exercise)
    sizes: ClassVar[tuple[tuple[Any, ...], ...]] = ()  # of the trials that are drawn, the most telling first

    @property
    def function(self) -> str:
        """The name that the reader defines."""
        return recorded.of_exercise(self.number, "exercises")[0]

    @property
    def points(self) -> int:
        """What a right answer within the budget is worth, as solutions/ says."""
        return recorded.of_exercise(self.number, "exercises")[1]

    @property
    def rank_side(self) -> tuple[str, str, str | None]:
        """Where a rank finds `run`: its module, its name, and of a chapter's on_rank.py the text: there is no file."""
        return self.run.__module__, self.run.__name__, text_for_ranks(self.run.__module__)

    def meaning(self, words: str) -> list[str]:
        """What an error with these words means in this exercise: one sentence, or none."""
        return [means for part, means in self.errors if part in words][:1]

    def trials(self, seed: int) -> list[Trial]:
        """The runs, from random inputs of this seed. The most telling first: a reader hears of the first that fails."""
        generator = torch.Generator().manual_seed(seed)
        return [self.example_trial(), *(self.draw_trial(generator, *size) for size in self.sizes)]

    def example_trial(self) -> Trial:
        """The trial of the docstring's example, the same for every seed."""
        raise NotImplementedError(f"{type(self).__name__} has no example")

    def draw_trial(self, generator: torch.Generator, *size: Any) -> Trial:
        """A trial of one of `sizes` from random inputs."""
        raise NotImplementedError(f"{type(self).__name__} has no trials to draw")

    def reply(self, trial: Trial, question: Any) -> Any:
        """The answer to what a rank asks during a run, where `asks`. ValueError where it cannot be asked.

        How often was asked stands in the rank's answer, a dict, as "asked": the judge's own count, where the class
        grader judges.
        """
        raise NotImplementedError(f"{type(self).__name__} answers no questions")

    def solve(self, *arguments: Any) -> Any:
        """The right answers, as `select_parts` makes them of the ranks'; with `arguments` of a trial."""
        raise NotImplementedError(f"{type(self).__name__} has no reference to compare with")

    def judge(self, trial: Trial, answers: list[Any], traffic: SentBytes) -> Judgement:
        """Whether the answers (one a rank) are right and within budget, else what is wrong; and what the run spent.

        The answers come from the reader's process: anything at all, of the types a Trial may hold.
        """
        wrong = self.wrong(trial, answers)
        if wrong:
            return Judgement(trial.label, wrong, opening=self.opening(trial, answers),
                             sketch=sketch(self.select_parts(answers)))
        flaw, usage = self.flaw(trial, answers, traffic), self.usage(trial, answers, traffic)
        but = f"{self.right}, but "
        if flaw:
            return Judgement(trial.label, but + flaw, usage, but, sketch=sketch(flaw))
        over = next((each for each in usage if each.complaint), None)
        if over is None:
            return Judgement(trial.label, usage=usage)
        seen = self.select_parts(answers) if self.is_plan else [over.what, over.measured]
        return Judgement(trial.label, but + over.complaint, usage, but + over.excess, over, sketch(seen))

    def wrong(self, trial: Trial, answers: list[Any]) -> str | None:
        """How the results differ from what is right, None where they do not."""
        given, expected = self.select_parts(answers), self.solve(*self.arguments(trial))
        return None if alike(given, expected, self.tolerance) else self.difference(given, expected)

    def opening(self, trial: Trial, answers: list[Any]) -> str:
        """The beginning of the sentence about a wrong result whose cause is known; the cause follows."""
        return ""

    def flaw(self, trial: Trial, answers: list[Any], traffic: SentBytes) -> str | None:
        """What is wrong with a right answer, other than that it spent too much."""
        return None

    def usage(self, trial: Trial, answers: list[Any], traffic: SentBytes) -> Sequence[Spent]:
        """What the run of a right answer used of each budget. A complaint is made of the first that is exceeded."""
        return ()

    def arguments(self, trial: Trial) -> Sequence[Any]:
        """The arguments of `solve` for this trial."""
        return (trial.inputs,)

    def select_parts(self, answers: list[Any]) -> Any:
        """What is compared of the ranks' answers: `parts` of each, or the part `compared`, or all."""
        if self.parts:
            return [{name: part(answer, name) for name in self.parts} for answer in answers]
        return [part(answer, self.compared) for answer in answers] if self.compared else answers

    def difference(self, given: list[Any], expected: list[Any]) -> str:
        """The first difference: where, what is there and what should be."""
        place, has, should = next(differences(given, expected, self.tolerance))
        num_wrong = sum(not alike(a, b, self.tolerance) for a, b in zip(given, expected))
        whole = f"{num_wrong} of {len(expected)} ranks are wrong; " if len(expected) > 1 else ""
        where = ", ".join(map(str, place))
        return f"{whole}rank {where} {self.words} {contrast(has, should, self.tolerance)}"
