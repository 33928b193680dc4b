"""PipelineSchedule without a browser: the same lanes, bars and words."""

from __future__ import annotations

from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from course_lib.pictures.figures import new_figure, quiet
from course_lib.pictures.palette import BLUE, GREY, INK, RED
from course_lib.pipeline_parallel import Simulation
from course_lib.pipeline_parallel.picture import draw_lanes, legend

LANE_IN, BAR_IN = 0.32, 0.19


def draw(simulated: Simulation, shown: dict[str, Any]) -> Figure:
    """What PipelineSchedule.compute returns, as a picture."""
    lanes, bars = LANE_IN * len(shown["rows"]) + 0.35, BAR_IN * len(shown["compared"]) + 0.3
    headline, detail = shown["headline"], shown["detail"]
    figure = new_figure(lanes + bars + 1.2, headline if len(headline) < 105 else f"{headline[:102]}...", detail)
    figure.texts[-1].set_fontsize(8.5)
    figure.get_layout_engine().set(hspace=0.06)
    top, bottom = figure.subplots(2, 1, height_ratios=[lanes, bars])
    draw_lanes(top, simulated, shown["end"])
    top.set_xlabel(shown["axis"], fontsize=8.5, color=INK)
    waiting(top, shown["rows"])
    compare(bottom, shown)
    figure.legend(handles=legend([simulated], False), ncols=6, loc="outside lower left", fontsize=8, frameon=False)
    return figure


def waiting(axes: Axes, rows: list[list[list[Any]]]) -> None:
    """What cannot run (yet): hollow, red where it is wrong."""
    for rank, row in enumerate(rows):
        for start, end, kind, microbatch, _, becomes in row:
            if becomes:
                colour = RED if becomes == 2 else INK
                axes.add_patch(Rectangle((start, rank + 0.1), end - start, 0.8, fill=False, ls="--", edgecolor=colour))
                axes.text((start + end) / 2, rank + 0.5, f"{kind}{microbatch}", ha="center", va="center_baseline",
                          fontsize=7.5, color=colour)


def compare(axes: Axes, shown: dict[str, Any]) -> None:
    """The idle share of every schedule, the present one in blue."""
    rows = shown["compared"]
    axes.barh(range(len(rows)), [idle for _, idle, _, _ in rows], 0.72,
              color=[BLUE if present else GREY for *_, present in rows])
    most = max(idle for _, idle, _, _ in rows) or 1.0
    for place, (_, idle, words, present) in enumerate(rows):
        axes.text(idle + 0.01 * most, place, words, va="center_baseline", fontsize=7.5, color=INK,
                  fontweight="bold" if present else "normal")
    axes.set(xlim=(0, 1.35 * most), ylim=(len(rows) - 0.5, -0.5), xticks=[])
    axes.set_yticks(range(len(rows)), [name for name, *_ in rows])
    axes.set_title(shown["chart"], loc="left", fontsize=9, color=INK)
    quiet(axes)
    axes.tick_params(axis="y", length=0)
    axes.spines["bottom"].set_visible(False)
