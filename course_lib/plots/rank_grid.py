"""RankGrid: the same ranks once for each axis of a layout; ranks of one colour are a group, and talk to one another.

    RankGrid({"tp": layout.groups("tp"), "dp": layout.groups("dp"), "ep": layout.groups("ep")}, columns=4)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from matplotlib.figure import Figure

from course_lib.pictures import painter
from course_lib.pictures.drawn import Drawn
from course_lib.pictures.palette import RANK_COLOURS, ink_on
from course_lib.pictures.scene import WIDTH, Scene, Sheet

Groups = Sequence[Sequence[int]]
LARGEST, GAP, TOP = 34.0, 22.0, 36.0  # a rank; between panels; where ranks begin
TINTS = (0.0, 0.55), (0.0, 0.35, 0.6, 0.8)  # of each colour in turn: for up to 16 groups, and for more


@dataclass(frozen=True, repr=False)
class RankGrid(Drawn):
    """`groups` by axis: each rank stands in one group of each axis. Rank r is drawn in row r // columns.

    The words of an axis come from its name: "ep: the experts" is drawn above its panel. ValueError where an axis does
    not have every rank once, or where the ranks do not fill `columns`.
    """

    groups: Mapping[str, Groups]
    columns: int = 4

    def __post_init__(self) -> None:
        if not self.groups:
            raise ValueError("groups of no axis: expected at least one")
        for axis, groups in self.groups.items():
            found = sorted(rank for group in groups for rank in group)
            if found != list(range(self.num_ranks)):
                raise ValueError(f"groups of {axis!r} have ranks {found}: expected each of 0 to {self.num_ranks - 1} "
                                 "once")
        if self.columns < 1 or self.num_ranks % self.columns:
            raise ValueError(f"columns={self.columns} for {self.num_ranks} ranks: expected a number that divides them")

    @property
    def num_ranks(self) -> int:
        return sum(map(len, next(iter(self.groups.values()))))

    def sizes(self) -> list[str]:
        """What each axis comes to, in words."""
        return [f"{axis.split(':')[0]} {group_sizes(groups)}" for axis, groups in self.groups.items()]

    def key_to_colours(self) -> str:
        told_apart = len(TINTS[1]) * len(RANK_COLOURS)
        again = max(map(len, self.groups.values())) > told_apart
        return "one colour is one group, whose ranks talk to one another" + (
            f"; after {told_apart} groups colours come again" if again else "")

    def finding(self) -> str:
        return f"RankGrid: {self.num_ranks} ranks: {', '.join(self.sizes())}"

    def figure(self) -> Figure:
        return painter.paint(self.scene())

    def scene(self) -> Scene:
        sheet, wide = Sheet(), (WIDTH - GAP) / len(self.groups)
        side = min(LARGEST, (wide - GAP) / self.columns)
        for number, (axis, groups) in enumerate(self.groups.items()):
            left = GAP / 2 + number * wide
            sheet.text(f"{axis} is", "label", left, 12, axis)
            tints = TINTS[len(groups) > len(TINTS[0]) * len(RANK_COLOURS)]
            for place, group in enumerate(groups):
                turn, colour = divmod(place, len(RANK_COLOURS))
                tint = tints[turn % len(tints)]
                dark = ink_on(RANK_COLOURS[colour]) == "white" and not tint
                for rank in group:
                    row, column = divmod(rank, self.columns)
                    at = left + column * side, TOP + row * side
                    sheet.rect(f"{axis} {rank}", f"rank {colour}", *at, side, side, tint=tint,
                               hint=f"rank {rank}: group {list(group)}")
                    sheet.inside(f"{axis} {rank} is", "on dark" if dark else "on light", *at, side, side, f"{rank}")
            bottom = TOP + self.num_ranks // self.columns * side
            sheet.text(f"{axis} has", "quiet", left, bottom + 14, group_sizes(groups))
        headline = f"{self.num_ranks} ranks: {', '.join(self.sizes())}"
        return Scene(key="ranks", asked=self.key_to_colours(), headline=headline, detail="", sentence=self.finding(),
                     alternative=headline, height=bottom + 28, marks=tuple(sheet.marks))


def group_sizes(groups: Groups) -> str:
    """In words: 4 groups of 2."""
    sizes = sorted({len(group) for group in groups})
    return f"{len(groups)} group{'s' * (len(groups) != 1)} of {' and '.join(map(str, sizes))}"
