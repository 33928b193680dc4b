"""Several experts on one rank, computed on rows that lie expert by expert: no padding, however uneven the rows are.

    E_r experts here     D hidden size     F width     M rows, of which expert e has counts[e]

    nn.Linear(D, F), GELU, nn.Linear(F, D)                for each expert
    w1 (E_r, D, F), b1 (E_r, F), w2 (E_r, F, D), b2 (E_r, D)

"swiglu": w1 (E_r, D, 2F) is gate | up, and (silu(gate) * up) w2. In bfloat16 a GPU computes the products of all experts
by one kernel. Otherwise there is one for each expert, which takes as long on a CPU, and knows every dtype.
Source: Gale et al. 2022, "MegaBlocks"; Shazeer 2020, "GLU Variants Improve Transformer".
"""

from collections.abc import Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from course_lib.groups.membership import as_autocast
from course_lib.runtime.backends import has_grouped_mm
from course_lib.runtime.torch_private import grouped_mm

ACTIVATIONS = ("gelu", "swiglu")


class Experts(nn.Module):
    """Experts number `first` to first + num_here - 1 of a layer. Forward: (M, D), counts -> (M, D).

    seed: expert e draws its numbers from seed + e, as nn.Linear would, so that a layer is the same however it is dealt
    out, and nobody ever holds it whole.
    """

    def __init__(self, hidden_size: int, ffn_hidden_size: int, num_here: int, activation: str = "gelu",
                 bias: bool = True, first: int = 0, seed: int = 0) -> None:
        super().__init__()
        if activation not in ACTIVATIONS:
            raise ValueError(f"activation={activation!r}: expected one of {', '.join(ACTIVATIONS)}")
        self.activation, self.first = activation, first
        D, H = hidden_size, ffn_hidden_size
        wide = 2 * H if activation == "swiglu" else H
        self.w1 = nn.Parameter(torch.empty(num_here, D, wide))
        self.w2 = nn.Parameter(torch.empty(num_here, H, D))
        self.b1 = nn.Parameter(torch.empty(num_here, wide)) if bias else None
        self.b2 = nn.Parameter(torch.empty(num_here, D)) if bias else None
        self.draw(seed, D**-0.5 / 3**0.5, H**-0.5 / 3**0.5)

    @torch.no_grad()
    def draw(self, seed: int, std1: float, std2: float, bias: bool = True) -> None:
        """New numbers, spread evenly around 0 with these standard deviations; biases too, or zeros."""
        if self.w1.is_meta:  # it has a shape and no memory: the numbers of large experts would be drawn for nobody
            return
        for index, experts in enumerate(zip(self.w1, self.w2, *([self.b1, self.b2] if self.b1 is not None else []))):
            # By the expert's own number: the same experts, whichever rank draws them and on whatever device.
            generator = torch.Generator("cpu").manual_seed(seed + self.first + index)
            for tensor, std in zip(experts, (std1, std2, std1 * bias, std2 * bias)):
                drawn = torch.rand(tensor.shape, generator=generator, dtype=torch.float64, device="cpu") - 0.5
                tensor.copy_(drawn * (12**0.5 * std))

    def forward(self, rows: Tensor, counts: list[int]) -> Tensor:
        """rows (M, D), by expert -> (M, D). An expert without rows gets gradients of zero."""
        return self.compute(rows, counts, self.b2)

    def compute(self, rows: Tensor, counts: list[int], b2: Tensor | None) -> Tensor:
        """As forward, with another b2 (E_r, D)."""
        # Autocast leaves out products that write into an `out`, as GroupedLinear's do, so the casts stand here.
        rows, w1, b1, w2, b2 = as_autocast(rows, self.w1, self.b1, self.w2, b2)
        wide = GroupedLinear.apply(rows, w1, b1, counts)  # (M, F)
        if self.activation == "swiglu":
            gate, up = wide.chunk(2, -1)
            return GroupedLinear.apply(F.silu(gate) * up, w2, b2, counts)
        return GroupedLinear.apply(F.gelu(wide, approximate="tanh"), w2, b2, counts)

    def extra_repr(self) -> str:
        """Sizes, which experts, activation: what print(model) shows."""
        here, D, _ = self.w1.shape
        return f"{D}, {self.w2.shape[1]}, experts {self.first} to {self.first + here - 1}, {self.activation}"


class GroupedLinear(torch.autograd.Function):
    """y = x w[e] + b[e], each expert on its own rows: one product for all, or one for each expert that has any."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, b: Tensor | None, counts: list[int]) -> Tensor:
        """x (M, D), in blocks of counts[e] rows, each times its expert's w[e] (D, F) and plus b[e] (F,): (M, F)."""
        ctx.counts, ctx.has_bias = counts, b is not None
        ctx.ends = ends_on_device(x, w, counts)
        ctx.save_for_backward(x, w)
        if ctx.ends is not None:
            y = grouped_mm(x, w, ctx.ends)
            if b is not None:
                rows = torch.arange(len(x), dtype=torch.int32, device=x.device)
                y += b.index_select(0, torch.searchsorted(ctx.ends, rows, right=True))  # each row's expert's
            return y
        y = x.new_empty(len(x), w.shape[2])  # (M, F)
        for e, (x_e, y_e) in rows_of_experts(counts, x, y):
            torch.mm(x_e, w[e], out=y_e) if b is None else torch.addmm(b[e], x_e, w[e], out=y_e)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of x (M, D), w (E, D, F) and b (E, F), each only where it is wanted; 0 for experts without rows."""
        x, w = ctx.saved_tensors
        needs_x, needs_w, needs_b, _ = ctx.needs_input_grad
        if ctx.ends is not None:
            dy = dy.contiguous()
            dx = grouped_mm(dy, w.mT, ctx.ends) if needs_x else None
            dw = grouped_mm(x.mT, dy, ctx.ends) if needs_w else None  # (D, M) by (M, F), cut along M
            # A sum over an expert's rows is a product with ones, and added up in 32 bits. A kernel wants 8 of them.
            db = grouped_mm(dy.new_ones(len(x), 8).mT, dy, ctx.ends)[:, 0] if needs_b else None
            for e, count in enumerate(ctx.counts):
                if not count:  # a product of no rows: whether the kernel writes zeros is not documented
                    [gradient[e].zero_() for gradient in (dw, db) if gradient is not None]
            return dx, dw, db, None
        dx = torch.empty_like(x) if needs_x else None
        # Zeros and not empty: no product is made for an expert without rows, and its gradient is still asked for.
        dw = torch.zeros_like(w) if needs_w else None
        db = w.new_zeros(len(w), w.shape[2]) if needs_b else None
        for e, (x_e, dy_e, *dx_e) in rows_of_experts(ctx.counts, x, dy, *([dx] if needs_x else [])):
            if needs_x:
                torch.mm(dy_e, w[e].mT, out=dx_e[0])
            if needs_w:
                torch.mm(x_e.mT, dy_e, out=dw[e])
            if needs_b:
                torch.sum(dy_e, 0, out=db[e])
        return dx, dw, db, None


def ends_on_device(x: Tensor, w: Tensor, counts: list[int]) -> Tensor | None:
    """Where each expert's rows end, int32 (E,), if one kernel is to compute all experts; or None."""
    # The kernel reads 16 bytes at a time.
    if not has_grouped_mm(x) or not len(x) or any(size % 8 for size in w.shape[1:]):
        return None
    ends = torch.tensor(counts, device="cpu").cumsum(0, dtype=torch.int32)
    return ends.to(x.device, non_blocking=True)  # so few bytes are in the driver's hands when this returns


def rows_of_experts(counts: list[int], *tensors: Tensor) -> Iterable[tuple[int, tuple[Tensor, ...]]]:
    """(e, its rows of each of `tensors`) for the experts that have rows."""
    split = (tensor.split(counts) for tensor in tensors) if counts else ()
    return ((e, rows) for e, rows in enumerate(zip(*split)) if counts[e])
