"""What several scenes have in common: an axis with its unit, a legend, bars that compare."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from course_lib.pictures.roles import ROLES
from course_lib.pictures.scene import Sheet, width_of


def round_ticks(end: float) -> list[float]:
    """Five to ten round numbers from 0 on."""
    rough = end / 5
    power = 10.0 ** math.floor(math.log10(rough))
    step = max(part for part in (power, 2 * power, 5 * power) if part <= rough * (1 + 1e-9))
    return [number * step for number in range(math.floor(end / step + 1e-9) + 1)]


def axis(sheet: Sheet, left: float, right: float, y: float, end: float, ticks: Iterable[tuple[float, str]],
         unit: str = "") -> None:
    """A line from 0 at `left` to `end` at `right` with `ticks` (at, words) and, below, what it counts."""
    sheet.line("axis", "axis", left, y, right, y)
    for number, (at, words) in enumerate(ticks):
        x = left + (right - left) * at / end
        sheet.line(f"tick {number}", "axis", x, y, x, y + 5)
        sheet.text(f"tick {number} is", "quiet", x, y + 14, words, "middle")
    if unit:
        sheet.text("unit", "quiet", (left + right) / 2, y + 31, unit, "middle")


def legend(sheet: Sheet, x: float, middle: float, entries: Iterable[tuple[str, str]]) -> float:
    """(role, words) beside one another from x on; returns where they end."""
    for role, words in entries:
        sheet.rect(f"legend {role}", role, x, middle - 7, 14, 14)
        sheet.text(f"legend {role} is", "small", x + 20, middle, words)
        x += 38 + width_of(words, ROLES["small"].size)
    return x


def bars(sheet: Sheet, left: float, right: float, top: float, row: float,
         rows: Sequence[tuple[str, float, str, bool]]) -> None:
    """(name, amount, words, whether it is what is shown) below one another; the longest bar ends at `right`."""
    most = max(amount for _, amount, _, _ in rows) or 1.0
    for number, (name, amount, words, present) in enumerate(rows):
        y, wide = top + number * row, (right - left) * amount / most
        role = "strong" if present else "small"
        sheet.text(f"{name} is compared", role, left - 9, y + row / 2, name, "end")
        sheet.rect(f"{name} compared", "present" if present else "other", left, y + 0.14 * row, wide, 0.72 * row)
        sheet.text(f"{name} amounts to", role, left + wide + 8, y + row / 2, words)
