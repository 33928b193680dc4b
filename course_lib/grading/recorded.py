"""What stands in solutions/ of each exercise: function, points, work in a training run, hints, and mistakes with what
they were seen to give.

The notebook, hints.md and answers.py there are where all of it is written. `make exercises` runs each wrong answer on
real ranks, on the trials of SEED, and writes recorded.json beside them: for each its sentence, and a sketch of what it
gave on the first trial that it failed and on those that follow.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from course_lib.grading.chapters import folders
from course_lib.grading.compare import Sketch, Tolerance, sketch
from course_lib.grading.spent import Judgement

MAX_SEEN = 3  # trials of a mistake that are recorded
RIGHT = sketch("right")  # of a trial that a wrong answer passes


@dataclass(frozen=True)
class Seen:
    """What became of an answer on one trial."""

    trial: int
    over: str  # the verb of the budget that is exceeded, "" where none is
    sketch: Sketch

    @classmethod
    def of(cls, trial: int, judged: Judgement) -> "Seen":
        """What `judged` shows on trial number `trial`: which budget was exceeded, and the form of the fault."""
        return cls(trial, judged.over.what if judged.over else "", judged.sketch if judged.fault else RIGHT)

    def is_like(self, other: "Seen", tolerance: Tolerance) -> bool:
        """Whether both show the same on the same trial, numbers within `tolerance`."""
        return (self.trial, self.over) == (other.trial, other.over) and self.sketch.is_like(other.sketch, tolerance)


@dataclass(frozen=True)
class Mistake:
    """One wrong answer, as it was seen."""

    says: str  # its whole sentence
    seen: tuple[Seen, ...]  # the first trial that it fails, and following ones that it has results on


def of_chapter(chapter: int) -> dict[str, Any]:
    """What is recorded of a chapter; nothing of one that there is not."""
    return of_folder(folders().get(chapter, Path()))


@cache
def of_folder(folder: Path) -> dict[str, Any]:
    """What is recorded in the folder of a chapter."""
    path = folder / "recorded.json"
    nothing: dict[str, Any] = {"exercises": {}, "work": {}, "hints": {}, "mistakes": {}}
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else nothing


def of_exercise(number: str, kind: str) -> Any:
    """The "exercises" (function and points), "work", "hints" or "mistakes" of one; empty where there are none."""
    return of_chapter(int(number.partition(".")[0]))[kind].get(number, ())


def work(number: str) -> str:
    """What its answer does in a training run of the capstone; "" where it has no place there."""
    return of_exercise(number, "work") or ""


def hints(number: str) -> tuple[str, ...]:
    """The hints of an exercise: a nudge, then the idea, then nearly the code."""
    return tuple(of_exercise(number, "hints"))


def mistakes(number: str) -> list[Mistake]:
    """The mistakes recorded for an exercise such as "2.1", each with what is seen of it."""
    return [Mistake(each["says"], tuple(Seen(trial, over, Sketch(form, tuple(numbers), scale))
                                        for trial, over, form, numbers, scale in each["seen"]))
            for each in of_exercise(number, "mistakes")]


def cause(number: str, tolerance: Tolerance, trial: int, judged: Judgement,
          look: Callable[[int], Judgement | None]) -> str:
    """The sentence of the recorded mistake that explains this trial (of SEED) and the next one; "" where none does.

    look: the judgement on another trial, None where it has no results. It is asked for the next one, since two mistakes
    may give the same on one; and for one more where they did on both. What gives the same on all is all said. A budget
    that is exceeded by another amount than any recorded answer's has their sentence if they all have the same (but a
    plan, which is known as a whole, has none).
    """
    # A look is a run on real ranks: a third trial is run only where two sentences are left after the second.
    known, now = mistakes(number), Seen.of(trial, judged)
    found = [each for each in known if each.seen[0].is_like(now, tolerance)]
    for place in range(1, MAX_SEEN):
        later = {each.seen[place].trial for each in found if len(each.seen) > place}
        if not later or place > 1 and len({each.says for each in found}) == 1:
            break
        looked = {at: look(at) for at in later}
        found = [each for each in found if len(each.seen) <= place or (
            (then := looked[each.seen[place].trial]) and each.seen[place].is_like(
                Seen.of(each.seen[place].trial, then), tolerance))]
    says = list(dict.fromkeys(each.says for each in found))
    if not says and now.over and now.sketch.form == sketch([now.over, 0.0]).form:
        says = list({each.says for each in known if each.seen[0].over == now.over})
        says = says if len(says) == 1 else []
    return "\nOr: ".join(says)
