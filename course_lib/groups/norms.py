"""The norm of a gradient that no rank has as a whole: (sum of all |g|^p)^(1/p), its sum taken over the ranks."""

import math
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from course_lib.groups.membership import Member


def total_norm(shards: Sequence[Tensor], replicated: Sequence[Tensor], norm_type: float, me: Member,
               device: torch.device) -> Tensor:
    """The norm over all ranks' `shards`, and over `replicated` gradients, which are the same everywhere and count once.

    A scalar on `device`. Collective: one number. ValueError for a norm_type that is no norm.
    """
    p = float(norm_type)
    if not p > 0:
        raise ValueError(f"norm_type={norm_type!r}: expected a number above 0, or math.inf")
    # Replicated ones on place 0 only: all ranks are added up, and each number counts once.
    norms = [torch.linalg.vector_norm(g.detach(), p, dtype=torch.promote_types(g.dtype, torch.float32)).to(device)
             for g in (*shards, *(replicated if me.r == 0 else ()))]
    # In 64 bits, so that the result hardly depends on how a layout cuts the sum.
    wide = torch.stack([norm.double() for norm in norms]) if norms else torch.zeros(1, dtype=torch.float64,
                                                                                      device=device)
    total = wide.max() if p == math.inf else wide.pow(p).sum()
    if me.n > 1:
        dist.all_reduce(total, dist.ReduceOp.MAX if p == math.inf else dist.ReduceOp.SUM, group=me.group)
    dtype = torch.float32
    for gradient in (*shards, *replicated):
        dtype = torch.promote_types(dtype, gradient.dtype)
    return (total if p == math.inf else total.pow(1 / p)).to(dtype)


def clip(gradients: Sequence[Tensor], max_norm: float, norm: Tensor) -> None:
    """As torch.nn.utils.clip_grads_with_norm_: times max_norm / norm, and never more than 1."""
    if not max_norm >= 0:
        raise ValueError(f"max_norm={max_norm!r}: expected a number of at least 0")
    factor = (max_norm / (norm + 1e-6)).clamp(max=1.0)
    for gradient in gradients:
        gradient.mul_(factor.to(gradient.device))
