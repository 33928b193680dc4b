"""Chapter 2: the results of torch.distributed, in groups of any size."""

from collections.abc import Iterator
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ReduceOp

from course_lib import collectives
from course_lib.collectives import pipelined_ring
from course_lib.groups.membership import member
from course_lib.runtime import device, record_communication
from tests.pretend.trials.register import drawn, trial

GROUPS = ((0, 1, 2, 3), (0, 1, 3), (1, 2))  # halving-doubling and recursive doubling are odd in the group of three
INPUTS = {"every second": lambda seed: torch.stack([drawn(7, seed=seed)] * 2, -1)[:, 0],
          "transposed": lambda seed: drawn(3, 5, seed=seed).mT, "contiguous": lambda seed: drawn(12, seed=seed)}


def by_us_and_by_torch(layout: str, members: tuple, group: dist.ProcessGroup) -> Iterator[tuple[str, Tensor, Tensor]]:
    n, place, root = len(members), members.index(dist.get_rank()), members[-1]

    def given() -> Tensor:
        return INPUTS[layout](place)

    for op in (ReduceOp.SUM, ReduceOp.AVG):
        total = given().contiguous()
        dist.all_reduce(total, op, group)
        for name in ("ring", "naive", "tree", "halving_doubling", "recursive_doubling"):
            getattr(collectives, f"{name}_all_reduce")(ours := given(), op, group)
            yield name, ours, total
        yield "reduce-scatter", collectives.ring_reduce_scatter(given(), op, group), total.tensor_split(n)[place]
        collectives.tree_reduce(ours := given(), root, op, group)
        if place == n - 1:
            yield "reduce", ours, total
    parts = [torch.empty_like(given().contiguous()) for _ in range(n)]
    dist.all_gather(parts, given().contiguous(), group)
    yield "all-gather", collectives.ring_all_gather(given(), group=group), torch.cat(parts)
    gathered = collectives.gather(given(), None, root, group)
    if place == n - 1:
        yield "gather", torch.stack(gathered), torch.stack(parts)
    collectives.tree_broadcast(ours := given(), root, group)
    yield "broadcast", ours, parts[-1]
    collectives.scatter(ours := given(), [INPUTS[layout](j) for j in range(n)] if place == n - 1 else None, root, group)
    yield "scatter", ours, parts[place]
    yield ("all-to-all", collectives.pairwise_all_to_all(given(), group=group),
           torch.cat([part.tensor_split(n)[place] for part in parts]))


@trial(*INPUTS)
def collectives_of_any_length_group_and_stride(layout: str) -> None:
    for members in GROUPS:
        group = dist.new_group(members)
        for name, ours, theirs in by_us_and_by_torch(layout, members, group) if dist.get_rank() in members else ():
            assert torch.equal(ours, theirs), (name, members, ours, theirs)


@trial((0, 1, 2, 3), (0, 2, 3))
def differentiable_collectives(members: tuple) -> list:
    found, group, n = [], dist.new_group(members), len(members)
    for name, dims in (("copy_to_group", ()), ("reduce_from_group", ()), ("scatter_to_group", (0,)),
                       ("gather_from_group", (1,)), ("all_gather_along", (1,)), ("reduce_scatter_along", (0,)),
                       ("all_to_all_along", (0, 1))):
        if dist.get_rank() in members:
            x = drawn(n, 2 * n, seed=dist.get_rank()).mT.requires_grad_()
            y = getattr(collectives, name)(x, *dims, group)
            y.backward(drawn(*y.shape, seed=9))
            found += [y.detach(), x.grad]
    return found


@trial()
def collectives_on_two_levels_and_of_long_messages() -> None:
    rank, n = dist.get_rank(), dist.get_world_size()
    nodes, across = [dist.new_group([0, 1]), dist.new_group([2, 3])], [dist.new_group([0, 2]), dist.new_group([1, 3])]
    long = 4 * pipelined_ring.LONG_BYTES // 4 + 3  # chunks of 1 MiB, not all of one length
    for length, op in ((1, ReduceOp.SUM), (17, ReduceOp.AVG), (24, ReduceOp.MAX), (long, ReduceOp.SUM)):
        ours, ring, theirs = (torch.arange(length, dtype=torch.float32) % 1000 * (rank + 1) for _ in range(3))
        collectives.hierarchical_all_reduce(ours, nodes[rank // 2], across[rank % 2], op)
        collectives.ring_all_reduce(ring, op)
        dist.all_reduce(theirs, op)
        assert torch.equal(ours, theirs) and torch.equal(ring, theirs), (ours, ring, theirs)
    with patch.multiple(pipelined_ring, LONG_BYTES=1, SEGMENT_BYTES=28, AHEAD_BYTES=84), record_communication() as log:
        collectives.ring_all_reduce(values := torch.ones(57))
    assert values.tolist() == [float(n)] * 57
    sends = log.calls("send")  # cut finer in the host's memory alone
    assert sends > 2 * (n - 1) if member().wire(device()).type == "cpu" else sends == 2 * (n - 1), sends
