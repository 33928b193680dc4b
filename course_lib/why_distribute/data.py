"""A reader of a file that memory cannot hold: it never has more than a row.

Rank r of R reads rows r, r + R, r + 2R, ... of a file of bytes (each byte is a token, as in course_lib.reference): no
row twice, none left out, and nobody reads what is another's.
"""

from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from course_lib.facts.fact import at_least


def stream_rows(path: str | Path, sequence_length: int, rank: int = 0, world_size: int = 1) -> Iterator[Tensor]:
    """The rows of this rank, (s + 1,) uint8 each: s tokens and the one that follows. The file may be larger than
    memory.

    Rows do not overlap but in that one token; what is left at the end, shorter than a row, is dropped. ValueError, at
    once, for a rank outside the world or a file that gives some rank no row.
    """
    s, R = at_least(sequence_length, 1, "sequence_length"), at_least(world_size, 1, "world_size")
    if not 0 <= rank < R:
        raise ValueError(f"rank={rank!r}: expected 0 to {R - 1}")
    # The last byte is only a target. Rows are counted from the size alone: nothing is read yet.
    num_rows = (Path(path).stat().st_size - 1) // s
    if num_rows < R:
        raise ValueError(f"{path} has {max(num_rows, 0)} rows of {s} tokens: expected at least one for each of {R} "
                         f"ranks")
    # A second function, so that what is wrong is said now: the first line of a generator runs when it is first asked.
    return read_rows(Path(path), s, range(rank, num_rows, R))


def read_rows(path: Path, s: int, rows: range) -> Iterator[Tensor]:
    """For each number of a row, its s tokens and the one that follows, uint8 (s + 1,): a byte is a token."""
    with path.open("rb") as file:
        for row in rows:
            file.seek(row * s)
            yield torch.frombuffer(bytearray(file.read(s + 1)), dtype=torch.uint8)
