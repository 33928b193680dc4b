"""Chapter 2: the numbers are those of the formula, of torch.distributed, or of one process that holds everything."""

from itertools import product
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch.distributed import ReduceOp

from course_lib import collectives
from course_lib.collectives import pipelined_ring
from course_lib.groups.membership import member
from course_lib.runtime import device, record_communication
from tests.collectives import cases, differentiable_cases
from tests.pretend.trials.register import trial


@trial("collectives all-reduce", "ring", "naive", "tree", "halving_doubling", "recursive_doubling")
def all_reduce(algorithm: str) -> None:
    values = torch.arange(7.0) + dist.get_rank()
    getattr(collectives, f"{algorithm}_all_reduce")(values)
    n = dist.get_world_size()
    assert values.tolist() == [n * i + n * (n - 1) / 2 for i in range(7)], values


@trial("collectives one way and dealt out")
def one_way() -> None:
    rank, n = dist.get_rank(), dist.get_world_size()
    values = torch.full((4,), float(rank))
    collectives.tree_broadcast(values, 0)
    assert values.tolist() == [0.0] * 4
    parts = collectives.gather(torch.full((2,), float(rank)), None, 0)
    assert rank or [part[0].item() for part in parts] == list(range(n))
    collectives.scatter(values, [torch.full((4,), float(j)) for j in range(n)] if rank == 0 else None, 0)
    assert values.tolist() == [float(rank)] * 4
    whole = collectives.ring_all_gather(torch.full((2,), float(rank)))
    assert whole.tolist() == [float(j) for j in range(n) for _ in range(2)]
    share = collectives.ring_reduce_scatter(torch.arange(8.0))
    assert share.tolist() == [n * i for i in torch.arange(8.0).tensor_split(n)[rank].tolist()]
    assert collectives.pairwise_all_to_all(torch.full((n,), float(rank))).tolist() == [float(j) for j in range(n)]


SHAPES = (((7,), "every second"), ((5, 3), "transposed"), ((12,), "contiguous"))


@trial("collectives of any length, group and stride:", "reductions", "others")
def equals_torch(kind: str) -> None:
    """Halving-doubling and recursive doubling are odd in the group of three."""
    algorithms, ops = {"reductions": (cases.REDUCTIONS, (ReduceOp.SUM, ReduceOp.AVG)),
                       "others": (cases.OTHERS, (ReduceOp.SUM,))}[kind]
    groups = ((0, 1, 2, 3), (0, 1, 3), (1, 2))
    drawn = [cases.Case(algorithm, members, shape, layout, torch.float32, op, len(members) - 1, 0)
             for algorithm, members, (shape, layout), op in product(algorithms, groups, SHAPES, ops)]
    assert not (problems := cases.run(drawn)), problems[0]


@trial("collectives, differentiable ones")
def differentiable() -> None:
    """Forward and backward, in the world and in a group of three."""
    drawn = [case for members in ((0, 1, 2, 3), (0, 2, 3)) for case in differentiable_cases.cases(members)
             if case.layout in ("contiguous", "transposed") and len(case.shape) != 1]
    assert not (problems := differentiable_cases.run(drawn)), problems[0]


@trial("collectives on two levels")
def two_levels() -> None:
    rank = dist.get_rank()
    nodes, across = [dist.new_group([0, 1]), dist.new_group([2, 3])], [dist.new_group([0, 2]), dist.new_group([1, 3])]
    for length, op in product((1, 17, 24), (ReduceOp.SUM, ReduceOp.AVG, ReduceOp.MAX)):
        ours, theirs = (torch.arange(float(length)) * (rank + 1) for _ in range(2))
        collectives.hierarchical_all_reduce(ours, nodes[rank // 2], across[rank % 2], op)
        dist.all_reduce(theirs, op)
        assert torch.equal(ours, theirs), (ours, theirs)


@trial("collectives of long messages")
def long_messages() -> None:
    n, length = dist.get_world_size(), 4 * pipelined_ring.LONG_BYTES // 4 + 3  # chunks of 1 MiB, not all of one length
    values = torch.arange(length, dtype=torch.float32) + dist.get_rank()
    collectives.ring_all_reduce(values)
    assert torch.equal(values, n * torch.arange(length, dtype=torch.float32) + n * (n - 1) / 2)


@trial("collectives cut messages finer in the host's memory alone")
def cut_finer() -> None:
    n, values = dist.get_world_size(), torch.ones(57)
    with patch.multiple(pipelined_ring, LONG_BYTES=1, SEGMENT_BYTES=28, AHEAD_BYTES=84), record_communication() as log:
        collectives.ring_all_reduce(values)
    assert values.tolist() == [float(n)] * 57
    sends = log.calls("send")
    assert sends > 2 * (n - 1) if member().wire(device()).type == "cpu" else sends == 2 * (n - 1), sends
