"""What stands in solutions/ of each exercise: function, points, hints, and mistakes with what they were seen to give.

The notebook, hints.md and wrong_answers.py there are where all of it is written. `make mistakes` runs each wrong answer
on real ranks, on the trials of SEED, and writes judges/recorded/NN.json: for each its sentence, the first trial that it
failed, and a sketch of what it gave there.
"""

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from course_lib.grading.compare import Tolerance
from course_lib.grading.sketch import Sketch, sketch
from course_lib.grading.spent import Judgement

FOLDER = Path(__file__).with_name("judges") / "recorded"


@dataclass(frozen=True)
class Mistake:
    """One wrong answer, as it was seen."""

    says: str  # its whole sentence
    trial: int  # the first that it fails
    over: str  # the verb of the budget that it exceeds, "" where its results are wrong
    sketch: Sketch


@cache
def of_chapter(chapter: int) -> dict[str, Any]:
    """What is recorded of a chapter; nothing of one that there is not."""
    path = FOLDER / f"{chapter:02}.json"
    nothing = {"exercises": {}, "hints": {}, "mistakes": {}}
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else nothing


def of_exercise(number: str, kind: str) -> Any:
    """The "exercises" (function and points), "hints" or "mistakes" of one; empty where there are none."""
    return of_chapter(int(number.partition(".")[0]))[kind].get(number, ())


def hints(number: str) -> tuple[str, ...]:
    """A nudge, then the idea, then nearly the code."""
    return tuple(of_exercise(number, "hints"))


def mistakes(number: str) -> list[Mistake]:
    return [Mistake(each["says"], each["trial"], each["over"],
                    Sketch(each["form"], tuple(each["numbers"]), each["scale"]))
            for each in of_exercise(number, "mistakes")]


def cause(number: str, tolerance: Tolerance, trial: int, judged: Judgement) -> str:
    """The sentence of the recorded mistake that gave the same on this trial (of SEED); "" where none did.

    Two different ones that gave the same are both said. A budget that is exceeded by another amount than any recorded
    answer's has their sentence if they all have the same (but a plan, which is known as a whole, has none).
    """
    known = mistakes(number)
    over = judged.over.what if judged.over else ""
    found = [each.says for each in known
             if each.trial == trial and each.over == over and each.sketch.is_like(judged.sketch, tolerance)]
    if not found and over and judged.sketch.form == sketch([over, 0.0]).form:
        found = list({each.says for each in known if each.over == over})
        found = found if len(found) == 1 else []
    return "\nOr: ".join(dict.fromkeys(found))
