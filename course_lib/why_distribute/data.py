"""Feeding the devices: how fast text is eaten, how long a reading takes, and a reader that never holds more than a row.

Rank r of R reads rows r, r + R, r + 2R, ... of a file of bytes (each byte is a token, as in course_lib.reference): no
row twice, none left out, and nobody reads what is another's.
"""

from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from course_lib.why_distribute.counting import above_zero, at_least


def tokens_per_s(num_parameters: float, num_devices: int, peak_flops_per_s: float, utilisation: float) -> float:
    """What training eats: n P u / 6N tokens a second."""
    from course_lib.why_distribute.money import share

    n, P = at_least(num_devices, 1, "num_devices"), above_zero(peak_flops_per_s, "peak_flops_per_s")
    return n * P * share(utilisation, "utilisation") / (6 * above_zero(num_parameters, "num_parameters"))


def loading_bytes_per_s(tokens_each_s: float, bytes_per_token: float = 4) -> float:
    """Of token numbers stored in 4 bytes; raw English is about as much, 4 characters a token."""
    return above_zero(tokens_each_s, "tokens_each_s") * above_zero(bytes_per_token, "bytes_per_token")


def reading_s(num_bytes: float, bytes_per_s: float, num_readers: int = 1) -> float:
    """Seconds to read everything once, shared by readers that do not slow each other."""
    return above_zero(num_bytes, "num_bytes") / (above_zero(bytes_per_s, "bytes_per_s")
                                                 * at_least(num_readers, 1, "num_readers"))


def stream_rows(path: str | Path, sequence_length: int, rank: int = 0, world_size: int = 1) -> Iterator[Tensor]:
    """The rows of this rank, (s + 1,) uint8 each: s tokens and the one that follows. The file may be larger than
    memory.

    Rows do not overlap but in that one token; what is left at the end, shorter than a row, is dropped. ValueError, at
    once, for a rank outside the world or a file that gives some rank no row.
    """
    s, R = at_least(sequence_length, 1, "sequence_length"), at_least(world_size, 1, "world_size")
    if not 0 <= rank < R:
        raise ValueError(f"rank={rank!r}: expected 0 to {R - 1}")
    num_rows = (Path(path).stat().st_size - 1) // s
    if num_rows < R:
        raise ValueError(f"{path} has {max(num_rows, 0)} rows of {s} tokens: expected at least one for each of {R} "
                         f"ranks")
    return read_rows(Path(path), s, range(rank, num_rows, R))


def read_rows(path: Path, s: int, rows: range) -> Iterator[Tensor]:
    with path.open("rb") as file:
        for row in rows:
            file.seek(row * s)
            yield torch.frombuffer(bytearray(file.read(s + 1)), dtype=torch.uint8)
