"""HeatMap: a table of shares whose cells are the darker the larger their number."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.colors import LinearSegmentedColormap, to_hex
from matplotlib.figure import Figure

from course_lib.pictures.drawn import Drawn, claim
from course_lib.pictures.figures import new_figure
from course_lib.pictures.palette import INK, ORANGE, PAPER, RED, ink_on

ROW_IN, AROUND_IN = 0.27, 1.25
SHADES = LinearSegmentedColormap.from_list("shares", (PAPER, ORANGE, RED))


@dataclass(frozen=True, repr=False)
class HeatMap(Drawn):
    """`values[row][column]`: shares, written in percent; None leaves a cell empty. `most`: the share from which on
    cells are darkest. ValueError for a table that has other sizes than its names.
    """

    headline: str
    rows: Sequence[str]
    columns: Sequence[str]
    values: Sequence[Sequence[float | None]]
    most: float
    detail: str = ""
    holds: bool | None = None

    def __post_init__(self) -> None:
        sizes = [len(row) for row in self.values]
        if sizes != [len(self.columns)] * len(self.rows):
            raise ValueError(f"values have rows of {sizes}: expected {len(self.rows)} rows of {len(self.columns)}")
        if not self.most > 0:
            raise ValueError(f"most={self.most}: expected a share above 0")

    def finding(self) -> str:
        return (f"HeatMap: {claim(self.headline, self.holds)} ({len(self.rows)} rows, {len(self.columns)} columns: "
                f"{', '.join(self.columns)})")

    def alternative(self) -> str:
        lines = [f"{name}: {', '.join(map(percent, row))}" for name, row in zip(self.rows, self.values)]
        return ". ".join(filter(None, (self.finding(), self.detail, *lines)))

    def figure(self) -> Figure:
        figure = new_figure(AROUND_IN + ROW_IN * len(self.rows), claim(self.headline, self.holds), self.detail)
        axes = figure.subplots()
        shown = [[value or 0.0 for value in row] for row in self.values]
        axes.imshow(shown, cmap=SHADES, vmin=0, vmax=self.most, aspect="auto")
        for y, row in enumerate(self.values):
            for x, value in enumerate(row):
                colour = to_hex(SHADES(min(1.0, (value or 0.0) / self.most)))
                axes.text(x, y, percent(value), ha="center", va="center", fontsize=8, color=ink_on(colour))
        axes.set_xticks(range(len(self.columns)), self.columns, fontsize=8, color=INK)
        axes.set_yticks(range(len(self.rows)), self.rows, fontsize=8, color=INK)
        axes.xaxis.tick_top()
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
        return figure


def percent(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.1%}" if value < 0.0995 else f"{value:.0%}"
