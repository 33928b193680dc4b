"""Chapter 2, in groups of any size."""

from functools import partial
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ReduceOp

from course_lib import collectives
from course_lib.collectives import ring
from course_lib.groups.membership import member
from course_lib.runtime import device, record_communication
from tests.pretend.trials.register import drawn, trial

GROUPS = ((0, 1, 2, 3), (0, 1, 3), (1, 2))  # halving-doubling and recursive doubling are odd in the group of three
INPUTS = {"every second": lambda seed: torch.stack([drawn(7, seed=seed)] * 2, -1)[:, 0],
          "transposed": lambda seed: drawn(3, 5, seed=seed).mT, "contiguous": lambda seed: drawn(12, seed=seed)}


@trial(*INPUTS)
def collectives_of_any_length_group_and_stride(layout: str) -> list[Tensor]:
    found = []
    for members in GROUPS:
        group, root, rank = dist.new_group(members), members[-1], dist.get_rank()
        if rank not in members:
            continue
        given = partial(INPUTS[layout], rank)
        for op in (ReduceOp.SUM, ReduceOp.AVG):
            for name in ("ring", "naive", "tree", "halving_doubling", "recursive_doubling"):
                getattr(collectives, f"{name}_all_reduce")(x := given(), op, group)
                found.append(x)
            collectives.tree_reduce(x := given(), root, op, group)
            found += [collectives.ring_reduce_scatter(given(), op, group), *[x] * (rank == root)]
        found += [collectives.ring_all_gather(given(), group=group),
                  collectives.pairwise_all_to_all(given(), group=group),
                  *(collectives.gather(given(), None, root, group) or [])]
        collectives.tree_broadcast(x := given(), root, group)
        pieces = [INPUTS[layout](each) for each in members] if rank == root else None
        collectives.scatter(y := given(), pieces, root, group)
        found += [x, y]
    return found


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
def collectives_on_two_levels_and_of_long_messages() -> list[Tensor]:
    rank, n, found = dist.get_rank(), dist.get_world_size(), []
    nodes, across = [dist.new_group([0, 1]), dist.new_group([2, 3])], [dist.new_group([0, 2]), dist.new_group([1, 3])]
    long = 4 * ring.LONG_BYTES // 4 + 3  # chunks of 1 MiB, not all of one length
    for length, op in ((1, ReduceOp.SUM), (17, ReduceOp.AVG), (24, ReduceOp.MAX), (long, ReduceOp.SUM)):
        x, y = (torch.arange(length, dtype=torch.float32) % 1000 * (rank + 1) for _ in range(2))
        collectives.hierarchical_all_reduce(x, nodes[rank // 2], across[rank % 2], op)
        collectives.ring_all_reduce(y, op)
        found += [x, y]
    with patch.multiple(ring, LONG_BYTES=1, SEGMENT_BYTES=28, AHEAD_BYTES=84), record_communication() as log:
        collectives.ring_all_reduce(values := torch.ones(57))
    assert values.tolist() == [float(n)] * 57
    sends = log.calls("send")  # cut finer in the host's memory alone
    assert sends > 2 * (n - 1) if member().wire(device()).type == "cpu" else sends == 2 * (n - 1), sends
    return found
