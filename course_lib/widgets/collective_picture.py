"""CollectiveExplorer without a browser: the same grid, arrows, bars and words."""

from __future__ import annotations

from collections.abc import Iterable

from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, Rectangle

from course_lib.collectives.holdings import Cell, Holdings, mixes_chunks
from course_lib.collectives.plan import Plan, times
from course_lib.pictures.painter import TITLE_IN, WIDTH_IN, new_figure
from course_lib.pictures.palette import BLUE, GREY, INK, RED, ink_on, rank_colour
from course_lib.plots.cell_style import CellStyle, key_to_cells

WIDTH = 9.0  # inches
PALE_RED = "#E8A091"
ARCS, NAMES, BARS, TOP = 1.1, 0.85, 2.3, 0.75


def draw(shown: Plan, step: int, said: dict[str, str], columns: list[str], adds: bool) -> Figure:
    """The state after `step` steps, what the last of them sent, and what all ranks have sent and received so far."""
    style = CellStyle(shown.num_ranks, adds)
    height = max(0.4, 0.055 * shown.num_ranks)
    bottom = TOP + height * shown.num_ranks
    figure, axes = canvas(WIDTH, bottom + 0.75, said["headline"], said["detail"])
    axes.text(0.06, 0.12, said["step"], fontsize=9, color=INK, va="center")
    left = ARCS + NAMES
    gap = 0.25 if len(columns) > shown.num_chunks else 0.0  # between the input and the output of an all-to-all
    width = min(0.75, (WIDTH - left - BARS - 0.3 - gap) / len(columns))
    rank_names(axes, shown.num_ranks, left - 0.1, TOP, height)
    names = columns if width > 0.5 else [name.split()[-1] for name in columns]
    done = shown.steps[step - 1].messages if step else ()
    arrived = frozenset((message.dst, into) for message in done for into in message.into)
    draw_grid(axes, shown.states[step], left, TOP, (width, height), style, names, arrived,
              (shown.num_chunks, gap))
    if gap:
        for first, name, shift in ((0, "to send to rank", 0), (shown.num_chunks, "received from rank", gap)):
            axes.text(left + shift + (first + shown.num_chunks / 2) * width, TOP - 0.27, name, ha="center", va="bottom",
                      fontsize=8, color=QUIET)
    for message in done:
        arc(axes, message.src, message.dst, TOP, height)
    bars(axes, shown, step, left + len(columns) * width + gap + 0.3, height)
    axes.text(0.06, bottom + 0.6, f"{key_to_cells(style)}; framed = has just arrived", fontsize=8, color=QUIET)
    return figure


def arc(axes: Axes, src: int, dst: int, top: float, height: float) -> None:
    """From row to row at the left of the names; who is further away bends further out."""
    start, end = top + (src + 0.5) * height - 0.06, top + (dst + 0.5) * height + 0.06
    bend = 0.9 * min(1.0, (ARCS - 0.1) / (abs(end - start) * 0.45 + 0.01))
    axes.add_patch(FancyArrowPatch((ARCS, start), (ARCS, end), arrowstyle="-|>", mutation_scale=9, color=INK, lw=1.1,
                                   connectionstyle=f"arc3,rad={bend if end > start else -bend}", shrinkA=0, shrinkB=0))


def bars(axes: Axes, shown: Plan, step: int, left: float, height: float) -> None:
    """Two bars a rank, red where one is longer than it has to be."""
    room = WIDTH - left - 0.75
    scale = room / float(max(shown.busiest, shown.bound))
    sent, received = shown.sent_by_rank(step), shown.received_by_rank(step)
    bottom = TOP + shown.num_ranks * height
    for colour, name, x in ((BLUE, "sent", left), (GREY, "received", left + 0.65)):
        axes.add_patch(Rectangle((x, TOP - 0.2), 0.1, 0.1, color=colour, lw=0))
        axes.text(x + 0.15, TOP - 0.15, name, fontsize=8, color=INK, va="center")
    for rank in range(shown.num_ranks):
        y = TOP + rank * height
        for amount, colour, offset in ((sent[rank], BLUE, 0.14), (received[rank], GREY, 0.52)):
            over = amount > shown.bound
            red = {BLUE: RED, GREY: PALE_RED}[colour]
            axes.add_patch(Rectangle((left, y + offset * height), float(amount) * scale, 0.34 * height, lw=0,
                                     color=red if over else colour))
            axes.text(left + float(amount) * scale + 0.05, y + (offset + 0.17) * height, times(amount), fontsize=7.5,
                      color=INK, va="center_baseline", fontweight="bold" if over else "normal")
    at = left + float(shown.bound) * scale
    axes.plot([at, at], [TOP - 0.02, bottom + 0.05], color=INK, lw=0.9, ls=(0, (3, 2)))
    axes.text(at, bottom + 0.14, f"bound {times(shown.bound)}", ha="center", va="center", fontsize=8, color=INK)
    axes.plot([left, left], [TOP, bottom], color=BORDER, lw=1)
    axes.text(left, bottom + 0.34, "of the buffer, by each rank so far", fontsize=8, color=QUIET, va="center")


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
    lefts = [x + place * width + (place >= second_part[0]) * second_part[1] for place in range(holdings.num_slots)]
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
