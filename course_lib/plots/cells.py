"""Draw who holds what with matplotlib: a row for each rank, a column for each place, a colour for each rank's share.

Collectives before and after, drawn from what real ranks hold.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from course_lib.collectives.holdings import Cell, Holdings, mixes_chunks
from course_lib.pictures.drawn import Drawn
from course_lib.pictures.painter import TITLE_IN, WIDTH_IN, new_figure
from course_lib.pictures.palette import INK, RED, ink_on, rank_colour
from course_lib.plots.cell_style import CellStyle, key_to_cells

if TYPE_CHECKING:
    from torch import Tensor


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


MARGIN, WIDTH = 0.95, 9.0  # inches
SMALL, BETWEEN, ABOVE = 0.41, 0.36, 0.62  # of a sheet: a place's width, the gap of the arrow, the names above the cells


@dataclass(frozen=True, repr=False)
class HoldingsPicture(Drawn):
    """What all ranks hold before and after; draws itself in a notebook, and says it in a sentence."""

    title: str
    before: Holdings
    after: Holdings

    def __post_init__(self) -> None:
        if not self.title:
            raise ValueError("title='': expected what there is to see, such as 'A ring all-reduce on 4 ranks'")
        if self.before.num_ranks != self.after.num_ranks:
            raise ValueError(f"{self.before.num_ranks} ranks before and {self.after.num_ranks} after: "
                             "expected the same ranks")

    def finding(self) -> str:
        return f"{self.title}: before, {self.before}; after, {self.after}"

    def figure(self) -> Figure:
        """Two grids side by side: a row for each rank, a column for each place of its buffer."""
        style = CellStyle.of(self.before, self.after)
        places = self.before.num_places + self.after.num_places
        width = min(0.9, (WIDTH - MARGIN - 1.0) / places)
        height = min(0.6, max(0.42, 0.1 * style.num_ranks)) if style.adds else 0.34
        start = MARGIN + max(0.0, WIDTH - MARGIN - 1.0 - places * width) / 2
        second = start + self.before.num_places * width + 0.8
        top = 0.5
        bottom = top + self.before.num_ranks * height
        figure, axes = canvas(WIDTH, bottom + 0.3, self.title, key_to_cells(style))
        rank_names(axes, self.before.num_ranks, start - 0.1, top, height)
        for x, name, holdings in ((start, "before", self.before), (second, "after", self.after)):
            axes.text(x, top - 0.34, name, fontsize=10, fontweight="bold", color=QUIET, va="bottom")
            named = "chunk " if style.adds else "place "
            names = [f"{named * (width > 0.6)}{place}" for place in range(holdings.num_places)]
            draw_grid(axes, holdings, x, top, (width, height), style, names)
        axes.annotate("", (second - 0.2, (top + bottom) / 2), (second - 0.6, (top + bottom) / 2),
                      arrowprops={"arrowstyle": "-|>", "color": QUIET, "lw": 1.5})
        return figure


def who_holds_what(before: Sequence[Tensor | Sequence[Tensor] | None] | Holdings,
                   after: Sequence[Tensor | Sequence[Tensor] | None] | Holdings,
                   title: str = "Who holds what") -> HoldingsPicture:
    """The buffers of all ranks before and after a collective, side by side; see Holdings.of for what a buffer may be.

        def body():
            mine = label_chunks(dist.get_rank(), 4)
            before = mine.clone()
            ring_all_reduce(mine)
            return before, mine

        before, after = zip(*launch(body))
        who_holds_what(before, after, "A ring all-reduce on 4 ranks")
    """
    given = (before, after)
    read = [side if isinstance(side, Holdings) else Holdings.of(side) for side in given]
    num_places = max(side.num_places for side in read)
    return HoldingsPicture(title, *(side if isinstance(side, Holdings) else Holdings.of(side, num_places)
                                    for side in given))


@dataclass(frozen=True, repr=False)
class HoldingsSheet(Drawn):
    """Several collectives on the same ranks in one picture, two beside each other."""

    title: str
    pictures: tuple[HoldingsPicture, ...]

    def finding(self) -> str:
        return f"{self.title}. {'. '.join(each.finding() for each in self.pictures)}"

    def figure(self) -> Figure:
        """For each collective two small grids: a row for each rank, a column for each place."""
        num_ranks = max(each.before.num_ranks for each in self.pictures)
        height = max(0.26, 0.085 * num_ranks)
        places = max(each.before.num_places + each.after.num_places for each in self.pictures)
        cell = min(SMALL, (WIDTH / 2 - MARGIN - BETWEEN) / places), height
        tall = ABOVE + num_ranks * height + 0.2
        figure, axes = canvas(WIDTH, (len(self.pictures) + 1) // 2 * tall, self.title,
                              "colour = the rank it comes from; number = which of its chunks; stacked colours = a sum")
        for number, each in enumerate(self.pictures):
            left, top = WIDTH / 2 * (number % 2) + MARGIN, number // 2 * tall + ABOVE
            second = left + each.before.num_places * cell[0] + BETWEEN
            axes.text(left - 0.77, top - 0.34, each.title, fontsize=10, fontweight="bold", va="bottom")
            rank_names(axes, each.before.num_ranks, left - 0.08, top, height)
            for x, name, holdings in ((left, "before", each.before), (second, "after", each.after)):
                axes.text(x + 0.03, top - 0.05, name, fontsize=8, color=QUIET, va="bottom")
                draw_grid(axes, holdings, x, top, cell, CellStyle.of(each.before, each.after), ())
            middle = top + each.before.num_ranks * height / 2
            axes.annotate("", (second - 0.04, middle), (second - BETWEEN + 0.04, middle),
                          arrowprops={"arrowstyle": "-|>", "color": QUIET, "lw": 1.5})
        return figure


def each_collective(results: Sequence[Mapping[str, tuple[object, object]]], title: str) -> HoldingsSheet:
    """What launch returns of a function that returns {name: (its buffer before, after)}, as one picture.

    ValueError where ranks name different collectives.
    """
    names = [list(of_rank) for of_rank in results]
    if not names or any(each != names[0] for each in names) or not names[0]:
        raise ValueError(f"the ranks return {names}: expected the same names on all ranks, and at least one")
    return HoldingsSheet(title, tuple(who_holds_what(*zip(*(of_rank[name] for of_rank in results)), name)
                                      for name in names[0]))
