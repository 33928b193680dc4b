"""Every collective equals torch.distributed's on made-up inputs, sends exactly the bytes of its formula, and is made of
send and recv alone. Many cases travel in one launch."""

import re
from itertools import product
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from torch.distributed import ReduceOp

from course_lib import collectives
from course_lib.collectives import pipelined_ring
from course_lib.runtime import launch, record_communication
from tests.collectives.cases import ALL_REDUCES, OTHERS, REDUCTIONS, Case, problems_of, run, said_to_mistakes

DTYPES = (torch.float32, torch.bfloat16, torch.int64)


def cases(world_size):
    groups = st.lists(st.integers(0, world_size - 1), min_size=1, unique=True).map(lambda g: tuple(sorted(g)))
    world = tuple(range(world_size))

    @st.composite
    def one(draw, among):
        dtype = draw(st.sampled_from(DTYPES))
        ops = [ReduceOp.SUM, ReduceOp.MAX, ReduceOp.MIN] + [ReduceOp.AVG] * dtype.is_floating_point
        members = draw(st.sampled_from(among))
        shape = draw(st.lists(st.integers(0, 13), min_size=1, max_size=3).map(tuple))
        layout = draw(st.sampled_from(["contiguous", "transposed", "every second"]))
        return Case(draw(st.sampled_from(REDUCTIONS + OTHERS)), members, shape, layout, dtype,
                    draw(st.sampled_from(ops)), draw(st.integers(0, len(members) - 1)), draw(st.integers(0, 9)))

    return st.lists(groups, max_size=2).flatmap(
        lambda some: st.lists(one([world, *some]), min_size=40, max_size=70))


@pytest.mark.parametrize("world_size", range(1, 9))
def test_each_equals_torch_distributed_and_sends_the_bytes_of_its_formula_by_send_and_recv_alone(world_size):
    # No shrinking: a failing case is named, and is small.
    @settings(max_examples=2, phases=[Phase.generate],
              suppress_health_check=list(HealthCheck))
    @given(cases(world_size))
    def holds(drawn):
        problems = [problem for of_rank in launch(run, drawn, world_size=world_size) for problem in of_rank]
        assert not problems, "\n\n".join(problems[:3])

    holds()


def test_long_messages_go_in_segments_with_the_same_result_and_bytes_for_any_length_and_op():
    def body(lengths):
        world, group = tuple(range(dist.get_world_size())), dist.group.WORLD
        with patch.multiple(pipelined_ring, LONG_BYTES=1, SEGMENT_BYTES=28, AHEAD_BYTES=84):  # 3 of 7 floats
            for length, op in product(lengths, (ReduceOp.SUM, ReduceOp.AVG, ReduceOp.MAX, ReduceOp.MIN)):
                case = Case("ring_all_reduce", world, (length,), "every second", torch.float32, op, 0, 0)
                assert pipelined_ring.pays_off(case.input(0).tensor_split(len(world)))
                assert list(problems_of(case, group)) == []

    for world_size in (2, 3, 4):
        launch(body, [4, 5, 27, 28, 29, 57, 100], world_size=world_size)


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_every_rank_gets_the_same_bits_although_floating_point_sums_depend_on_the_order(world_size):
    def body():
        torch.manual_seed(dist.get_rank())
        made, results = torch.randn(1001), []
        for name in ALL_REDUCES:
            results.append(made.clone())
            getattr(collectives, name)(results[-1])
        dist.all_reduce(made)
        for result in results:
            torch.testing.assert_close(result, made)
        return torch.stack(results)

    first, *others = launch(body, world_size=world_size)
    assert all(torch.equal(other, first) for other in others)


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_every_rank_gets_the_same_bits_where_equal_numbers_have_different_ones(world_size):
    def body():
        rank = dist.get_rank()
        zeros = torch.full((9,), -0.0 if rank % 2 else 0.0)
        nans = torch.full((9,), 0x7FC00000 + rank, dtype=torch.int32).view(torch.float32)
        results = []
        for name, op, made in product(ALL_REDUCES, (ReduceOp.SUM, ReduceOp.MAX, ReduceOp.MIN), (zeros, nans)):
            results.append(made.clone())
            getattr(collectives, name)(results[-1], op)
        return torch.stack(results).view(torch.int32)

    first, *others = launch(body, world_size=world_size)
    assert all(torch.equal(other, first) for other in others)


def test_the_all_gather_of_a_reduce_scatter_is_the_all_reduce_in_result_and_in_bytes():
    def body():
        made = torch.arange(11 * 3.0).view(11, 3) * (dist.get_rank() + 1)
        with record_communication() as two:
            out = torch.empty(11, 3)
            returned = collectives.ring_all_gather(collectives.ring_reduce_scatter(made), out=out)
        assert returned is out
        flat = made.clone()
        with record_communication() as one:
            collectives.ring_all_reduce(flat)
        return torch.equal(out, flat), two.sent_bytes, one.sent_bytes

    results = launch(body, world_size=4)
    assert all(equal for equal, _, _ in results)
    # 11 rows cut into 3, 3, 3, 2; 33 elements into 9, 8, 8, 8
    assert [two for _, two, _ in results] == [4 * 3 * (22 - a - b) for a, b in [(3, 3), (3, 3), (3, 2), (2, 3)]]
    assert [one for _, _, one in results] == [4 * (66 - a - b) for a, b in [(9, 8), (8, 8), (8, 8), (8, 9)]]


@pytest.mark.parametrize("nodes, per_node", [(1, 2), (2, 1), (2, 2), (3, 2), (2, 3)])
def test_the_hierarchical_all_reduce_sends_between_nodes_only_the_ring_of_its_own_chunk(nodes, per_node):
    def body(length, op):
        rank, node = dist.get_rank(), dist.get_rank() // per_node
        ranks = torch.arange(nodes * per_node).view(nodes, per_node)
        intra = [dist.new_group(row.tolist()) for row in ranks][node]
        inter = [dist.new_group(column.tolist()) for column in ranks.T][rank % per_node]
        ours, theirs = (torch.arange(float(length)) * (rank + 1) for _ in range(2))
        with record_communication() as log:
            collectives.hierarchical_all_reduce(ours, intra, inter, op)
        dist.all_reduce(theirs, op)
        torch.testing.assert_close(ours, theirs)
        assert {event.op for event in log.events} <= {"send", "recv"}
        across = [event.peer is not None and event.peer // per_node != node for event in log.events]
        return sum(event.sent_bytes for event, out in zip(log.events, across) if out), log.sent_bytes

    M = 4 * 24
    for op in (ReduceOp.SUM, ReduceOp.AVG):
        between = 2 * (nodes - 1) * M // (nodes * per_node)
        inside = 2 * (per_node - 1) * M // per_node
        sent = launch(body, M // 4, op, world_size=nodes * per_node)
        assert sent == [(between, between + inside)] * (nodes * per_node)
    launch(body, 17, ReduceOp.SUM, world_size=nodes * per_node)  # any length


def test_uneven_all_to_all_equals_torch_and_keeps_only_its_own_piece():
    def body():
        n, r = dist.get_world_size(), dist.get_rank()
        rows = [[0, 2, 1], [3, 1, 0], [2, 2, 4]]  # rows[a][b] go from a to b
        gets = [row[r] for row in rows]
        made = torch.arange(2.0 * sum(rows[r])).view(-1, 2) + 100 * r
        theirs = torch.empty(sum(gets), 2)
        dist.all_to_all_single(theirs, made, gets, rows[r])
        with record_communication() as log:
            ours = collectives.pairwise_all_to_all(made, gets, rows[r], out=torch.empty(2 * sum(gets)))
        return torch.equal(ours.view(-1, 2), theirs), log.sent_bytes == 8 * (sum(rows[r]) - rows[r][r]), n

    assert launch(body, world_size=3) == [(True, True, 3)] * 3


def test_out_takes_any_shape_and_stride_of_the_right_size_and_a_tensor_that_needs_gradients_works():
    def body():
        n, r = dist.get_world_size(), dist.get_rank()
        made = torch.full((4, 3), r + 1.0, requires_grad=True)
        strided = torch.zeros(6, 2)[:, 0]
        assert collectives.ring_reduce_scatter(made, out=strided) is strided
        stacked = torch.zeros(n, 4, 3)
        collectives.ring_all_gather(made, out=stacked)
        collectives.ring_all_reduce(made)
        scalar = torch.tensor(r + 1)
        collectives.tree_all_reduce(scalar, ReduceOp.MAX)
        parts = collectives.gather(torch.tensor(r), [torch.zeros((), dtype=torch.int64) for _ in range(n)] * (r == 1),
                                   dst=1)
        return strided, stacked[:, 0, 0], made.detach()[0, 0].item(), scalar.item(), parts

    for r, (strided, stacked, total, largest, parts) in enumerate(launch(body, world_size=2)):
        assert (strided.tolist(), stacked.tolist(), total, largest) == ([3.0] * 6, [1.0, 2.0], 3.0, 2)
        assert parts == ([torch.tensor(0), torch.tensor(1)] if r == 1 else None)


def test_a_mistake_is_answered_with_what_was_given_and_what_was_expected():
    def body():
        _, foreign = [dist.new_group([rank]) for rank in (0, 1)]
        return said_to_mistakes(foreign) if dist.get_rank() == 0 else None

    said = launch(body, world_size=2)[0]
    missing = [name for name, expected in EXPECTED.items() if not re.search(expected, said[name])]
    assert missing == [] and said.keys() == EXPECTED.keys(), said


def test_outside_a_launch_a_collective_says_where_it_belongs():
    with pytest.raises(ValueError, match="no process group: expected a call on a rank"):
        collectives.ring_all_reduce(torch.ones(2))


EXPECTED = {
    "unknown op": "unknown op .*PRODUCT.*: expected ReduceOp.SUM, AVG, MAX or MIN",
    "op as text": "unknown op 'sum'",
    "average of integers": "ReduceOp.AVG of torch.int64: expected a floating-point tensor",
    "foreign group": "rank 0 is not in the group",
    "no group": "group='world' is not a group: expected None",
    "root outside": r"src=7 is not in the group: expected one of its global ranks \[0, 1\]",
    "size of out": r"out is float32\[2\] on cpu: expected float32\[3\] on cpu, or another shape of 3 elements",
    "dtype of out": r"out is int64\[6\] on cpu, so place 0 of 2 brings int64\[3\] on cpu: given float32\[3\]",
    "nothing to cut": "no dimensions: expected one that can be cut",
    "one side's sizes": "only one of .*: expected both or neither",
    "sizes that miss rows": "add up to 1: expected the 2 rows",
    "too few sizes": r"output_split_sizes=\[2\]: expected 2 sizes",
    "sizes that disagree": "place 0 keeps 1 rows by input_split_sizes and 3",
    "no scatter_list": "scatter_list has 0 entries: expected 2",
    "size of an entry": r"float32\[3\] on cpu: expected float32\[2\]",
    "size of a part": r"float32\[3\] on cpu: expected float32\[2\]",
    "list on another rank": "gather_list given on a rank that is not dst=1: expected None",
    "one group twice": r"share the ranks \[0, 1\]: expected only the calling rank",
}
