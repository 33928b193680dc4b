"""Stragglers without a browser: the same rows, bars and words."""

from __future__ import annotations

from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from course_lib.costs.stragglers import COMMUNICATES, COMPUTES, SLOWLY
from course_lib.pictures.palette import BLUE, GREY, INK, ORANGE, RED, YELLOW
from course_lib.widgets.cells_picture import QUIET, Boxes, canvas

WIDTH, HEIGHT = 9.0, 4.15  # inches
LEFT, RIGHT = 0.75, 8.05
TOP, ROW, TALL = 0.42, 0.38, 0.3
CHART, BAR = 2.75, 0.28
COLOURS = {COMPUTES: ORANGE, SLOWLY: YELLOW, COMMUNICATES: BLUE}


def draw(shown: dict[str, Any]) -> Figure:
    """What Stragglers.compute returns, as a picture."""
    figure, axes = canvas(WIDTH, HEIGHT, shown["headline"], shown["detail"])
    key(axes, shown["kinds"])
    scale = (RIGHT - LEFT) / shown["horizon_s"]
    boxes = Boxes(axes)
    for rank, spans in enumerate(shown["rows"]):
        y = TOP + rank * ROW
        axes.text(LEFT - 0.08, y + TALL / 2, f"rank {rank}", ha="right", va="center", fontsize=9, color=INK)
        axes.text(RIGHT + 0.1, y + TALL / 2, shown["waiting"][rank], va="center", fontsize=8, color=RED)
        for kind, start, end in spans:
            what, x, wide = shown["kinds"][kind], LEFT + scale * start, scale * (end - start)
            if what in COLOURS:
                boxes.add(x, y, wide, TALL, COLOURS[what], edge="white", lw=0.5)
            else:
                axes.add_patch(Rectangle((x, y), wide, TALL, facecolor="white", edgecolor=RED, hatch="////", lw=0.4))
    boxes.paint()
    axis = TOP + len(shown["rows"]) * ROW
    axes.plot([LEFT, RIGHT], [axis, axis], color=QUIET, lw=0.8)
    for at, words in shown["ticks"]:
        axes.plot([LEFT + scale * at] * 2, [axis, axis + 0.05], color=QUIET, lw=0.8)
        axes.text(LEFT + scale * at, axis + 0.18, words, ha="center", fontsize=7.5, color=QUIET)
    bars(axes, shown)
    axes.text(0.08, HEIGHT - 0.03, shown["note"], fontsize=7.5, color=QUIET)
    return figure


def key(axes: Axes, kinds: list[str]) -> None:
    x = LEFT
    for what in kinds:
        style = {"facecolor": COLOURS[what]} if what in COLOURS else {"facecolor": "white", "edgecolor": RED,
                                                                      "hatch": "////", "lw": 0.4}
        axes.add_patch(Rectangle((x, 0.14), 0.18, 0.14, **style))
        axes.text(x + 0.25, 0.21, what, va="center", fontsize=8, color=INK)
        x += 0.5 + 0.075 * len(what)


def bars(axes: Axes, shown: dict[str, Any]) -> None:
    """Steps a second of every scheme; the one that is shown in blue."""
    axes.text(0.08, CHART - 0.14, shown["chart"], fontsize=9, color=INK)
    begin = 2.0
    scale = 4.0 / max(rate for _, rate, _, _ in shown["compared"])
    for number, (name, rate, words, present) in enumerate(shown["compared"]):
        y = CHART + number * BAR
        weight = "bold" if present else "normal"
        axes.text(begin - 0.08, y + 0.1, name, ha="right", va="center", fontsize=8, color=INK, fontweight=weight)
        axes.add_patch(Rectangle((begin, y), scale * rate, 0.2, facecolor=BLUE if present else GREY))
        axes.text(begin + scale * rate + 0.08, y + 0.1, words, va="center", fontsize=8, color=INK, fontweight=weight)
