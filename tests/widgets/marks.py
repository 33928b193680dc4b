"""Read a scene as a reader does: what a mark stands for, by its place among the ticks, its words and its hint."""

import re

import pytest

from course_lib.pictures.palette import ROLES
from course_lib.pictures.scene import Mark, Scene

SLACK = 0.06  # of a unit of the scene: numbers are rounded to hundredths, those of ticks, too
UNITS = {"": 1, "B": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9, "KiB": 2**10, "MiB": 2**20, "GB/s": 1e9, "s": 1, "ms": 1e-3,
         "µs": 1e-6, "%": 0.01}
QUANTITY = re.compile(r"(?<![\w.-])(-?\d+(?:,\d{3})*(?:\.\d+)?)(?: ?(GB/s|[KM]iB|[kMG]?B|[mµ]?s|%)(?![\w/]))?")
FURNITURE = re.compile("legend.*|axis|unit|chart|compared|note|nodes are")  # as far as it says no number of the model


def quantities(text: str) -> list[tuple[float, float]]:
    """(number, half of its last digit) of each number in `text`; in "1.5 of 3.0 MB" the first is of MB, too."""
    found = []
    for match in reversed(list(QUANTITY.finditer(text))):
        digits, unit = match.groups("")
        if not unit and found and text[match.end():].startswith(" of "):
            unit = found[-1][2]
        size = UNITS[unit]
        found.append((float(digits.replace(",", "")) * size, 0.5 * 10.0 ** -len(digits.partition(".")[2]) * size, unit))
    return [(number, half) for number, half, _ in reversed(found)]


def require_numbers(text: str, expected: list[float]) -> None:
    """Each number of `text` is the expected one, as far as its digits go."""
    found = quantities(text)
    assert len(found) == len(expected), (text, expected)
    for (number, half), other in zip(found, expected):
        assert abs(number - other) <= 1.001 * half + 1e-9 * abs(other), (text, expected)


def marks_of_film(film: dict, step: int) -> list[Mark]:
    """The marks of one step, as a browser reads a film."""
    return [Mark(**{"kind": kind, "key": key, "role": role, "at": at, "waits": bool(waits), **rest, **dict(*change)})
            for kind, key, role, at, waits, rest, *changes in film["marks"]
            for steps, *change in changes or [[1 << step]] if steps >> step & 1]


class Ruler:
    """Where numbers stand: a straight line through (number, place), as many as are given."""

    def __init__(self, *points: tuple[float, float], end: float = 0.0) -> None:
        (self.zero, self.at), (last, place) = points[0], points[-1]
        self.unit = (place - self.at) / (last - self.zero)
        self.end = self.zero + (end - self.at) / self.unit  # the number at the end of the axis
        for number, place in points:
            assert place == pytest.approx(self(number), abs=SLACK), ("a tick stands elsewhere", number, place)

    def __call__(self, number: float) -> float:
        return self.at + self.unit * (number - self.zero)

    def span(self, start: float, end: float) -> tuple[float, float]:
        return self(start), self(end)

    def cut(self, start: float, end: float) -> tuple[float, float]:
        """What is longer than the axis ends with it."""
        return self(min(start, self.end)), self(min(end, self.end))


class Reading:
    """A scene of which each mark has to be asked for: `finish` names those that nobody has."""

    def __init__(self, scene: Scene) -> None:
        self.marks = {mark.key: mark for mark in scene.marks}
        self.unseen = dict.fromkeys(self.marks)

    def take(self, key: str) -> Mark:
        assert key in self.marks, f"there is no mark {key!r}"
        self.unseen.pop(key, None)
        return self.marks[key]

    def box(self, key: str) -> tuple[float, float, float, float]:
        """left, top, right, bottom"""
        x, y, wide, tall = self.marks[key].at
        return x, y, x + wide, y + tall

    def rect(self, key: str, x: tuple | None = None, y: tuple | None = None, hint: list | None = None,
             role: str | None = None, tint: float | None = None, shares: str | None = None) -> None:
        """A rectangle from x[0] to x[1], whose hint says these numbers."""
        mark = self.take(key)
        assert mark.kind == "rect", key
        for given, (start, end) in ((x, self.box(key)[::2]), (y, self.box(key)[1::2])):
            assert given is None or (start, end) == pytest.approx(given, abs=SLACK), (key, given)
        if hint is not None:
            require_numbers(mark.hint, hint)
        assert role is None or mark.role == role, (key, mark.role, role)
        assert tint is None or mark.tint == pytest.approx(tint), (key, mark.tint, tint)
        assert shares is None or mark.shares == shares, (key, mark.shares, shares)

    def line(self, key: str, x: float | None = None, y: float | None = None) -> None:
        """A line that stands at `x`, or lies at `y`."""
        at = self.take(key).at
        for place, ends in ((x, at[::2]), (y, at[1::2])):
            assert place is None or ends == pytest.approx((place, place), abs=SLACK), (key, place)

    def carried(self, key: str, way: str) -> None:
        """A rectangle that is carried along a curve, in whose middle it stands."""
        left, top, right, bottom = self.box(key)
        assert self.marks[key].along == way
        for numbers, middle in ((self.take(way).at[::2], (left + right) / 2), (self.marks[way].at[1::2],
                                                                             (top + bottom) / 2)):
            assert sum(part * number for part, number in zip((1, 3, 3, 1), numbers)) / 8 == pytest.approx(
                middle, abs=SLACK), (key, "is not in the middle of its way")

    def leads(self, key: str, start: str, end: str, slack: float) -> None:
        """A curve from beside one rectangle to beside another."""
        at = self.take(key).at
        for (x, y), (left, top, right, bottom) in ((at[:2], self.box(start)), (at[-2:], self.box(end))):
            far = max(left - x, x - right, top - y, y - bottom)
            assert 0 <= far <= slack, (key, start, end, far)

    def text(self, key: str, *numbers: float, beside: str = "", inside: str = "", role: str = "") -> None:
        """Words with these numbers, in the row of the rectangle `beside`, or within the rectangle `inside`."""
        mark = self.take(key)
        require_numbers(mark.text, list(numbers))
        assert role in ("", mark.role), (key, mark.role)
        if beside or inside:
            left, top, right, bottom = self.box(beside or inside)
            assert top <= mark.at[1] - 0.36 * ROLES[mark.role].size <= bottom, (key, "stands in another row")
            assert beside or left <= mark.at[0] <= right, (key, "stands in another column")

    def inside(self, key: str, *numbers: float) -> None:
        """The words in a rectangle, as far as it has room for some."""
        if f"{key} is" in self.marks:
            self.text(f"{key} is", *numbers, inside=key)

    def lengths(self, amounts: dict[str, float]) -> None:
        """Rectangles that begin at one place; the longest is the largest."""
        left, widest = self.box(next(iter(amounts)))[0], max(self.marks[key].at[2] for key in amounts)
        for key, amount in amounts.items():
            self.rect(key, (left, left + widest * amount / (max(amounts.values()) or 1)))

    def outline(self, key: str, x: tuple, y: tuple, slack: float = 2.0) -> None:
        """Four lines around what lies there."""
        for side, axis, place in zip(("left", "right", "top", "bottom"), (0, 0, 1, 1), (*x, *y)):
            assert self.take(f"{key} {side}").at[axis::2] == pytest.approx((place, place), abs=slack), (key, side)

    def grid(self, keys: dict[tuple[int, int], str]) -> None:
        """Rectangles in rows and columns, (row, column) -> key, as far apart as one another."""
        for axis in (0, 1):
            places: dict[int, float] = {}
            for cell, key in keys.items():
                at = self.marks[key].at[1 - axis]
                assert places.setdefault(cell[axis], at) == pytest.approx(at, abs=SLACK), (key, "is out of line")
            first, *_, last = *sorted(places), max(places)
            step = (places[last] - places[first]) / max(1, last - first)
            assert step > 0 or first == last
            for number, place in places.items():
                assert place == pytest.approx(places[first] + step * (number - first), abs=SLACK), (keys, number)

    def ticks(self) -> Ruler:
        """The axis: each tick stands where its words say, in the unit that is written below."""
        unit = self.marks["unit"].text.split()[0] if "unit" in self.marks else ""
        size, points = UNITS.get(unit, 1), []
        for key in [key for key in self.marks if re.fullmatch(r"tick \d+", key)]:
            ((number, _),) = quantities(self.take(f"{key} is").text)
            points.append((number * size, self.take(key).at[0]))
            assert self.marks[f"{key} is"].at[0] == pytest.approx(points[-1][1], abs=SLACK)
        assert len(points) > 3
        return Ruler(*points, end=self.marks["axis"].at[2] if "axis" in self.marks else points[-1][1])

    def bars(self, rows: list[tuple[str, float, list[float]]], present: str) -> None:
        """(name, amount, numbers beside it) below one another; the longest is the largest."""
        self.lengths({f"{name} compared": amount for name, amount, _ in rows})
        for name, _, numbers in rows:
            bar = f"{name} compared"
            self.rect(bar, role="present" if name == present else "other")
            self.text(f"{name} is compared", *(number for number, _ in quantities(name)), beside=bar)
            assert self.marks[f"{name} is compared"].text == name
            self.text(f"{name} amounts to", *numbers, beside=bar)

    def finish(self) -> None:
        """Each mark was asked for, apart from words without a number."""
        rest = [key for key in self.unseen if not FURNITURE.fullmatch(key)
                and (self.marks[key].kind != "text" or quantities(self.marks[key].text))]
        assert not rest, f"nobody has looked at {rest}"
