"""Panels on one scale: recordings of memory, figures of every rank, numbers of several kinds.

    MemoryPanels("A fourth of it", {"whole": alone.memory, "sharded": sharded.memory}, predicted={"sharded": 4.0e6})
    RankPanels("Rank 2 reads other data", {"loss": losses, "own work (s)": seconds})      losses[step][rank]
    RankPanels.so_far(figures)      while they train, before there is anything to say
    Strips      one line a kind, around the value that its numbers should have
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from course_lib.pictures.drawn import Drawn, claim
from course_lib.pictures.painter import new_figure, quiet
from course_lib.pictures.palette import INK, RANK_COLOURS, rank_colour
from course_lib.pictures.units import BYTES_IN, human_bytes
from course_lib.plots.chart import set_unit, without_unit
from course_lib.runtime import MemoryLog
from course_lib.runtime.instruments.pictures import draw_panel, finish_panels
from course_lib.runtime.instruments.storage_book import Track


@dataclass(frozen=True, repr=False)
class MemoryPanels(Drawn):
    """`logs` by name, of each the rank with the highest peak. `predicted`: bytes, by the same names; dashed.

    `holds`: whether these very recordings say what the headline says; where not, picture and text say so.
    ValueError without logs, for a log of nothing, or a prediction of none of them.
    """

    headline: str
    logs: Mapping[str, MemoryLog]
    predicted: Mapping[str, float] = field(default_factory=dict)
    holds: bool | None = None

    def __post_init__(self) -> None:
        empty = [name for name, log in self.logs.items() if not log.peak]
        if not self.logs or empty:
            raise ValueError(f"{', '.join(empty) or 'no log'}: expected recordings of memory, by name")
        if unknown := sorted(self.predicted.keys() - self.logs.keys()):
            raise ValueError(f"predictions of {', '.join(unknown)}: expected names of logs, {', '.join(self.logs)}")

    def finding(self) -> str:
        return f"MemoryPanels: {claim(self.headline, self.holds)} ({', '.join(self.logs)})"

    def fullest_tracks(self) -> dict[str, Track]:
        """By name, of each log the rank with the highest peak."""
        return {name: max(log.tracks, key=Track.peak) for name, log in self.logs.items()}

    def figure(self) -> Figure:
        columns = min(2, len(self.logs))
        rows = math.ceil(len(self.logs) / columns)
        figure = new_figure(1.2 + 1.9 * rows, claim(self.headline, self.holds), "")
        panels = figure.subplots(rows, columns, sharey=True, squeeze=False).flatten()
        tracks = self.fullest_tracks()
        highest = max(track.peak() for track in tracks.values())
        unit = human_bytes(highest).split()[1]
        for axes, (name, track) in zip(panels, tracks.items()):
            draw_panel(axes, track, BYTES_IN[unit], name)
            axes.set_ylim(0, 1.3 * highest / BYTES_IN[unit])
            axes.locator_params(axis="x", nbins=5)  # numbers of five digits run together otherwise
            if name in self.predicted:
                axes.axhline(self.predicted[name] / BYTES_IN[unit], color=INK, lw=1.3, ls="--", zorder=3)
                # Above the panel: beside the line, words would lie on bars or on those of the peak.
                said = f"dashed: formula {human_bytes(self.predicted[name])}"
                axes.set_title(said, fontsize=8, loc="right", color=INK)
        finish_panels(figure, unit, tracks.values())
        return figure


Rows = Sequence[Sequence[float]]  # [step][rank]
HEIGHT_IN = 2.9


@dataclass(frozen=True, repr=False)
class RankPanels(Drawn):
    """`figures` by name: a row for each step, in it a number for each rank, or for each of `names`; `x` counts rows.

    `holds`: whether these very figures say what the headline says; where not, picture and text say so. ValueError for
    no figures, or figures of different steps or ranks.
    """

    headline: str
    figures: Mapping[str, Rows]
    detail: str = ""
    holds: bool | None = None
    names: Sequence[str] = ()
    x: str = "step"

    def __post_init__(self) -> None:
        shapes = {name: {(len(rows), len(row)) for row in rows} for name, rows in self.figures.items()}
        if len(set().union(*shapes.values())) != 1:
            raise ValueError(f"figures of (steps, ranks) {shapes}: expected the same of each, and at least one step")
        if self.names and {len(self.names)} != {of for _, of in set().union(*shapes.values())}:
            raise ValueError(f"names {', '.join(self.names)}: expected one for each rank of figures of {shapes}")

    @classmethod
    def so_far(cls, figures: Mapping[str, Rows]) -> RankPanels:
        """Figures of a run that goes on: no finding, only how many steps they are of."""
        return cls("", figures)

    def finding(self) -> str:
        names = ", ".join(map(without_unit, self.figures))
        return f"RankPanels{': ' if self.headline else ' '}{self._title()} ({names})"

    def _title(self) -> str:
        steps = len(next(iter(self.figures.values())))
        return claim(self.headline, self.holds) if self.headline else f"after {steps} steps"

    def alternative(self) -> str:
        return ". ".join(filter(None, (self.finding(), self.detail)))

    def figure(self) -> Figure:
        figure = new_figure(HEIGHT_IN, self._title(), self.detail)
        panels = figure.subplots(1, len(self.figures), squeeze=False)[0]
        for axes, (name, rows) in zip(panels, self.figures.items()):
            for rank, values in enumerate(zip(*rows)):
                name_of = self.names[rank] if self.names else f"rank {rank}"
                axes.plot(range(1, len(rows) + 1), values, color=rank_colour(rank), lw=1.5, label=name_of, alpha=0.9)
            quiet(axes)
            axes.grid(color="#E6E6E6", lw=0.6)
            axes.set_ylim(bottom=0)
            axes.xaxis.set_major_locator(MaxNLocator("auto", steps=[1, 2, 5, 10], integer=True))
            axes.set_title(without_unit(name), fontsize=9, color=INK, loc="left")
            set_unit(axes.yaxis, name)
        figure.supxlabel(self.x, fontsize=9, color=INK)
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside right center", fontsize=8, frameon=False)
        return figure


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
