"""RoutedText: a text, each character in the colour of the expert that its token went to, and what each expert likes."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.figure import Figure

from course_lib.pictures import painter
from course_lib.pictures.drawn import Drawn, claim
from course_lib.pictures.palette import RANK_COLOURS, ink_on
from course_lib.pictures.scene import Scene, Sheet

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

    def figure(self) -> Figure:
        return painter.paint(self.scene())

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
        for place in range(min(len(self.tokens), COLUMNS * ROWS)):
            row, column = divmod(place, COLUMNS)
            at, expert = (LEFT + column * WIDE, 4 + row * TALL), self.experts[place]
            sheet.rect(f"token {place}", f"rank {expert}", *at, WIDE, TALL, hint=f"expert {expert}")
            sheet.text(f"token {place} is", ink(expert), at[0] + WIDE / 2, at[1] + TALL / 2,
                       character(self.tokens[place]), "middle")
        for expert in range(self.num_experts):
            y = 10 + expert * 25
            sheet.rect(f"expert {expert}", f"rank {expert}", LIST, y, 17, 17)
            sheet.inside(f"expert {expert} is", ink(expert), LIST, y, 17, 17, f"{expert}")
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


def ink(expert: int) -> str:
    return "on dark" if ink_on(RANK_COLOURS[expert]) == "white" else "on light"
