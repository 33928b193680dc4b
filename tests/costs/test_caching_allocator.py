"""The allocator on paper: what is free is given out again, and is of no use in pieces."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from course_lib.costs.memory import MIB, CachingAllocator, reserve, round_up


def test_small_requests_share_segments_of_two_mebibytes_and_larger_ones_of_twenty():
    assert round_up(513, 512) == 1024
    run = reserve([(0, 1), (1, 513), (2, MIB), (3, 3 * MIB), (4, 11 * MIB)])
    assert run.held == tuple(sum((512, 1024, MIB, 3 * MIB, 11 * MIB)[:k]) for k in range(1, 6))
    assert run.reserved == (2 * MIB, 2 * MIB, 2 * MIB, 22 * MIB, 22 * MIB)
    assert reserve([(0, 10 * MIB + 1)]).reserved == (12 * MIB,)


HALF = MIB // 2


@pytest.mark.parametrize("requests, reserved, in_pieces", [
    # freed blocks join their neighbours and are given out again; in pieces free memory is of no use
    ([(0, MIB), (1, HALF), (2, HALF), (1, -1), (2, -1), (3, MIB)], 2 * MIB, (0, 0)),
    ([*((number, HALF) for number in range(4)), (0, -1), (2, -1), (4, MIB)], 4 * MIB, (MIB, MIB))])
def test_a_freed_block_joins_its_neighbours_and_in_pieces_is_of_no_use(requests, reserved, in_pieces):
    run = reserve(requests)
    assert run.held[-1] == 2 * MIB and run.reserved[-1] == reserved and run.in_pieces == in_pieces
    assert run.overhead == reserved / (2 * MIB) - 1


def test_the_smallest_block_that_is_large_enough_is_cut():
    allocator = CachingAllocator()
    large, _, small, _ = [allocator.allocate(size) for size in (600 * 1024, 512, 100 * 1024, 512)]
    allocator.release(large)
    allocator.release(small)
    again = allocator.allocate(90 * 1024)
    assert (again.segment, again.start) == (small.segment, small.start)


@given(st.lists(st.tuples(st.integers(1, 24 * MIB), st.booleans()), max_size=40))
def test_no_two_tensors_share_a_byte_and_all_is_given_back(requests):
    allocator, blocks = CachingAllocator(), []
    for size, free_one in requests:
        blocks.append(allocator.allocate(size))
        if free_one:
            allocator.release(blocks.pop(len(blocks) // 2))
        everything = sorted((each.segment, each.start, each.size) for each in [*blocks, *allocator.free])
        for (segment, start, size), (after, then, _) in zip(everything, everything[1:]):
            assert segment < after or start + size == then
        assert sum(size for *_, size in everything) == allocator.reserved
        assert allocator.held == sum(block.size for block in blocks)
    for block in blocks:
        allocator.release(block)
    assert allocator.held == 0 and len(allocator.free) == allocator.num_segments
