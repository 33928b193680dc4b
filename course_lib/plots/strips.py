"""Strips: numbers of several kinds, one line a kind, around the value that they should have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from course_lib.pictures.drawn import Drawn, claim
from course_lib.pictures.figures import new_figure, quiet
from course_lib.pictures.palette import INK, RANK_COLOURS

RIGHT, BAND = 1.0, 0.1  # a ratio that is right, and how far from it is near
ROW_IN, AROUND_IN = 0.3, 1.35
APART, LEVELS = 0.025, (0, 0.17, -0.17, 0.34, -0.34)  # of the axis: nearer points get another level of their line


@dataclass(frozen=True, repr=False)
class Strips(Drawn):
    """`points`: by name of a series, then by kind, its numbers, all of which should be RIGHT; grey is what is near it.
    The axis is linear and has all points. ValueError where there are none.
    """

    headline: str
    x: str
    points: Mapping[str, Mapping[str, Sequence[float]]]
    holds: bool | None = None

    def __post_init__(self) -> None:
        if not any(values for series in self.points.values() for values in series.values()):
            raise ValueError("no points: expected at least one number of one kind")

    @property
    def kinds(self) -> list[str]:
        return list(dict.fromkeys(kind for series in self.points.values() for kind in series))

    def finding(self) -> str:
        return f"Strips: {claim(self.headline, self.holds)} ({self.x}: {', '.join(self.kinds)})"

    def alternative(self) -> str:
        spans = [f"{kind}, {name}: {len(values)} from {min(values):.2f} to {max(values):.2f}"
                 for name, series in self.points.items() for kind, values in series.items() if values]
        return ". ".join([self.finding(), *spans])

    def figure(self) -> Figure:
        kinds = self.kinds
        figure = new_figure(AROUND_IN + ROW_IN * len(kinds), claim(self.headline, self.holds), "")
        axes = figure.subplots()
        axes.axvspan(RIGHT - BAND, RIGHT + BAND, color="#EEEEEE", lw=0)
        axes.axvline(RIGHT, color=INK, lw=0.9)
        everything = [value for series in self.points.values() for values in series.values() for value in values]
        gap = APART * (max(everything) - min(everything) or 1.0)
        taken: dict[str, list[tuple[float, float]]] = {kind: [] for kind in kinds}
        for number, (name, series) in enumerate(self.points.items()):
            at = [(value, kinds.index(kind) + free_level(value, taken[kind], gap))
                  for kind, values in series.items() for value in sorted(values)]
            axes.plot([x for x, _ in at], [y for _, y in at], "o", color=RANK_COLOURS[number], ms=4.5, mec="white",
                      mew=0.6, label=name, clip_on=False)
        quiet(axes)
        axes.grid(axis="x", color="#E6E6E6", lw=0.6)
        axes.set_axisbelow(True)
        axes.set_yticks(range(len(kinds)), kinds, fontsize=8, color=INK)
        axes.set_ylim(len(kinds) - 0.4, -0.6)
        axes.tick_params(axis="y", length=0)
        axes.spines["left"].set_visible(False)
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.set_xlabel(self.x, fontsize=9, color=INK)
        axes.legend(fontsize=8, frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
        return figure


def free_level(value: float, taken: list[tuple[float, float]], gap: float) -> float:
    """The level of a line where no point is near, the middle first; the last one where none is free."""
    level = next((level for level in LEVELS if all(abs(value - at) >= gap for at, of in taken if of == level)),
                 LEVELS[-1])
    taken.append((value, level))
    return level
