"""Which exercises there are: `exercise("2.1")`, `exercises_of(2)`. A chapter's judges are loaded when one is asked for.

In a copy that was handed out there are no judges: a function runs on its docstring's example, and no more. `make
handout` writes what that takes into examples.json beside the chapter's on_rank.py: the inputs of the first trial, which
stand in the docstring too. Right answers, other trials and causes are not in there, so `check` shows what came out, and
the learner compares it with the docstring. The marks come from the class's grader.
"""

import base64
import importlib
import inspect
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch

from course_lib.grading import recorded
from course_lib.grading.chapters import folders, load
from course_lib.grading.exercise import Exercise, SentBytes, Trial
from course_lib.grading.spent import Judgement

EXAMPLES = "examples.json"  # in a chapter's folder that has no judge
LONGEST = 300  # letters of an answer that are shown


def exercise(number: str) -> Exercise:
    """The exercise called `number`, such as "2.1". ValueError when there is none, TypeError when it is not a string."""
    if not isinstance(number, str):
        raise TypeError(f"the number of an exercise is a string such as \"2.1\": given {number!r}")
    chapter = number.partition(".")[0]
    known = exercises_of(int(chapter)) if chapter.isdecimal() and int(chapter) in folders() else every_exercise()
    for each in known:
        if each.number == number:
            return each
    numbers = ", ".join(each.number for each in every_exercise())
    raise ValueError(f"there is no exercise {number!r}: expected one of {numbers}")


def every_exercise() -> list[Exercise]:
    """All exercises of the course, in the order of chapters."""
    return [each for chapter in folders() for each in exercises_of(chapter)]


def exercises_of(chapter: int) -> tuple[Exercise, ...]:
    """The exercises of a chapter, in order. ValueError for a chapter that has none."""
    if chapter not in folders():
        raise ValueError(f"chapter {chapter!r} has no exercises: expected one of {', '.join(map(str, folders()))}")
    return exercises_in(folders()[chapter])


@cache
def exercises_in(folder: Path) -> tuple[Exercise, ...]:
    """Those of the chapter that stands in `folder`, in the order of its notebook."""
    chapter = int(folder.name[:2])
    if (folder / EXAMPLES).exists():
        kept = json.loads((folder / EXAMPLES).read_text(encoding="utf-8"))
        return tuple(ExampleExercise(number, each) for number, each in kept.items())
    modules = [load(chapter, path.stem) for path in sorted(folder.glob("judge*.py"))]
    kinds = {kind.number: kind for module in modules for kind in vars(module).values()
             if inspect.isclass(kind) and issubclass(kind, Exercise) and hasattr(kind, "number")}
    return tuple(kinds[number]() for number in recorded.of_chapter(chapter)["exercises"])


@dataclass(frozen=True)
class ExampleAnswer:
    """What came out of a run, in the place where a judge says what was spent."""

    text: str
    shown: bool = True
    claimed: bool = False

    def __str__(self) -> str:
        return self.text


class ExampleExercise(Exercise):
    """An exercise of which only the example is known."""

    is_judged = False

    def __init__(self, number: str, kept: dict[str, Any]) -> None:
        module, name = kept["run"]
        self.number, self.budget, self.asks = number, kept["budget"], kept["asks"]
        self.imports = tuple(kept["imports"])
        self.operations = None if kept["operations"] is None else frozenset(kept["operations"])
        self.run = getattr(importlib.import_module(module), name)
        self.trial = Trial(torch.load(io.BytesIO(base64.b64decode(kept["inputs"])), weights_only=True), kept["label"])

    def trials(self, seed: int) -> list[Trial]:
        """The example alone, whatever the seed."""
        return [self.trial]

    def judge(self, trial: Trial, answers: list[Any], traffic: SentBytes) -> Judgement:
        """No judgement: what each rank returned."""
        lines = ["it ran without an error; compare with the docstring:",
                 *(f"rank {rank} returned {shorten(answer)}" for rank, answer in enumerate(answers))]
        return Judgement(trial.label, usage=[ExampleAnswer("\n".join(lines))])


def kept_of(exercise: Exercise) -> dict[str, Any]:
    """What a copy without judges keeps of an exercise: its first trial's inputs, and how it is run."""
    trial = exercise.trials(0)[0]
    inputs = io.BytesIO()
    torch.save(trial.inputs, inputs)
    run = type(exercise).run
    return {"run": (run.__module__, run.__name__), "budget": exercise.budget, "asks": exercise.asks,
            "imports": exercise.imports, "label": trial.label,
            "operations": None if exercise.operations is None else sorted(exercise.operations),
            "inputs": base64.b64encode(inputs.getvalue()).decode()}


def write_examples(folder: Path, exercises: Sequence[Exercise]) -> None:
    """Write what a copy without judges keeps of the exercises of a chapter into its `folder` there."""
    kept = {each.number: kept_of(each) for each in exercises}
    (folder / EXAMPLES).write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")


def shorten(answer: Any) -> str:
    """As Python shows it, on few lines."""
    text = " ".join(repr(answer).split())
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."
