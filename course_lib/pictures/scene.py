"""Scene: a picture as data. Python turns parameters into one, painter.js and painter.py paint it.

    sheet = Sheet(900, 60)
    sheet.rect("rank 0 F0", "forward", 80, 10, 40, 30)
    sheet.text("rank 0", "label", 70, 25, "rank 0", anchor="end")

Lengths are in units of which a picture is 900 wide; x goes to the right, y downwards. A mark's key says what it stands
for, not where it is, so that a painter can move it when the parameters change. Its role is a name of roles.ROLES.

What several scenes have in common: an axis with its unit, a legend, bars that compare.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from course_lib.pictures.palette import ROLES

WIDTH = 900
NUMBERS = {"rect": 4, "line": 4, "text": 2}  # x, y, width, height; x1, y1, x2, y2; x, y of the baseline
ANCHORS = ("start", "middle", "end")
NARROW, WIDE = frozenset("fijlrtI.,:;|!'()[] "), frozenset("mwMW%@»✓✗")


@dataclass(frozen=True)
class Mark:
    """A rectangle, a line or a text. `at`: as NUMBERS says. `tint`: how much white is in its colour, 0 to 1.

    `hint` is said when the pointer rests on it. The text stands at its place by its `anchor`.
    """

    kind: str
    key: str
    role: str
    at: tuple[float, ...]
    text: str = ""
    anchor: str = "start"
    tint: float = 0.0
    hint: str = ""

    def __post_init__(self) -> None:
        assert len(self.at) == NUMBERS[self.kind], f"{self.key}: {self.kind} at {self.at}"
        assert self.role in ROLES, f"{self.key}: role {self.role!r} is not in roles.ROLES"


@dataclass(frozen=True)
class Scene:
    """All that a widget shows for some parameters. Marks are in the order of painting, each with a key of its own.

    key: names the parameters. asked: the same in words. headline: the finding, with its numbers; detail: why.
    sentence: all of it in one, for where there are only words. alternative: what the picture shows, for who cannot see
    it.
    """

    key: str
    asked: str
    headline: str
    detail: str
    sentence: str
    alternative: str
    height: float
    marks: tuple[Mark, ...]
    width: float = WIDTH

    def __post_init__(self) -> None:
        keys = [mark.key for mark in self.marks]
        twice = {key for key in keys if keys.count(key) > 1} if len(set(keys)) < len(keys) else set()
        assert not twice, f"{self.key}: keys stand twice: {sorted(twice)}"

    def plain(self) -> dict[str, Any]:
        """The scene as JSON can hold it; a mark has only the fields that differ from Mark's own."""
        whole = {name: value for name, value in self.__dict__.items() if name != "marks"}
        return {**whole, "marks": [plain_mark(mark) for mark in self.marks]}


def plain_mark(mark: Mark) -> dict[str, Any]:
    """A mark as plain JSON, without what is empty."""
    plain: dict[str, Any] = {"kind": mark.kind, "key": mark.key, "role": mark.role, "at": list(mark.at)}
    if mark.kind == "text":
        plain |= {"text": mark.text, "anchor": mark.anchor}
    if mark.tint:
        plain["tint"] = mark.tint
    if mark.hint:
        plain["hint"] = mark.hint
    return plain


@dataclass
class Sheet:
    """Marks in the order of painting. Numbers are rounded to hundredths, which no eye can tell apart."""

    marks: list[Mark] = field(default_factory=list)

    def rect(self, key: str, role: str, x: float, y: float, width: float, height: float, tint: float = 0.0,
             hint: str = "") -> None:
        """Add a rectangle with its upper left corner at (x, y). `key` names the same thing in the next frame; `tint`
        makes it paler.
        """
        self._add("rect", key, role, (x, y, width, height), tint=tint, hint=hint)

    def line(self, key: str, role: str, x1: float, y1: float, x2: float, y2: float) -> None:
        """Add a line from (x1, y1) to (x2, y2)."""
        self._add("line", key, role, (x1, y1, x2, y2))

    def outline(self, key: str, role: str, x: float, y: float, width: float, height: float) -> None:
        """Four lines around a rectangle, which leave what is inside as it looks."""
        right, bottom = x + width, y + height
        for side, line in {"top": (x, y, right, y), "bottom": (x, bottom, right, bottom), "left": (x, y, x, bottom),
                           "right": (right, y, right, bottom)}.items():
            self.line(f"{key} {side}", role, *line)

    def text(self, key: str, role: str, x: float, middle: float, words: str, anchor: str = "start") -> None:
        """`words` at x by `anchor`; the letters' middle is at `middle`."""
        assert anchor in ANCHORS, f"{key}: anchor {anchor!r}"
        self._add("text", key, role, (x, middle + 0.36 * ROLES[role].size), text=words, anchor=anchor)

    def inside(self, key: str, role: str, x: float, y: float, width: float, height: float, *texts: str) -> None:
        """The first of `texts` that fits into the rectangle, in its middle; none where none does."""
        for words in texts:
            if width_of(words, ROLES[role].size, ROLES[role].bold) + 3 <= width:
                return self.text(key, role, x + width / 2, y + height / 2, words, "middle")

    def _add(self, kind: str, key: str, role: str, at: tuple[float, ...], **rest: Any) -> None:
        self.marks.append(Mark(kind, key, role, tuple([round(float(number), 2) for number in at]), **rest))


def width_of(words: str, size: float, bold: bool = False) -> float:
    """About as wide as `words` are in DejaVu Sans, which is wider than what browsers take."""
    ems = sum(0.38 if each in NARROW else 0.95 if each in WIDE else 0.7 if each.isupper() else 0.63 for each in words)
    return size * ems * (1.12 if bold else 1.0)


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
