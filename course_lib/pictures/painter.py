"""Paint a scene with matplotlib: what shows where no browser runs. painter.js paints the same in one.

And one kind of figure for every picture, without pyplot, whose state belongs to the reader.
"""

from __future__ import annotations

import io
import math
import textwrap

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import PathPatch, Polygon, Rectangle
from matplotlib.path import Path
from matplotlib.patheffects import withStroke
from matplotlib.text import Text

from course_lib.pictures.palette import INK, ROLES, mix, on_white, rank_colour
from course_lib.pictures.scene import Mark, Scene

WIDTH_IN, DPI, TITLE_IN = 9.0, 110, 0.55  # about the width of a notebook cell's output


def new_figure(height_in: float, headline: str, detail: str) -> Figure:
    """A white figure whose headline is what there is to see in it; `detail` stands below, smaller."""
    figure = Figure(figsize=(WIDTH_IN, height_in), dpi=DPI, facecolor="white", layout="constrained")
    top = 1 - TITLE_IN / height_in
    figure.get_layout_engine().set(rect=(0, 0, 1, top))
    headline = headline[0].upper() + headline[1:]
    figure.text(0.01, 1 - 0.08 / height_in, headline, va="top", fontsize=11, fontweight="bold", color=INK)
    figure.text(0.01, 1 - 0.31 / height_in, detail, va="top", fontsize=9, color=INK)
    return figure


def quiet(axes: Axes) -> None:
    """Leave of the frame only what carries numbers."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=8, colors=INK)


def words_of(figure: Figure) -> str:
    """What a figure says of itself in its titles and beside its axes, for who cannot see it."""
    texts = [figure.get_suptitle()]
    for axes in figure.axes:
        texts += [axes.get_title(loc=place) for place in ("left", "center", "right")]
        texts.append(" over ".join(filter(None, (axes.get_ylabel(), axes.get_xlabel()))))
    return f"a figure: {'; '.join(filter(None, texts)) or 'it has no title'}"


def to_png(figure: Figure) -> bytes:
    """The figure as PNG, the same bytes each time."""
    buffer = io.BytesIO()
    # No "Software" entry: the same picture gives the same bytes under every matplotlib version.
    figure.savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()


HEAD = ((11.0, "bold", "ink", 92), (9.0, "normal", "quiet", 120), (9.0, "normal", "ink", 120))  # characters a line
LINE = 1.35  # of a letter's size
ALIGNED = {"start": "left", "middle": "center", "end": "right"}
DASHES = (0, (3, 2))
HEAD_LONG, HEAD_WIDE = 10, 8.5  # of an arrow, in units of the scene, as painter.js has them


def paint(scene: Scene) -> Figure:
    """The headline, what was asked, the detail, and below them the marks, each an artist whose gid is its key."""
    lines = [(line, *look[:3]) for text, look in zip((scene.headline, scene.asked, scene.detail), HEAD)
             for line in textwrap.wrap(text, look[3])]
    head_in = 0.16 + sum(size * LINE for _, size, _, _ in lines) / 72
    height_in = head_in + scene.height * WIDTH_IN / scene.width + 0.08
    figure = Figure(figsize=(WIDTH_IN, height_in), dpi=DPI, facecolor="white")
    top_in = 0.08
    for line, size, weight, colour in lines:
        figure.text(0.01, 1 - top_in / height_in, line, va="top", fontsize=size, fontweight=weight,
                    color=on_white(colour))
        top_in += size * LINE / 72
    bottom = 0.08 / height_in
    axes = figure.add_axes((0, bottom, 1, 1 - head_in / height_in - bottom))
    axes.set(xlim=(0, scene.width), ylim=(scene.height, 0))
    axes.set_axis_off()
    points = 72 * WIDTH_IN / scene.width  # in a unit of the scene
    for order, mark in enumerate(scene.marks):
        add(axes, mark, points, order)
    return figure


def add_shares(axes: Axes, mark: Mark, zorder: float) -> None:
    """A band for each rank whose share is in the sum."""
    x, y, wide, tall = mark.at
    tall /= len(mark.shares) or 1
    for rank, share in enumerate(mark.shares):
        if share == "1":
            axes.add_patch(Rectangle((x + 0.1 * wide, y + (rank + 0.12) * tall), 0.8 * wide, 0.76 * tall, lw=0,
                                     facecolor=rank_colour(rank), zorder=zorder))


def head_of(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """The corners of the head of an arrow."""
    (before_x, before_y), (x, y) = points[-2:]
    far = math.hypot(x - before_x, y - before_y)
    dx, dy = (x - before_x) / far, (y - before_y) / far
    back_x, back_y = x - HEAD_LONG * dx, y - HEAD_LONG * dy
    return [(x, y), *((back_x - side * dy, back_y + side * dx) for side in (HEAD_WIDE / 2, -HEAD_WIDE / 2))]


def add(axes: Axes, mark: Mark, points: float, order: int) -> None:
    """Put one mark on the axes; `points` are points of type per unit of the scene, `order` what lies above what."""
    look = ROLES[mark.role]
    fill, stroke, width = on_white(look.fill), on_white(look.stroke), points * look.stroke_width
    if mark.tint:
        fill = mix(fill, 1 - mark.tint)
    if mark.kind == "rect":
        x, y, wide, tall = mark.at
        artist = Rectangle((x, y), wide, tall, facecolor=fill, edgecolor=stroke, lw=0 if look.striped else width,
                           hatch="////" if look.striped else None, ls=DASHES if look.dashed else "-")
        add_shares(axes, mark, 2 + 1e-4 * (order + 0.5))
    elif mark.kind == "curve":
        points = list(zip(mark.at[::2], mark.at[1::2]))
        artist = PathPatch(Path(points, [Path.MOVETO] + 3 * [Path.CURVE4]), fill=False, edgecolor=stroke, lw=width)
        if look.head:
            axes.add_patch(Polygon(head_of(points), facecolor=stroke, lw=0, zorder=2 + 1e-4 * order))
    elif mark.kind == "line":
        x1, y1, x2, y2 = mark.at
        artist = Line2D((x1, x2), (y1, y2), color=stroke, lw=width, ls=DASHES if look.dashed else "-")
    else:
        artist = Text(*mark.at, mark.text, color=fill, fontsize=points * look.size, ha=ALIGNED[mark.anchor],
                      va="baseline", fontweight="bold" if look.bold else "normal",
                      path_effects=[withStroke(linewidth=3, foreground="white")] if look.halo else None)
    artist.set(gid=mark.key, zorder=2 + 1e-4 * order)
    axes.add_artist(artist)
