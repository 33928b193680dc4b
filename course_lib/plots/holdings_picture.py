"""Collectives before and after, drawn from what real ranks hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from matplotlib.figure import Figure

from course_lib.collectives.holdings import Holdings
from course_lib.pictures.drawn import Drawn
from course_lib.plots.cell_style import CellStyle, key_to_cells
from course_lib.plots.cells_picture import QUIET, canvas, draw_grid, rank_names

if TYPE_CHECKING:
    from torch import Tensor

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
