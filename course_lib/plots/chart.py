"""Measured beside predicted: points and lines in one picture that draws itself.

    Chart("The ring wins from 4 MiB on", "bytes", "seconds",
          points={"ring, measured": (sizes, times)}, lines={"ring, alpha + beta M": (sizes, predicted)}, log="xy")
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import cycle

from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.text import Annotation
from matplotlib.ticker import EngFormatter, FuncFormatter, LogLocator, MaxNLocator, NullFormatter
from matplotlib.transforms import Bbox

from course_lib.pictures.drawn import Drawn, claim
from course_lib.pictures.painter import new_figure, quiet
from course_lib.pictures.palette import INK, RANK_COLOURS, ROLES

Series = tuple[Sequence[float], Sequence[float]]
UNITS = {" (s)": "s", " (bytes)": "B"}  # written with prefixes
HEIGHT_IN = 3.9
# Which end of a label is at its point, and how far from it, in points.
LABEL_PLACES = (("left", 5, -3), ("left", 5, 4), ("left", 5, -9),
                ("center", 0, 7), ("center", 0, 11), ("center", 0, -13),
                ("right", -5, -3), ("right", -5, 4), ("right", -5, -9))
POINT_PX = 3
# Series of these names have the colour that they have in every other picture.
OF_ONE_COLOUR = ("parameters", "gradients", "optimizer state", "activations", "forward", "backward")


@dataclass(frozen=True, repr=False)
class Chart(Drawn):
    """`points` and `lines` by name: (xs, ys) each. A point and a line whose names begin alike (up to the first comma)
    share a colour; OF_ONE_COLOUR has the names whose colour is the same in every picture.

    x and y name the axes with their units: seconds ("... (s)") and bytes ("... (bytes)") are written with prefixes.
    `log` is "", "x", "y" or "xy". `marks` are vertical lines: where, and what is there. `labels` are names of the
    points of a series. `holds`: whether these very data say what the headline says; where they do not, on some
    machine, picture and text begin with "not seen here". A linear axis begins at 0, except for x far from it, such as
    years, and for y with numbers below 0. ValueError for series or labels of unequal length, labels of no series, or
    values that a logarithmic axis cannot show.
    """

    headline: str
    x: str
    y: str
    points: Mapping[str, Series] = field(default_factory=dict)
    lines: Mapping[str, Series] = field(default_factory=dict)
    log: str = ""
    marks: Mapping[float, str] = field(default_factory=dict)
    detail: str = ""
    labels: Mapping[str, Sequence[str]] = field(default_factory=dict)
    holds: bool | None = None

    def __post_init__(self) -> None:
        if self.log not in ("", "x", "y", "xy"):
            raise ValueError(f'log={self.log!r}: expected "", "x", "y" or "xy"')
        if not {**self.points, **self.lines}:
            raise ValueError("neither points nor lines: expected at least one series")
        for name, (xs, ys) in {**self.points, **self.lines}.items():
            if len(xs) != len(ys):
                raise ValueError(f"{name!r} has {len(xs)} x and {len(ys)} y: expected as many of one as of the other")
            if len(self.labels.get(name, xs)) != len(xs):
                raise ValueError(f"{name!r} has {len(xs)} points and {len(self.labels[name])} labels: expected as many")
            for axis, values in (("x", xs), ("y", ys)):
                if axis in self.log and not all(value > 0 for value in values):
                    raise ValueError(f"{name!r} has {min(values)} on its logarithmic {axis} axis: expected above 0")

        if unknown := sorted(self.labels.keys() - self.points.keys()):
            raise ValueError(f"labels of {', '.join(unknown)}: expected names of points, {', '.join(self.points)}")

    def finding(self) -> str:
        series = ", ".join([*self.points, *self.lines])
        return f"Chart: {claim(self.headline, self.holds)} ({self.y} over {self.x}: {series})"

    def alternative(self) -> str:
        return ". ".join(filter(None, (self.finding(), self.detail)))

    def figure(self) -> Figure:
        figure = new_figure(HEIGHT_IN, claim(self.headline, self.holds), self.detail)
        axes = figure.subplots()
        colour = self._colours()
        for name, (xs, ys) in self.lines.items():
            axes.plot(xs, ys, color=colour[family(name)], lw=1.8, label=name, alpha=0.85)
        named: list[Annotation] = []
        for name, (xs, ys) in self.points.items():
            # Unclipped: half of a point on the axis would be missing.
            axes.plot(xs, ys, "o", color=colour[family(name)], ms=5.5, mec="white", mew=0.8, label=name, clip_on=False,
                      zorder=3)
            named += [axes.annotate(text, at, (0, 0), textcoords="offset points", fontsize=7.5, color=INK)
                      for *at, text in zip(xs, ys, self.labels.get(name, ()), strict=False)]
        for where, what in self.marks.items():
            axes.axvline(where, color=INK, lw=0.9, ls=":")
            axes.annotate(what, (where, 1), (4, -2), xycoords=("data", "axes fraction"), textcoords="offset points",
                          fontsize=8, color=INK, va="top")
        self._scales(axes)
        if self.marks:  # their texts stand above the curves
            low, high = axes.get_ylim()
            axes.set_ylim(low, high * (high / low) ** 0.08 if "y" in self.log else high + 0.08 * (high - low))
        axes.legend(fontsize=8, frameon=False, loc="center left", bbox_to_anchor=(1.1 if self.labels else 1.0, 0.5))
        if named:
            figure.draw_without_rendering()  # only now every point stands where it will
            keep_apart(named, axes)
        return figure

    def _colours(self) -> dict[str, str]:
        families = dict.fromkeys(map(family, [*self.points, *self.lines]))
        fixed = {name: ROLES[name].fill for name in families if name in OF_ONE_COLOUR}
        free = cycle(colour for colour in RANK_COLOURS if colour not in fixed.values())
        return {name: fixed.get(name) or next(free) for name in families}

    def _scales(self, axes: Axes) -> None:
        quiet(axes)
        axes.grid(color="#E6E6E6", lw=0.6)
        all_x = [x for xs, _ in {**self.points, **self.lines}.values() for x in xs]
        for direction, label, axis in (("x", self.x, axes.xaxis), ("y", self.y, axes.yaxis)):
            if direction in self.log:
                lowest, highest = axis.get_data_interval()
                decimal = label.endswith(tuple(UNITS)) or lowest < 1e-3  # nobody reads 0.000244141
                getattr(axes, f"set_{direction}scale")("log", base=10 if decimal else 2)
                if decimal and highest < 100 * lowest:  # a power of ten or two would be all that has a number
                    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
                axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
                axis.set_minor_formatter(NullFormatter())
            elif direction == "y":
                if axis.get_data_interval()[0] >= 0:
                    axes.set_ylim(bottom=0)
            elif min(all_x) <= 0.9 * max(all_x):
                axes.set_xlim(left=0)
            # Of what is counted, ranks or steps, there are no halves.
            if direction == "x" and "x" not in self.log and all(isinstance(x, int) for x in all_x):
                axis.set_major_locator(MaxNLocator("auto", steps=[1, 2, 5, 10], integer=True))
            set_unit(axis, label)
            axis.set_label_text(without_unit(label), fontsize=9, color=INK)


def set_unit(axis: Axis, name: str) -> None:
    """Numbers on the axis get the prefixes of the unit that the name ends in."""
    for ending, unit in UNITS.items():
        if name.endswith(ending):
            axis.set_major_formatter(EngFormatter(unit))


def without_unit(name: str) -> str:
    """The name without the unit that the axis has."""
    return next((name.removesuffix(ending) for ending in UNITS if name.endswith(ending)), name)


def family(name: str) -> str:
    """`ring` for `ring, measured`: what points and lines of one colour have in common."""
    return name.split(",")[0]


def keep_apart(texts: Sequence[Annotation], axes: Axes) -> None:
    """Each text beside its point, or above, below or left of it: not on another text nor on the axis, and rarely on a
    point or a line.
    """
    paths = {line: line.get_transform().transform_path(line.get_path()) for line in axes.lines}  # in pixels
    points = [Bbox.from_extents(x - POINT_PX, y - POINT_PX, x + POINT_PX, y + POINT_PX)
              for line, path in paths.items() if line.get_marker() == "o" for x, y in path.vertices]
    curves = [path for line, path in paths.items() if line.get_linestyle() != "None"]
    placed: list[Bbox] = []

    def overlaps_at(place: tuple[str, int, int]) -> tuple[int, int]:
        text.set(ha=place[0], position=place[1:])
        box = text.get_window_extent()
        crossed = sum(curve.intersects_bbox(box, filled=False) for curve in curves)
        return box.count_overlaps(placed) + (box.x0 < axes.bbox.x0), box.count_overlaps(points) + crossed

    for text in texts:
        overlaps_at(min(LABEL_PLACES, key=overlaps_at))  # the first of the best, and there it stays
        placed.append(text.get_window_extent())
