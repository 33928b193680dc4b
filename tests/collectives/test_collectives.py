"""Every collective equals one process that has all inputs, or torch.distributed, sends the bytes of its formula and
is made of send and recv alone. Many cases travel in one launch."""

import random
from itertools import product
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from torch.distributed import ReduceOp

from course_lib import collectives
from course_lib.collectives import ring
from course_lib.runtime import launch, record_communication
from tests.collectives.cases import ALL_REDUCES, OTHERS, REDUCTIONS, Case, mistakes, problems_of_a_call, run
from tests.groups.mistakes import answers
from tests.ranks import on_ranks
from tests.sweep import seeds

DTYPES = (torch.float32, torch.bfloat16, torch.int64)


def cases(world_size, seed):
    """Three of each algorithm among each number of ranks: which ones, and with what, is drawn."""
    chance, groups, found = random.Random(seed), {}, []
    for n, algorithm, _ in product(range(1, world_size + 1), REDUCTIONS + OTHERS, range(3)):
        dtype = chance.choice(DTYPES)
        ops = [ReduceOp.SUM, ReduceOp.MAX, ReduceOp.MIN] + [ReduceOp.AVG] * dtype.is_floating_point
        shape = tuple(chance.randint(0, 13) for _ in range(chance.randint(1, 3)))
        members = groups.setdefault(n, tuple(sorted(chance.sample(range(world_size), n))))
        found.append(Case(algorithm, members, shape, chance.choice(["contiguous", "transposed", "every second"]), dtype,
                          chance.choice(ops), chance.randrange(n), chance.randrange(10)))
    return found


@pytest.mark.sweep("seed", few=[46], all=seeds(20), words="1 seed of 20")
def test_each_equals_one_process_and_sends_the_bytes_of_its_formula_by_send_and_recv_alone(seed):
    problems = [problem for of_rank in launch(run, cases(8, seed), world_size=8) for problem in of_rank]
    assert not problems, "\n\n".join(problems[:3])


@on_ranks(2, 3, 4)
def test_long_messages_go_in_segments_with_the_same_result_and_bytes_for_any_length_and_op():
    world = tuple(range(dist.get_world_size()))
    with patch.multiple(ring, LONG_BYTES=1, SEGMENT_BYTES=28, AHEAD_BYTES=84):  # 3 of 7 floats
        ops = (ReduceOp.SUM, ReduceOp.AVG, ReduceOp.MAX, ReduceOp.MIN)
        for length, op in product([4, 5, 27, 28, 29, 57, 100], ops):
            case = Case("ring_all_reduce", world, (length,), "every second", torch.float32, op, 0, 0)
            assert ring.pays_off(case.input(0).tensor_split(len(world)))
            assert list(problems_of_a_call(case, dist.group.WORLD)) == []


@on_ranks(2, 3, 4)
def test_every_rank_gets_the_same_bits_although_sums_depend_on_the_order_and_equal_numbers_have_different_bits():
    rank = dist.get_rank()
    torch.manual_seed(rank)
    made = (torch.randn(1001), torch.full((9,), -0.0 if rank % 2 else 0.0),
            torch.full((9,), 0x7FC00000 + rank, dtype=torch.int32).view(torch.float32))  # and different nans
    for name, op, mine in product(ALL_REDUCES, (ReduceOp.SUM, ReduceOp.MAX, ReduceOp.MIN), made):
        result = mine.clone()
        getattr(collectives, name)(result, op)
        rank_0s = result.clone()
        dist.broadcast(rank_0s, 0)
        assert torch.equal(result.view(torch.int32), rank_0s.view(torch.int32)), (name, op)


@pytest.mark.parametrize("nodes, per_node", [(1, 2), (2, 1), (2, 2), (3, 2), (2, 3)])
def test_the_hierarchical_all_reduce_sends_between_nodes_only_the_ring_of_its_own_chunk(nodes, per_node):
    def body():
        rank, node = dist.get_rank(), dist.get_rank() // per_node
        ranks = torch.arange(nodes * per_node).view(nodes, per_node)
        intra = [dist.new_group(row.tolist()) for row in ranks][node]
        inter = [dist.new_group(column.tolist()) for column in ranks.T][rank % per_node]
        M = 4 * 24
        between, inside = 2 * (nodes - 1) * M // (nodes * per_node), 2 * (per_node - 1) * M // per_node
        for length, op in ((24, ReduceOp.SUM), (24, ReduceOp.AVG), (17, ReduceOp.SUM)):
            ours, theirs = (torch.arange(float(length)) * (rank + 1) for _ in range(2))
            with record_communication() as log:
                collectives.hierarchical_all_reduce(ours, intra, inter, op)
            dist.all_reduce(theirs, op)
            torch.testing.assert_close(ours, theirs)
            assert {event.op for event in log.events} <= {"send", "recv"}
            across = sum(event.sent_bytes for event in log.events if event.peer // per_node != node)
            if length == 24:  # 17 are any length: what they send differs
                assert (across, log.sent_bytes) == (between, between + inside)

    launch(body, world_size=nodes * per_node)


@on_ranks(3)
def test_uneven_all_to_all_equals_torch_and_keeps_only_its_own_piece():
    r, rows = dist.get_rank(), [[0, 2, 1], [3, 1, 0], [2, 2, 4]]  # rows[a][b] go from a to b
    gets = [row[r] for row in rows]
    made = torch.arange(2.0 * sum(rows[r])).view(-1, 2) + 100 * r
    theirs = torch.empty(sum(gets), 2)
    dist.all_to_all_single(theirs, made, gets, rows[r])
    with record_communication() as log:
        ours = collectives.pairwise_all_to_all(made, gets, rows[r], out=torch.empty(2 * sum(gets)))
    assert torch.equal(ours.view(-1, 2), theirs) and log.sent_bytes == 8 * (sum(rows[r]) - rows[r][r])


@on_ranks(2)
def test_out_takes_any_shape_and_stride_of_the_right_size_and_a_tensor_that_needs_gradients_works():
    r, strided, stacked = dist.get_rank(), torch.zeros(6, 2)[:, 0], torch.zeros(2, 4, 3)
    made = torch.full((4, 3), r + 1.0, requires_grad=True)
    assert collectives.ring_reduce_scatter(made, out=strided) is strided and strided.tolist() == [3.0] * 6
    assert collectives.ring_all_gather(made, out=stacked) is stacked and stacked[:, 0, 0].tolist() == [1.0, 2.0]
    collectives.ring_all_reduce(made)
    scalar = torch.tensor(r + 1)
    collectives.tree_all_reduce(scalar, ReduceOp.MAX)
    assert made.detach()[0, 0] == 3 and scalar == 2
    parts = [torch.zeros((), dtype=torch.int64) for _ in range(2)] if r == 1 else None
    assert collectives.gather(torch.tensor(r), parts, dst=1) == ([torch.tensor(0), torch.tensor(1)] if r else None)


def test_a_mistake_is_answered_with_what_was_given_and_what_was_expected(snapshot):
    def body():
        _, foreign = [dist.new_group([rank]) for rank in (0, 1)]
        return answers(mistakes(foreign)) if dist.get_rank() == 0 else None

    assert launch(body, world_size=2)[0] == snapshot


def test_outside_a_launch_a_collective_says_where_it_belongs():
    with pytest.raises(ValueError, match="no process group: expected a call on a rank"):
        collectives.ring_all_reduce(torch.ones(2))
