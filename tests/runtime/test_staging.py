"""Ranks that share a GPU over gloo: what torch.distributed does for tensors of the CPU, it does for theirs.

On the pretended GPU, whose gloo takes broadcast and all_reduce alone. Claims are about a call on tensors of the GPU
beside the same call, on the same group, on tensors of the CPU.
"""

import os
import warnings
from dataclasses import dataclass

import pytest
import torch
import torch.distributed as dist
from torch.distributed._functional_collectives import all_gather_tensor_autograd, all_to_all_single, wait_tensor
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor, init_device_mesh

from course_lib.runtime import (
    Deadlock,
    RankDied,
    RankFailed,
    device,
    launch,
    record_communication,
    record_timeline,
    staging,
)
from tests.pretend import build
from tests.pretend.hook import pretended
from tests.pretend.modes import MODES

MISSING = build.why_not()
if MISSING:
    pytest.skip(f"NO PRETENDED GPU HERE: {MISSING}", allow_module_level=True)

CPU = torch.device("cpu")


@pytest.fixture(scope="module", autouse=True)
def built():
    build.build()


def shared(function, *arguments, world_size=2, **options):
    """`function` on ranks that share a GPU: their default device is that GPU."""
    with pretended(MODES["gloo-cuda"]):
        return launch(function, *arguments, world_size=world_size, **options)


def around():
    """The next rank and the one before."""
    rank, n = dist.get_rank(), dist.get_world_size()
    return (rank + 1) % n, (rank - 1) % n


# The same numbers

@dataclass
class Hands:
    """What an operation below takes its tensors from."""

    where: torch.device
    dtype: torch.dtype = torch.float32
    later: bool = False  # async_op
    group: dist.ProcessGroup | None = None

    @property
    def n(self):
        return dist.get_world_size(self.group)

    @property
    def is_root(self):
        return dist.get_rank(self.group) == 0

    def mine(self, *shape):
        values = torch.arange(torch.Size(shape).numel(), device=CPU) * (dist.get_rank() + 1)
        return values.view(shape).to(self.dtype).to(self.where)

    def blanks(self, *shape, count=None):
        return [torch.zeros(shape, dtype=self.dtype, device=self.where) for _ in range(count or self.n)]

    @property
    def how(self):
        return {"group": self.group, "async_op": self.later}


def all_gather(hands):
    outs = hands.blanks(2, 3)
    return outs, dist.all_gather(outs, hands.mine(2, 3), **hands.how)


def all_gather_of_strided_tensors(hands):
    outs = [blank.t() for blank in hands.blanks(2, 3)]
    return outs, dist.all_gather(outs, hands.mine(2, 3).t(), **hands.how)


def all_gather_of_expanded_tensors(hands):
    outs = hands.blanks(2, 3)
    return outs, dist.all_gather(outs, hands.mine(3).expand(2, 3), **hands.how)


def all_gather_into_tensor(hands):
    (out,) = hands.blanks(2 * hands.n, 3, count=1)
    return [out], dist.all_gather_into_tensor(out, hands.mine(2, 3), **hands.how)


def all_gather_in_place(hands):
    (out,) = hands.blanks(2 * hands.n, 3, count=1)
    own = out.chunk(hands.n)[dist.get_rank(hands.group)]
    own.copy_(hands.mine(2, 3))
    return [out], dist.all_gather_into_tensor(out, own, **hands.how)


def all_gather_coalesced(hands):
    outs = [hands.blanks(3, count=1) + hands.blanks(2, count=1) for _ in range(hands.n)]  # by rank, then by tensor
    work = dist.all_gather_coalesced(outs, [hands.mine(3), hands.mine(2)], **hands.how)
    return sum(outs, []), work


def gather(hands):
    outs = hands.blanks(5) if hands.is_root else None
    return outs or [], dist.gather(hands.mine(5), outs, group_dst=0, **hands.how)


def scatter(hands):
    (out,) = hands.blanks(4, count=1)
    parts = list(hands.mine(hands.n, 4).unbind()) if hands.is_root else None
    return [out], dist.scatter(out, parts, group_src=0, **hands.how)


def reduce(hands):
    total = hands.mine(5)
    work = dist.reduce(total, group_dst=0, **hands.how)
    return [total] if hands.is_root else [], work


def all_reduce_coalesced(hands):
    totals = [hands.mine(5), hands.mine(2, 2)]
    return totals, dist.all_reduce_coalesced(totals, **hands.how)


def reduce_scatter(hands):
    (out,) = hands.blanks(3, count=1)
    return [out], dist.reduce_scatter(out, list(hands.mine(hands.n, 3).unbind()), **hands.how)


def reduce_scatter_tensor(hands):
    (out,) = hands.blanks(3, count=1)
    return [out], dist.reduce_scatter_tensor(out, hands.mine(3 * hands.n), dist.ReduceOp.MAX, **hands.how)


def all_to_all(hands):
    outs = hands.blanks(3)
    return outs, dist.all_to_all(outs, list(hands.mine(hands.n, 3).unbind()), **hands.how)


def all_to_all_single_evenly(hands):
    (out,) = hands.blanks(2 * hands.n, count=1)
    return [out], dist.all_to_all_single(out, hands.mine(2 * hands.n), **hands.how)


def all_to_all_single_unevenly(hands):
    """Place i sends i + 1 rows to each."""
    place = dist.get_rank(hands.group)
    rows = [other + 1 for other in range(hands.n)]
    (out,) = hands.blanks(sum(rows), 2, count=1)
    return [out], dist.all_to_all_single(out, hands.mine((place + 1) * hands.n, 2), rows, [place + 1] * hands.n, **hands.how)


def broadcast(hands):
    values = hands.mine(4)
    return [values], dist.broadcast(values, group_src=0, **hands.how)


def all_reduce(hands):
    values = hands.mine(4)
    return [values], dist.all_reduce(values, **hands.how)


OPERATIONS = [all_gather, all_gather_of_strided_tensors, all_gather_of_expanded_tensors, all_gather_into_tensor,
              all_gather_in_place, all_gather_coalesced, gather, scatter, reduce, all_reduce_coalesced, reduce_scatter,
              reduce_scatter_tensor, all_to_all, all_to_all_single_evenly, all_to_all_single_unevenly, broadcast,
              all_reduce]
# Complex numbers are views of real ones there, which the pretended device does not have.
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.uint8, torch.bool]


def outcome(operation, hands):
    """The numbers, on the CPU, or the words of the error."""
    try:
        outs, work = operation(hands)
        if hands.later:
            work.wait()
        return [out.tolist() for out in outs]
    except (RuntimeError, ValueError, TypeError) as error:
        return str(error)


def compared(dtypes, group_of=None):
    """(operation, dtype, later) of those that end otherwise than on the CPU; how many end in numbers."""
    warnings.simplefilter("ignore")
    group = dist.new_group(group_of) if group_of else None
    others, numbers = [], 0
    if group_of and dist.get_rank() not in group_of:
        return others, numbers
    for operation in OPERATIONS:
        for dtype in dtypes:
            for later in (False, True):
                ours, theirs = (outcome(operation, Hands(where, dtype, later, group)) for where in (device(), CPU))
                numbers += isinstance(ours, list)
                if ours != theirs:
                    others.append((operation.__name__, dtype, later, ours, theirs))
    return others, numbers


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_every_operation_gives_what_it_gives_on_the_cpu_at_once_and_later(world_size):
    for others, numbers in shared(compared, [torch.float32], world_size=world_size):
        assert others == [] and numbers == 2 * len(OPERATIONS)


def test_every_number_type_goes_or_is_refused_as_on_the_cpu():
    for others, numbers in shared(compared, DTYPES):
        assert others == [] and numbers > len(OPERATIONS) * len(DTYPES)


def test_a_subgroup_stages_like_the_world():
    results = shared(compared, [torch.float32], [1, 2], world_size=3)
    assert [others for others, _ in results] == [[]] * 3
    assert [numbers for _, numbers in results] == [0, 2 * len(OPERATIONS), 2 * len(OPERATIONS)]
