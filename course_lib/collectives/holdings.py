"""Who holds what: for each rank and each slot of its buffer, which chunk is there and which ranks contributed.

A real tensor can say so itself. Rank r fills row c of its buffer, chunk c, with 10**r in column c and 0 elsewhere:

    rank 0                  rank 2                        sum over ranks 0, 1, 2
    [[1, 0, 0],             [[100,   0,   0],             [[111,   0,   0],
     [0, 1, 0],              [  0, 100,   0],              [  0, 111,   0],
     [0, 0, 1]]              [  0,   0, 100]]              [  0,   0, 111]]

The column names the chunk wherever it travels, the decimal digits name the ranks that were added into it, and a 2
among them is a contribution counted twice. Zeros are an empty slot.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor

MAX_RANKS = 18  # 10**18 is the highest power that an int64 holds


class Share(NamedTuple):
    """What `rank` contributed of its chunk `chunk`, counted `times` times."""

    rank: int
    chunk: int
    times: int = 1


Cell = tuple[Share, ...]  # what lies in one slot of a buffer, in the order of the ranks; () is an empty slot


@dataclass(frozen=True)
class Holdings:
    """cells[rank][slot]: what each rank has in each slot of its buffer; all ranks have as many slots."""

    cells: tuple[tuple[Cell, ...], ...]

    @property
    def num_ranks(self) -> int:
        """How many ranks there are."""
        return len(self.cells)

    @property
    def num_slots(self) -> int:
        """How many slots each rank's buffer has."""
        return len(self.cells[0])

    @classmethod
    def of(cls, buffers: Sequence[Tensor | Sequence[Tensor] | None], num_slots: int | None = None) -> Holdings:
        """Read what real ranks hold: buffers[r] is rank r's, made of rows of `label_chunks`, moved and added.

        A buffer is a tensor (rows, chunks) or (chunks,), a list of such tensors (as of gather), or None for a rank
        that has nothing. Rank r's rows are its slots from the first on; a rank with fewer rows than `num_slots`
        (default: as many as there are chunks, or rows on any rank) has each row in the slot of its chunk.
        ValueError for a buffer that does not come from `label_chunks`.

        >>> Holdings.of([label_chunks(0, 2) + label_chunks(1, 2), label_chunks(1, 2)])  # only rank 0 has added up
        rank 0: 2 chunks, each the sum of 2 ranks; rank 1: 2 chunks of its own
        """
        read = [[cell_of(row, rank, len(buffers)) for row in rows_of(buffer, rank)]
                for rank, buffer in enumerate(buffers)]
        if not read:
            raise ValueError("no buffers: expected one for each rank")
        if num_slots is None:
            widths = (len(row) for rank, buffer in enumerate(buffers) for row in rows_of(buffer, rank))
            num_slots = max([1, *widths, *map(len, read)])
        return cls(tuple(assign_slots(cells, num_slots, rank) for rank, cells in enumerate(read)))

    def __repr__(self) -> str:
        return "; ".join(f"{name_ranks(ranks)}{' each' * (len(ranks) > 1)}: {what}"
                         for what, ranks in self.by_description().items())

    def by_description(self) -> dict[str, list[int]]:
        """What the ranks hold, in words, and which ranks hold just that."""
        found: dict[str, list[int]] = {}
        for rank, cells in enumerate(self.cells):
            found.setdefault(describe_cells(rank, cells), []).append(rank)
        return found


def label_chunks(rank: int, num_ranks: int, num_chunks: int | None = None) -> Tensor:
    """The buffer of `rank`, so filled that its rows can be followed: int64 (num_chunks, num_chunks).

    Row c is chunk c: 10**rank in column c, 0 elsewhere. num_chunks is by default num_ranks. A share may be counted up
    to 9 times before its digit runs over. ValueError for more ranks than an int64 has digits, or a rank outside.

    >>> label_chunks(rank=1, num_ranks=3).tolist()
    [[10, 0, 0], [0, 10, 0], [0, 0, 10]]
    """
    import torch  # here, so that the pictures of plans need no torch

    num_chunks = num_ranks if num_chunks is None else num_chunks
    if not 1 <= num_ranks <= MAX_RANKS:
        raise ValueError(f"num_ranks={num_ranks!r}: expected 1 to {MAX_RANKS}, one decimal digit for each")
    if not 0 <= rank < num_ranks:
        raise ValueError(f"rank={rank!r}: expected 0 to {num_ranks - 1}, as num_ranks={num_ranks}")
    if num_chunks < 1:
        raise ValueError(f"num_chunks={num_chunks!r}: expected 1 or more")
    return torch.eye(num_chunks, dtype=torch.int64) * 10**rank


def rows_of(buffer: Tensor | Sequence[Tensor] | None, rank: int) -> list[list[int]]:
    """The rows of one rank's buffer as lists of whole numbers."""
    if buffer is None:
        return []
    if not hasattr(buffer, "tolist"):
        return [row for part in buffer for row in rows_of(part, rank)]
    rows = buffer.tolist()
    if isinstance(rows, list) and rows and not isinstance(rows[0], list):
        rows = [rows]
    if not isinstance(rows, list) or not all(isinstance(value, int) for row in rows for value in row):
        raise ValueError(f"the buffer of rank {rank} is {tuple(buffer.shape)} {buffer.dtype}: expected whole numbers "
                         "in rows, as label_chunks(rank, num_ranks) makes them")
    return rows


def cell_of(row: Sequence[int], rank: int, num_ranks: int) -> Cell:
    """Read one row: column c with the decimal digit d at 10**r says that rank r's chunk c was added d times."""
    shares = []
    for chunk, value in enumerate(row):
        if not 0 <= value < 10**num_ranks:
            raise ValueError(f"rank {rank} holds {value} in a column of chunk {chunk}: expected a sum of 10**rank over "
                             f"the {num_ranks} ranks 0 to {num_ranks - 1}, each at most 9 times")
        # From the right: the lowest digit is that of rank 0.
        digits = enumerate(int(digit) for digit in reversed(str(value)))
        shares += [Share(origin, chunk, times) for origin, times in digits if times]
    return tuple(sorted(shares))


def assign_slots(cells: list[Cell], num_slots: int, rank: int) -> tuple[Cell, ...]:
    """The cells in their slots: in their order, or where there are fewer, each in that of its chunk if it has one."""
    if len(cells) > num_slots:
        raise ValueError(f"rank {rank} has {len(cells)} rows: expected at most num_slots={num_slots}")
    chunks = [{share.chunk for share in cell} for cell in cells]
    own = [found.pop() if len(found) == 1 else None for found in chunks]
    slots = list(range(len(cells)))
    # After a reduce-scatter, say, a rank has fewer rows than slots: each row then goes to the slot of its chunk.
    if len(cells) < num_slots and None not in own and len(set(own)) == len(own) and max(own, default=0) < num_slots:
        slots = own
    by_slot = dict(zip(slots, cells))
    return tuple(by_slot.get(slot, ()) for slot in range(num_slots))


def mixes_chunks(cell: Cell) -> bool:
    """Whether shares of different chunks were added up, which no collective does."""
    return len({share.chunk for share in cell}) > 1


def describe_cells(rank: int, cells: Iterable[Cell]) -> str:
    """What one rank holds: `4 chunks of its own`, `4 chunks, each the sum of 4 ranks`, ..."""
    full = [cell for cell in cells if cell]
    if not full:
        return "nothing"
    num = f"{len(full)} chunk{'s' * (len(full) > 1)}"
    sizes = sorted({len({share.rank for share in cell}) for cell in full})
    sources = sorted({share.rank for cell in full for share in cell})
    each = "each " * (len(full) > 1)
    if any(map(mixes_chunks, full)):
        return f"{num}, different ones mixed up"
    if sizes == [1] and sources == [rank]:
        text = f"{num} of its own"
    elif sizes == [1] and len(sources) > 1 and {share.chunk for cell in full for share in cell} == {rank}:
        text = f"the chunk of its own number from each of {len(sources)} ranks"
    elif sizes == [1]:
        text = f"{num} from {f'rank {sources[0]}' if len(sources) == 1 else f'{len(sources)} ranks'}"
    elif len(sizes) == 1:
        text = f"{num}, {each}the sum of {sizes[0]} ranks"
    else:
        text = f"{num}, sums of {sizes[0]} to {sizes[-1]} ranks"
    if any(share.times > 1 for cell in full for share in cell):
        text += ", some shares counted more than once"
    return text


def name_ranks(ranks: Sequence[int]) -> str:
    """`rank 0`, `ranks 1 to 3`, `ranks 0 and 2`, `ranks 0, 2 and 3`."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if len(ranks) > 2 and list(ranks) == list(range(ranks[0], ranks[-1] + 1)):
        return f"ranks {ranks[0]} to {ranks[-1]}"
    return f"ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"
