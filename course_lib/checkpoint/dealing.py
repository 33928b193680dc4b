"""Who writes what: every rank that holds the same numbers writes its share of them, balanced by bytes.

    a box      of a tensor, that n ranks hold, replicas of dp say. One counts it (Piece.writes), each can write it
    a part     a box, or a piece of a large one, cut along its first dimension: at most a tenth of what a rank writes
    deal       the largest part first, each to the rank among its holders that has least so far

Place 0 deals, and tells the others, as torch's own planner does. Only what is written changes: a norm still counts each
number once. Writing goes n times as fast where each rank has a disk, or a link to one, of its own.

Source: torch.distributed.checkpoint balances in the same way (dedup_save_plans); greedy dealing is Graham 1969.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from course_lib.checkpoint.piece import Piece, Sizes, State, take
from course_lib.checkpoint.ranks import RankGroup

Box = tuple[str, Sizes, Sizes]  # name, offsets, sizes
PARTS = 10  # of a rank's share, at least
LEAST_BYTES = 4096  # of a part: torch writes about 1,000 bytes around each


def deal_out(state: State, ranks: RankGroup) -> State:
    """The pieces, or parts of pieces, that this rank writes of its `state`: what several hold, one writes. Collective.
    """
    mine = {(name, piece.offsets, tuple(piece.tensor.shape)): piece for name, some in state.items() for piece in some}
    held = {box: (piece.tensor.nbytes, piece.writes) for box, piece in mine.items()}
    everyones = ranks.everyones(held)
    dealt = ranks.first(lambda: shares(*bytes_and_holders(everyones)))
    written: dict[str, list[Piece]] = defaultdict(list)
    for box, dim, first, last in dealt[ranks.r]:
        written[box[0]].append(part_of(mine[box], dim, first, last))
    return dict(written)


def bytes_and_holders(everyones: Sequence[Mapping[Box, tuple[int, bool]]]
                      ) -> tuple[dict[Box, int], dict[Box, tuple[int, ...]]]:
    """The bytes of each box that some rank counts, and all ranks that hold it."""
    holders: dict[Box, list[int]] = defaultdict(list)
    num_bytes = {}
    for rank, held in enumerate(everyones):
        for box, (size, counts) in held.items():
            holders[box].append(rank)
            if counts:
                num_bytes[box] = size
    return num_bytes, {box: tuple(holders[box]) for box in num_bytes}


def shares(num_bytes: Mapping[Box, int], holders: Mapping[Box, Sequence[int]]
           ) -> dict[int, list[tuple[Box, int, int, int]]]:
    """For each rank its parts: (box, dimension, from, to). Those with fewest holders are dealt first."""
    groups: dict[Sequence[int], list[Box]] = defaultdict(list)
    for box in sorted(num_bytes):
        groups[holders[box]].append(box)
    load: dict[int, int] = defaultdict(int)
    dealt: dict[int, list[tuple[Box, int, int, int]]] = defaultdict(list)
    # What one rank alone holds has no choice; what many hold can then even it out.
    for ranks, boxes in sorted(groups.items(), key=lambda group: (len(group[0]), group[0])):
        share = sum(num_bytes[box] for box in boxes) / len(ranks)
        parts = [part for box in boxes for part in
                 cut(box, num_bytes[box], max(LEAST_BYTES, share / PARTS) if len(ranks) > 1 else math.inf)]
        for size, *part in sorted(parts, key=lambda part: -part[0]):
            rank = min(ranks, key=lambda rank: (load[rank], rank))
            load[rank] += size
            dealt[rank].append(tuple(part))
    return dealt


def cut(box: Box, num_bytes: int, most: float) -> Iterable[tuple[int, Box, int, int, int]]:
    """(bytes, box, dimension, from, to) of its parts, of about `most` bytes."""
    sizes = box[2]
    dim = next((dim for dim, size in enumerate(sizes) if size > 1), 0)
    rows = sizes[dim] if sizes else 1
    num = max(1, min(rows, math.ceil(num_bytes / most)))
    for part in range(num):
        first, last = rows * part // num, rows * (part + 1) // num
        yield num_bytes * (last - first) // max(1, rows), box, dim, first, last


def part_of(piece: Piece, dim: int, first: int, last: int) -> Piece:
    """Rows `first` to `last` of the piece along `dim`: a view."""
    sizes = tuple(piece.tensor.shape)
    if not sizes or math.prod(sizes) == 0 or last - first == sizes[dim]:
        return replace(piece, writes=True)
    start = tuple(first if each == dim else 0 for each in range(len(sizes)))
    some = take(piece.tensor, start, [last - first if each == dim else size for each, size in enumerate(sizes)])
    return Piece(some, piece.shape, tuple(a + b for a, b in zip(piece.offsets, start)))
