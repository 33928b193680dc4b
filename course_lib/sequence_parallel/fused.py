"""Attention by one fused kernel, which also says what its softmax was divided by: results of blocks can then be merged.

    B rows      H query heads, K key heads, G = H/K      T queries, S keys      d head size

    lse (B, H, T, 1)   log(sum of exp(score)) of each query; its weights are exp(score - lse)

The kernels are torch's: FlashAttention for 16 bits on a GPU, the memory-efficient one for 32, and a CPU's own for all
others. None of them keeps a T x S matrix, forward or backward. For 64 bits a GPU has none: those are computed on the
host.

Backward takes out and lse from its caller. From those of a whole row, the gradients of one block are exact: the kernel
makes the weights again as exp(score - lse), and knows the mean of dP as the sum of d_out * out.

Source: Dao et al. 2022, "FlashAttention", algorithms 1 and 4.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from course_lib.runtime.backends import attention_kernel, has_flash_attention
from course_lib.runtime.torch_private import (
    efficient_attention,
    efficient_attention_backward,
    flash_attention,
    flash_attention_backward,
    host_attention,
    host_attention_backward,
)


def accumulation(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which blocks are added up: 32 bits, or 64 where the numbers have them."""
    return torch.promote_types(dtype, torch.float32)


def kernel_dtype(x: Tensor) -> torch.dtype:
    """In which a kernel reads `x`: GPUs have units for 16 bits, and a CPU computes faster in 32."""
    return x.dtype if has_flash_attention(x.device) else accumulation(x.dtype)


def attend(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> tuple[Tensor, Tensor]:
    """softmax(q k^T / sqrt(d)) v (B, H, T, d), and lse (B, H, T, 1). q (B, H, T, d), k and v (B, K, S, d).

    causal: query i reads keys 0 to i, and S = T.
    """
    B, _, T, d = q.shape
    heads = fold(k, q, k, v)
    asked = {"is_causal": causal, "scale": d**-0.5}
    kernel = attention_kernel(*heads, causal)
    if kernel == "flash":
        out, lse, *_ = flash_attention(*heads, **asked)
    elif kernel == "efficient":
        out, lse, *_ = efficient_attention(*heads, None, True, **asked)
    else:
        out, lse = (x.to(q.device) for x in host_attention(*(x.cpu() for x in heads), **asked))
    # The efficient kernel fills lse up to a multiple of 32 queries.
    return unfold(out[..., :d], B), unfold(lse[..., :T, None], B)


def attend_backward(d_out: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, causal: bool
                    ) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of q (B, H, T, d), k and v (B, K, S, d), added up over the heads that share a key.

    out (B, H, T, d), lse (B, H, T, 1): of all keys of the row, of which k may be a part.
    """
    (B, _, T, d), (_, K, S, _) = q.shape, k.shape
    d_out, *heads, out, lse = fold(k, d_out, q, k, v, out, lse)
    lse = lse[..., 0]  # (B K, G, T)
    kernel = attention_kernel(*heads, causal)
    drawn = torch.empty(2, dtype=torch.int64, device=q.device)  # the state of a generator that drops nothing
    if kernel == "flash":
        found = flash_attention_backward(d_out, *heads, out, lse, None, None, T, S, 0.0, causal, drawn, drawn,
                                         scale=d**-0.5)
    elif kernel == "efficient":
        # It reads `out` as (B, T, H, d) in one piece, and lse up to a multiple of 32: of infinity the weight is 0.
        out = out.transpose(1, 2).contiguous().transpose(1, 2)
        lse = pad(lse, (0, -T % 32), value=torch.inf)
        found = efficient_attention_backward(d_out, *heads, None, out, lse, drawn, drawn, 0.0,
                                             [True, True, True, False], causal, scale=d**-0.5)[:3]
    else:
        there = (x.cpu() for x in (d_out, *heads, out, lse))
        found = (x.to(q.device) for x in host_attention_backward(*there, 0.0, causal, scale=d**-0.5))
    dq, dk, dv = (unfold(x[..., :d], B) for x in found)  # (B, H, T or S, d)
    if dk.shape != k.shape:
        dk, dv = (x.unflatten(1, (K, -1)).sum(2, dtype=accumulation(x.dtype)) for x in (dk, dv))
    return dq, dk, dv


def fold(k: Tensor, *tensors: Tensor) -> list[Tensor]:
    """(B, H or K, t, d) -> (B K, G, t, d) each, or (B, H, t, d) where G = 1. For GPUs d becomes a multiple of 8.

    The G heads that share a key head stand side by side, and read the same memory: keys are not copied.
    """
    K, d = k.shape[1], k.shape[-1]
    G = tensors[0].shape[1] // K
    if has_flash_attention(k.device) and d % 8:
        tensors = tuple(pad(x, (0, -d % 8)) if x.shape[-1] == d else x for x in tensors)
    return [x.unflatten(1, (K, -1)).flatten(0, 1).expand(-1, G, -1, -1) if G > 1 else x for x in tensors]


def unfold(x: Tensor, batch: int) -> Tensor:
    """(B K, G, t, d) -> (B, H, t, d)."""
    return x if len(x) == batch else x.unflatten(0, (batch, -1)).flatten(1, 2)


def count_flops(q: torch.Size, k: torch.Size, v: torch.Size, *options: Any, **_: Any) -> int:
    """Of the two products of a kernel, 4 d for each pair of a query and a key that it reads."""
    N, G, T, d = q
    is_causal = options[-2:] == (0.0, True)  # dropout_p, is_causal: the last that all kernels take
    return 4 * d * N * G * (T * (T + 1) // 2 if is_causal else T * k[2])


# For torch's FlopCounterMode(custom_mapping=): it does not know a CPU's kernel, and counts what the mask hides.
KERNEL_FLOPS = dict.fromkeys((flash_attention, efficient_attention, host_attention), count_flops)
