"""The plans that the widgets draw are what course_lib.collectives does: message for message on real ranks, and what the
ranks hold in the end is what the plan says. Many algorithms travel in one launch."""

from fractions import Fraction
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist

from course_lib import collectives
from course_lib.collectives.holdings import Holdings, cell_of, label_chunks
from course_lib.collectives.plan import plan, times
from course_lib.collectives.steps import MESSAGES, NUM_NODES
from course_lib.costs.links import BOUNDS
from course_lib.groups.membership import Member
from course_lib.runtime import launch, record_communication


def plans(num_ranks):
    return [plan(op, algorithm, num_ranks) for op, algorithm in MESSAGES
            if algorithm != "hierarchical" or num_ranks % NUM_NODES == 0]


def on_ranks(cases):
    """On each rank: for each (op, algorithm, num_chunks) what `real` returns."""
    intra, inter = nodes()
    return [real(op, algorithm, num_chunks, intra, inter) for op, algorithm, num_chunks in cases]


def nodes():
    """The groups of this rank on NUM_NODES nodes; None where the ranks cannot be so divided."""
    n, rank = dist.get_world_size(), dist.get_rank()
    g = n // NUM_NODES
    if n % NUM_NODES:
        return None, None
    inside = [dist.new_group(range(node * g, (node + 1) * g)) for node in range(NUM_NODES)]
    across = [dist.new_group(range(place, n, g)) for place in range(g)]
    return inside[rank // g], across[rank % g]


def real(op, algorithm, num_chunks, intra, inter):
    """One collective: [(op, peer, bytes)], the rows in each message sent, what the rank gave, and what it got."""
    rank, n = dist.get_rank(), dist.get_world_size()
    mine, c, is_root = label_chunks(rank, n, num_chunks), collectives, rank == 0
    own_row = mine[rank:rank + 1].clone() if rank < num_chunks else None
    given, into, call = {  # into: where the result comes to lie, unless it is returned
        "all_reduce": (mine.clone(), mine, lambda: c.hierarchical_all_reduce(mine, intra, inter)
                       if algorithm == "hierarchical" else getattr(c, f"{algorithm}_all_reduce")(mine)),
        "reduce_scatter": (mine, None, lambda: c.ring_reduce_scatter(mine)),
        "all_gather": (own_row, None, lambda: c.ring_all_gather(own_row)),
        "all_to_all": (mine, None, lambda: c.pairwise_all_to_all(mine)),
        "gather": (own_row, None, lambda: c.gather(own_row)),
        "scatter": ([*mine.split(1)] if is_root else None, torch.zeros(1, num_chunks, dtype=torch.int64),
                    lambda: c.scatter(into, given)),
        "broadcast": (mine if is_root else None, mine.clone() if is_root else torch.zeros_like(mine),
                      lambda: c.tree_broadcast(into)),
        "reduce": (mine.clone(), mine if is_root else None, lambda: c.tree_reduce(mine)),
    }[op]
    sent = []
    with record_communication() as log, patch.object(Member, "_all_at_once", looking_into(sent, num_chunks)):
        returned = call()
    in_place = op in ("all_reduce", "scatter", "broadcast", "reduce")
    events = [(event.op, event.peer, event.message_bytes) for event in log.events]
    return events, sent, given, into if in_place else returned


def looking_into(sent, num_chunks):
    """Member's way to send, which also keeps the rows of every message sent."""
    original = Member._all_at_once

    def send_and_keep(self, messages):
        sent.extend(tensor.clone().view(-1, num_chunks) for kind, tensor, _ in messages if kind is dist.isend)
        original(self, messages)

    return send_and_keep


def planned_events(shown, rank):
    """(op, peer, share of M) of one rank: where it does both in one step, it posts its receive first."""
    events = []
    for step in shown.steps:
        events += [("recv", m.src, shown.message_size(m)) for m in step.messages if m.dst == rank]
        events += [("send", m.dst, shown.message_size(m)) for m in step.messages if m.src == rank]
    return events


def planned_contents(shown, rank):
    """The cells in each message that one rank sends: what the plan says that it holds at that moment."""
    return [[state.cells[rank][place] for place in message.chunks]
            for state, step in zip(shown.states, shown.steps) for message in step.messages if message.src == rank]


def contents_of(rows, rank, num_ranks):
    return [cell_of(row, rank, num_ranks) for row in rows.tolist()]


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 4, 5, 6, 8])
def test_each_plan_is_what_real_ranks_send_in_order_with_its_contents_and_what_they_hold_before_and_after(num_ranks):
    shown = plans(num_ranks)
    ranks = launch(on_ranks, [(p.op, p.algorithm, p.num_chunks) for p in shown], world_size=num_ranks)
    for number, expected in enumerate(shown):
        name = f"{expected.op} {expected.algorithm}"
        events, sent, before, after = zip(*(rank[number] for rank in ranks))
        M = expected.num_chunks**2 * 8  # bytes: int64 (num_chunks, num_chunks)
        for rank in range(num_ranks):
            planned = [(op, peer, size * M) for op, peer, size in planned_events(expected, rank)]
            assert list(events[rank]) == planned, f"{name}, rank {rank}"
            contents = [contents_of(rows, rank, num_ranks) for rows in sent[rank]]
            assert contents == planned_contents(expected, rank), f"{name}, rank {rank}"
        assert Holdings.of(before, expected.num_chunks) == expected.before, name
        assert Holdings.of(after, expected.num_chunks) == expected.after, name


@pytest.mark.parametrize("g", [1, 2, 3, 4])  # ranks on each of two nodes
def test_two_levels_send_between_nodes_the_ring_of_a_gth_and_around_the_ring_a_rank_has_one_partial_sum(g):
    shown, n = plan("all_reduce", "hierarchical", 2 * g), 2 * g
    assert shown.num_steps == 2 * (g - 1) + 2
    assert shown.sent_by_rank() == (2 * Fraction(g - 1, g) + Fraction(1, g),) * n
    assert shown.sent_between_nodes == Fraction(2, n)  # 2 (k-1)/k M/g with k = 2 nodes
    assert shown.detail().endswith(f"; only {times(Fraction(2, n))} to the other node")
    for step, state in enumerate(plan("all_reduce", "ring", n).states[:n]):
        assert all(sorted(map(len, cells)) == [1] * (n - 1) + [step + 1] for cells in state.cells)


@pytest.mark.parametrize("n", range(1, 9))
def test_plans_have_the_latency_and_bytes_that_collective_time_charges_and_count_no_share_or_message_twice(n):
    steps, bytes_moved = collectives.Link(1.0, 0.0), collectives.Link(0.0, 1.0)
    for shown in plans(n):
        name = shown.op, shown.algorithm
        if shown.algorithm != "hierarchical":  # a sum of three in costs.links
            assert shown.num_steps == collectives.collective_time(*name, 1.0, n, steps)
            along = sum(max((shown.message_size(m) for m in step.messages), default=0) for step in shown.steps)
            assert float(along) == pytest.approx(collectives.collective_time(*name, 1.0, n, bytes_moved)), name
        assert {share.times for state in shown.states for cells in state.cells for cell in cells for share in cell} == {
            1}, name
        for step in shown.steps:
            for ranks in ([message.src for message in step.messages], [message.dst for message in step.messages]):
                assert len(set(ranks)) == len(ranks) > 0, name
        is_best = shown.algorithm == "ring" and shown.op in ("all_reduce", "reduce_scatter", "all_gather")
        assert shown.busiest == BOUNDS[shown.op](n) if is_best else shown.busiest >= BOUNDS[shown.op](n), name


def test_the_finding_names_the_busy_rank_and_the_detail_compares_it_with_the_bound(snapshot):
    shown = [plan(*which) for which in (("all_reduce", "naive", 4), ("all_reduce", "ring", 4), ("gather", "naive", 4),
                                        ("broadcast", "tree", 2), ("scatter", "naive", 1))]
    assert "rank 0 sends 3.0 × the buffer while the others send 1.0 ×" in shown[0].finding()
    assert "= 1.5 ×, the least there is" in shown[1].detail()
    assert "\n".join(f"{one.finding()}. {one.detail()}" for one in shown) == snapshot


def test_amounts_are_exact_where_three_decimals_suffice():
    amounts = (Fraction(3), Fraction(7, 4), Fraction(5, 8), Fraction(4, 3), Fraction(0))
    assert [times(amount) for amount in amounts] == ["3.0 ×", "1.75 ×", "0.625 ×", "1.33 ×", "0.0 ×"]


@pytest.mark.parametrize("wrong, message", [
    (("all_reduce", "quick", 4), "no plan for op='all_reduce' with algorithm='quick': expected one of all_reduce ring"),
    (("all_reduce", "ring", 0), "num_ranks=0: expected a whole number of 1 or more"),
    (("all_reduce", "ring", 2.5), "num_ranks=2.5: expected a whole number"),
    (("all_reduce", "hierarchical", 5), "num_ranks=5: expected a multiple of 2"),
])
def test_a_plan_that_cannot_be_is_refused_with_what_was_expected(wrong, message):
    with pytest.raises(ValueError) as raised:
        plan(*wrong)
    assert message in str(raised.value)
