"""Holdings as the browser gets them: small, since a widget sends all its steps at once."""

from __future__ import annotations

from course_lib.collectives.holdings import Cell, Holdings


def encode(holdings: Holdings) -> list[list[list[int]]]:
    """[rank][place] -> [] for an empty place, else [bit r set for a share of rank r, chunk]."""
    return [[encode_cell(cell) for cell in cells] for cells in holdings.cells]


def encode_cell(cell: Cell) -> list[int]:
    chunks = {share.chunk for share in cell}
    assert len(chunks) <= 1 and all(share.times == 1 for share in cell), f"a plan adds each share once, not {cell}"
    return [sum(1 << share.rank for share in cell), chunks.pop()] if cell else []
