"""Which exercises there are: `exercise("2.1")`, `exercises_of(2)`.

A chapter's judges are imported when one of its exercises is asked for.
"""

import importlib
import importlib.util
import inspect
import pkgutil
from functools import cache

from course_lib.grading import recorded
from course_lib.grading.examples import examples_of
from course_lib.grading.exercise import Exercise

CHAPTERS = {1: "why_distribute", 2: "collectives", 3: "data_parallel", 4: "pipeline_parallel", 5: "tensor_parallel",
            6: "zero", 7: "sequence_parallel", 8: "expert_parallel", 9: "hybrid_parallel", 10: "planner"}


def exercise(number: str) -> Exercise:
    """The exercise called `number`, such as "2.1". ValueError when there is none, TypeError when it is not a string."""
    if not isinstance(number, str):
        raise TypeError(f"the number of an exercise is a string such as \"2.1\": given {number!r}")
    chapter = number.partition(".")[0]
    known = exercises_of(int(chapter)) if chapter.isdecimal() and int(chapter) in CHAPTERS else every_exercise()
    for each in known:
        if each.number == number:
            return each
    numbers = ", ".join(each.number for each in every_exercise())
    raise ValueError(f"there is no exercise {number!r}: expected one of {numbers}")


@cache
def exercises_of(chapter: int) -> tuple[Exercise, ...]:
    """The exercises of a chapter, in order. ValueError for a chapter that has none."""
    if chapter not in CHAPTERS:
        raise ValueError(f"chapter {chapter!r} has no exercises: expected one of {', '.join(map(str, CHAPTERS))}")
    judges = f"course_lib.grading.judges.{CHAPTERS[chapter]}"
    if not importlib.util.find_spec(judges):  # a copy that was handed out
        return examples_of(chapter)
    package = importlib.import_module(judges)
    modules = [importlib.import_module(f"{package.__name__}.{found.name}")
               for found in pkgutil.iter_modules(package.__path__)]
    kinds = {kind.number: kind for module in modules for kind in vars(module).values()
             if inspect.isclass(kind) and issubclass(kind, Exercise) and hasattr(kind, "number")}
    return tuple(kinds[number]() for number in recorded.of_chapter(chapter)["exercises"])


def every_exercise() -> list[Exercise]:
    """All exercises of the course, in the order of chapters."""
    return [each for chapter in CHAPTERS for each in exercises_of(chapter)]
