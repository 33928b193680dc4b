"""Pictures of cells: shares, ranks, characters.

    HeatMap      a table of shares whose cells are the darker the larger their number
    RankGrid     the same ranks once for each axis of a layout; ranks of one colour are a group, and talk to one another
    RoutedText   a text, each character in the colour of the expert that its token went to, and what each expert likes

    RankGrid({"tp": layout.groups("tp"), "dp": layout.groups("dp"), "ep": layout.groups("ep")}, columns=4)
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from matplotlib.colors import LinearSegmentedColormap, to_hex
from matplotlib.figure import Figure

from course_lib.pictures.drawn import Drawn, claim
from course_lib.pictures.painter import new_figure
from course_lib.pictures.palette import INK, ORANGE, PAPER, RANK_COLOURS, RED, ink_on
from course_lib.pictures.scene import WIDTH, Scene, Sheet
from course_lib.plots.cells import words_on

ROW_IN, AROUND_IN = 0.27, 1.25
SHADES = LinearSegmentedColormap.from_list("shares", (PAPER, ORANGE, RED))


@dataclass(frozen=True, repr=False)
class HeatMap(Drawn):
    """`values[row][column]`: shares, written in percent; None leaves a cell empty. `most`: the share from which on
    cells are darkest. ValueError for a table that has other sizes than its names.
    """

    headline: str
    rows: Sequence[str]
    columns: Sequence[str]
    values: Sequence[Sequence[float | None]]
    most: float
    detail: str = ""
    holds: bool | None = None

    def __post_init__(self) -> None:
        sizes = [len(row) for row in self.values]
        if sizes != [len(self.columns)] * len(self.rows):
            raise ValueError(f"values have rows of {sizes}: expected {len(self.rows)} rows of {len(self.columns)}")
        if not self.most > 0:
            raise ValueError(f"most={self.most}: expected a share above 0")

    def finding(self) -> str:
        return (f"HeatMap: {claim(self.headline, self.holds)} ({len(self.rows)} rows, {len(self.columns)} columns: "
                f"{', '.join(self.columns)})")

    def alternative(self) -> str:
        lines = [f"{name}: {', '.join(map(percent, row))}" for name, row in zip(self.rows, self.values)]
        return ". ".join(filter(None, (self.finding(), self.detail, *lines)))

    def figure(self) -> Figure:
        figure = new_figure(AROUND_IN + ROW_IN * len(self.rows), claim(self.headline, self.holds), self.detail)
        axes = figure.subplots()
        shown = [[value or 0.0 for value in row] for row in self.values]
        axes.imshow(shown, cmap=SHADES, vmin=0, vmax=self.most, aspect="auto")
        for y, row in enumerate(self.values):
            for x, value in enumerate(row):
                colour = to_hex(SHADES(min(1.0, (value or 0.0) / self.most)))
                axes.text(x, y, percent(value), ha="center", va="center", fontsize=8, color=ink_on(colour))
        axes.set_xticks(range(len(self.columns)), self.columns, fontsize=8, color=INK)
        axes.set_yticks(range(len(self.rows)), self.rows, fontsize=8, color=INK)
        axes.xaxis.tick_top()
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
        return figure


def percent(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.1%}" if value < 0.0995 else f"{value:.0%}"


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

    def finding(self) -> str:
        return f"RankGrid: {self.num_ranks} ranks: {', '.join(self.sizes())}"

    def scene(self) -> Scene:
        sheet, wide = Sheet(), (WIDTH - GAP) / len(self.groups)
        side = min(LARGEST, (wide - GAP) / self.columns)
        for number, (axis, groups) in enumerate(self.groups.items()):
            left = GAP / 2 + number * wide
            sheet.text(f"{axis} is", "label", left, 12, axis)
            tints = TINTS[len(groups) > len(TINTS[0]) * len(RANK_COLOURS)]
            for number_of_group, group in enumerate(groups):
                turn, colour = divmod(number_of_group, len(RANK_COLOURS))
                tint, role = tints[turn % len(tints)], f"rank {colour}"
                for rank in group:
                    row, column = divmod(rank, self.columns)
                    at = left + column * side, TOP + row * side
                    sheet.rect(f"{axis} {rank}", role, *at, side, side, tint=tint,
                               hint=f"rank {rank}: group {list(group)}")
                    ink = "on light" if tint else words_on(role)
                    sheet.inside(f"{axis} {rank} is", ink, *at, side, side, f"{rank}")
            bottom = TOP + self.num_ranks // self.columns * side
            sheet.text(f"{axis} has", "quiet", left, bottom + 14, group_sizes(groups))
        most, headline = len(TINTS[1]) * len(RANK_COLOURS), f"{self.num_ranks} ranks: {', '.join(self.sizes())}"
        again = f"; after {most} groups colours come again" * (max(map(len, self.groups.values())) > most)
        return Scene(key="ranks", asked=f"one colour is one group, whose ranks talk to one another{again}",
                     headline=headline, detail="", sentence=self.finding(), alternative=headline, height=bottom + 28,
                     marks=tuple(sheet.marks))


def group_sizes(groups: Groups) -> str:
    """In words: 4 groups of 2."""
    sizes = sorted({len(group) for group in groups})
    return f"{len(groups)} group{'s' * (len(groups) != 1)} of {' and '.join(map(str, sizes))}"


COLUMNS, ROWS = 46, 11
LEFT, WIDE, TALL, LIST = 10, 13.2, 18.5, 640
VISIBLE = {" ": "␣", "\n": "↵"}
FAVOURITES = 7  # characters to name for each expert


@dataclass(frozen=True, repr=False)
class RoutedText(Drawn):
    """`tokens`: bytes of a text; `experts`: where each of them went. The beginning is drawn, all of it is counted.

    `holds`: whether these very data say what the headline says. ValueError for experts that are not there, more than
    there are colours for, or not one for each token.
    """

    headline: str
    tokens: Sequence[int]
    experts: Sequence[int]
    num_experts: int = 8
    detail: str = ""
    holds: bool | None = None

    def __post_init__(self) -> None:
        if len(self.tokens) != len(self.experts) or not len(self.tokens):
            raise ValueError(f"{len(self.tokens)} tokens and {len(self.experts)} experts: expected one for each token")
        if self.num_experts > len(RANK_COLOURS) or not 0 <= min(self.experts) <= max(self.experts) < self.num_experts:
            raise ValueError(f"experts {min(self.experts)} to {max(self.experts)} of {self.num_experts}: expected 0 to "
                             f"{self.num_experts - 1}, of at most {len(RANK_COLOURS)}, which all have their colour")

    def finding(self) -> str:
        return f"RoutedText: {claim(self.headline, self.holds)} ({len(self.tokens):,} characters, " \
               f"{self.num_experts} experts)"

    def favourites(self, expert: int) -> list[str]:
        """The characters that tell most of this expert: often there, and more often than elsewhere."""
        everywhere = Counter(self.tokens)
        here = Counter(token for token, chosen in zip(self.tokens, self.experts, strict=True) if chosen == expert)
        rows, num_tokens = sum(here.values()), len(self.tokens)

        def tells(token: int) -> float:
            return here[token] * math.log(here[token] / rows * num_tokens / everywhere[token])

        found = sorted((token for token in here if tells(token) > 0), key=lambda token: (-tells(token), token))
        return [character(token) for token in found[:FAVOURITES]]

    def share(self, expert: int) -> float:
        return sum(chosen == expert for chosen in self.experts) / len(self.experts)

    def scene(self) -> Scene:
        sheet = Sheet()
        for number in range(min(len(self.tokens), COLUMNS * ROWS)):
            row, column = divmod(number, COLUMNS)
            at, expert = (LEFT + column * WIDE, 4 + row * TALL), self.experts[number]
            sheet.rect(f"token {number}", f"rank {expert}", *at, WIDE, TALL, hint=f"expert {expert}")
            sheet.text(f"token {number} is", words_on(f"rank {expert}"), at[0] + WIDE / 2, at[1] + TALL / 2,
                       character(self.tokens[number]), "middle")
        for expert in range(self.num_experts):
            y = 10 + expert * 25
            sheet.rect(f"expert {expert}", f"rank {expert}", LIST, y, 17, 17)
            sheet.inside(f"expert {expert} is", words_on(f"rank {expert}"), LIST, y, 17, 17, f"{expert}")
            sheet.text(f"expert {expert} has", "small", LIST + 25, y + 8.5, f"{self.share(expert):.0%}")
            sheet.text(f"expert {expert} likes", "label", LIST + 66, y + 8.5, "  ".join(self.favourites(expert)))
        return Scene(key="text", asked="each character in the colour of its expert; to the right what each expert gets "
                     "more of than others", headline=claim(self.headline, self.holds), detail=self.detail,
                     sentence=self.finding(), alternative=self.finding(), height=max(ROWS * TALL, 210) + 8,
                     marks=tuple(sheet.marks))


def character(token: int) -> str:
    """As it can be drawn."""
    shown = VISIBLE.get(chr(token), chr(token))
    return shown if shown.isprintable() and token < 127 or shown in VISIBLE.values() else "?"
