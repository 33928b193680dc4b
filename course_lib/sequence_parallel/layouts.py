"""Which rank holds which tokens, where each of them stands in the whole row, and a model that computes on them.

    T tokens in a row      R ranks, r this one      order (T,): rank r holds the tokens order.chunk(R)[r]
    B rows      H heads      t tokens of this rank      d head size, even      V vocabulary

A token's position is its number in the whole row, whoever holds it: rotary or learned positions and the causal mask
need that number, never the one among a rank's tokens. `x[:, local_positions(T)]` deals out, `gather_tokens` undoes.

Rotary positions: pair i of a head's numbers, (x_i, x_{i + d/2}), is turned by the angle p base^(-2i/d), p being the
token's position: the score of two tokens then depends on how far they are apart. Which pairs belong together is Llama's
choice (halves).

Everything in a GPT but attention and positions treats each token by itself, and never asks where the others are. So
context_parallel changes these two, and parameters are whole on every rank, with gradients that are averaged as in data
parallelism.

Source: Su et al. 2021, "RoFormer: Enhanced Transformer with Rotary Position Embedding".
"""

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from course_lib.collectives import gather_from_group
from course_lib.collectives.differentiable import dim_of
from course_lib.costs.splitting import tokens_per_rank
from course_lib.groups.membership import Group, member
from course_lib.reference import GPT


def layout_order(num_tokens: int, world_size: int, layout: str) -> Tensor:
    """The order (T,) in which tokens are dealt: the first T/R are rank 0's. On the CPU; ascending within a rank.

    ValueError for an unknown layout, and unless R (zigzag: 2R) divides T.

    >>> layout_order(8, world_size=2, layout="zigzag").tolist()  # rank 0 has the first and the last quarter
    [0, 1, 6, 7, 2, 3, 4, 5]
    """
    T, R = num_tokens, world_size
    tokens_per_rank(T, R, layout)
    tokens = torch.arange(T, device="cpu")
    if layout == "contiguous":
        return tokens
    if layout == "striped":
        return tokens.view(-1, R).T.flatten()  # r, r + R, r + 2R, ...
    pieces = tokens.view(2 * R, -1)
    return torch.stack([pieces[:R], pieces[R:].flip(0)], dim=1).flatten()  # pieces r and 2R-1-r


def local_positions(num_tokens: int, group: Group = None, layout: str = "zigzag",
                    ulysses_group: Group = None) -> Tensor:
    """Where this rank's tokens (T/R,) stand in the row. On the CPU.

    ulysses_group: the share of each rank of `group` is cut contiguously over it, as ulysses_ring_attention wants it.
    """
    me = member(group)
    share = layout_order(num_tokens, me.n, layout).chunk(me.n)[me.r]
    if ulysses_group is None:
        return share
    within = member(ulysses_group)
    if len(share) % within.n:
        raise ValueError(f"{len(share)} tokens of a rank of the ring: expected a number that the {within.n} ranks of "
                         "the Ulysses group divide")
    return share.chunk(within.n)[within.r]


def restore_order(x: Tensor, dim: int, world_size: int, layout: str = "zigzag") -> Tensor:
    """`x`, whose tokens stand along `dim` in the order of the layout, in the order of the row."""
    dim = dim_of(x, dim, "dim")
    order = layout_order(x.shape[dim], world_size, layout)
    # argsort of a permutation is its inverse: where each token of the row stands now.
    return x.index_select(dim, order.argsort().to(x.device))


def gather_tokens(x: Tensor, dim: int, group: Group = None, layout: str = "zigzag") -> Tensor:
    """All ranks' tokens of `x` (..., T/R, ...) along `dim`, in the order of the row (..., T, ...), on every rank.

    Gradients pass, for a result that all ranks use alike: each gets those of its own tokens.
    """
    me = member(group)
    return restore_order(gather_from_group(x, dim, me), dim, me.n, layout)


def rotary(x: Tensor, positions: Tensor, base: float = 10_000.0) -> Tensor:
    """x (B, H, t, d) turned by the positions (t,) of its tokens in the whole row: local_positions(T), not 0 to t-1.

    ValueError for an odd head size, or another number of positions than tokens.
    """
    t, d = x.shape[-2:]
    if d % 2 or positions.shape != (t,):
        raise ValueError(f"x {list(x.shape)} and positions {list(positions.shape)}: expected an even head size and one "
                         f"position for each of the {t} tokens")
    rates = base ** (-torch.arange(0, d, 2, dtype=torch.float64, device=x.device) / d)  # (d/2,)
    angles = positions.to(x.device, torch.float64)[:, None] * rates  # (t, d/2)
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


Attention = Callable[[Tensor, Tensor, Tensor], Tensor]


def context_parallel(model: GPT, attention: Attention, positions: Tensor) -> GPT:
    """Change `model` so that it takes this rank's tokens (B, T/R), which stand at `positions` (T/R,) of the row.

    attention(q, k, v) is one of this chapter's, with its group and layout: partial(ring_attention, layout="zigzag").
    ValueError for attention with dropout, or positions beyond those that the model has learned.
    """
    if model.config.dropout:
        raise ValueError(f"dropout={model.config.dropout}: expected 0, what is dropped of attention's weights would be "
                         "drawn on another rank in another order")
    if not 0 <= int(positions.min()) <= int(positions.max()) < model.config.sequence_length:
        raise ValueError(f"positions from {int(positions.min())} to {int(positions.max())}: expected them within the "
                         f"model's sequence_length={model.config.sequence_length}")

    def global_positions(module: nn.Module, arguments: tuple[Tensor]) -> Tensor:
        local, = arguments  # 0 to T/R - 1
        if len(local) != len(positions):
            raise ValueError(f"{len(local)} tokens in a row: expected {len(positions)}, one for each position")
        return positions.to(local.device)

    # Only here and in attention does a GPT ask where a token stands.
    model.embedding.position.register_forward_pre_hook(global_positions)
    for block in model.blocks:
        block.attention.attend = lambda q, k, v, dropout_p: attention(q, k, v)
    return model


def context_parallel_loss(logits: Tensor, targets: Tensor, group: Group = None, ignore_index: int = -100) -> Tensor:
    """The mean cross-entropy of all ranks' counted tokens: one number on every rank. logits (..., V), targets (...).

    A mean over the own n_r tokens, and then over the ranks, weighs each token of rank r by 1/(R n_r): too much where
    few of a rank's tokens count, since the others are padding or a prompt. Here each weighs 1/N. Gradients are this
    rank's, times R: averaged over the ranks, as DistributedDataParallel does, they are those of the whole row.
    """
    me = member(group)
    own = cross_entropy(logits.flatten(0, -2).to(torch.promote_types(logits.dtype, torch.float32)), targets.flatten(),
                        ignore_index=ignore_index, reduction="sum")
    own_count = (targets != ignore_index).sum()
    # One message for both. In 64 bits, since 32 cannot count beyond 16 million tokens.
    sums = torch.stack([own.detach().double(), own_count.double()]).to(me.wire(own.device))
    dist.all_reduce(sums, group=me.group)
    total, N = sums.to(own.device, own.dtype)
    share = own * (me.n / N)  # times R: averaging gradients over the ranks will divide by R
    # The value is that of all ranks' tokens, the gradient that of this rank's.
    return share + (total / N - share).detach()
