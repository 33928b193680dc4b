"""Collectives begun now and finished later, so that something is computed in between.

    n ranks, r this one      flat (n S,): one block of S numbers for each rank      M its bytes

    start_reduce_scatter   block r of everybody's `flat`, averaged      (n-1)/n M are sent
    start_all_gather       everybody's own block of `flat`              (n-1)/n M are sent
    start_gather           everybody's tensor, where it is small: one all-gather of the backend's

Each returns a function that waits for the end. The first two are the halves of an all-reduce. They send as many bytes
as chapter 2's rings, but not in a ring, where a rank can send a block only after it has received one and added to it:
while backward computes, nobody is there to add. Here every rank sends block j straight to rank j. All messages can be
under way at once, and the sum is made at the end.

On GPUs NCCL does both in the background, and is taken there.
"""

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor

from course_lib.groups.membership import Group, Member, member

# torch 2.13 has new names for the same two functions
reduce_scatter_single = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
all_gather_single = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


def others(me: Member) -> list[int]:
    """All places but this one, beginning at the right neighbour: not all of them begin with place 0."""
    return [(me.r + step) % me.n for step in range(1, me.n)]


# Reduce-scatter

def start_reduce_scatter(flat: Tensor, group: Group, tag: int, blocks_ahead: int | None = None
                         ) -> Callable[[Tensor], None]:
    """Begin to average block r of `flat` (n S,) over the ranks. `flat` is ours until the end, and its block r changes.

    The function returned waits, and writes the average into its argument, a tensor (S,) of the dtype to add in, which
    may be block r itself. `tag` keeps exchanges apart that are under way at the same time: the same on all ranks, one
    at a time each. blocks_ahead: of others' blocks that have memory before somebody waits for them (None: all); only
    those can arrive while something else happens.
    """
    me = member(group)
    if me.n == 1 or not flat.numel():
        return lambda out: out.copy_(flat.chunk(me.n)[me.r])  # the average of one rank is its own block
    if me.wire(flat.device).type != "cpu":
        return start_reduce_scatter_of_nccl(flat, me)
    outgoing = [block.cpu() for block in flat.chunk(me.n)]  # the very same memory on the CPU
    places = others(me)
    sends = [dist.isend(outgoing[place], group=me.group, group_dst=place, tag=tag) for place in places]
    arriving: list[tuple[dist.Work, Tensor]] = []

    def receive_next() -> None:
        if places:
            source = places.pop()  # the left neighbour first, who sends here first
            block = torch.empty_like(outgoing[me.r])
            arriving.append((dist.irecv(block, group=me.group, group_src=source, tag=tag), block))

    for _ in range(me.n - 1 if blocks_ahead is None else blocks_ahead):
        receive_next()

    def finish(out: Tensor) -> None:
        total = outgoing[me.r].to(out.dtype)  # what arrives in 16 bits is added in 32; in place where they are the same
        while arriving:
            work, block = arriving.pop(0)
            work.wait()
            receive_next()  # before the sum, so that it travels meanwhile
            total.add_(block)
            del work, block  # its memory is free before the next one is waited for
        torch.mul(total, 1 / me.n, out=total)
        out.copy_(total)
        for work in sends:  # last: until they have left, `flat` must not change
            work.wait()

    return finish


# All-gather

def start_all_gather(flat: Tensor, group: Group, tag: int) -> Callable[[], None]:
    """Begin to fill `flat` (n S,), in which block r is there already. The function returned waits until it is full.

    `tag` as in start_reduce_scatter.
    """
    me = member(group)
    if me.n == 1 or not flat.numel():
        return lambda: None
    if me.wire(flat.device).type != "cpu":
        return all_gather_single(flat, flat.chunk(me.n)[me.r], group=me.group, async_op=True).wait  # NCCL, in place
    blocks = flat.chunk(me.n)
    # gloo sends from the memory of the host; on the CPU that is `flat` itself.
    on_host = [block if block.is_cpu else torch.empty_like(block, device="cpu") for block in blocks]
    if not flat.is_cpu:
        on_host[me.r].copy_(blocks[me.r])
    works = []
    for place in others(me):
        # The receive is posted first, so that a block that comes finds its memory.
        works.append(dist.irecv(on_host[place], group=me.group, group_src=place, tag=tag))
        works.append(dist.isend(on_host[me.r], group=me.group, group_dst=place, tag=tag))

    def finish() -> None:
        for work in works:
            work.wait()
        if not flat.is_cpu:
            for place in others(me):
                blocks[place].copy_(on_host[place])

    return finish


def start_gather(mine: Tensor, group: Group = None) -> Callable[[], list[Tensor]]:
    """Begin to gather every rank's tensor, all shaped like `mine`. The function returned waits, and gives them."""
    me = member(group)
    if me.n == 1:
        return lambda: [mine]
    everyones = [torch.empty_like(mine) for _ in range(me.n)]
    work = dist.all_gather(everyones, mine, group=me.group, async_op=True)

    def finish() -> list[Tensor]:
        work.wait()
        return everyones

    return finish


# NCCL

def start_reduce_scatter_of_nccl(flat: Tensor, me: Member) -> Callable[[Tensor], None]:
    """NCCL averages on the GPU, in the dtype of `flat`."""
    average = flat.new_empty(flat.numel() // me.n)
    work = reduce_scatter_single(average, flat, op=dist.ReduceOp.AVG, group=me.group, async_op=True)

    def finish(out: Tensor) -> None:
        work.wait()
        out.copy_(average)

    return finish
