"""Exercises in a copy that was handed out without judges: a function runs on its docstring's example, and no more.

`make handout` writes what that takes into examples/NN.json: the inputs of the first trial, which stand in the docstring
too, and what runs beside the function on a rank. Right answers, other trials and causes are not in there, so `check`
shows what came out, and the learner compares it with the docstring. The marks come from the class's grader.
"""

import base64
import importlib
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch

from course_lib.grading.exercise import Exercise, SentBytes, Trial
from course_lib.grading.spent import Judgement

FOLDER = Path(__file__).with_name("examples")
LONGEST = 300  # letters of an answer that are shown


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


@cache
def examples_of(chapter: int) -> tuple[ExampleExercise, ...]:
    """Of a chapter, in order; empty where nothing was handed out."""
    path = FOLDER / f"{chapter:02}.json"
    kept = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return tuple(ExampleExercise(number, each) for number, each in kept.items())


def write_examples(folder: Path, chapter: int, exercises: Sequence[Exercise]) -> None:
    """Write NN.json into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps({each.number: kept_of(each) for each in exercises}, indent=1)
    (folder / f"{chapter:02}.json").write_text(text + "\n", encoding="utf-8")


def shorten(answer: Any) -> str:
    """As Python shows it, on few lines."""
    text = " ".join(repr(answer).split())
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."
