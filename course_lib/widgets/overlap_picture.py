"""BucketOverlap without a browser: the same lanes, bars and words."""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from course_lib.pictures.palette import BLUE, GREY, INK, ORANGE, RED
from course_lib.widgets.cells_picture import QUIET, Boxes, canvas

WIDTH, HEIGHT = 9.0, 3.9  # inches
LEFT, RIGHT, LANE = 0.95, 8.85, 0.42
BACKWARD, STREAM, AXIS = 0.3, 0.82, 1.36
CHART, FOOT = 2.15, 3.4


def draw(shown: dict[str, Any]) -> Figure:
    """What BucketOverlap.compute returns, as a picture."""
    figure, axes = canvas(WIDTH, HEIGHT, shown["headline"], shown["detail"])
    figure.texts[-1].set_fontsize(8)
    scale = (RIGHT - LEFT) / shown["end_s"]
    boxes = Boxes(axes)
    for y, words in ((BACKWARD, "backward"), (STREAM, "all-reduce")):
        axes.text(LEFT - 0.1, y + LANE / 2, words, ha="right", va="center", fontsize=9, color=INK)
    for name, start, end in shown["blocks"]:
        boxes.add(LEFT + scale * start, BACKWARD, scale * (end - start), LANE, ORANGE, edge="white", lw=0.8)
        label = name if scale * (end - start) > 0.09 * len(name) else name.removeprefix("layer ")
        if scale * (end - start) > 0.08 * len(label):
            axes.text(LEFT + scale * (start + end) / 2, BACKWARD + LANE / 2, label, ha="center", va="center",
                      fontsize=7, color=INK, zorder=4)
    for start, end, size in shown["buckets"]:
        boxes.add(LEFT + scale * start, STREAM, scale * (end - start), LANE, BLUE, edge="white", lw=0.4)
        if scale * (end - start) > 0.08 * len(size):
            axes.text(LEFT + scale * (start + end) / 2, STREAM + LANE / 2, size, ha="center", va="center", fontsize=7,
                      color="white", zorder=4)
    boxes.paint()
    over = LEFT + scale * shown["backward_s"]
    if shown["end_s"] > shown["backward_s"]:
        axes.add_patch(Rectangle((over, BACKWARD), RIGHT - over, LANE, facecolor="white", edgecolor=RED, hatch="////",
                                 lw=0.8))
    axes.plot([over, over], [BACKWARD - 0.1, AXIS], color=INK, lw=1, ls="--")
    axes.text(min(over - 0.05, RIGHT - 1.15), BACKWARD - 0.06, shown["backward"], ha="right", fontsize=8, color=INK)
    axes.text(RIGHT, BACKWARD - 0.06, shown["exposed"], ha="right", fontsize=8, color=RED, fontweight="bold")
    axes.plot([LEFT, RIGHT], [AXIS, AXIS], color=QUIET, lw=0.8)
    for at, words in shown["ticks"]:
        axes.plot([LEFT + scale * at] * 2, [AXIS, AXIS + 0.05], color=QUIET, lw=0.8)
        axes.text(LEFT + scale * at, AXIS + 0.18, words, ha="center", fontsize=7.5, color=QUIET)
    bars(axes, shown)
    axes.text(LEFT, HEIGHT - 0.03, shown["note"], fontsize=7.5, color=QUIET)
    return figure


def bars(axes: Any, shown: dict[str, Any]) -> None:
    """Exposed time for each cap, the present one in blue."""
    axes.text(LEFT, CHART - 0.22, shown["chart"], fontsize=9, color=INK)
    column = (RIGHT - LEFT) / len(shown["sweep"])
    most = max(exposed for _, exposed, _, _ in shown["sweep"]) or 1.0
    for number, (cap, exposed, words, present) in enumerate(shown["sweep"]):
        tall = (FOOT - CHART - 0.15) * exposed / most
        x = LEFT + column * number
        axes.add_patch(Rectangle((x + 0.08, FOOT - tall), column - 0.16, tall, facecolor=BLUE if present else GREY))
        axes.text(x + column / 2, FOOT - tall - 0.04, words, ha="center", fontsize=7, color=INK)
        axes.text(x + column / 2, FOOT + 0.15, cap, ha="center", fontsize=7, color=INK if present else QUIET,
                  fontweight="bold" if present else "normal")
