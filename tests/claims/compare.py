"""What the verdicts on a cell's headlines say of its stored output: a headline that gives way has to be seen there."""

import copy
import re
from collections.abc import Sequence

from nbformat import NotebookNode

from course_lib.pictures.drawn import NOT_SEEN
from tests.claims.cell import DOES_NOT_HOLD
from tools.harness.outputs import difference, joined, said, sanitized

CLAIMS = re.compile(r"Chart: |Schedules: |MemoryPanels: |RankPanels: |Timeline of \d+ ranks|Timeline of rank \d+")


def claims(outputs: Sequence[NotebookNode]) -> bool:
    """Whether a cell shows a picture that has to have a headline."""
    return any(CLAIMS.match(said(output)) for output in outputs)


def faults(found: Sequence[dict[str, str]], outputs: Sequence[NotebookNode]) -> str:
    """Headlines that no data contradict, or have no condition; pictures without one; what a comparison would not see.

    found: contradict.Verdict of each headline of the cell, as a dict.
    """
    stored = joined(outputs)
    left = [number for number, output in enumerate(stored) if CLAIMS.match(said(output))]
    told = []
    for each in found:
        failed = has_failed(each, stored)
        words = each.get("said", "").replace(NOT_SEEN, "") if failed else each.get("said", "")
        place = next((number for number in left if same(said(stored[number]), words)), None)
        if each["fault"] and not failed:
            told.append(f"{each['source']}\n    {each['fault']}")
        if not each.get("contradicted"):
            left = [number for number in left if number != place]
        elif place is None:
            told.append(f"{each['source']}\n    is not in the cell's output: let the cell show it")
        else:
            left.remove(place)
            others = copy.deepcopy(stored)
            others[place].data["text/plain"] = each["contradicted"]
            if not difference(others, stored):
                told.append(f"{each['source']}\n    nbval takes {each['contradicted']!r} for the same")
    return "\n".join(told + [f"{said(stored[number])[:90]}\n    no headline of the cell's own: .shows(..., holds=...)"
                             for number in left])


def has_failed(found: dict[str, str], stored: Sequence[NotebookNode]) -> bool:
    """Whether the cell's own comparison says so: the headline does not hold here, and is stored as if it did."""
    return found["fault"] == DOES_NOT_HOLD and not any(same(said(output), found["said"]) for output in stored)


def same(stored: str, now: str) -> bool:
    return sanitized(stored) == sanitized(now)
