"""A collective before and after, drawn from what real ranks hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from matplotlib.figure import Figure

from course_lib.collectives.holdings import Holdings
from course_lib.pictures.drawn import Drawn
from course_lib.plots.cells_picture import QUIET, CellStyle, canvas, draw_grid, key_to_cells, rank_names

if TYPE_CHECKING:
    from torch import Tensor

MARGIN, WIDTH = 0.95, 9.0  # inches


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
