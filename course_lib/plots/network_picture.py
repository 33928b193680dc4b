"""A fat tree and a torus of equally many chips: how many wires a message from chip 0 takes to each other one.

    side  chips at one switch of the tree, and along one axis of the torus; side^2 chips in all
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import mean

from course_lib.pictures.drawn import Drawn
from course_lib.pictures.palette import BLUE, ink_on, mix
from course_lib.pictures.scene import Scene, Sheet

TOP, BOTTOM = 45, 250  # the drawings lie between them
CHIP, SWITCH = 22, (60, 20)
OPEN = 22  # of the wire from the last chip of a row or column back to its first: so much is drawn at either end


@dataclass(frozen=True, repr=False)
class TreeAndTorus(Drawn):
    """Both networks side by side; the number in a chip counts the wires from chip 0.

    ValueError for a side other than 3, 4 or 5.
    """

    side: int = 4

    def __post_init__(self) -> None:
        if self.side not in (3, 4, 5):
            raise ValueError(f"side={self.side!r}: expected 3, 4 or 5, so that a chip has room for its number")

    def tree_wires(self) -> list[int]:
        """By chip: up to its switch and down, or up to a second switch and down twice."""
        return [0 if chip == 0 else 2 if chip < self.side else 4 for chip in range(self.side ** 2)]

    def torus_wires(self) -> list[int]:
        """By chip, row after row: along one axis, then along the other, the shorter way around each."""
        way = [min(steps, self.side - steps) for steps in range(self.side)]
        return [down + right for down in way for right in way]

    def headline(self) -> str:
        tree, torus = sorted({*self.tree_wires()} - {0}), sorted({*self.torus_wires()} - {0})
        return (f"From chip 0: {tree[0]} or {tree[-1]} wires through the switches of a fat tree, "
                f"{torus[0]} to {torus[-1]} in a torus")

    def detail(self) -> str:
        others = self.side ** 2 - 1
        tree, torus = sum(self.tree_wires()) / others, sum(self.torus_wires()) / others
        return (f"number = wires from chip 0; to another chip on average {tree:.1f} in the tree, "
                f"{torus:.1f} in the torus, where other chips pass it on")

    def finding(self) -> str:
        return f"{self.headline()} ({self.side ** 2} chips each; {self.detail()})"

    def scene(self) -> Scene:
        sheet = Sheet()
        self._draw_tree(sheet, left=20, right=490)
        self._draw_torus(sheet, left=605)
        return Scene(key=f"side={self.side}", asked=self.detail(), headline=self.headline(), detail="",
                     sentence=self.finding(), alternative=self.finding(), height=BOTTOM + 30, marks=tuple(sheet.marks))

    def _draw_tree(self, sheet: Sheet, left: float, right: float) -> None:
        sheet.text("tree", "label", (left + right) / 2, 12, "fat tree", "middle")
        chips = [left + (right - left) * (chip + 0.5) / self.side ** 2 for chip in range(self.side ** 2)]
        leaves = [mean(chips[first:first + self.side]) for first in range(0, len(chips), self.side)]
        chip_y, leaf_y, core_y = BOTTOM - CHIP, (TOP + BOTTOM) / 2, TOP + 15
        switches = [*((x, leaf_y) for x in leaves), *((mean(leaves) + offset, core_y) for offset in (-70, 70))]
        for leaf, x in enumerate(leaves):
            for core, y in switches[-2:]:
                sheet.line(f"leaf {leaf} to {core}", "axis", x, leaf_y, core, y)
            for chip in range(leaf * self.side, (leaf + 1) * self.side):
                sheet.line(f"leaf {leaf} to chip {chip}", "axis", chips[chip], chip_y, x, leaf_y)
        for number, (x, y) in enumerate(switches):
            at = (x - SWITCH[0] / 2, y - SWITCH[1] / 2, *SWITCH)
            sheet.rect(f"switch {number}", "stuck", *at)
            sheet.inside(f"switch {number} is", "small", *at, "switch")
        for chip, wires in enumerate(self.tree_wires()):
            draw_chip(sheet, f"tree {chip}", chips[chip], chip_y, wires)

    def _draw_torus(self, sheet: Sheet, left: float) -> None:
        step = (BOTTOM - TOP - 50) / (self.side - 1)
        xs, ys = ([first + by * number for number in range(self.side)] for first, by in ((left, 1.25 * step),
                                                                                        (TOP + 20, step)))
        sheet.text("torus", "label", mean(xs), 12, "torus", "middle")
        for number, (x, y) in enumerate(zip(xs, ys)):
            sheet.line(f"column {number}", "axis", x, ys[0] - OPEN, x, ys[-1] + OPEN)
            sheet.line(f"row {number}", "axis", xs[0] - OPEN, y, xs[-1] + OPEN, y)
        sheet.text("open ends", "quiet", mean(xs), ys[-1] + OPEN + 10, "each open end meets the one across", "middle")
        for chip, wires in enumerate(self.torus_wires()):
            draw_chip(sheet, f"torus {chip}", xs[chip % self.side], ys[chip // self.side], wires)


def draw_chip(sheet: Sheet, key: str, x: float, y: float, wires: int) -> None:
    at, dark = (x - CHIP / 2, y - CHIP / 2, CHIP, CHIP), ink_on(mix(BLUE, 1 - 0.2 * wires)) == "white"
    sheet.rect(key, "parameters", *at, tint=0.2 * wires)
    sheet.inside(f"{key} is", "on dark" if dark else "on light", *at, str(wires))
