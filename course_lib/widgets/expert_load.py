"""ExpertLoad: eight experts' shares of the tokens while a router trains, and what keeps one of them from taking all.

A caricature with one number for each expert, its logit z, and no tokens at all. In each step

    f = softmax(z + b)                  shares of the tokens, k = 1
    z += gain (f - 1/E)                 who gets tokens learns, and the router notices
    z -= strength E P (f - sum f P)     auxiliary loss: the gradient of E sum f P, with P = softmax(z) and f held fixed
    b += strength sign(1/E - f)         bias: down for who has more than the mean

Near even shares a difference grows by 1 + (gain - strength)/E in a step under the auxiliary loss, and so dies out where
strength exceeds gain. The bias stops differences as they come, and leaves z alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import Any

from course_lib.pictures.scene import Scene, Sheet, bars
from course_lib.widgets.base import Control, Explorable, OneOf, chooser, slider

EXPERTS, STEPS, SHOWN = 8, 240, 60  # SHOWN: columns of the picture
BALANCING = ("none", "auxiliary loss", "bias")
GAINS = (0.0, 0.1, 0.2, 0.4)
STRENGTHS = (0.01, 0.03, 0.1, 0.2, 0.4)
# What the logits are at the start: the differences that any initialisation has, the same for all settings.
START = (0.04, -0.08, 0.12, 0.02, -0.03, -0.10, 0.06, -0.03)


@dataclass(frozen=True)
class RouterRun:
    """All that there is to see. `shares[step][expert]`: of the tokens, from before the first step to after the last."""

    balancing: str
    strength: float
    gain: float
    shares: tuple[tuple[float, ...], ...]

    @property
    def imbalance(self) -> float:
        """The largest share over the mean, in the end: 1 if even, E if one expert has all tokens."""
        return EXPERTS * max(self.shares[-1])

    @property
    def starved(self) -> int:
        """Experts that end with less than a tenth of the mean."""
        return sum(share < 0.1 / EXPERTS for share in self.shares[-1])


def softmax(z: list[float]) -> list[float]:
    highest = max(z)
    powers = [math.exp(each - highest) for each in z]
    return [power / sum(powers) for power in powers]


@cache
def run(balancing: str, strength: float, gain: float, start: tuple[float, ...] = START) -> RouterRun:
    """The shares of all experts over STEPS steps from these logits."""
    z, b, shares = list(start), [0.0] * len(start), []
    for _ in range(STEPS):
        f, P = softmax([each + bias for each, bias in zip(z, b)]), softmax(z)
        shares.append(tuple(f))
        E, mixed = len(z), sum(f_i * P_i for f_i, P_i in zip(f, P))
        z = [z_i + gain * (f_i - 1 / E) for z_i, f_i in zip(z, f)]
        if balancing == "auxiliary loss":
            z = [z_i - strength * E * P_i * (f_i - mixed) for z_i, P_i, f_i in zip(z, P, f)]
        if balancing == "bias":
            b = [b_i + strength * ((1 / E > f_i) - (1 / E < f_i)) for b_i, f_i in zip(b, f)]
    shares.append(tuple(softmax([each + bias for each, bias in zip(z, b)])))
    return RouterRun(balancing, strength, gain, tuple(shares))


LEFT, RIGHT, TOP, TALL = 76, 760, 30, 224


def scene_of(**settings: Any) -> Scene:
    """A column for every fourth step, in it every expert's share; below, the three ways beside one another."""
    sheet, shown, wide = Sheet(), run(**settings), (RIGHT - LEFT) / SHOWN
    sheet.text("shares are", "label", LEFT, 12, "Shares of the tokens, expert above expert")
    for column in range(SHOWN):
        step, y = (column + 1) * STEPS // SHOWN, TOP
        for expert, share in enumerate(shown.shares[step]):
            sheet.rect(f"step {step} expert {expert}", f"rank {expert}", LEFT + column * wide, y, wide, share * TALL,
                       hint=f"expert {expert}, step {step}: {share:.1%} of the tokens")
            y += share * TALL
    add_names(sheet, shown)
    for place, words in ((0.0, "all"), (0.5, "half"), (1.0, "none")):
        sheet.text(f"{words} of them", "quiet", LEFT - 9, TOP + place * TALL, words, "end")
    for step in range(0, STEPS + 1, 60):
        x = LEFT + (RIGHT - LEFT) * step / STEPS
        sheet.line(f"tick {step}", "axis", x, TOP + TALL, x, TOP + TALL + 5)
        sheet.text(f"tick {step} is", "quiet", x, TOP + TALL + 14, f"{step}", "middle")
    bottom = TOP + TALL + 32
    sheet.text("steps are", "quiet", (LEFT + RIGHT) / 2, bottom, "steps of training", "middle")
    sheet.text("compared", "label", LEFT, bottom + 26, "The busiest expert after the last step, over the mean")
    others = [run(balancing, shown.strength, shown.gain) for balancing in BALANCING]
    rows = [(other.balancing, other.imbalance, f"{other.imbalance:.2f}, {experts(other.starved)} starved",
             other.balancing == shown.balancing) for other in others]
    bars(sheet, 190, 640, bottom + 38, 20, rows)
    finding, detail = texts(shown)
    asked = f"balancing by {shown.balancing}" if shown.balancing != "none" else "no balancing"
    asked += f", strength {shown.strength:g}, gain {shown.gain:g}"
    ends = ", ".join(f"expert {expert} {share:.0%}" for expert, share in enumerate(shown.shares[-1]))
    return sheet.scene("ExpertLoad", f"{shown.balancing} strength={shown.strength:g} gain={shown.gain:g}", asked,
                       finding, detail, bottom + 38 + 20 * len(rows) + 8, f"Shares in the end: {ends}")


def add_names(sheet: Sheet, shown: RouterRun) -> None:
    """Beside the last column, of those whose share has room for a name."""
    y = TOP
    for expert, share in enumerate(shown.shares[-1]):
        if share * TALL > 14:
            sheet.text(f"expert {expert} is", "small", RIGHT + 8, y + share * TALL / 2, f"expert {expert}, {share:.0%}")
        y += share * TALL


def experts(number: int) -> str:
    return f"{number} expert{'s' * (number != 1)}"


def texts(shown: RouterRun) -> tuple[str, str]:
    """Headline and detail."""
    finding = f"The busiest expert ends with {shown.imbalance:.2f} times the mean; {experts(shown.starved)} starved"
    if shown.balancing == "auxiliary loss":
        growth = (shown.gain - shown.strength) / EXPERTS
        word = "grows" if growth > 0 else "shrinks" if growth < 0 else "stays"
        return finding, f"near even shares a difference {word}, by {abs(growth):.2%} per step: (gain - strength)/8"
    if shown.balancing == "bias":
        return finding, f"each step moves a bias by {shown.strength:g}, whatever the loss says"
    return finding, f"near even shares a difference grows by {shown.gain / EXPERTS:.2%} per step: gain/8"


class ExpertLoad(Explorable, draw=scene_of):
    """Eight experts' shares under `balancing` ("none", "auxiliary loss", "bias") of some `strength`.

    `gain`: how fast an expert that gets more tokens than others becomes more wanted.
    """

    balancing = OneOf("none", BALANCING)
    strength = OneOf(0.1, STRENGTHS)
    gain = OneOf(0.2, GAINS)

    @classmethod
    def list_controls(cls, settings: dict[str, Any]) -> list[Control]:
        return [chooser("balancing", "balancing", BALANCING),
                slider("strength", "strength", STRENGTHS, settings["strength"], "{:g}".format,
                       enabled=settings["balancing"] != "none"),
                slider("gain", "gain", GAINS, settings["gain"], "{:g}".format)]
