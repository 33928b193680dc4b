"""The example of each exercise's docstring, written from its first trial: what the reader sees there is what is run.

    EXAMPLES = {"3.2": lambda inputs, answers: f"sizes_bytes = {inputs[0][0]}, cap_bytes = {inputs[0][1]} -> ..."}

stand in solutions/NN_name/examples.py: by number, the docstring's own words (or a list of its sentences) made of the
trial's inputs, by rank, and of what the solution's run answers on each rank.
"""

import re
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

from course_lib.grading.exercise import Trial


def example_of(path: Path, number: str, trial: Trial, answers: list[Any]) -> list[str]:
    """What the docstring of exercise `number` has to say, beside whose solutions' notebook examples.py stands."""
    said = examples(path)[number](trial.inputs, answers)
    return [said] if isinstance(said, str) else list(said)


def examples(path: Path) -> dict[str, Callable]:
    """By number, of those beside the notebook at `path`."""
    return runpy.run_path(str(path.with_name("examples.py")))["EXAMPLES"]


def in_docstring(function: Callable, line: str) -> bool:
    """Whether it says so, whatever the spaces and line breaks."""
    return squeezed(line) in squeezed(function.__doc__)


def squeezed(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip()
