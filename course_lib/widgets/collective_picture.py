"""CollectiveExplorer without a browser: the same grid, arrows, bars and words."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, Rectangle

from course_lib.collectives.plan import Plan, times
from course_lib.pictures.palette import BLUE, GREY, INK, RED
from course_lib.plots.cell_style import CellStyle, key_to_cells
from course_lib.plots.cells import BORDER, QUIET, canvas, draw_grid, rank_names

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
