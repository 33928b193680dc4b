"""What a caching allocator takes from a GPU beside what a run holds: PyTorch's rules, followed on paper.

Memory is asked of the driver in segments and kept. A tensor is a block that is cut from a segment; a block that is
freed joins its free neighbours, but not those of another segment, and nothing ever moves. So memory can be free and of
no use: in pieces that are too small.

    requests  rounded up to 512 bytes, and given the smallest free block that is large enough
    segments  2 MiB for requests up to 1 MiB; else 20 MiB below 10 MiB, and above that the request's own size, to 2 MiB
    cutting   where at least 512 bytes are left over, of the larger kind of segments more than 1 MiB

Source: PyTorch, c10/cuda/CUDACachingAllocator.cpp. Not followed: streams, expandable segments, and that free segments
are given back when the device has no more.
"""

from bisect import insort
from collections.abc import Iterable
from dataclasses import dataclass, field

from course_lib.costs.overlap import MIB

SMALLEST_BLOCK, SMALL, OWN_SEGMENT = 512, MIB, 10 * MIB
SEGMENTS = {True: 2 * MIB, False: 20 * MIB}  # small or not


@dataclass(frozen=True, order=True)
class Stretch:
    """`size` bytes at `start` of a segment, in the pool for small requests or in the other one. Ordered by size."""

    small: bool
    size: int
    segment: int
    start: int


@dataclass
class CachingAllocator:
    """`held` and `reserved`: bytes that tensors have, and that segments have, now."""

    held: int = 0
    reserved: int = 0
    num_segments: int = 0
    free: list[Stretch] = field(default_factory=list)  # in order
    in_pieces: tuple[int, int] = (0, 0)  # the largest request that free memory would have been enough for, and that

    def allocate(self, num_bytes: int) -> Stretch:
        """A block of at least `num_bytes`. ValueError for none."""
        if num_bytes < 1:
            raise ValueError(f"num_bytes={num_bytes}: expected at least one")
        size = round_up(num_bytes, SMALLEST_BLOCK)
        small = size <= SMALL
        block = next((each for each in self.free if each.small == small and each.size >= size), None)
        if block is None:
            free = sum(each.size for each in self.free if each.small == small)
            self.in_pieces = max(self.in_pieces, (size, free)) if free >= size else self.in_pieces
            block = self._new_segment(small, size)
        else:
            self.free.remove(block)
        rest = block.size - size
        if rest >= SMALLEST_BLOCK if small else rest > SMALL:
            insort(self.free, Stretch(small, rest, block.segment, block.start + size))
            block = Stretch(small, size, block.segment, block.start)
        self.held += block.size
        return block

    def release(self, block: Stretch) -> None:
        """Put `block` among the free ones, joined with its free neighbours."""
        self.held -= block.size
        start, end = block.start, block.start + block.size
        for other in [each for each in self.free if each.segment == block.segment]:
            if other.start + other.size == start or other.start == end:
                self.free.remove(other)
                start, end = min(start, other.start), max(end, other.start + other.size)
        insort(self.free, Stretch(block.small, end - start, block.segment, start))

    def _new_segment(self, small: bool, size: int) -> Stretch:
        num_bytes = SEGMENTS[small] if size < OWN_SEGMENT else round_up(size, SEGMENTS[True])
        self.num_segments += 1
        self.reserved += num_bytes
        return Stretch(small, num_bytes, self.num_segments, 0)


@dataclass(frozen=True)
class Reservation:
    """Bytes after each change of a run: what its tensors had, and what the allocator had taken for them.

    `in_pieces`: the largest request for which a new segment was taken though as much was free, and how much was.
    """

    held: tuple[int, ...]
    reserved: tuple[int, ...]
    in_pieces: tuple[int, int]

    @property
    def overhead(self) -> float:
        """How much more was reserved than ever held: 0.25 is a quarter more."""
        return max(self.reserved) / max(self.held) - 1


def reserve(changes: Iterable[tuple[int, int]]) -> Reservation:
    """Follow a run's allocations: (tensor, bytes) in order, more than 0 where it is made and less where it is freed.

    ValueError where a tensor is made twice, or freed and not there.
    """
    allocator, blocks, held, reserved = CachingAllocator(), {}, [], []
    for tensor, num_bytes in changes:
        if (num_bytes > 0) == (tensor in blocks):
            raise ValueError(f"tensor {tensor} is {'made twice' if num_bytes > 0 else 'freed and not there'}")
        if num_bytes > 0:
            blocks[tensor] = allocator.allocate(num_bytes)
        else:
            allocator.release(blocks.pop(tensor))
        held.append(allocator.held)
        reserved.append(allocator.reserved)
    return Reservation(tuple(held), tuple(reserved), allocator.in_pieces)


def round_up(num_bytes: int, step: int) -> int:
    """`num_bytes`, up to the next multiple of `step`."""
    return -(-num_bytes // step) * step
