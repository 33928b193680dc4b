"""On a GPU attention is asked of kernels that a CPU has not. Here they stand on the CPU, written out, with the demands
of torch's aten/src/ATen/native/transformers/cuda/attention.cu and attention_backward.cu."""

from itertools import product

import pytest
import torch
from torch.nn.functional import pad, scaled_dot_product_attention

from course_lib.runtime.torch_private import remove_library
from course_lib.sequence_parallel.fused import attend, attend_backward, kernel_dtype


def weights_of(q, k, causal, scale, lse=None):
    scores = (q.double() @ k.double().mT) * scale
    scores = scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(1), -torch.inf) if causal else scores
    lse = scores.logsumexp(-1) if lse is None else lse.double()
    return (scores - lse[..., None]).exp(), lse.float()


def demand(kind, *tensors):
    heads = {x.shape[1] for x in tensors}
    assert len(heads) == 1 and all(x.shape[-1] % 8 == 0 and x.stride(-1) == 1 for x in tensors)
    assert {x.dtype.itemsize for x in tensors} == {2 if kind == "flash" else 4}


def forward(kind, q, k, v, causal, scale):
    demand(kind, q, k, v)
    weights, lse = weights_of(q, k, causal, scale)
    return (weights @ v.double()).to(q.dtype), lse


def backward(kind, d_out, q, k, v, out, lse, causal, scale):
    demand(kind, d_out, q, k, v, out)
    weights, _ = weights_of(q, k, causal, scale, lse)
    delta = (d_out.double() * out.double()).sum(-1, keepdim=True)
    d_scores = weights * (d_out.double() @ v.double().mT - delta) * scale
    return tuple(x.to(q.dtype) for x in (d_scores @ k.double(), d_scores.mT @ q.double(), weights.mT @ d_out.double()))


def flash(q, k, v, dropout_p=0.0, is_causal=False, return_debug_mask=False, *, scale=None):
    nothing = torch.empty(0)
    return (*forward("flash", q, k, v, is_causal, scale), nothing, nothing, q.shape[2], k.shape[2], *[nothing] * 3)


def flash_backward(d_out, q, k, v, out, lse, cum_q, cum_k, max_q, max_k, dropout_p, is_causal, seed, offset, *, scale):
    assert cum_q is None and cum_k is None and (max_q, max_k) == (q.shape[2], k.shape[2])
    return backward("flash", d_out, q, k, v, out, lse, is_causal, scale)


def efficient(q, k, v, bias, compute_lse, dropout_p=0.0, is_causal=False, *, scale=None):
    out, lse = forward("efficient", q, k, v, is_causal, scale)
    assert compute_lse
    out = out.transpose(1, 2).contiguous().transpose(1, 2)
    return out, pad(lse, (0, -lse.shape[-1] % 32), value=torch.inf), torch.empty(0), torch.empty(0)


def efficient_backward(d_out, q, k, v, bias, out, lse, seed, offset, dropout_p, wanted, is_causal=False, *, scale):
    T = q.shape[2]
    assert bias is None and out.transpose(1, 2).is_contiguous() and not wanted[3]
    assert lse.shape[-1] % 32 == 0 and lse[..., T:].isposinf().all() and lse[..., :T].isfinite().all()
    return *backward("efficient", d_out, q, k, v, out, lse[..., :T], is_causal, scale), torch.empty(0)


@pytest.fixture
def gpu_kernels(monkeypatch):
    library = torch.library.Library("aten", "IMPL")
    for kernel in (flash, flash_backward, efficient, efficient_backward):
        name, _, way = kernel.__name__.partition("_")
        library.impl(f"_scaled_dot_product_{name}_attention{way and '_' + way}", kernel, "CPU")
    for name, widths in (("flash", {2}), ("efficient", {2, 4})):
        monkeypatch.setattr(f"torch.backends.cuda.can_use_{name}_attention",
                            lambda asked, widths=widths: asked.query.dtype.itemsize in widths)
    yield
    remove_library(library)


def check(dtype, limit):
    for heads, causal, T, d in product((6, 2, 1), (True, False), (1, 7, 40), (5, 16)):
        shapes = (2, 6, T, d), (2, heads, T, d), (2, heads, T, d)
        q, k, v = (torch.randn(shape, dtype=torch.float64).to(dtype).requires_grad_() for shape in shapes)
        expected = scaled_dot_product_attention(q.double(), k.double(), v.double(), is_causal=causal, enable_gqa=True)
        d_out = torch.randn_like(q)
        gradients = torch.autograd.grad(expected, (q, k, v), d_out.double())
        with torch.no_grad():
            out, lse = attend(q, k, v, causal)
            found = out, *attend_backward(d_out, q, k, v, out, lse, causal)
        assert lse.shape == (2, 6, T, 1) and kernel_dtype(q) == dtype
        for a, b in zip(found, (expected, *gradients)):
            assert a.shape == b.shape and (a - b).abs().max() < limit * max(1, b.abs().max()), (heads, causal, T, d)


def test_the_kernels_of_a_gpu_are_asked_as_they_want_it_and_give_torchs_results_and_gradients(gpu_kernels):
    check(torch.bfloat16, 0.04)
    check(torch.float32, 1e-5)
    check(torch.float64, 1e-10)  # which no kernel of a GPU has
