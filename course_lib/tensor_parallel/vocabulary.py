"""What is cut by vocabulary: the embedding, and the loss of logits that no rank has whole.

    V vocabulary, t ranks      z logits of one token, this rank's V/t of them      y the target

The embedding: a rank knows V/t tokens, and has zeros for all others. One all-reduce adds up. The loss:

    loss = log(sum_v exp(z_v - m)) - (z_y - m)        m = max_v z_v

Three numbers a token are sent, not V: each of m, the sum and z_y is one all-reduce of one number a token. Backward
sends nothing: the gradient of this rank's part of z, softmax(z) - 1_y, needs what this rank has. With label smoothing e
the target is (1-e) 1_y + e/V, and the mean of z travels with z_y.

Source: Shoeybi et al. 2019, "Megatron-LM", section 3.
"""

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from course_lib.collectives import reduce_from_group
from course_lib.collectives.differentiable import start_all_reduce
from course_lib.groups.membership import Group, Member, describe, member, require_kind, sendable
from course_lib.tensor_parallel.cut import cut_evenly
from course_lib.tensor_parallel.linear import CutModule


class VocabParallelEmbedding(CutModule):
    """Rank r holds rows r V/t to (r+1) V/t of nn.Embedding(num_embeddings, embedding_dim)."""

    def __init__(self, num_embeddings: int, embedding_dim: int, group: Group = None, *,
                 unsplit: nn.Embedding | None = None) -> None:
        super().__init__(group)
        self.num_embeddings, self.embedding_dim = num_embeddings, embedding_dim
        self.cuts = {"weight": cut_evenly(num_embeddings, 0, self.member, "embeddings")}
        self.adopt(unsplit, lambda: nn.Embedding(num_embeddings, embedding_dim))
        self.padding_idx = None if unsplit is None else unsplit.padding_idx

    @classmethod
    def from_unsplit(cls, module: nn.Embedding, group: Group = None) -> "VocabParallelEmbedding":
        """This rank's rows of `module`, which has the same numbers on all ranks."""
        require_kind(module, nn.Embedding)
        for option in ("max_norm", "scale_grad_by_freq", "sparse"):
            if getattr(module, option):
                raise ValueError(f"an nn.Embedding with {option}={getattr(module, option)!r}: expected one without")
        return cls(module.num_embeddings, module.embedding_dim, group, unsplit=module)

    def forward(self, tokens: Tensor) -> Tensor:
        """(B, T) int64 -> (B, T, D), the same on all ranks."""
        rows, is_elsewhere = own_rows(tokens, self.num_embeddings, self.member)
        # The gradient of the padding's row is zero, on the rank that has it.
        padding = None if self.padding_idx is None else self.padding_idx - self.member.r * len(self.weight)
        is_mine = padding is not None and 0 <= padding < len(self.weight)
        x = F.embedding(rows, self.weight, padding if is_mine else None)  # (B, T, D)
        return reduce_from_group(x.masked_fill(is_elsewhere.unsqueeze(-1), 0), self.member)

    def extra_repr(self) -> str:
        """Tokens, ranks and width: what print(model) shows."""
        return f"{self.num_embeddings} / {self.member.n}, {self.embedding_dim}"


def own_rows(tokens: Tensor, vocab_size: int, me: Member) -> tuple[Tensor, Tensor]:
    """(each token's row among this rank's V/t, 0 for tokens of other ranks; bool: which ones those are).

    A token that is in no vocabulary stays outside, on all ranks, so that torch complains as it always does.
    """
    first, last = me.r * vocab_size // me.n, (me.r + 1) * vocab_size // me.n
    is_elsewhere = (tokens >= 0) & (tokens < first) | (tokens >= last) & (tokens < vocab_size)
    return (tokens - first).masked_fill(is_elsewhere, 0), is_elsewhere


REDUCTIONS = ("mean", "sum", "none")


def vocab_parallel_cross_entropy(logits: Tensor, targets: Tensor, group: Group = None, ignore_index: int = -100,
                                 label_smoothing: float = 0.0, reduction: str = "mean") -> Tensor:
    """F.cross_entropy of the logits of which rank r has (..., V/t) and targets (...) int64, the same on all ranks.

    Targets equal to `ignore_index` do not count. Returns the mean over the others, their sum, or (...) for "none".
    """
    require_fitting(logits, targets, label_smoothing, reduction)
    is_ignored = targets == ignore_index
    losses = TokenLosses.apply(logits, targets.masked_fill(is_ignored, 0), member(group), label_smoothing)
    losses = losses.masked_fill(is_ignored, 0)  # (...)
    if reduction == "none":
        return losses
    return losses.sum() / (~is_ignored).sum() if reduction == "mean" else losses.sum()


class TokenLosses(torch.autograd.Function):
    """logits (..., V/t), targets (...) -> (...)."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, me: Member, smoothing: float) -> Tensor:
        """Losses (...) of logits (..., V/t) and targets (...), V being t times what this rank has."""
        wide = logits.to(torch.promote_types(logits.dtype, torch.float32))  # 16 bits are too few for a sum over V
        V = wide.shape[-1] * me.n
        largest = sendable(wide.amax(-1), me)
        dist.all_reduce(largest, dist.ReduceOp.MAX, group=me.group)
        z = wide - largest.to(wide.device).unsqueeze(-1)  # (..., V/t), at most 0
        rows, is_elsewhere = own_rows(targets, V, me)
        z_y = z.gather(-1, rows.unsqueeze(-1)).squeeze(-1).masked_fill(is_elsewhere, 0)  # (...)
        # One rank brings z_y, all others 0: their sum is a lookup without knowing who has the target. It travels while
        # exponentials are computed, and beside their sum: for so few numbers a message costs what waiting for it costs.
        adding_up = start_all_reduce(torch.stack([z_y, z.sum(-1) / V]) if smoothing else z_y.unsqueeze(0), me)
        # In place: (..., V/t) is the largest tensor of a small model, and z is not needed again.
        exponentials = z.exp_()
        total = start_all_reduce(exponentials.sum(-1), me)  # (...)
        (z_y, *z_mean), total = adding_up(), total()
        ctx.save_for_backward(exponentials.div_(total.unsqueeze(-1)).to(logits.dtype), rows, is_elsewhere)
        ctx.smoothing, ctx.V = smoothing, V
        losses = total.log() - (1 - smoothing) * z_y - sum(smoothing * mean for mean in z_mean)
        return losses.to(logits.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_losses: Tensor) -> tuple[Tensor, None, None, None]:
        """Gradient of this rank's logits (..., V/t): softmax less 1 at the target, which one rank has; no
        communication.
        """
        softmax, rows, is_elsewhere = ctx.saved_tensors
        d_logits = softmax - ctx.smoothing / ctx.V if ctx.smoothing else softmax.clone()  # (..., V/t)
        is_here = (~is_elsewhere).to(d_logits.dtype) * (1 - ctx.smoothing)
        # Of a target that lies elsewhere row 0 gets 0: no branch, and no message.
        d_logits.scatter_add_(-1, rows.unsqueeze(-1), -is_here.unsqueeze(-1))
        return d_logits.mul_(d_losses.unsqueeze(-1)), None, None, None


def require_fitting(logits: Tensor, targets: Tensor, label_smoothing: float, reduction: str) -> None:
    """ValueError for shapes, a smoothing or a reduction that cannot be."""
    if targets.shape != logits.shape[:-1] or targets.is_floating_point():
        raise ValueError(f"logits {describe(logits)} and targets {describe(targets)}: expected (..., V/t) and (...), "
                         "the targets being numbers of tokens")
    if not 0 <= label_smoothing <= 1:
        raise ValueError(f"label_smoothing={label_smoothing!r}: expected a number from 0 to 1")
    if reduction not in REDUCTIONS:
        raise ValueError(f"reduction={reduction!r}: expected one of {', '.join(map(repr, REDUCTIONS))}")
