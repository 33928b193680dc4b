"""Collectives begun now and finished later, so that something else can happen in between.

    n ranks, r this one      flat (n S,): one block of S numbers for each rank      M its bytes

start_gather           everyone's tensor, where it is small: one all-gather of the backend's
start_reduce_scatter   everyone sends block j straight to rank j, and adds up what arrives for its own block
start_all_gather       everyone sends its own block to all others

The last two are the halves of an all-reduce. Both send (n-1)/n M, as chapter 2's rings do, but no message waits for
another one: all of them can be under way while backward computes, and nothing has to be done before the end but
waiting. What arrives in 16 bits is added in 32. NCCL has its own way to do both in the background, taken there.
"""

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor

from course_lib.groups.membership import Group, Member, member

# torch 2.13 has new names for the same two functions
reduce_scatter_single = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
all_gather_single = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


def start_gather(mine: Tensor, group: Group = None) -> Callable[[], list[Tensor]]:
    """Begin to gather every rank's tensor, all shaped like `mine`. The function returned waits, and gives them."""
    me = member(group)
    if me.n == 1:
        return lambda: [mine]
    everyones = [torch.empty_like(mine) for _ in range(me.n)]
    work = dist.all_gather(everyones, mine, group=me.group, async_op=True)
    return lambda: (work.wait(), everyones)[1]


def start_all_gather(flat: Tensor, group: Group, tag: int) -> Callable[[], None]:
    """Begin to fill `flat` (n S,), in which block r is there already. The function returned waits until it is full.

    `tag` keeps exchanges apart that are under way at the same time: the same on all ranks, one at a time each.
    """
    me = member(group)
    blocks = flat.chunk(me.n)
    if me.n == 1 or not flat.numel():
        return lambda: None
    if me.wire(flat.device).type != "cpu":
        work = all_gather_single(flat, blocks[me.r], group=me.group, async_op=True)  # in place: NCCL knows its block
        return lambda: (work.wait(), None)[1]
    on_host = [block if block.is_cpu else torch.empty_like(block, device="cpu") for block in blocks]
    if not flat.is_cpu:
        on_host[me.r].copy_(blocks[me.r])
    works = []
    for place in others(me):
        works.append(dist.irecv(on_host[place], group=me.group, group_src=place, tag=tag))
        works.append(dist.isend(on_host[me.r], group=me.group, group_dst=place, tag=tag))

    def finish() -> None:
        for work in works:
            work.wait()
        if not flat.is_cpu:
            for place in others(me):
                blocks[place].copy_(on_host[place])

    return finish


def start_reduce_scatter(flat: Tensor, group: Group, tag: int, blocks_ahead: int | None = None
                         ) -> Callable[[Tensor], None]:
    """Begin to average block r of `flat` (n S,) over the ranks. `flat` is ours until the end, and its block r changes.

    The function returned waits, and writes the average into its argument, a tensor (S,) of the dtype to add in, which
    may be block r itself. blocks_ahead: of others' blocks that have memory before somebody waits for them (None: all);
    only those can arrive while something else happens.
    """
    me = member(group)
    blocks = flat.chunk(me.n)
    mine = blocks[me.r]
    if me.n == 1 or not flat.numel():
        return lambda out: (out.copy_(mine), None)[1]
    if me.wire(flat.device).type != "cpu":
        average = torch.empty_like(mine)
        work = reduce_scatter_single(average, flat, op=dist.ReduceOp.AVG, group=me.group, async_op=True)
        return lambda out: (work.wait(), out.copy_(average), None)[2]
    outgoing = [block.cpu() for block in blocks]  # the very same memory on the CPU
    sends = [dist.isend(outgoing[place], group=me.group, group_dst=place, tag=tag) for place in others(me)]
    places, arriving = others(me)[::-1], []  # first from the left neighbour, who sends here first

    def receive_another() -> None:
        if places:
            block = torch.empty_like(outgoing[me.r])
            arriving.append((dist.irecv(block, group=me.group, group_src=places.pop(0), tag=tag), block))

    def finish(out: Tensor) -> None:
        total = outgoing[me.r].to(out.dtype)  # in place where the dtype is the same
        while arriving:
            work, block = arriving.pop(0)
            work.wait()
            receive_another()
            total.add_(block)
            del work, block  # its memory is free before the next one is waited for
        torch.mul(total, 1 / me.n, out=total)
        out.copy_(total)
        for work in sends:
            work.wait()

    for _ in range(me.n - 1 if blocks_ahead is None else blocks_ahead):
        receive_another()
    return finish


def others(me: Member) -> list[int]:
    """All places but this one, beginning at the right neighbour: not all of them begin with place 0."""
    return [(me.r + step) % me.n for step in range(1, me.n)]
