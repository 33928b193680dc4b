"""Which exercises there are: `exercise("2.1")`, `exercises_of(2)`."""

import importlib
import pkgutil

from course_lib.grading import chapters
from course_lib.grading.exercise import Exercise

_MODULES = [importlib.import_module(f"{chapters.__name__}.{module.name}")
            for module in pkgutil.iter_modules(chapters.__path__)]
_CHAPTERS = sorted((module.EXERCISES for module in _MODULES if hasattr(module, "EXERCISES")),
                   key=lambda exercises: int(exercises[0].number.partition(".")[0]))
_EXERCISES = {kind.number: kind() for chapter in _CHAPTERS for kind in chapter}


def exercise(number: str) -> Exercise:
    """The exercise called `number`, such as "2.1". ValueError when there is none, TypeError when it is not a string."""
    if not isinstance(number, str):
        raise TypeError(f"the number of an exercise is a string such as \"2.1\": given {number!r}")
    if number not in _EXERCISES:
        raise ValueError(f"there is no exercise {number!r}: expected one of {', '.join(_EXERCISES)}")
    return _EXERCISES[number]


def exercises_of(chapter: int) -> list[Exercise]:
    """The exercises of a chapter, in order. ValueError for a chapter that has none."""
    found = [each for number, each in _EXERCISES.items() if number.partition(".")[0] == str(chapter)]
    if not found:
        chapters = dict.fromkeys(number.partition(".")[0] for number in _EXERCISES)
        raise ValueError(f"chapter {chapter!r} has no exercises: expected one of {', '.join(chapters)}")
    return found


def functions() -> set[str]:
    """The names of all functions that readers write."""
    return {each.function for each in _EXERCISES.values()}
