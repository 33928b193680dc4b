"""Who holds what before and after a collective, as real ranks hold it.

A row for each rank, a column for each slot of its buffer, a colour for each rank's share.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from course_lib.collectives.holdings import Cell, Holdings, mixes_chunks
from course_lib.pictures.drawn import Drawn
from course_lib.pictures.palette import RANK_COLOURS, ink_on
from course_lib.pictures.scene import WIDTH, Scene, Sheet
from course_lib.plots.cell_style import CellStyle, key_to_cells

if TYPE_CHECKING:
    from torch import Tensor

    Buffers = Sequence[Tensor | Sequence[Tensor] | None] | Holdings

NAMES, ARROW, ABOVE, BELOW = 80, 40, 52, 18  # room for names of ranks, between the sides, above and below the cells
WIDEST = 80  # of a cell


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

    def scene(self) -> Scene:
        return scene_of(self.title, key_to_cells(CellStyle.of(self.before, self.after)), self.finding(), [self])


@dataclass(frozen=True, repr=False)
class HoldingsSheet(Drawn):
    """Several collectives on the same ranks in one picture, two beside each other."""

    title: str
    pictures: tuple[HoldingsPicture, ...]

    def finding(self) -> str:
        return f"{self.title}. {'. '.join(each.finding() for each in self.pictures)}"

    def scene(self) -> Scene:
        return scene_of(self.title, "colour = the rank it comes from; number = which of its chunks; stacked colours = "
                        "a sum", self.finding(), self.pictures)


def who_holds_what(before: Buffers, after: Buffers, title: str = "Who holds what") -> HoldingsPicture:
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
    num_slots = max((side if isinstance(side, Holdings) else Holdings.of(side)).num_slots for side in given)
    return HoldingsPicture(title, *(side if isinstance(side, Holdings) else Holdings.of(side, num_slots)
                                    for side in given))


def each_collective(results: Sequence[Mapping[str, tuple[object, object]]], title: str) -> HoldingsSheet:
    """What launch returns of a function that returns {name: (its buffer before, after)}, as one picture.

    ValueError where ranks name different collectives.
    """
    names = [list(of_rank) for of_rank in results]
    if not names or any(each != names[0] for each in names) or not names[0]:
        raise ValueError(f"the ranks return {names}: expected the same names on all ranks, and at least one")
    return HoldingsSheet(title, tuple(who_holds_what(*zip(*(of_rank[name] for of_rank in results)), name)
                                      for name in names[0]))


def scene_of(title: str, key: str, sentence: str, pictures: Sequence[HoldingsPicture]) -> Scene:
    """One picture as wide as the paper, or two beside each other, as many rows of them as there are."""
    sheet, columns = Sheet(), min(2, len(pictures))
    room = WIDTH / columns
    num_slots = max(each.before.num_slots + each.after.num_slots for each in pictures)
    width = min(WIDEST / columns, (room - NAMES - ARROW) / num_slots)
    height = max(28.0, 8.5 * max(each.before.num_ranks for each in pictures))
    tall = ABOVE + max(each.before.num_ranks for each in pictures) * height + BELOW
    for number, each in enumerate(pictures):
        left, top = number % columns * room + NAMES, number // columns * tall + ABOVE
        second = left + each.before.num_slots * width + ARROW
        if len(pictures) > 1:
            sheet.text(each.title, "label", left - NAMES + 8, top - 34, each.title)
        for rank in range(each.before.num_ranks):
            middle = top + (rank + 0.5) * height
            sheet.rect(f"{each.title} rank {rank}", colour_of(rank), left - NAMES + 8, middle - 6, 12, 12)
            sheet.text(f"{each.title} rank {rank} is", "small", left - 8, middle, f"rank {rank}", "end")
        for x, side, holdings in ((left, "before", each.before), (second, "after", each.after)):
            sheet.text(f"{each.title} {side}", "quiet", x, top - (8 if len(pictures) > 1 else 30), side)
            draw_grid(sheet, f"{each.title} {side}", holdings, x, top, width, height,
                      CellStyle.of(each.before, each.after), has_names=len(pictures) == 1)
        sheet.text(f"{each.title} becomes", "label", second - ARROW / 2, top + each.before.num_ranks * height / 2, "→",
                   "middle")
    return Scene(key=title, asked=key, headline=title, detail="", sentence=sentence, alternative=sentence,
                 height=-(-len(pictures) // columns) * tall, marks=tuple(sheet.marks))


def draw_grid(sheet: Sheet, key: str, holdings: Holdings, x: float, y: float, width: float, height: float,
              style: CellStyle, has_names: bool) -> None:
    """All cells, `width` x `height` each with the gap around it, from (x, y) on."""
    for slot in range(holdings.num_slots):
        if has_names:
            sheet.inside(f"{key} column {slot}", "quiet", x + slot * width, y - 16, width, 12,
                         f"{'chunk' if style.adds else 'slot'} {slot}", f"{slot}")
        for rank, cells in enumerate(holdings.cells):
            draw_cell(sheet, f"{key} {rank}.{slot}", x + (slot + 0.06) * width, y + (rank + 0.06) * height,
                      0.88 * width, 0.88 * height, cells[slot], slot, style)


def draw_cell(sheet: Sheet, key: str, x: float, y: float, width: float, height: float, cell: Cell, slot: int,
              style: CellStyle) -> None:
    """One slot of one rank's buffer, its top left corner at (x, y)."""
    if mixes_chunks(cell):
        sheet.rect(key, "wrong", x, y, width, height)
        return sheet.inside(f"{key} is", "refusal", x, y, width, height, "mixed up", "?")
    sheet.rect(key, "spare", x, y, width, height)
    for share in cell:
        top, tall = (y + share.rank * height / style.num_ranks, height / style.num_ranks) if style.adds else (y, height)
        inset = 0.1 * min(width, tall)
        role = colour_of(share.rank)
        sheet.rect(f"{key} of {share.rank}", role, x + inset, top + inset, width - 2 * inset, tall - 2 * inset)
        if share.times > 1 or not style.adds or share.chunk != slot:
            words = f"{share.times} times" if share.times > 1 else f"{share.chunk}"
            sheet.inside(f"{key} of {share.rank} is", words_on(role), x, top, width, tall, words)


def colour_of(number: int) -> str:
    """The role of a rank, or of an expert; from the ninth on colours come again."""
    return f"rank {number % len(RANK_COLOURS)}"


def words_on(role: str) -> str:
    """The role of words on that of a rank."""
    return "on dark" if ink_on(RANK_COLOURS[int(role.split()[1])]) == "white" else "on light"
