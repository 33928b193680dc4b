"""Ring attention under every layout, Ulysses and both together give torch's results and gradients, send what the
formulas say, and hold memory in proportion to a rank's tokens. Many cases travel in one launch."""

from functools import partial
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist

from course_lib import sequence_parallel as sp
from course_lib.groups.membership import Member
from course_lib.runtime import launch, record_communication, record_memory
from course_lib.sequence_parallel import ring
from course_lib.sequence_parallel.ring import KeyBlock, cut_tiles
from tests.groups.mistakes import answers
from tests.ranks import on_ranks
from tests.sequence_parallel.cases import Case, cases, in_one_process, run, whole


@on_ranks(1, 2, 3, 4)
def test_results_gradients_and_bytes_are_torchs_and_the_formulas_and_sixteen_bits_are_added_up_in_thirty_two():
    dtypes = (torch.float64, torch.float32, torch.bfloat16) if dist.get_world_size() == 2 else (torch.float64,)
    assert not run(list(cases(dtypes)))[:3]


@on_ranks(2)
def test_rows_of_many_tiles_of_odd_lengths_are_exact():
    for layout in ("contiguous", "striped", "zigzag"):
        case = Case(layout, 4, True)
        tensors, positions = whole(case, 68), sp.local_positions(68, None, layout)
        q, k, v, gradient = (x[:, :, positions].clone() for x in tensors)
        q, k, v = (x.requires_grad_() for x in (q, k, v))
        with patch.object(ring, "TILE_ROWS", 3):
            out = sp.ring_attention(q, k, v, layout=layout)
            given = out, *torch.autograd.grad(out, (q, k, v), gradient)
        for a, b in zip(given, in_one_process(case, tensors)):
            assert (a - b[:, :, positions]).abs().max() < 1e-12, layout


def test_blocks_may_come_in_any_order_after_the_first():
    torch.manual_seed(0)
    q, k, v = torch.randn(1, 2, 1, 12, 4), torch.randn(1, 2, 12, 4), torch.randn(1, 2, 12, 4)
    positions = torch.arange(12)
    results = []
    for order in ((2, 1, 0), (2, 0, 1), (0, 1, 2)):
        softmax = sp.OnlineSoftmax(q.double())
        for piece in order:
            keys = positions.chunk(3)[piece]
            softmax.add(KeyBlock(k[:, :, keys].double(), v[:, :, keys].double(), positions, keys, False))
        results.append(softmax.result()[0])
    expected = torch.softmax(q.double() @ k.double().mT.unsqueeze(2), -1) @ v.double().unsqueeze(2)
    for result in results:
        torch.testing.assert_close(result, expected, rtol=1e-12, atol=1e-12)


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


def pairs_computed(layout, world_size, num_tokens):
    """Scores that each rank computes in each step, tiles being computed whole: [step][rank]."""
    places = sp.layout_order(num_tokens, world_size, layout).chunk(world_size)
    def pairs(queries, keys):
        return sum((tile.rows.stop - tile.rows.start) * tile.num_keys for tile in cut_tiles(queries, keys, True))

    return [[pairs(places[rank], places[(rank - step) % world_size]) for rank in range(world_size)]
            for step in range(world_size)]


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_zigzag_computes_evenly_and_contiguous_leaves_the_last_rank_almost_twice_the_mean(world_size):
    T = 1024 * world_size
    computed = {layout: pairs_computed(layout, world_size, T) for layout in sp.LAYOUTS}
    found = {layout: sp.imbalance(pairs) for layout, pairs in computed.items()}
    assert found["zigzag"] == 0 and found["striped"] < 0.05
    formula = sp.imbalance(sp.ring_work(T, world_size, "contiguous"))
    assert found["contiguous"] == pytest.approx(formula, rel=0.1) and formula > 0.45
    for step in zip(*(computed[layout] for layout in ("zigzag", "striped"))):
        assert all(max(ranks) < 1.3 * min(ranks) for ranks in step)  # nobody waits for anybody in any step


def test_tiles_compute_little_more_than_the_mask_lets_through():
    for layout in sp.LAYOUTS:
        computed = sum(map(sum, pairs_computed(layout, 4, 8192)))
        visible = sum(map(sum, sp.ring_work(8192, 4, layout)))
        assert visible <= computed < (1.3 if layout == "striped" else 1.05) * visible


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
