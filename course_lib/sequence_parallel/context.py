"""A whole model on tokens that are dealt out, and the loss of it.

    B rows      T tokens in a row, T/R on this rank      V vocabulary      n_r counted tokens of rank r, N of all

Everything in a GPT but attention and positions treats each token by itself, and never asks where the others are. So
two things change, and parameters are whole on every rank, with gradients that are averaged as in data parallelism.
"""

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from course_lib.groups.membership import Group, member
from course_lib.reference import GPT

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
