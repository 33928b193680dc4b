"""Scene: a picture as data. Python turns parameters into one, painter.js and painter.py paint it.

    sheet = Sheet(900, 60)
    sheet.rect("rank 0 F0", "forward", 80, 10, 40, 30)
    sheet.text("rank 0", "label", 70, 25, "rank 0", anchor="end")

Lengths are in units of which a picture is 900 wide; x goes to the right, y downwards. A mark's key says what it stands
for, not where it is, so that a painter can move it when the parameters change. Its role is a name of roles.ROLES.

What happens in steps is a scene for each step. `film` makes them one message, which a browser plays by itself: from
step to step marks are carried along curves, and what they change where they arrive waits for them.

What several scenes have in common: an axis with its unit, a legend, bars that compare.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from course_lib.pictures.palette import ROLES

WIDTH = 900
# x, y, width, height; x1, y1, x2, y2; the four points of a cubic Bézier curve; x, y of the baseline
NUMBERS = {"rect": 4, "line": 4, "curve": 8, "text": 2}
ANCHORS = ("start", "middle", "end")
SAID = ("key", "headline", "detail", "alternative")  # by a scene, in a browser
NARROW, WIDE = frozenset("fijlrtI.,:;|!'()[] "), frozenset("mwMW%@»✓✗")


@dataclass(frozen=True)
class Mark:
    """A rectangle, a line, a curve or a text. `at`: as NUMBERS says. `tint`: how much white is in its colour, 0 to 1.

    `hint` is said when the pointer rests on it. The text stands at its place by its `anchor`. `shares`: what a
    rectangle is a sum of, "0110" of ranks 1 and 2 of four, each a band at its rank's height and in its colour.

    Where steps are played, a mark is carried `along` the curve of that key, in whose middle it stands at rest; one that
    `waits` is as in the step before until what is carried has arrived.
    """

    kind: str
    key: str
    role: str
    at: tuple[float, ...]
    text: str = ""
    anchor: str = "start"
    tint: float = 0.0
    hint: str = ""
    shares: str = ""
    along: str = ""
    waits: bool = False

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
    more = {name: getattr(mark, name) for name in ("tint", "hint", "shares", "along", "waits")}
    return plain | {name: value for name, value in more.items() if value}


def film(scenes: Sequence[Scene]) -> dict[str, Any]:
    """The scenes of all steps as JSON that says each mark once, in the order of painting.

    "scenes": what each says; all are as large. "marks": [kind, key, role, at, waits, the rest, [steps, change], ...];
    bit s of `steps` is set where scene s has the mark, so changed. Without any, all scenes have it as it is.
    """
    assert len(scenes) < 32, "JavaScript has 32 bits"
    order: list[tuple[str, str]] = []
    looks: dict[tuple[str, str], dict[Mark, int]] = {}
    for number, scene in enumerate(scenes):
        place = 0
        for mark in scene.marks:
            name = mark.kind, mark.key
            if name in looks:
                place = order.index(name, place)  # scenes paint what they share in the same order
            else:
                order.insert(place, name)
            place += 1
            seen = looks.setdefault(name, {})
            seen[mark] = seen.get(mark, 0) | 1 << number
    whole = 2 ** len(scenes) - 1
    return {"width": scenes[0].width, "height": scenes[0].height,
            "scenes": [{name: getattr(scene, name) for name in SAID} for scene in scenes],
            "marks": [plain_looks(looks[name], whole) for name in order]}


def plain_looks(looks: dict[Mark, int], whole: int) -> list[Any]:
    """One row of a film's marks."""
    first, *_ = looks
    said = ("kind", "key", "role", "at", "waits")
    rest = {name: value for name, value in plain_mark(first).items() if name not in said}
    changes = []
    for mark, steps in looks.items():
        change = {name: value for name, value in vars(mark).items() if value != getattr(first, name)}
        changes += [[steps, change]] if change else [[steps]] if steps != whole else []
    return [first.kind, first.key, first.role, first.at, int(first.waits), rest, *changes]


@dataclass
class Sheet:
    """Marks in the order of painting. Numbers are rounded to hundredths, which no eye can tell apart."""

    marks: list[Mark] = field(default_factory=list)

    def rect(self, key: str, role: str, x: float, y: float, width: float, height: float, **more: Any) -> None:
        """Add a rectangle with its upper left corner at (x, y). `key` names the same thing in the next frame; `more`:
        tint, hint, shares, along and waits, as a Mark has them.
        """
        self._add("rect", key, role, (x, y, width, height), **more)

    def line(self, key: str, role: str, x1: float, y1: float, x2: float, y2: float) -> None:
        """Add a line from (x1, y1) to (x2, y2)."""
        self._add("line", key, role, (x1, y1, x2, y2))

    def curve(self, key: str, role: str, *at: float) -> None:
        """Add a curve by its four points, x1, y1, ... x4, y4: it leaves the first towards the second, and comes to the
        last from the third.
        """
        self._add("curve", key, role, at)

    def outline(self, key: str, role: str, x: float, y: float, width: float, height: float) -> None:
        """Four lines around a rectangle, which leave what is inside as it looks."""
        right, bottom = x + width, y + height
        for side, line in {"top": (x, y, right, y), "bottom": (x, bottom, right, bottom), "left": (x, y, x, bottom),
                           "right": (right, y, right, bottom)}.items():
            self.line(f"{key} {side}", role, *line)

    def text(self, key: str, role: str, x: float, middle: float, words: str, anchor: str = "start",
             **more: Any) -> None:
        """`words` at x by `anchor`; the letters' middle is at `middle`. `more`: along and waits, as a Mark has them."""
        assert anchor in ANCHORS, f"{key}: anchor {anchor!r}"
        self._add("text", key, role, (x, middle + 0.36 * ROLES[role].size), text=words, anchor=anchor, **more)

    def inside(self, key: str, role: str, x: float, y: float, width: float, height: float, *texts: str) -> None:
        """The first of `texts` that fits into the rectangle, in its middle; none where none does."""
        for words in texts:
            if width_of(words, ROLES[role].size, ROLES[role].bold) + 3 <= width:
                return self.text(key, role, x + width / 2, y + height / 2, words, "middle")

    def scene(self, widget: str, key: str, asked: str, headline: str, detail: str, height: float, more: str = "",
              sentence: str = "") -> Scene:
        """These marks as the scene of `widget`. more: what else there is to see, for who cannot see it."""
        said = (f"{headline}.", f"{detail.removesuffix('.')}." if detail else "", more)
        return Scene(key, asked, headline, detail, sentence or f"{widget}, {asked}: {headline}; {detail}",
                     " ".join(filter(None, said)), height, tuple(self.marks))

    def _add(self, kind: str, key: str, role: str, at: tuple[float, ...], **rest: Any) -> None:
        self.marks.append(Mark(kind, key, role, tuple(map(round_number, at)), **rest))


def round_number(number: float) -> float:
    """To hundredths; a whole number is one in JSON, too."""
    rounded = round(float(number), 2)
    return int(rounded) if rounded.is_integer() else rounded


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
