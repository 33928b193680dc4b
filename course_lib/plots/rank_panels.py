"""Several figures of every rank, step by step, one panel a figure and one line a rank: what to watch in a run.

    RankPanels("Rank 2 reads other data", {"loss": losses, "own work (s)": seconds})      losses[step][rank]
    RankPanels.so_far(figures)      while they train, before there is anything to say
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, MaxNLocator

from course_lib.pictures.drawn import Drawn, claim
from course_lib.pictures.figures import new_figure, quiet
from course_lib.pictures.palette import INK, rank_colour

Rows = Sequence[Sequence[float]]  # [step][rank]
UNITS = {" (s)": "s", " (bytes)": "B"}  # written with prefixes
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
        return f"RankPanels{': ' if self.headline else ' '}{self._title()} ({', '.join(map(short, self.figures))})"

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
            axes.set_title(short(name), fontsize=9, color=INK, loc="left")
            for ending, unit in UNITS.items():
                if name.endswith(ending):
                    axes.yaxis.set_major_formatter(EngFormatter(unit))
        figure.supxlabel(self.x, fontsize=9, color=INK)
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside right center", fontsize=8, frameon=False)
        return figure

    def standing_out(self, name: str) -> int:
        """The rank whose `name` is highest in the middle one of the later half of the steps."""
        rows = self.figures[name]
        later: list[Any] = list(zip(*rows[len(rows) // 2:]))
        return max(range(len(later)), key=lambda rank: sorted(later[rank])[len(later[rank]) // 2])


def short(name: str) -> str:
    """Without the unit that the axis has."""
    return next((name.removesuffix(ending) for ending in UNITS if name.endswith(ending)), name)
