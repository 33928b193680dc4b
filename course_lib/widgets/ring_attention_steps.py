"""RingAttentionSteps: which rank holds which tokens, whose keys it has in which step, and what it has to compute.

A second track belongs to the way back: how many ranks have added to the sum of gradients that follows the block.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from course_lib.costs.splitting import LAYOUTS, imbalance, ring_work
from course_lib.pictures.scene import Scene, Sheet, bars, legend
from course_lib.widgets.base import Control, Explorable, OneOf, WholeNumber, chooser, require_step, slider

RANKS = tuple(range(2, 9))
TOKENS = 840 * 16  # 2R divides it for every R here: shares are those of a long row
PIECES = 4  # that stand for a rank's tokens in the picture


@dataclass(frozen=True)
class AttentionRing:
    """All that there is to see. `work[step][rank]`: pairs of a query and a key that it reads."""

    layout: str
    num_ranks: int
    step: int
    work: tuple[tuple[int, ...], ...]

    @property
    def totals(self) -> list[int]:
        return [sum(of_rank) for of_rank in zip(*self.work)]

    @property
    def lock_step(self) -> float:
        """How many times as long as even work the ring takes: nobody's next block comes before the slowest is done."""
        return sum(max(of_step) for of_step in self.work) * self.num_ranks / sum(self.totals)


def ring(layout: str, num_ranks: int, step: int) -> AttentionRing:
    return AttentionRing(layout, num_ranks, step, tuple(map(tuple, ring_work(TOKENS, num_ranks, layout))))


def holder(layout: str, num_ranks: int, piece: int) -> int:
    """The rank that holds this one of 4R pieces of the row; under striped a piece stands for a token."""
    R = num_ranks
    if layout == "contiguous":
        return piece // PIECES
    if layout == "striped":
        return piece % R
    half = piece // 2  # of 2R
    return min(half, 2 * R - 1 - half)


LEFT, RIGHT, TOP = 92, 620, 30
CELL, STRIP, BAR_LEFT, BAR_RIGHT = 36, 5, 680, 800


def scene_of(token_layout: str, num_ranks: int, step: int) -> Scene:
    """The row with its holders; a row for each rank, a column for each step; each rank's work over all steps."""
    sheet, shown, R = Sheet(), ring(token_layout, num_ranks, step), num_ranks
    sheet.text("row is", "label", LEFT, 12, "The row of tokens, and the rank that holds each piece")
    wide = (RIGHT - LEFT) / (PIECES * R)
    for piece in range(PIECES * R):
        rank = holder(shown.layout, R, piece)
        sheet.rect(f"piece {piece}", "forward", LEFT + piece * wide, TOP - 6, wide, 22, tint=tint(rank, R),
                   hint=f"held by rank {rank}")
        sheet.inside(f"piece {piece} of", "on light" if tint(rank, R) else "on dark", LEFT + piece * wide, TOP - 6,
                     wide, 22, f"{rank}")
    top = TOP + 62
    sheet.text("table is", "label", LEFT, top - 32, "Whose keys and values each rank has in each step")
    sheet.text("all steps", "quiet", BAR_LEFT, top - 12, "all steps, of the mean")
    for number in range(R):
        x = LEFT + (number + 0.5) * (RIGHT - LEFT) / R
        sheet.text(f"step {number}", "strong" if number == step else "quiet", x, top - 12, f"step {number}", "middle")
    for rank in range(R):
        add_rank(sheet, shown, rank, top + rank * CELL)
    wide = (RIGHT - LEFT) / R
    sheet.outline("present", "limit", LEFT + shown.step * wide, top - 2, wide, R * CELL)
    bottom = top + R * CELL
    legend(sheet, LEFT, bottom + 18, [("work", "pairs to compute, darker: more"), ("idle", "nothing to compute"),
                                      ("message", "way back: share of the block's gradient that is added up")])
    sheet.text("compared", "label", LEFT, bottom + 48, "The ring's time, over that of even work")
    others = [(layout, ring(layout, R, 0).lock_step, f"{ring(layout, R, 0).lock_step:.2f}", layout == shown.layout)
              for layout in LAYOUTS]
    bars(sheet, 190, 560, bottom + 60, 20, others)
    finding, detail = texts(shown)
    asked = f"{shown.layout} on {R} ranks, step {shown.step}"
    work = ", ".join(f"rank {rank} {share:.0%}" for rank, share in enumerate(shares(shown)))
    return sheet.scene("RingAttentionSteps", f"{shown.layout} R={R} step={shown.step}", asked, finding, detail,
                       bottom + 126, f"Work of the ranks over all steps, of the mean: {work}")


def add_rank(sheet: Sheet, shown: AttentionRing, rank: int, y: float) -> None:
    R, wide = shown.num_ranks, (RIGHT - LEFT) / shown.num_ranks
    whole = (TOKENS // R) ** 2  # pairs of a block under no mask
    high = CELL - STRIP - 4
    sheet.text(f"rank {rank}", "label", LEFT - 9, y + high / 2, f"rank {rank}", "end")
    for step in range(R):
        x, pairs, block = LEFT + step * wide, shown.work[step][rank], (rank - step) % R
        share = pairs / whole
        sheet.rect(f"rank {rank} in step {step}", "work" if pairs else "idle", x, y, wide, high,
                   tint=0.75 * (1 - share) if pairs else 0.0, hint=f"rank {rank}, step {step}: {share:.0%} of a block")
        sheet.inside(f"rank {rank} in step {step} has", "on light" if pairs else "verdict", x, y, wide, high,
                     f"rank {block}'s: {share:.0%}", f"{block}'s: {share:.0%}", f"{block}")
        if step:  # in step 0 a rank keeps its own part, and nothing follows the block yet
            sheet.rect(f"gradients in step {step} on {rank}", "message", x, y + high + 1, wide * step / (R - 1), STRIP,
                       hint=f"way back: {step} of {R - 1} ranks have added to the gradient of rank {block}'s block")
    part = shares(shown)[rank]
    width = (BAR_RIGHT - BAR_LEFT) * part / 2
    sheet.rect(f"rank {rank} in all", "work", BAR_LEFT, y + 4, width, high - 8)
    sheet.text(f"rank {rank} does", "small", BAR_LEFT + width + 7, y + high / 2, f"{part:.0%}")


def tint(rank: int, num_ranks: int) -> float:
    return 0.85 * rank / (num_ranks - 1)


def shares(shown: AttentionRing) -> list[float]:
    """Each rank's work over the mean."""
    return [total * shown.num_ranks / sum(shown.totals) for total in shown.totals]


def texts(shown: AttentionRing) -> tuple[str, str]:
    """Headline and detail."""
    worst = imbalance([list(of_step) for of_step in shown.work])
    finding = (f"The busiest rank does {worst:.0%} more than the mean: {shown.lock_step:.2f} times the time of even "
               "work")
    now, R = shown.work[shown.step], shown.num_ranks
    idle = sum(pairs == 0 for pairs in now)
    blocks = ", ".join(f"rank {rank} has rank {(rank - shown.step) % R}'s" for rank in range(min(R, 3)))
    waits = f"; nothing to compute on {idle} of {R} ranks" if idle else "; every rank has something to compute"
    return finding, f"step {shown.step}: {blocks}{', and so on' if R > 3 else ''}{waits}"


class RingAttentionSteps(Explorable, draw=scene_of):
    """Causal ring attention on `num_ranks` ranks (2 to 8), tokens dealt out by `token_layout`, in one `step` of R.

    A widget's own `layout` is how wide it is on the page, so the tokens' has another name.
    """

    token_layout = OneOf("contiguous", LAYOUTS)
    num_ranks = WholeNumber(4, RANKS[0], RANKS[-1])
    step = WholeNumber(1, 0, RANKS[-1] - 1)

    @classmethod
    def check_settings(cls, settings: dict[str, Any]) -> dict[str, Any]:
        require_step(settings["step"], settings["num_ranks"] - 1)
        return settings

    @classmethod
    def list_controls(cls, settings: dict[str, Any]) -> list[Control]:
        step = settings["step"]
        return [chooser("layout", "token_layout", LAYOUTS),
                slider("ranks", "num_ranks", RANKS, settings["num_ranks"],
                       change=lambda R: {"num_ranks": R, "step": min(step, R - 1)}),
                slider("step", "step", range(settings["num_ranks"]), step)]
