"""Draw who holds what with matplotlib: a row for each rank, a column for each place, a colour for each rank's share."""

from __future__ import annotations

from collections.abc import Iterable

from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from course_lib.collectives.holdings import Cell, Holdings, mixes_chunks
from course_lib.pictures.figures import TITLE_IN, WIDTH_IN, new_figure
from course_lib.pictures.palette import INK, RED, ink_on, rank_colour
from course_lib.plots.cell_style import CellStyle

EMPTY, BORDER, QUIET = "#F4F4F4", "#C8C8C8", "#6B6B6B"
Corners = tuple[tuple[float, float], ...]
GAP = 0.12  # between cells, of a cell's width


class Boxes:
    """Many rectangles on `axes`, painted together: one by one they would take matplotlib seconds."""

    def __init__(self, axes: Axes) -> None:
        self.axes = axes
        self.layers: dict[float, list[tuple[Corners, str, str, float]]] = {}

    def add(self, x: float, y: float, width: float, height: float, colour: str, edge: str = "none", lw: float = 0,
            zorder: float = 3) -> None:
        corners = ((x, y), (x + width, y), (x + width, y + height), (x, y + height))
        self.layers.setdefault(zorder, []).append((corners, colour, edge, lw))

    def paint(self) -> None:
        for zorder, boxes in self.layers.items():
            corners, colours, edges, widths = zip(*boxes)
            self.axes.add_collection(PolyCollection(corners, facecolors=colours, edgecolors=edges, linewidths=widths,
                                                    zorder=zorder), autolim=False)


def canvas(width: float, height: float, headline: str, detail: str) -> tuple[Figure, Axes]:
    """A figure with axes in inches: x to the right from 0 to `width`, y downwards from 0 to `height`."""
    tall = height * WIDTH_IN / width + TITLE_IN
    figure = new_figure(tall, headline, detail)
    figure.set_layout_engine("none")  # it would measure every cell: seconds for eight ranks
    axes = figure.add_axes((0, 0, 1, 1 - TITLE_IN / tall))
    axes.set(xlim=(0, width), ylim=(height, 0), aspect="equal")
    axes.set_axis_off()
    return figure, axes


def draw_cell(boxes: Boxes, x: float, y: float, width: float, height: float, cell: Cell, place: int,
              style: CellStyle, outlined: bool = False) -> None:
    """One place of one rank's buffer, its top left corner at (x, y)."""
    boxes.add(x, y, width, height, "white" if cell else EMPTY, INK if outlined else BORDER, 1.6 if outlined else 0.8,
              zorder=2)
    if mixes_chunks(cell):
        boxes.axes.add_patch(Rectangle((x, y), width, height, fill=False, edgecolor=RED, hatch="xxx", lw=0, zorder=3))
        boxes.axes.text(x + width / 2, y + height / 2, "mixed up", ha="center", va="center", fontsize=7, color=RED,
                        zorder=4, backgroundcolor="white")
        return
    lane = height / style.num_ranks
    for share in cell:
        colour = rank_colour(share.rank)
        top, tall = (y + share.rank * lane, lane) if style.adds else (y, height)
        inset = min(width, tall) * 0.1
        boxes.add(x + inset, top + inset, width - 2 * inset, tall - 2 * inset, colour)
        text = f"{share.times} times" if share.times > 1 else "" if style.adds and share.chunk == place else share.chunk
        if text != "":
            boxes.axes.text(x + width / 2, top + tall / 2, text, ha="center", va="center_baseline", zorder=4,
                            color=ink_on(colour), fontsize=min(9, max(5, tall * 60)), fontweight="bold")


def draw_grid(axes: Axes, holdings: Holdings, x: float, y: float, cell: tuple[float, float], style: CellStyle,
              names: Iterable[str], outlined: frozenset[tuple[int, int]] = frozenset(),
              second_part: tuple[int, float] = (0, 0.0)) -> None:
    """All cells, `cell` wide and high, from (x, y) on, with the `names` of the columns above.

    second_part: (p, gap) leaves a gap before place p.
    """
    width, height = cell
    lefts = [x + place * width + (place >= second_part[0]) * second_part[1] for place in range(holdings.num_places)]
    for left, name in zip(lefts, names):
        axes.text(left + 0.5 * width, y - 0.06, name, ha="center", va="bottom", fontsize=8, color=QUIET)
    boxes = Boxes(axes)
    for rank, cells in enumerate(holdings.cells):
        for place, held in enumerate(cells):
            draw_cell(boxes, lefts[place] + GAP / 2 * width, y + (rank + GAP / 2) * height, width * (1 - GAP),
                      height * (1 - GAP), held, place, style, (rank, place) in outlined)
    boxes.paint()


def rank_names(axes: Axes, num_ranks: int, x: float, y: float, height: float) -> None:
    """`rank 0` with its colour, at the left of each row; x is their right end."""
    for rank in range(num_ranks):
        middle = y + (rank + 0.5) * height
        axes.add_patch(Rectangle((x - 0.68, middle - 0.06), 0.12, 0.12, color=rank_colour(rank), lw=0))
        axes.text(x, middle, f"rank {rank}", ha="right", va="center_baseline", fontsize=9, color=INK)
