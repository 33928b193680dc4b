"""RingAllReduce without a browser: the same boxes, colours and words."""

from __future__ import annotations

import math
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch, Rectangle

from course_lib.collectives.plan import Plan
from course_lib.pictures.palette import BLUE, INK, rank_colour
from course_lib.plots.cell_style import CellStyle, key_to_cells
from course_lib.widgets.collective_picture import BORDER, QUIET, Boxes, canvas, draw_cell

WIDTH, HEIGHT = 9.0, 6.3  # inches
RADII = (3.55, 2.45)  # of the ellipse that the boxes stand on
MIDDLE = (HEIGHT - 0.3) / 2
TOKEN = (0.19, 0.36)  # width and height of a chunk beside its arrow
LANES_IN, COLUMN_IN = 0.5, 0.19


def draw(ring: Plan, step: int, said: dict[str, Any]) -> Figure:
    """The state after `step` steps; beside each arrow is what it has just carried."""
    figure, axes = canvas(WIDTH, HEIGHT, said["headline"], said["detail"])
    boxes = Boxes(axes)
    for rank in range(ring.num_ranks):
        box(boxes, ring, step, rank)
    for message in ring.steps[step - 1].messages if step else ():
        cell = ring.states[step - 1].cells[message.src][message.chunks[0]]
        link(boxes, ring, message.src, message.chunks[0], cell)
    if step == 0:
        for rank in range(ring.num_ranks):
            link(boxes, ring, rank, None, ())
    boxes.paint()
    centre(axes, said)
    axes.text(WIDTH / 2, HEIGHT - 0.02, key_to_cells(CellStyle(ring.num_ranks, adds=True)),
              ha="center", va="bottom", fontsize=8, color=QUIET)
    return figure


def place(ring: Plan, rank: float) -> tuple[float, float]:
    """Where rank `rank` stands; fractions lie on the way to the next one. Rank 0 is at the top, then clockwise."""
    angle = 2 * math.pi * rank / ring.num_ranks - math.pi / 2
    return WIDTH / 2 + RADII[0] * math.cos(angle), MIDDLE + RADII[1] * math.sin(angle)


def size(ring: Plan) -> tuple[float, float]:
    return max(0.9, ring.num_ranks * COLUMN_IN + 0.16), LANES_IN + 0.45


def box(boxes: Boxes, ring: Plan, step: int, rank: int) -> None:
    x, y = place(ring, rank)
    width, height = size(ring)
    left, top = x - width / 2, y - height / 2
    boxes.axes.add_patch(FancyBboxPatch((left, top), width, height, boxstyle="round,pad=0,rounding_size=0.06",
                                        facecolor="white", edgecolor=rank_colour(rank), lw=2))
    boxes.axes.text(left + 0.1, top + 0.13, f"rank {rank}", fontsize=9, fontweight="bold", color=INK, va="center")
    column = (width - 0.16) / ring.num_ranks
    style = CellStyle(ring.num_ranks, adds=True)
    arrived = {into for message in (ring.steps[step - 1].messages if step else ()) if message.dst == rank
               for into in message.into}
    for chunk, cell in enumerate(ring.states[step].cells[rank]):
        at = left + 0.08 + (chunk + 0.05) * column
        draw_cell(boxes, at, top + 0.26, column * 0.9, LANES_IN, cell, chunk, style, outlined=chunk in arrived)
        boxes.axes.text(at + column * 0.45, top + height - 0.09, chunk, fontsize=7, color=INK, ha="center", va="center",
                        fontweight="bold" if chunk in arrived else "normal")


def link(boxes: Boxes, ring: Plan, rank: int, chunk: int | None, cell: tuple) -> None:
    """The arc from `rank` to the next rank, as far as it lies outside both boxes, and what it has carried."""
    free = [rank + part / 100 for part in range(101) if not any(covers(ring, other, rank + part / 100)
                                                                for other in (rank, rank + 1))]
    points = [place(ring, at) for at in free]
    boxes.axes.plot(*zip(*points[:-1]), color=BORDER, lw=1.6, zorder=1)
    boxes.axes.annotate("", points[-1], points[-8], arrowprops={"arrowstyle": "-|>", "color": QUIET, "lw": 1.2})
    if chunk is None:
        return
    x, y = points[len(points) // 2]
    wide, tall = TOKEN
    boxes.add(x - wide / 2 - 0.03, y - tall / 2 - 0.03, wide + 0.06, tall + 0.06, "white", zorder=1.5)
    draw_cell(boxes, x - wide / 2, y - tall / 2, wide, tall, cell, chunk, CellStyle(ring.num_ranks, adds=True))
    right, down = (x - WIDTH / 2) / RADII[0], (y - MIDDLE) / RADII[1]
    beside = abs(right) > abs(down) - 0.01  # the name stands on the outer side of the chunk, where no box is
    dx, dy = (math.copysign(0.16, right), 0) if beside else (0, math.copysign(tall / 2 + 0.11, down))
    boxes.axes.text(x + dx, y + dy, f"chunk {chunk}", fontsize=8, color=INK, va="center", zorder=3,
                    ha="center" if not beside else "left" if right > 0 else "right")


def covers(ring: Plan, rank: float, at: float) -> bool:
    """Whether the box of `rank` reaches the point `at` of the circle, or nearly."""
    (x, y), (px, py), (width, height) = place(ring, rank), place(ring, at), size(ring)
    return abs(px - x) < width / 2 + 0.06 and abs(py - y) < height / 2 + 0.06


def centre(axes: Axes, said: dict[str, Any]) -> None:
    x, y = WIDTH / 2, MIDDLE
    bar = 2.6
    axes.text(x, y - 0.55, said["phase"], ha="center", va="center", fontsize=14, fontweight="bold", color=INK)
    axes.text(x, y - 0.27, said["doing"], ha="center", va="center", fontsize=9, color=QUIET)
    axes.add_patch(Rectangle((x - bar / 2, y - 0.05), bar, 0.13, color="#E0E0E0", lw=0))
    axes.add_patch(Rectangle((x - bar / 2, y - 0.05), bar * said["share"], 0.13, color=BLUE, lw=0))
    axes.plot([x, x], [y - 0.07, y + 0.1], color="white", lw=2)
    axes.text(x, y + 0.3, said["sent"], ha="center", va="center", fontsize=9.5, color=INK)
    axes.text(x, y + 0.53, said["bound"], ha="center", va="center", fontsize=8.5, color=QUIET)
