"""How cells of who holds what are drawn, in words: what pictures and widgets both go by."""

from __future__ import annotations

from dataclasses import dataclass

from course_lib.collectives.holdings import Holdings


@dataclass(frozen=True)
class CellStyle:
    """`adds`: shares are stacked, each rank's at its own height; otherwise a cell is one rank's, and has its number."""

    num_ranks: int
    adds: bool

    @classmethod
    def of(cls, *states: Holdings) -> CellStyle:
        return cls(states[0].num_ranks, any(len(cell) > 1 for state in states for row in state.cells for cell in row))


def key_to_cells(style: CellStyle) -> str:
    """What colours and numbers mean, in one line."""
    if style.adds:
        return "slot = chunk, colour and height = the rank whose share is in the sum"
    return "colour = the rank it comes from, number = which of that rank's chunks"
