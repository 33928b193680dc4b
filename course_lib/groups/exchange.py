"""Collectives begun now and finished later, so that something is computed in between; and what all ranks agree on.

    n ranks, r this one      flat (n S,): one block of S numbers for each rank      M its bytes

    start_reduce_scatter   block r of everybody's `flat`, averaged      (n-1)/n M are sent
    start_all_gather       everybody's own block of `flat`              (n-1)/n M are sent
    start_gather           everybody's tensor, where it is small: one all-gather of the backend's

Each returns a function that waits for the end. The first two are the halves of an all-reduce. They send as many bytes
as chapter 2's rings, but not in a ring, where a rank can send a block only after it has received one and added to it:
while backward computes, nobody is there to add. Here every rank sends block j straight to rank j. All messages can be
under way at once, and the sum is made at the end. On GPUs NCCL does both in the background, and is taken there.

What only one rank can see is wrong, every rank says: a rank that stopped alone would leave the others waiting.

    agree             a problem, and facts of any kind
    start_agreement   a problem, and a few whole numbers, which travel while the rank goes on
    require_same      no problem that one rank could see: the ranks differ. Eight bytes each say whether
"""

import hashlib
from collections.abc import Callable, Sequence
from itertools import zip_longest
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from course_lib.groups.membership import Group, Member, describe, member
from course_lib.runtime.beside import Copy, start_copy

T = TypeVar("T")

# torch 2.13 has new names for the same two functions
reduce_scatter_single = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
all_gather_single = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


def wait_then(work: dist.Work, give: Callable[[], T]) -> Callable[[], T]:
    """A function that waits for `work`, and returns what `give` returns then."""
    def finish() -> T:
        work.wait()
        return give()

    return finish


def others(me: Member) -> list[int]:
    """All places but this one, beginning at the right neighbour: not all of them begin with place 0."""
    return [(me.r + step) % me.n for step in range(1, me.n)]


def start_reduce_scatter(flat: Tensor, group: Group, tag: int, blocks_ahead: int | None = None,
                         reduce_dtype: torch.dtype | None = None) -> Callable[[Tensor], Copy | None]:
    """Begin to average block r of `flat` (n S,) over the ranks. `flat` is ours until the end, and its block r changes.

    The function returned waits, and writes the average into its argument, a tensor (S,), which may be block r itself.
    Where that lies on the host and `flat` on a GPU, it may return a Copy, which is waited for before anybody reads.

    reduce_dtype: blocks travel and are added in it, each sum rounded to it, and then divided by n, on all backends;
    here in the order of the ranks, in NCCL's own there. By default they travel as they are. Then gloo's blocks are
    added in the dtype of the argument, in 32 bits mostly, and NCCL averages in the dtype of `flat`: in 16 bits one
    loses digits that the other keeps.

    `tag` keeps exchanges apart that are under way at the same time: the same on all ranks, one at a time each.
    blocks_ahead: of others' blocks that have memory before somebody waits for them (None: all); only those can arrive
    while something else happens.
    """
    me = member(group)
    if reduce_dtype is not None:
        flat = flat.to(reduce_dtype)
    if me.n == 1 or not flat.numel():
        return lambda out: start_copy(out, flat.chunk(me.n)[me.r])  # the average of one rank is its own block
    if me.wire(flat.device).type != "cpu":
        return _reduce_scatter_on_gpu(flat, me, reduce_dtype)
    return _reduce_scatter_by_messages(flat, me, tag, me.n - 1 if blocks_ahead is None else blocks_ahead, reduce_dtype)


def _reduce_scatter_on_gpu(flat: Tensor, me: Member, reduce_dtype: torch.dtype | None
                           ) -> Callable[[Tensor], Copy | None]:
    average = flat.new_empty(flat.numel() // me.n)
    operation = dist.ReduceOp.AVG if reduce_dtype is None else dist.ReduceOp.SUM
    work = reduce_scatter_single(average, flat, op=operation, group=me.group, async_op=True)

    def finish(out: Tensor) -> Copy | None:
        work.wait()
        return start_copy(out, average if reduce_dtype is None else average.mul_(1 / me.n))

    return finish


def _reduce_scatter_by_messages(flat: Tensor, me: Member, tag: int, blocks_ahead: int,
                                reduce_dtype: torch.dtype | None) -> Callable[[Tensor], None]:
    """Each rank sends the others their blocks, and adds up what comes for its own."""
    outgoing = [block.cpu() for block in flat.chunk(me.n)]  # the very same memory on the CPU
    places = others(me)
    sends = [dist.isend(outgoing[place], group=me.group, group_dst=place, tag=tag) for place in places]
    arriving: list[tuple[dist.Work | None, Tensor]] = []
    # In which blocks are added, from its end: the own one, then the left neighbour's, who sends here first.
    order = [*places, me.r] if reduce_dtype is None else list(range(me.n))[::-1]

    def receive_next() -> None:
        if order and order[-1] == me.r:
            arriving.append((None, outgoing[order.pop()]))
        if order:
            block = torch.empty_like(outgoing[me.r])
            arriving.append((dist.irecv(block, group=me.group, group_src=order.pop(), tag=tag), block))

    for _ in range(blocks_ahead):
        receive_next()

    def finish(out: Tensor) -> None:
        total = None
        while arriving:
            work, block = arriving.pop(0)
            if work is not None:
                work.wait()
                receive_next()  # before the sum, so that it travels meanwhile
            # What arrives in 16 bits is added in 32, unless somebody wants it otherwise; in place where they are equal.
            total = block.to(reduce_dtype or out.dtype) if total is None else total.add_(block)
            del work, block  # its memory is free before the next one is waited for
        torch.mul(total, 1 / me.n, out=total)
        out.copy_(total)
        for work in sends:  # last: until they have left, `flat` must not change
            work.wait()

    return finish


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
    return wait_then(dist.all_gather(everyones, mine, group=me.group, async_op=True), lambda: everyones)


def agree(problem: str | None, facts: object, group: Group = None) -> list:
    """The `facts` of all ranks, in the order of the group; ValueError on every rank if one has a `problem`."""
    me = member(group)
    # Ranks without a problem take part, too: that another one has one they learn here.
    everyones: list = [(problem, facts)] * me.n
    if me.n > 1:
        dist.all_gather_object(everyones, (problem, facts), group=me.group)
    report([said for said, _ in everyones])
    return [fact for _, fact in everyones]


def start_agreement(problem: str | None, numbers: Sequence[int], group: Group = None) -> Callable[[], list[list[int]]]:
    """The same for a few whole numbers, in one small message that travels while the rank goes on.

    Returns a function that waits for it. The text is sent only when there is a problem.
    """
    finish_gather = start_gather_numbers([problem is not None, *numbers], group)

    def finish() -> list[list[int]]:
        found = finish_gather()
        # All ranks see the same flags, so either all of them send the text or none.
        if any(has_one for has_one, *_ in found):
            agree(problem, None, group)
        return [of_rank for _, *of_rank in found]

    return finish


def require_same(lines: Sequence[str], group: Group, what: str, expected: str) -> None:
    """ValueError, on all ranks, unless the ranks' `lines` are the same: with the first two that differ.

    It begins "the ranks hold different `what`" and ends "Expected `expected` on every rank".
    """
    everyones = start_gather_numbers([fingerprint("\n".join(lines))], group)()
    # Only now do the lines themselves travel: in the usual case eight bytes were enough.
    if any(each != everyones[0] for each in everyones):
        require_equal(agree(None, list(lines), group), what, expected)


def require_same_module(module: nn.Module, group: Group) -> None:
    """ValueError, on all ranks, unless all have the same parameters and buffers: names, shapes, and what is trained."""
    lines = [f"{name} {describe(tensor, tensor.device.type)}, requires_grad={tensor.requires_grad}"
             for name, tensor in (*module.named_parameters(), *module.named_buffers())]
    require_same(lines, group, "modules", "the same parameters and buffers")


def require_equal(everyones: Sequence[Sequence[str]], what: str, expected: str) -> None:
    """The same for those who have gathered everybody's lines already."""
    first, *others = everyones
    for place, other in enumerate(others, 1):
        if other != first:
            a, b = next((a, b) for a, b in zip_longest(first, other, fillvalue="nothing more") if a != b)
            raise ValueError(f"the ranks hold different {what}: place 0 has {a}, place {place} has {b}. Expected "
                             f"{expected} on every rank")


def fingerprint(text: str) -> int:
    """63 bits of a hash, at least 0: texts with the same number are the same for all that matters here."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def start_gather_numbers(numbers: Sequence[int], group: Group) -> Callable[[], list[list[int]]]:
    me = member(group)
    # Through the host's memory where the group can: to read them there waits for no GPU.
    wire = me.wire(torch.device("cpu"))
    finish = start_gather(torch.tensor(numbers, dtype=torch.int64, device=wire), me)
    return lambda: torch.stack(finish()).tolist()


def report(problems: Sequence[str | None]) -> None:
    """ValueError that lists the problems, equal ones once, with the places that have them."""
    places: dict[str, list[int]] = {}
    for place, problem in enumerate(problems):
        if problem is not None:
            places.setdefault(problem, []).append(place)
    if len(places) == 1 and None not in problems:
        raise ValueError(next(iter(places)))
    if places:
        raise ValueError("; ".join(f"at place{'s' * (len(where) > 1)} {', '.join(map(str, where))} of the group: "
                                   f"{text}" for text, where in places.items()))
