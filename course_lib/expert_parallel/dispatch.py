"""Rows to the ranks that hold their experts, and back: all-to-all of as many rows as there are.

    R ranks, r this one     E experts     E_r  experts on this rank     M rows

    counts   [rank][expert of mine]: rows that come from each rank for each of this rank's experts

Nobody knows how many rows will come, so counts go first. Rows come sorted by rank and then by expert; experts want them
by expert. Source: Lepikhin et al. 2020, "GShard", whose all-to-all was padded to equal sizes; Gale et al. 2022.
"""

from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor

from course_lib.collectives.along import Finish
from course_lib.collectives.differentiable import Pair
from course_lib.costs.experts import experts_per_rank
from course_lib.expert_parallel.permute import tokens_per_expert
from course_lib.groups.membership import Group, Member, member_or_single
from course_lib.groups.tensors import sendable


def dispatch_splits(experts: Tensor, num_experts: int, group: Group = None, kept: Tensor | None = None
                    ) -> tuple[list[int], list[int]]:
    """(sent, received): rows that go to each rank and that come from each, of choices `experts` (N, k) where `kept`.

    Collective: counts travel, no rows.
    """
    me = member_or_single(group)
    # On the host: the sizes of messages are numbers that Python has to know.
    counts = tokens_per_expert(experts, num_experts, kept).cpu()
    return sent_rows(counts, me), [sum(of_rank) for of_rank in exchange_counts(counts, me)]


def sent_rows(counts: Tensor, me: Member) -> list[int]:
    """Rows to each rank, of `counts` (E,) for each expert."""
    return [int(part.sum()) for part in counts.split(experts_per_rank(len(counts), me.n))]


def exchange_counts(counts: Tensor, me: Member) -> list:
    """[rank][expert of mine], and further as `counts` (E, ...) is shaped: what all ranks have for my experts.

    On the host, which has to know how much will travel.
    """
    num_experts = experts_per_rank(len(counts), me.n)  # of each rank
    incoming = counts
    if me.n > 1:
        outgoing = sendable(counts, me)
        incoming = outgoing.new_empty(me.n * num_experts[me.r], *counts.shape[1:])
        # Counts before rows: a receiver that does not know how much comes cannot make room for it.
        dist.all_to_all_single(incoming, outgoing, [num_experts[me.r]] * me.n, num_experts, group=me.group)
    return incoming.view(me.n, num_experts[me.r], *counts.shape[1:]).tolist()


def exchange_rows(rows: Tensor, sent: list[int], received: list[int], me: Member) -> Tensor:
    """Send sent[j] of `rows` (M, ...) to rank j, and return those that come, received[j] from rank j.

    Differentiable: gradients take the same way back.
    """
    if me.n == 1:
        return rows
    return Pair.apply(rows, partial(all_to_all_rows, sent=sent, received=received, me=me),
                      partial(all_to_all_rows, sent=received, received=sent, me=me))


def all_to_all_rows(rows: Tensor, sent: list[int], received: list[int], me: Member) -> Tensor:
    """rows (sum of `sent`, D) dealt out: sent[j] of them to rank j. Gives (sum of `received`, D), by the rank they come
    from.
    """
    return start_all_to_all_rows(rows, sent, received, me)()


def start_all_to_all_rows(rows: Tensor, sent: list[int], received: list[int], me: Member) -> Finish:
    """all_to_all_rows, begun now; autograd does not see it. The function returned waits, and gives what has come."""
    # Not waited for: in chunks, another chunk's experts compute meanwhile.
    outgoing = sendable(rows, me)
    incoming = outgoing.new_empty(sum(received), *rows.shape[1:])
    work = dist.all_to_all_single(incoming, outgoing, received, sent, group=me.group, async_op=True)

    def finish() -> Tensor:
        work.wait()
        return incoming.to(rows.device)

    return finish


def by_expert(rows: Tensor, counts: list[list[int]]) -> Tensor:
    """Rows that lie by rank, and within a rank by expert, so that they lie by expert, and within it by rank."""
    return transpose_blocks(rows, counts)


def by_rank(rows: Tensor, counts: list[list[int]]) -> Tensor:
    """Rows that lie by expert, back in the order of the ranks that they came from."""
    return transpose_blocks(rows, [list(of_expert) for of_expert in zip(*counts)])


def transpose_blocks(rows: Tensor, counts: list[list[int]]) -> Tensor:
    """Blocks that lie [a][b], of counts[a][b] rows, in the order [b][a]."""
    # With one rank or one expert the rows lie in both orders at once.
    if len(counts) < 2 or len(counts[0]) < 2:
        return rows
    blocks = rows.split([count for a in counts for count in a])
    return torch.cat([blocks[a * len(counts[0]) + b] for b in range(len(counts[0])) for a in range(len(counts))])
