"""What cannot be attended to, said before it goes wrong."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from course_lib.groups.tensors import describe


def require_attention(q: Tensor, k: Tensor, v: Tensor) -> None:
    """ValueError unless q is (B, H, T, d), and k and v are (B, K, T, d) with H a multiple of K."""
    given = f"q {describe(q)}, k {describe(k)}, v {describe(v)}"
    if q.dim() != 4 or k.shape != v.shape or k.dim() != 4 or 0 in q.shape:
        raise ValueError(f"{given}: expected q (batch, heads, tokens, head_dim), and k and v of one such shape")
    (B, H, *rest), (B_k, K, *rest_k) = q.shape, k.shape
    if B != B_k or rest != rest_k:
        raise ValueError(f"{given}: expected the same batch, tokens and head_dim; only heads may differ")
    if K == 0 or H % K:
        raise ValueError(f"{given}: {H} query heads and {K} key heads: expected a multiple")
    if len({(x.dtype, x.device) for x in (q, k, v)}) > 1 or not q.is_floating_point():
        raise ValueError(f"{given}: expected one floating-point dtype and one device")


@contextmanager
def without_autocast(*tensors: Tensor) -> Iterator[list[Tensor]]:
    """Where autocast is on: the tensors in its dtype, as scaled_dot_product_attention would take them, and autocast off
    for what is computed with them, which knows itself what needs 32 bits.
    """
    kind = tensors[0].device.type
    if not torch.amp.is_autocast_available(kind) or not torch.is_autocast_enabled(kind):
        yield list(tensors)
        return
    dtype = torch.get_autocast_dtype(kind)
    # As torch's own: autocast leaves 64 bits alone.
    cast = [tensor if tensor.dtype == torch.float64 else tensor.to(dtype) for tensor in tensors]
    with torch.autocast(kind, enabled=False):
        yield cast
