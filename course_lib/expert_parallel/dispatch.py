"""Rows to the ranks that hold their experts, and back: all-to-all of as many rows as there are.

    R ranks, r this one     E experts     E_r  experts on this rank     M rows

    counts   [rank][expert of mine]: rows that come from each rank for each of this rank's experts

Nobody knows how many rows will come, so counts go first. Rows come sorted by rank and then by expert; experts want them
by expert. Source: Lepikhin et al. 2020, "GShard", whose all-to-all was padded to equal sizes; Gale et al. 2022.

Tokens in the order of their experts, and back: so that each expert's rows lie together.

    N tokens     k experts of a token     D hidden size     M rows: N k, or fewer where some are dropped

    tokens (N, D) -> permute -> rows (M, D) -> experts -> rows (M, D) -> unpermute -> tokens (N, D)

A token with k experts becomes k rows; unpermute adds them up again, each times its weight. Source: Gale et al. 2022,
"MegaBlocks".
"""

from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor

from course_lib.collectives.differentiable import Finish, Pair
from course_lib.costs.mixture import experts_per_rank
from course_lib.groups.membership import Group, Member, describe, member_or_single, sendable


def permute(tokens: Tensor, experts: Tensor, kept: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """(rows (M, D), order (M,)), sorted by expert, stable: rows[i] is tokens[order[i] // k].

    tokens (N, D), experts (N, k). order[i] is a place in experts.flatten(). kept (N, k) bool: without the others,
    M = kept.sum(); None keeps all, M = N k.

    >>> experts = torch.tensor([[2], [0], [2]])  # of three tokens, k = 1
    >>> rows, order = permute(torch.tensor([[10.0], [11.0], [12.0]]), experts)
    >>> rows.flatten().tolist(), order.tolist()
    ([11.0, 10.0, 12.0], [1, 0, 2])
    """
    require_choice(experts, len(tokens))
    flat = experts.flatten()  # (N k,)
    if kept is None:
        # Stable: rows of one expert stay in the order of tokens, so that they are added up in one order every time.
        order = flat.argsort(stable=True)
    else:
        places = kept.flatten().nonzero().squeeze(-1)
        order = places[flat[places].argsort(stable=True)]
    return tokens.index_select(0, order // experts.shape[1]), order


def unpermute(rows: Tensor, order: Tensor, weights: Tensor) -> Tensor:
    """tokens (N, D): token t is the sum of weights[t, slot] rows[i] over the i with order[i] = t k + slot.

    rows (M, D) and order (M,) as permute gives them, weights (N, k). A token of which nothing was kept is zero.
    """
    N, k = weights.shape
    if order.shape != rows.shape[:1]:
        raise ValueError(f"order {describe(order)} of rows {describe(rows)}: expected one number for each row")
    # Weights follow their rows: order[i] is the row's place among all choices.
    weighted = rows * weights.flatten().index_select(0, order).unsqueeze(-1).to(rows.dtype)  # (M, D)
    return rows.new_zeros(N, *rows.shape[1:]).index_add(0, order // k, weighted)


def tokens_per_expert(experts: Tensor, num_experts: int, kept: Tensor | None = None) -> Tensor:
    """(E,) int64: how often each expert was chosen in `experts` (N, k), where `kept`.

    >>> tokens_per_expert(torch.tensor([[2, 0], [2, 1]]), num_experts=4).tolist()
    [1, 1, 2, 0]
    """
    chosen = experts.flatten() if kept is None else experts[kept]
    return torch.bincount(chosen, minlength=num_experts)


def capacity_mask(experts: Tensor, num_experts: int, capacity: int, weights: Tensor | None = None) -> Tensor:
    """(N, k) bool: which choices are kept where an expert takes `capacity` of them at most.

    experts (N, k). First come, first kept: slot 0 of all tokens comes before slot 1. By weight where weights (N, k) are
    given, the largest first: then it does not matter where in the batch a token stands.

    >>> capacity_mask(torch.tensor([[0], [0], [1]]), num_experts=2, capacity=1).flatten().tolist()
    [True, False, True]
    """
    require_choice(experts, len(experts))
    if capacity < 0:
        raise ValueError(f"capacity={capacity}: expected 0 or more rows")
    N, k = experts.shape
    flat = experts.T.flatten()  # (k N,): slot after slot
    if weights is None:
        queue = torch.arange(N * k, device=experts.device)
    else:
        queue = weights.detach().T.flatten().argsort(descending=True, stable=True)
    # Stable once more: within an expert the order of the queue stays.
    by_expert = queue[flat[queue].argsort(stable=True)]  # each expert's queue, one after the other
    lengths = torch.bincount(flat, minlength=num_experts)
    starts = lengths.cumsum(0) - lengths
    place = torch.arange(N * k, device=experts.device) - starts[flat[by_expert]]  # in its expert's queue
    kept = torch.empty(N * k, dtype=torch.bool, device=experts.device)
    kept[by_expert] = place < capacity
    return kept.view(k, N).T.contiguous()


def require_choice(experts: Tensor, num_tokens: int) -> None:
    """ValueError unless `experts` is int64 (num_tokens, k)."""
    if experts.dim() != 2 or experts.shape[0] != num_tokens or experts.dtype != torch.int64:
        raise ValueError(f"experts {describe(experts)} of {num_tokens} tokens: expected int64[{num_tokens}, k]")


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
