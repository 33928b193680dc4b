"""One attention over dealt-out tokens on the ranks, and the same in one process by torch's own.

Apart from the tests, since ranks import it in every launch: pytest would cost them time.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import product

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from course_lib.costs.splitting import ring_attention_bytes, ulysses_attention_bytes, ulysses_key_heads
from course_lib.runtime import device, record_communication
from course_lib.sequence_parallel import local_positions, ring_attention, ulysses_attention, ulysses_ring_attention

WAYS = ("contiguous", "striped", "zigzag", "ulysses", "both")
LIMITS = {torch.float64: 1e-10, torch.float32: 1e-5, torch.bfloat16: 0.04}
B, H, T, d = 2, 12, 48, 8


@dataclass(frozen=True)
class Case:
    way: str
    num_kv_heads: int
    causal: bool
    dtype: torch.dtype = torch.float64


def cases(dtypes: tuple[torch.dtype, ...] = (torch.float64, torch.float32)) -> Iterator[Case]:
    for way, K, causal, dtype in product(WAYS, (H, 4, 1), (True, False), dtypes):
        yield Case(way, K, causal, dtype)


def whole(case: Case, num_tokens: int = T) -> list[Tensor]:
    """q, k, v and the gradient of the result, of the whole rows, on the rank's device."""
    generator = torch.Generator().manual_seed(0)
    K = case.num_kv_heads
    drawn = [torch.randn(shape, generator=generator, dtype=torch.float64, device="cpu")
             for shape in ((B, H, num_tokens, d), (B, K, num_tokens, d), (B, K, num_tokens, d), (B, H, num_tokens, d))]
    return [each.to(device(), case.dtype) for each in drawn]


def in_one_process(case: Case, tensors: list[Tensor]) -> list[Tensor]:
    """The result, and the gradients of q, k and v: on the CPU, in 32 bits at least."""
    q, k, v, gradient = (x.cpu().to(torch.promote_types(x.dtype, torch.float32)) for x in tensors)
    q, k, v = (x.requires_grad_() for x in (q, k, v))
    k_all, v_all = (x.repeat_interleave(H // case.num_kv_heads, dim=1) for x in (k, v))
    out = scaled_dot_product_attention(q, k_all, v_all, is_causal=case.causal)
    return [out.detach(), *torch.autograd.grad(out, (q, k, v), gradient)]


def groups_of_two_levels() -> tuple[dist.ProcessGroup, dist.ProcessGroup]:
    """(Ulysses group, ring group) of this rank: pairs of neighbours where the ranks are even in number."""
    n, rank = dist.get_world_size(), dist.get_rank()
    U = 2 if n % 2 == 0 else 1
    ulysses = [dist.new_group(range(first, first + U)) for first in range(0, n, U)]
    rings = [dist.new_group(range(first, n, U)) for first in range(U)]
    return ulysses[rank // U], rings[rank % U]


def prepared(case: Case, levels: tuple) -> tuple:
    """(function of q, k, v; this rank's positions; bytes that it should send, forward and backward)"""
    n, w, K = dist.get_world_size(), case.dtype.itemsize, case.num_kv_heads
    if case.way == "both":
        ulysses, ring = levels
        U, R = ulysses.size(), ring.size()
        heads_of_rank = ulysses_key_heads(H, K, U) // U
        each_way = zip(ulysses_attention_bytes(B, H, K, T // R, d, U, w),
                       ring_attention_bytes(B, heads_of_rank, T, d, R, w))
        return (partial(ulysses_ring_attention, ulysses_group=ulysses, ring_group=ring, causal=case.causal),
                local_positions(T, ring, "zigzag", ulysses), tuple(sum(both) for both in each_way))
    if case.way == "ulysses":
        return (partial(ulysses_attention, causal=case.causal), local_positions(T, None, "contiguous"),
                ulysses_attention_bytes(B, H, K, T, d, n, w))
    return (partial(ring_attention, causal=case.causal, layout=case.way), local_positions(T, None, case.way),
            ring_attention_bytes(B, K, T, d, n, w))


def problems_of(case: Case, levels: tuple) -> Iterator[str]:
    attend, positions, expected_bytes = prepared(case, levels)
    tensors = whole(case)
    q, k, v, gradient = (x[:, :, positions.to(x.device)].clone() for x in tensors)
    q, k, v = (x.requires_grad_() for x in (q, k, v))
    with record_communication() as forward:
        out = attend(q, k, v)
    with record_communication() as backward:
        out.backward(gradient)
    sent = forward.sent_bytes, backward.sent_bytes
    if sent != expected_bytes:
        yield f"{case}: sent {sent} bytes, expected {expected_bytes}"
    for name, given, wanted in zip(("out", "dq", "dk", "dv"), (out.detach(), q.grad, k.grad, v.grad),
                                   in_one_process(case, tensors)):
        off = (given.cpu() - wanted[:, :, positions]).abs().max().item()
        if given.dtype != case.dtype or not off <= LIMITS[case.dtype] * max(1, wanted.abs().max().item()):
            yield f"{case}: {name} is {given.dtype} and off by {off:.1e}"


def run(drawn: list[Case]) -> list[str]:
    """On each rank: what went wrong, in words."""
    levels = groups_of_two_levels()
    return [problem for case in drawn for problem in problems_of(case, levels)]
