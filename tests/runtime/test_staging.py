"""Ranks that share a GPU over gloo: what torch.distributed does for tensors of the CPU, it does for theirs.

On the pretended GPU, whose gloo takes broadcast and all_reduce alone. Claims are about a call on tensors of the GPU
beside the same call, on the same group, on tensors of the CPU.
"""

import os
import warnings
import weakref
from dataclasses import dataclass
from functools import partial
from itertools import product

import pytest
import torch
import torch.distributed as dist
from torch.distributed._functional_collectives import all_gather_tensor_autograd, all_to_all_single, wait_tensor

from course_lib.runtime import (
    Deadlock,
    RankDied,
    RankFailed,
    device,
    record_communication,
    record_timeline,
    staging,
)
from tests.pretend import needed
from tests.pretend.needed import built  # noqa: F401  a fixture
from tests.ranks import gives

pytestmark = pytest.mark.ci
CPU = torch.device("cpu")
on_shared_gpu = partial(needed.on, "gloo-cuda")  # the ranks' default device is that GPU


def on_gpu(expected, world_size=2):
    return gives(expected, world_size, run=on_shared_gpu)


def fill(count, *shape):
    return [torch.zeros(shape) for _ in range(count)]


# The same numbers

@dataclass
class Hands:
    """What an operation below takes its tensors from, and how it is called."""

    where: torch.device
    dtype: torch.dtype = torch.float32
    later: bool = False  # async_op
    group: dist.ProcessGroup | None = None

    def __post_init__(self):
        self.n, self.place = dist.get_world_size(self.group), dist.get_rank(self.group)
        self.how = {"group": self.group, "async_op": self.later}

    def mine(self, *shape):
        values = torch.arange(torch.Size(shape).numel(), device=CPU) * (dist.get_rank() + 1)
        return values.view(shape).to(self.dtype).to(self.where)

    def blanks(self, *shape, count=None):
        return [torch.zeros(shape, dtype=self.dtype, device=self.where) for _ in range(count or self.n)]

    def into(self, outs, operation, *arguments, as_list=True, **options):
        """What is written, and the work of `operation`, which takes it first."""
        return outs, operation(outs if as_list else outs[0], *arguments, **options, **self.how)


def all_gather_in_place(h):
    (out,) = h.blanks(2 * h.n, 3, count=1)
    own = out.chunk(h.n)[h.place]
    own.copy_(h.mine(2, 3))
    return [out], dist.all_gather_into_tensor(out, own, **h.how)


def all_gather_coalesced(h):
    outs = [h.blanks(3, count=1) + h.blanks(2, count=1) for _ in range(h.n)]  # by rank, then by tensor
    return sum(outs, []), dist.all_gather_coalesced(outs, [h.mine(3), h.mine(2)], **h.how)


def gather(h):
    outs = h.blanks(5) if h.place == 0 else None
    return outs or [], dist.gather(h.mine(5), outs, group_dst=0, **h.how)


def scatter(h):
    (out,) = h.blanks(4, count=1)
    return [out], dist.scatter(out, [*h.mine(h.n, 4).unbind()] if h.place == 0 else None, group_src=0, **h.how)


def reduce(h):
    total = h.mine(5)
    work = dist.reduce(total, group_dst=0, **h.how)
    return [total] if h.place == 0 else [], work


def uneven_all_to_all(h):
    (out,) = h.blanks(h.n * (h.n + 1) // 2, 2, count=1)  # i + 1 rows from place i
    rows = [*range(1, h.n + 1)], [h.place + 1] * h.n
    return [out], dist.all_to_all_single(out, h.mine((h.place + 1) * h.n, 2), *rows, **h.how)


OPERATIONS = {  # (the tensors that are written, the work) of what a rank has in its hands
    "all_gather": lambda h: h.into(h.blanks(2, 3), dist.all_gather, h.mine(2, 3)),
    "all_gather of strided tensors": lambda h: h.into(
        [blank.t() for blank in h.blanks(2, 3)], dist.all_gather, h.mine(2, 3).t()),
    "all_gather of expanded tensors": lambda h: h.into(h.blanks(2, 3), dist.all_gather, h.mine(3).expand(2, 3)),
    "all_gather in place": all_gather_in_place,
    "all_gather coalesced": all_gather_coalesced,
    "gather": gather,
    "scatter": scatter,
    "reduce": reduce,
    "all_reduce": lambda h: h.into([h.mine(4)], dist.all_reduce, as_list=False),
    "all_reduce coalesced": lambda h: h.into([h.mine(5), h.mine(2, 2)], dist.all_reduce_coalesced),
    "reduce_scatter": lambda h: h.into(h.blanks(3, count=1), dist.reduce_scatter, [*h.mine(h.n, 3).unbind()],
                                       as_list=False),
    "reduce_scatter_tensor": lambda h: h.into(h.blanks(3, count=1), dist.reduce_scatter_tensor, h.mine(3 * h.n),
                                              dist.ReduceOp.MAX, as_list=False),
    "all_to_all": lambda h: h.into(h.blanks(3), dist.all_to_all, [*h.mine(h.n, 3).unbind()]),
    "all_to_all_single": lambda h: h.into(h.blanks(2 * h.n, count=1), dist.all_to_all_single, h.mine(2 * h.n),
                                          as_list=False),
    "all_to_all_single, uneven": uneven_all_to_all,
}
# Complex numbers are views of real ones there, which the pretended device does not have.
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.uint8,
          torch.bool]


def outcome(operation, hands):
    """The numbers, on the CPU, or the words of the error."""
    try:
        outs, work = operation(hands)
        if hands.later:
            work.wait()
        return [out.tolist() for out in outs]
    except (RuntimeError, ValueError, TypeError) as error:
        return str(error)


def differences(dtypes, group_of=None):
    """(operation, dtype, later) of those that end otherwise than on the CPU; how many end in numbers."""
    warnings.simplefilter("ignore")
    group = dist.new_group(group_of) if group_of else None
    others, numbers = [], 0
    if group_of and dist.get_rank() not in group_of:
        return others, numbers
    for name, operation in OPERATIONS.items():
        for dtype in dtypes:
            for later in (False, True):
                ours, theirs = (outcome(operation, Hands(where, dtype, later, group)) for where in (device(), CPU))
                numbers += isinstance(ours, list)
                if ours != theirs:
                    others.append((name, dtype, later, ours, theirs))
    return others, numbers


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_every_operation_gives_what_it_gives_on_the_cpu_at_once_and_later(world_size):
    every = ([], 2 * len(OPERATIONS))
    assert list(on_shared_gpu(differences, [torch.float32], world_size=world_size)) == [every] * world_size
    if world_size == 3:
        assert list(on_shared_gpu(differences, [torch.float32], [1, 2], world_size=3)) == [([], 0), every, every]


def test_every_number_type_goes_or_is_refused_as_on_the_cpu():
    for others, numbers in on_shared_gpu(differences, DTYPES):
        assert others == [] and numbers > len(OPERATIONS) * len(DTYPES)


# Messages

@on_gpu([[[[rank, tag] for tag in range(3)]] * 2 for rank in range(2)])
def test_messages_are_matched_by_tag_and_waited_for_in_any_order_batched_or_not():
    peer, heard = 1 - dist.get_rank(), []
    for batched in (False, True):
        got = [torch.zeros(2, dtype=torch.int64) for _ in range(3)]
        messages = [dist.P2POp(dist.irecv, values, peer, tag=tag) for tag, values in enumerate(got)]
        messages += [dist.P2POp(dist.isend, torch.tensor([peer, tag]), peer, tag=tag) for tag in (2, 0, 1)]
        works = (dist.batch_isend_irecv(messages) if batched else
                 [each.op(each.tensor, each.peer, tag=each.tag) for each in messages])
        for work in works[::-1]:
            work.wait()
        heard.append([values.tolist() for values in got])
    return heard


@on_gpu([[(1, 1.0, 1.0), (2, 2.0, 2.0)], None, None], world_size=3)
def test_a_receive_from_any_rank_says_whom_it_heard():
    if dist.get_rank():
        dist.send(torch.full((2,), float(dist.get_rank())), 0)
        return None
    values = torch.zeros(2)
    return sorted((dist.recv(values), *values.tolist()) for _ in range(2))


@on_gpu([(None, True), (([0.0] * 3, [1.0, 1.0, 0.0]), True)])
def test_a_receive_writes_when_it_is_waited_for_what_the_message_brings_and_one_that_was_dropped_is_given_up():
    values, seen = torch.zeros(3), None
    if dist.get_rank() == 0:
        dist.send(torch.ones(2), 1)
        dist.barrier()
    else:
        work = dist.irecv(values, 0)
        dist.barrier()
        before = values.tolist()
        work.wait()
        seen = before, values.tolist()
    dropped = weakref.ref(dist.irecv(torch.zeros(2), 1 - dist.get_rank(), tag=1))
    dist.all_gather(fill(2, 2), torch.ones(2))
    return seen, dropped() is None


# What a work says

@on_gpu([([True, True], [[1.0, 1.0], [2.0, 2.0]], total, 0) for total in ([2.0] * 3, None)])
def test_a_future_and_a_poll_bring_the_numbers_without_a_wait_and_leave_nothing_behind():
    outs, total = fill(2, 2), torch.ones(3)
    value = dist.all_gather(outs, torch.ones(2) + dist.get_rank(), async_op=True).get_future().wait()
    polled = dist.reduce(total, 0, async_op=True)
    while not polled.is_completed():
        pass
    same = [one is other for one, other in zip(value, outs, strict=True)]
    return same, [out.tolist() for out in outs], None if dist.get_rank() else total.tolist(), len(staging._collectives)


@pytest.mark.filterwarnings("ignore")
@on_gpu([[6.0, 6.0]] * 2)
def test_autograd_sees_a_staged_call_as_it_sees_a_backends_own():
    """Backward is told that a tensor it kept was written to."""
    weight = torch.ones(2, requires_grad=True)
    kept = torch.ones(2 * dist.get_world_size())
    loss = (kept * weight.repeat(dist.get_world_size())).sum()
    dist.all_gather_into_tensor(kept, torch.full((2,), 3.0))
    loss.backward()
    return weight.grad.tolist()


# Errors: refused in the reader's line, or told as on the CPU with the reader's tensors

def strided_message(rank):
    values = torch.ones(4, 4)[:, :2]
    dist.send(values, 1) if rank == 0 else dist.recv(values, 0)


def peer_that_fails(rank):
    if rank == 0:
        raise KeyError("mine")
    dist.all_gather(fill(2, 4), torch.ones(4))


@pytest.mark.parametrize("function, error, words", [
    (lambda rank: dist.all_gather(fill(2, 3), torch.ones(4)), RankFailed,
     r"RuntimeError: ProcessGroupGloo::allgather: invalid tensor size at index 0 \(expected \(4\), got \(3\)\)"),
    (lambda rank: dist.all_gather([torch.zeros(3, device="cpu") for _ in range(2)], torch.ones(3)), RankFailed,
     "ValueError: all_gather: expected all tensors on one device, got cpu and gpu:0"),
    (strided_message, RankFailed, r"ValueError: (send|recv): expected a contiguous tensor, got strides \(4, 1\) for"),
    (lambda rank: dist.all_to_all_single(torch.zeros(4, 4), torch.ones(4, 4).t()), RankFailed,
     r"ValueError: all_to_all_single: expected a contiguous tensor, got strides \(1, 4\)"),
    (lambda rank: dist.send(torch.ones(8), 1) if rank == 0 else dist.recv(torch.ones(4), 0), RankDied,
     "another rank's tensor in the same call has a different size"),
    (lambda rank: os._exit(3) if rank == 0 else dist.recv(torch.zeros(4), 0), RankDied, "0 ended with exit code 3"),
    (peer_that_fails, RankFailed, "rank 0 failed .*\n  KeyError: 'mine'"),
    (lambda rank: dist.irecv(torch.zeros(4), 1 - rank).wait(), Deadlock, r"-> recv\(src=1, float32\[4\]\)"),
])
def test_what_cannot_work_is_told_as_on_the_cpu(function, error, words):
    with pytest.raises(error, match=words) as raised:
        on_shared_gpu(lambda: function(dist.get_rank()))
    assert error is RankDied or "test_staging.py, line" in str(raised.value)


# Front ends in Python and in C++

def functional():
    n = dist.get_world_size()
    values = torch.arange(2.0 * n, requires_grad=True)
    gathered = all_gather_tensor_autograd(values, 0, dist.group.WORLD)
    gathered.square().sum().backward()  # torch before 2.13 sends back contiguous gradients alone
    mixed = wait_tensor(all_to_all_single(values.detach() + 10 * dist.get_rank(), None, None, dist.group.WORLD))
    return gathered.shape, values.grad.tolist(), mixed.tolist(), len(staging._collectives)


def test_functional_collectives_are_staged_both_ways_and_leave_nothing_behind():
    for rank, result in enumerate(on_shared_gpu(functional, world_size=3)):
        mixed = [2.0 * rank + i + 10 * other for other in range(3) for i in range(2)]
        assert result == (torch.Size([18]), [6.0 * i for i in range(6)], mixed, 0)


# Seen once

@on_gpu([([("send", 20, 20), ("recv", 20, 0), ("all_gather", 24, 12), ("reduce_scatter", 24, 12)],
          ["all_gather", "recv", "reduce_scatter", "send"])] * 2)
def test_a_staged_call_is_recorded_once_with_the_callers_bytes():
    peer, mine, theirs = 1 - dist.get_rank(), torch.ones(5), torch.zeros(5)
    with record_communication() as communication, record_timeline() as timeline:
        works = [dist.isend(mine, peer), dist.irecv(theirs, peer)]
        for work in works:
            work.wait()
        dist.all_gather(fill(2, 3), torch.ones(3))
        dist.reduce_scatter(torch.zeros(3), [torch.ones(3) for _ in range(2)])
    return ([(event.op, event.message_bytes, event.sent_bytes) for event in communication.events],
            sorted(event.name for event in timeline.events if event.lane == "communication"))


def lists_in_one():
    """Each rank sends r + 1 rows to everybody, for tensors of the host and of the GPU, at once and later."""
    staging.carry_lists()  # as in a torch whose gloo has no such call
    n, r = dist.get_world_size(), dist.get_rank()
    came = []
    with record_communication() as log:
        for where, later in product(("cpu", device()), (False, True)):
            outs = [torch.zeros(other + 1, 2, device=where) for other in range(n)]
            going = [torch.full((2, r + 1), 10.0 * r + to, device=where).t().contiguous() for to in range(n)]
            if work := dist.all_to_all(outs, going, async_op=later):
                work.wait()
            came.append([out.tolist() for out in outs])
    return came, [(event.op, event.message_bytes) for event in log.events], len(staging._collectives)


@pytest.mark.parametrize("world_size", [1, 3])
def test_an_all_to_all_of_lists_is_one_of_all_their_numbers_and_is_seen_once(world_size):
    for rank, found in enumerate(on_shared_gpu(lists_in_one, world_size=world_size)):
        rows = [[[10.0 * other + rank] * 2] * (other + 1) for other in range(world_size)]
        assert found == ([rows] * 4, [("all_to_all", 8 * (rank + 1) * world_size)] * 4, 0)


def test_staging_can_be_uninstalled():
    def uninstalled():
        staging.uninstall()
        dist.all_gather(fill(2, 2), torch.ones(2))

    with pytest.raises(RankFailed, match="gloo has no all_gather for tensors of a GPU"):
        on_shared_gpu(uninstalled)
