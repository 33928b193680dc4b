"""Ring attention under every layout, Ulysses and both together give torch's results and gradients, send what the
formulas say, and hold memory in proportion to a rank's tokens. Many cases travel in one launch."""

from functools import partial
from itertools import product
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist

from course_lib import sequence_parallel as sp
from course_lib.groups.membership import Member
from course_lib.runtime import launch, record_communication, record_memory
from course_lib.sequence_parallel.ring import KeyBlock, visible_part
from tests.groups.mistakes import answers
from tests.ranks import on_ranks
from tests.sequence_parallel.cases import cases, run


@on_ranks(1, 2, 3, 4)
def test_results_gradients_and_bytes_are_torchs_and_the_formulas_and_sixteen_bits_are_added_up_in_thirty_two():
    dtypes = (torch.float64, torch.float32, torch.bfloat16) if dist.get_world_size() == 2 else (torch.float64,)
    assert not run(list(cases(dtypes)))[:3]


def test_blocks_may_come_in_any_order_after_the_first():
    torch.manual_seed(0)
    q, k, v = 100 * torch.randn(3, 1, 2, 12, 4, dtype=torch.float64)  # exp of such scores would be infinite
    positions = torch.arange(12)
    for order in ((2, 1, 0), (2, 0, 1), (0, 1, 2)):
        softmax = sp.OnlineSoftmax(q)
        for piece in order:
            keys = positions.chunk(3)[piece]
            softmax.add(KeyBlock(k[:, :, keys], v[:, :, keys], positions, keys, False))
        scores = q @ k.mT / 2
        expected = torch.softmax(scores, -1) @ v, scores.logsumexp(-1, keepdim=True)
        torch.testing.assert_close(softmax.result(), expected, rtol=1e-12, atol=1e-12)


@on_ranks(3)
def test_the_next_block_is_on_its_way_while_this_one_is_used():
    happened, exchange, add = [], Member.start_exchange, sp.OnlineSoftmax.add

    def start(self, *arguments):
        happened.append("start")
        finish = exchange(self, *arguments)
        return lambda: (happened.append("wait"), finish())[1]

    def compute(self, block):
        happened.append("compute")
        add(self, block)

    with patch.object(Member, "start_exchange", start), patch.object(sp.OnlineSoftmax, "add", compute):
        sp.ring_attention(*(torch.randn(1, 1, 4, 2) for _ in range(3)))
    assert happened == ["start", "compute", "wait"] * 2 + ["compute"]


@on_ranks(4)
def test_a_message_goes_to_the_right_neighbour_and_nobody_gathers():
    q = torch.randn(1, 2, 4, 2, requires_grad=True)
    with record_communication() as log:
        sp.ring_attention(q, q, q).sum().backward()
    assert {event.op for event in log.events} == {"send", "recv"}
    assert {e.peer for e in log.events if e.op == "send"} == {(dist.get_rank() + 1) % 4}


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_a_block_is_one_call_for_the_pairs_that_the_mask_lets_through_and_no_others(world_size):
    """Of all layouts, also of two tokens a rank, and one where that can be."""
    for layout, num_tokens in product(sp.LAYOUTS, (world_size, 2 * world_size, 34 * world_size)):
        if layout == "zigzag" and num_tokens == world_size:
            continue
        places = sp.layout_order(num_tokens, world_size, layout).chunk(world_size)
        for queries, keys in product(places, places):
            covered = torch.zeros(len(queries), len(keys), dtype=torch.bool)
            if part := visible_part(queries, keys):
                covered[part.rows, part.keys] = True
                if part.causal:
                    covered[part.rows, part.keys] = covered[part.rows, part.keys].tril()
            assert torch.equal(covered, keys <= queries[:, None]), (layout, num_tokens, queries, keys)


def peak_of_ring(num_tokens, layout="zigzag"):
    """Bytes at most on one rank, forward and backward, beyond q, k, v."""
    with record_memory() as log:
        n = dist.get_world_size()
        q, k, v = (torch.randn(1, 1, num_tokens // n, 16, requires_grad=True) for _ in range(3))
        sp.ring_attention(q, k, v, layout=layout).sum().backward()
    return log.peak


def test_a_ranks_memory_is_in_proportion_to_its_tokens():
    T = 4096
    alone = {tokens: launch(peak_of_ring, tokens, world_size=1)[0] for tokens in (T, 2 * T)}
    assert alone[2 * T] < 2.02 * alone[T]  # linear, where a matrix of scores would be four times as large
    for n in (2, 4):
        # n times the tokens on n ranks: besides, a block arrives, and gradients travel, arrive, and wait at home
        travelling = 4 * (2 * T * 16 * 4)
        for peak in launch(peak_of_ring, n * T, world_size=n):
            assert alone[T] <= peak <= alone[T] + travelling + 64 * n * T, (n, peak, alone)


def test_what_cannot_be_attended_to_is_refused_with_what_was_expected(snapshot):
    def body():
        def x(*shape, dtype=torch.float32):
            return torch.zeros(shape, dtype=dtype)

        q = x(1, 2, 4, 2)
        return answers({
            "heads of Ulysses": partial(sp.ulysses_attention, *[x(1, 3, 4, 2)] * 3),
            "odd zigzag": partial(sp.ring_attention, *[x(1, 2, 3, 2)] * 3),
            "layout": partial(sp.ring_attention, q, q, q, layout="spiral"),
            "grouped": partial(sp.ring_attention, x(1, 3, 4, 2), q, q),
            "tokens": partial(sp.ring_attention, q, x(1, 2, 6, 2), x(1, 2, 6, 2)),
            "dims": partial(sp.ulysses_ring_attention, x(4, 2), q, q, None, None),
            "values": partial(sp.ring_attention, q, q, x(1, 2, 4, 3)),
            "dtype": partial(sp.ulysses_attention, q, q.double(), q.double()),
        })

    first, second = launch(body, world_size=2)
    assert first == second == snapshot


@on_ranks(2)
def test_under_autocast_attention_is_computed_in_its_dtype():
    q = torch.randn(1, 4, 8, 4, requires_grad=True)
    for attend in (sp.ring_attention, sp.ulysses_attention):
        with torch.autocast("cpu", torch.bfloat16):
            out = attend(q, q, q)
        assert (out.dtype, torch.autograd.grad(out.float().sum(), q)[0].dtype) == (torch.bfloat16, torch.float32)
