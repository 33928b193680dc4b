"""A fat tree and a torus of equally many chips: how many wires a message from chip 0 takes to each other one.

    side  chips at one switch of the tree, and along one axis of the torus; side^2 chips in all
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import mean

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, Rectangle

from course_lib.pictures.drawn import Drawn
from course_lib.pictures.palette import BLUE, INK, ink_on, mix
from course_lib.plots.cells import BORDER, QUIET, canvas

WIDTH, TOP, HEIGHT = 9.0, 0.45, 2.5  # inches; the drawings lie between TOP and HEIGHT
CHIP = 0.22
WIRE = "#9A9A9A"


def around(place: int, side: int) -> int:
    """Steps from place 0 of a ring of `side` places, the shorter way."""
    return min(place, side - place)


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
        """By chip, row after row: along one axis, then along the other."""
        return [around(chip // self.side, self.side) + around(chip % self.side, self.side)
                for chip in range(self.side ** 2)]

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

    def figure(self) -> Figure:
        figure, axes = canvas(WIDTH, HEIGHT + 0.15, self.headline(), self.detail())
        self._draw_tree(axes, left=0.2, right=4.9)
        self._draw_torus(axes, left=5.7)
        return figure

    def _draw_tree(self, axes: Axes, left: float, right: float) -> None:
        title(axes, "fat tree", (left + right) / 2)
        chips = [left + (right - left) * (chip + 0.5) / self.side ** 2 for chip in range(self.side ** 2)]
        leaves = [mean(chips[first:first + self.side]) for first in range(0, len(chips), self.side)]
        cores = [mean(leaves) + offset for offset in (-0.7, 0.7)]
        chip_y, leaf_y, core_y = HEIGHT - CHIP, (TOP + HEIGHT) / 2, TOP + 0.15
        for leaf, x in enumerate(leaves):
            for core in cores:
                wire(axes, x, leaf_y, core, core_y, thick=2.2)
            for chip in chips[leaf * self.side:(leaf + 1) * self.side]:
                wire(axes, chip, chip_y, x, leaf_y)
        for x, y in [*((x, leaf_y) for x in leaves), *((x, core_y) for x in cores)]:
            axes.add_patch(Rectangle((x - 0.3, y - 0.1), 0.6, 0.2, facecolor="white", edgecolor=INK, lw=0.8, zorder=3))
            axes.text(x, y, "switch", ha="center", va="center", fontsize=7, color=INK, zorder=4)
        for x, wires in zip(chips, self.tree_wires()):
            chip_box(axes, x, chip_y, wires)

    def _draw_torus(self, axes: Axes, left: float) -> None:
        step = (HEIGHT - TOP - 0.55) / (self.side - 1)
        xs = [left + 0.35 + 1.25 * step * column for column in range(self.side)]
        ys = [TOP + 0.32 + step * row for row in range(self.side)]
        title(axes, "torus", mean(xs))
        for x in xs:
            wire(axes, x, ys[0], x, ys[-1])
            around_the_edge(axes, (x, ys[-1]), (x, ys[0]), bend=0.22)
        for y in ys:
            wire(axes, xs[0], y, xs[-1], y)
            around_the_edge(axes, (xs[0], y), (xs[-1], y), bend=0.16)
        for chip, wires in enumerate(self.torus_wires()):
            chip_box(axes, xs[chip % self.side], ys[chip // self.side], wires)


def title(axes: Axes, words: str, x: float) -> None:
    axes.text(x, 0.12, words, ha="center", va="center", fontsize=10, fontweight="bold", color=QUIET)


def wire(axes: Axes, x1: float, y1: float, x2: float, y2: float, thick: float = 1.0) -> None:
    axes.plot([x1, x2], [y1, y2], color=WIRE, lw=thick, zorder=1)


def around_the_edge(axes: Axes, start: tuple[float, float], end: tuple[float, float], bend: float) -> None:
    """The wire from the last chip of a row or column back to its first."""
    axes.add_patch(FancyArrowPatch(start, end, arrowstyle="-", connectionstyle=f"arc3,rad={bend}", color=WIRE, lw=1.0,
                                   shrinkA=0, shrinkB=0, zorder=1))


def chip_box(axes: Axes, x: float, y: float, wires: int) -> None:
    colour = mix(BLUE, 1 - 0.2 * wires)
    axes.add_patch(Rectangle((x - CHIP / 2, y - CHIP / 2), CHIP, CHIP, facecolor=colour, edgecolor=BORDER, lw=0.8,
                             zorder=3))
    axes.text(x, y, str(wires), ha="center", va="center_baseline", fontsize=8, color=ink_on(colour), zorder=4)
