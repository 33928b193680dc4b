"""Tokens in the order of their experts, and back: so that each expert's rows lie together.

    N tokens     k experts of a token     D hidden size     M rows: N k, or fewer where some are dropped

    tokens (N, D) -> permute -> rows (M, D) -> experts -> rows (M, D) -> unpermute -> tokens (N, D)

A token with k experts becomes k rows; unpermute adds them up again, each times its weight. Source: Gale et al. 2022,
"MegaBlocks".
"""

import torch
from torch import Tensor

from course_lib.groups.tensors import describe


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
