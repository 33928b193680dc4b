"""A piece: what one rank holds of one tensor of the plain model or of its optimiser, and where it lies in the whole.

    the whole     shape (N, ..., M), one for each name that the plain model's state_dict has
    a piece       a box of it: `offsets` says where it begins, its tensor's shape how far it goes
    a state       {name: [this rank's pieces of it]}; the ranks' pieces together are the whole, each number once

Whatever cut the tensor (columns, rows, stages, flat blocks of ZeRO), boxes are all that a checkpoint knows of it, and
that is why it can be loaded into another layout: a new box reads from all old ones that it overlaps.

    q | k | v of one rank of a tensor-parallel group       three boxes, one of each section
    numbers 5 to 13 of a matrix with rows of four          the end of row 1, row 2, the beginning of row 3
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from torch import Tensor

Sizes = tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Piece:
    """`tensor` lies in a whole of `shape`, beginning at `offsets`.

    tensor: the memory that the model or the optimiser itself has, which is read by save and filled by load; a number
    such as AdamW's step has shape (). writes=False: other ranks hold the same, and one of them counts it. Who writes it
    into a file is dealt out among all that hold the same box: see dealing.py.
    """

    tensor: Tensor
    shape: Sizes
    offsets: Sizes
    writes: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", tuple(self.shape))
        object.__setattr__(self, "offsets", tuple(self.offsets))
        sizes = tuple(self.tensor.shape)
        fits = len(sizes) == len(self.shape) == len(self.offsets) and all(
            0 <= offset and offset + size <= whole for offset, size, whole in zip(self.offsets, sizes, self.shape))
        if not fits:
            raise ValueError(f"a piece of shape {list(sizes)} at {list(self.offsets)} of a tensor of shape "
                             f"{list(self.shape)}: expected a box inside it")


State = Mapping[str, Sequence[Piece]]


@dataclass(frozen=True)
class TensorRange:
    """The numbers of a local tensor from `start`, `sizes` of them in each dimension, are those from `offsets` on."""

    start: Sizes
    sizes: Sizes
    offsets: Sizes


@dataclass(frozen=True)
class Placement:
    """Where the numbers of a local tensor lie in a whole tensor of `shape`: box by box."""

    shape: Sizes
    boxes: tuple[TensorRange, ...]

    @classmethod
    def whole(cls, shape: Sequence[int]) -> "Placement":
        """The local tensor is the whole one."""
        zeros = (0,) * len(shape)
        return cls(tuple(shape), (TensorRange(zeros, tuple(shape), zeros),))

    @classmethod
    def cut(cls, shape: Sequence[int], dim: int, r: int, n: int, sections: Sequence[int] | None = None) -> "Placement":
        """Place r of n holds the r-th part of each of the `sections` along `dim`, one after the other.

        shape: of the whole. sections: sizes that add up to that of `dim`; None is one. torch's chunk deals them out:
        what n does not divide is dealt unevenly, the last ones may have nothing.
        """
        dim, boxes, start, begin = dim % len(shape), [], 0, 0
        for section in (shape[dim],) if sections is None else sections:
            share = -(-section // n)
            first, last = min(r * share, section), min((r + 1) * share, section)
            along = [(0, size, 0) for size in shape]
            along[dim] = (start, last - first, begin + first)
            boxes.append(TensorRange(*zip(*along)))
            start, begin = start + last - first, begin + section
        return cls(tuple(shape), tuple(boxes))

    @property
    def local_shape(self) -> Sizes:
        """The shape of the local tensor."""
        return tuple(max(ends) for ends in zip(*([a + b for a, b in zip(box.start, box.sizes)] for box in self.boxes)))

    def pieces(self, local: Tensor, writes: bool = True) -> list[Piece]:
        """The local tensor as pieces of the whole one, a view for each box."""
        if tuple(local.shape) != self.local_shape:
            raise ValueError(f"a tensor of shape {list(local.shape)}: expected {list(self.local_shape)}, as placed")
        return [Piece(take(local, box.start, box.sizes), self.shape, box.offsets, writes) for box in self.boxes]

    def pieces_of_range(self, flat: Tensor, first: int, writes: bool = True) -> list[Piece]:
        """The pieces that K of the local tensor's numbers make, from number `first` on; `flat` (K,) holds them, and
        pieces are views of it.
        """
        found, done = [], 0
        for start, sizes in boxes_of_range(self.local_shape, first, first + flat.numel()):
            part = flat[done:done + prod(sizes)].view(sizes)
            done += prod(sizes)
            for box in self.boxes:
                begin = [max(a, b) for a, b in zip(start, box.start)]
                end = [min(a + m, b + n) for a, m, b, n in zip(start, sizes, box.start, box.sizes)]
                if all(a < b for a, b in zip(begin, end)):
                    mine = take(part, [a - b for a, b in zip(begin, start)], [b - a for a, b in zip(begin, end)])
                    moved = [a - b + c for a, b, c in zip(begin, box.start, box.offsets)]
                    found.append(Piece(mine, self.shape, tuple(moved), writes))
        return found


def take(tensor: Tensor, start: Sequence[int], sizes: Sequence[int]) -> Tensor:
    """The box of `tensor` that begins at `start`: a view."""
    tensor = tensor.detach()
    for dim, (a, size) in enumerate(zip(start, sizes)):
        tensor = tensor.narrow(dim, a, size)
    return tensor


def boxes_of_range(shape: Sequence[int], first: int, last: int) -> Iterator[tuple[Sizes, Sizes]]:
    """(start, sizes) of boxes that together are numbers `first` to `last` of a tensor of `shape`, in their order.

    At most 2 d - 1 for d dimensions: the rest of a row, whole rows, the beginning of a row, and so for each dimension.
    """
    if first >= last:
        return
    if not shape:
        yield (), ()
        return
    inner, rest = prod(shape[1:]), tuple(shape[1:])
    row, end = divmod(first, inner)
    if end and last <= (row + 1) * inner or not end and last < (row + 1) * inner:  # part of one row
        for start, sizes in boxes_of_range(rest, end, last - row * inner):
            yield (row, *start), (1, *sizes)
        return
    if end:
        yield from boxes_of_range(shape, first, (row + 1) * inner)
        row += 1
    whole_rows = last // inner - row
    if whole_rows:
        yield (row, *(0 for _ in rest)), (whole_rows, *rest)
    yield from boxes_of_range(shape, (row + whole_rows) * inner, last)


def whole(tensor: Tensor, writes: bool = True) -> list[Piece]:
    """The one piece of a tensor that this rank has whole, of a number such as AdamW's step too."""
    return Placement.whole(tensor.shape).pieces(tensor.detach(), writes)
