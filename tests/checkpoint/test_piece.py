"""A piece says where a rank's numbers lie in the whole, whatever cut it."""

from math import prod

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from course_lib.checkpoint.piece import Piece, Placement, boxes_of_range, whole

SHAPES = st.lists(st.integers(1, 4), min_size=0, max_size=4).map(tuple)


@given(shape=SHAPES, data=st.data())
def test_a_flat_range_is_few_boxes_in_its_own_order(shape, data):
    first = data.draw(st.integers(0, prod(shape)))
    last = data.draw(st.integers(first, prod(shape)))
    numbers = torch.arange(prod(shape)).view(shape)
    boxes = list(boxes_of_range(shape, first, last))
    found = [numbers[tuple(slice(a, a + n) for a, n in zip(*box))].reshape(-1) for box in boxes]
    assert torch.cat([torch.empty(0, dtype=torch.int64), *found]).tolist() == list(range(first, last))
    assert len(boxes) <= max(1, 2 * len(shape) - 1)


@given(shape=SHAPES.filter(bool), n=st.integers(1, 4), flat_ranks=st.integers(1, 4), data=st.data())
def test_flat_blocks_of_sections_of_a_cut_tensor_together_are_the_whole(shape, n, flat_ranks, data):
    dim = data.draw(st.integers(0, len(shape) - 1))
    first = data.draw(st.integers(0, shape[dim]))
    sections = (first, shape[dim] - first)
    numbers = torch.arange(prod(shape)).view(shape)
    pieces = []
    for r in range(n):
        place = Placement.cut(shape, dim, r, n, sections)
        parts = [section.tensor_split([min(-(-section.shape[dim] // n) * k, section.shape[dim]) for k in range(1, n)],
                                      dim)[r] for section in numbers.split(sections, dim)]
        local = torch.cat(parts, dim)
        assert place.local_shape == local.shape or local.numel() == 0
        share = -(-local.numel() // flat_ranks)
        for block in range(flat_ranks):
            begin = min(block * share, local.numel())
            pieces += place.pieces_of_range(local.reshape(-1)[begin:begin + share], begin)
    found, times = torch.zeros_like(numbers), torch.zeros_like(numbers)
    for piece in pieces:
        box = tuple(slice(a, a + n) for a, n in zip(piece.offsets, piece.tensor.shape))
        found[box], times[box] = piece.tensor, times[box] + 1
    assert found.equal(numbers) and times.eq(1).all()


def test_what_is_loaded_into_a_piece_is_in_the_model_and_a_number_is_a_piece_of_shape_nothing():
    weight = torch.nn.Parameter(torch.zeros(6, 2))
    for piece in Placement.cut((12, 2), 0, 1, 2, (6, 6)).pieces(weight):
        piece.tensor.fill_(piece.offsets[0])
    assert weight[:, 0].tolist() == [3, 3, 3, 9, 9, 9]
    (piece,) = whole(torch.tensor(3.0))
    assert piece.shape == piece.offsets == () and piece.tensor.item() == 3


@pytest.mark.parametrize(("shape", "offsets"), [((4, 2), (2, 0)), ((4,), (0, 0)), ((4, 2), (-1, 0))])
def test_a_piece_outside_of_its_whole_is_refused(shape, offsets):
    with pytest.raises(ValueError, match="expected a box inside it"):
        Piece(torch.zeros(3, 2), shape, offsets)
