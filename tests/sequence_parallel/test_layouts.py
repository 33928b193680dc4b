"""Every layout deals every token once, ascending within a rank, and what is done with global positions does not depend
on who holds a token."""

from itertools import product

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from course_lib import sequence_parallel as sp
from tests.ranks import on_ranks


def test_the_orders_are_those_of_the_papers():
    assert sp.layout_order(8, 2, "contiguous").tolist() == [0, 1, 2, 3, 4, 5, 6, 7]
    assert sp.layout_order(8, 2, "striped").tolist() == [0, 2, 4, 6, 1, 3, 5, 7]
    assert sp.layout_order(8, 2, "zigzag").tolist() == [0, 1, 6, 7, 2, 3, 4, 5]
    assert sp.layout_order(6, 3, "zigzag").tolist() == [0, 5, 1, 4, 2, 3]


@given(st.sampled_from(sp.LAYOUTS), st.integers(1, 6), st.integers(1, 5))
def test_every_token_is_dealt_once_and_a_ranks_tokens_ascend(layout, world_size, tokens_each):
    T = 2 * world_size * tokens_each
    order = sp.layout_order(T, world_size, layout)
    assert order.dtype == torch.int64 and sorted(order.tolist()) == list(range(T))
    for share in order.chunk(world_size):
        assert len(share) == 2 * tokens_each and share.tolist() == sorted(share.tolist())
    assert sp.restore_order(order, 0, world_size, layout).tolist() == list(range(T))


@pytest.mark.parametrize("arguments, said", [
    ((10, 4, "contiguous"), "num_tokens=10 in a contiguous layout on 4 ranks: expected a multiple of 4; pad .* to 12"),
    ((12, 4, "zigzag"), "expected a multiple of 8; pad the rows to 16"),
    ((8, 2, "Zigzag"), "layout='Zigzag': expected one of contiguous, striped, zigzag"),
    ((0, 2, "zigzag"), "num_tokens=0"),
])
def test_what_cannot_be_dealt_evenly_is_refused(arguments, said):
    with pytest.raises(ValueError, match=said):
        sp.layout_order(*arguments)


def test_pairs_under_the_mask_are_those_that_are_counted_one_by_one():
    for layout, R, causal in product(sp.LAYOUTS, (1, 2, 3, 4), (True, False)):
        shares = sp.layout_order(24, R, layout).chunk(R)
        for q, k in product(range(R), range(R)):
            pairs = (shares[q][:, None] >= shares[k]).sum().item() if causal else len(shares[q]) * len(shares[k])
            assert sp.visible_pairs(q, k, 24, R, layout, causal) == pairs, (layout, R, q, k)
            assert sp.ring_work(24, R, layout, causal)[(q - k) % R][q] == pairs  # when k's block is there


@on_ranks(3)
def test_gathered_tokens_are_in_the_order_of_the_row_and_gradients_go_to_their_owners():
    row = torch.arange(24.0).view(2, 12)
    for layout in sp.LAYOUTS:
        mine = row[:, sp.local_positions(12, None, layout)].requires_grad_()
        whole = sp.gather_tokens(mine, -1, None, layout)
        (whole * row).sum().backward()
        assert torch.equal(whole, row) and torch.equal(mine.grad, mine.detach())


@on_ranks(4)
def test_two_levels_deal_every_token_once():
    rank = dist.get_rank()
    ulysses = [dist.new_group([0, 1]), dist.new_group([2, 3])][rank // 2]
    ring = [dist.new_group([0, 2]), dist.new_group([1, 3])][rank % 2]
    sp.local_positions(12, ring, "contiguous", ulysses)
    first = [0, 12, 4, 8][rank]
    assert sp.local_positions(16, ring, "zigzag", ulysses).tolist() == list(range(first, first + 4))
    with pytest.raises(ValueError, match="5 tokens of a rank of the ring: expected a number that the 2 ranks"):
        sp.local_positions(2 * 5, ring, "contiguous", ulysses)


def test_rotary_scores_depend_on_the_distance_alone_and_position_0_turns_nothing():
    torch.manual_seed(0)
    x = torch.randn(1, 2, 5, 8, dtype=torch.float64)
    near, far = (sp.rotary(x, torch.arange(5) + start) for start in (0, 7))
    torch.testing.assert_close(near @ near.mT, far @ far.mT, rtol=1e-12, atol=1e-12)
    assert torch.equal(near[:, :, 0], x[:, :, 0]) and not torch.allclose(near, far)
    with pytest.raises(ValueError, match="expected an even head size and one position for each of the 5 tokens"):
        sp.rotary(x, torch.arange(4))


@on_ranks(2)
def test_rotary_attention_under_every_layout_is_that_of_the_whole_row_and_local_positions_would_not_be():
    q, k, v = torch.randn(3, 1, 2, 24, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    expected = torch.nn.functional.scaled_dot_product_attention(
        sp.rotary(q, torch.arange(24)), sp.rotary(k, torch.arange(24)), v, is_causal=True)
    for layout in sp.LAYOUTS:
        places = sp.local_positions(24, None, layout)
        for positions, is_right in ((places, True), (torch.arange(12), False)):
            mine = [sp.rotary(x[:, :, places], positions) for x in (q, k)]
            out = sp.gather_tokens(sp.ring_attention(*mine, v[:, :, places], layout=layout), 2, None, layout)
            off = (out - expected).abs().max()
            assert off < 1e-12 if is_right else off > 0.01, (layout, is_right)
