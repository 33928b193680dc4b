"""One matrix on t ranks: cut by columns or by rows. Columns, something element by element, rows: one all-reduce.

    B batch, T tokens, D in, F out, t ranks      y = x W^T + b; W (F, D): its rows are columns of W^T

    ColumnParallelLinear   W (F/t, D)   x whole (B, T, D)      -> y in parts (B, T, F/t)    backward: all-reduce of dx
    RowParallelLinear      W (F, D/t)   x in parts (B, T, D/t) -> y whole (B, T, F)         forward: all-reduce of y

Between the two, each rank computes on its own part and sends nothing. Every rank reads the whole of x, so its gradient
is a sum over the ranks: the paper's f. ColumnProduct has that sum on its way while it computes the gradient of W, which
no other rank needs:

    dx = dy W   start all-reduce        dW = dy^T x        wait

On a GPU the all-reduce and the product for dW become ready at the same moment. If the product's blocks come first, they
fill the GPU, and the all-reduce begins when they end: nothing is hidden. With the environment variable
CUDA_DEVICE_MAX_CONNECTIONS=1 kernels are scheduled in the order in which they are called, the all-reduce first.
Megatron relies on that (megatron/core/tensor_parallel/layers.py), for the speed-up and not for the numbers:

    launch(train, env={"CUDA_DEVICE_MAX_CONNECTIONS": "1"})

With sequence_parallel (chapter 7), what is whole outside is dealt out along T instead: (B, T/t, D). The column layer
gathers it, the row layer reduce-scatters: the two halves of the all-reduce, so as many bytes, and everything between
row and column is computed and kept once, not t times. What backward needs of x can be kept in two ways:

    GatheredColumnProduct      the gathered x, (B, T, D)
    RegatheredColumnProduct    this rank's tokens, (B, T/t, D); the others' are gathered a second time, while dx is
                               computed: less memory for a third message

Sources: Shoeybi et al. 2019, "Megatron-LM"; Korthikanti et al. 2022, "Reducing Activation Recomputation in Large
Transformer Models", section 4.2.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from course_lib.collectives import gather_from_group, reduce_from_group, reduce_scatter_along, scatter_to_group
from course_lib.collectives.differentiable import start_all_gather_along, start_all_reduce, start_reduce_scatter_along
from course_lib.groups.gradients import broadcast
from course_lib.groups.membership import Group, Member, as_autocast, member, require_kind
from course_lib.runtime.torch_private import will_run
from course_lib.tensor_parallel.cut import Cut, cut_evenly


class ColumnProduct(torch.autograd.Function):
    """x (B, T, D), the same on all ranks, times this rank's columns -> (B, T, F/t)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, me: Member) -> Tensor:
        ctx.me = me
        ctx.save_for_backward(x, weight)
        return F.linear(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        need_x, need_weight, need_bias = current_needs(ctx)
        if need_x:
            dx = dy @ weight  # this rank's summand (B, T, D)
            adding_up = start_all_reduce(dx, ctx.me)
        # While the summands travel: two gradients that no other rank needs.
        d_weight = dy.flatten(0, -2).T @ x.flatten(0, -2) if need_weight else None  # (F/t, D)
        d_bias = dy.flatten(0, -2).sum(0) if need_bias else None
        return adding_up() if need_x else None, d_weight, d_bias, None


def current_needs(ctx: Any) -> list[bool]:
    """Whether the backward pass that runs now goes on to x, to weight and to bias.

    A zero-bubble schedule calls backward twice, for x and later for weight, and neither call may compute or send what
    is the other's. ctx.needs_input_grad would be True both times: it says whether some backward pass goes there.
    """
    def needs(index: int) -> bool:
        if not ctx.needs_input_grad[index]:
            return False
        try:
            return will_run(ctx.next_functions[index][0])
        except (AttributeError, RuntimeError):  # a torch without it; torch.autograd.grad for a leaf that was given here
            return True

    return [needs(index) for index in range(3)]


class CutModule(nn.Module):
    """A module with slices of an unsplit one's parameters: those in `cuts`. Others it has whole, like all ranks."""

    def __init__(self, group: Group) -> None:
        super().__init__()
        self.member, self.cuts = member(group), dict[str, Cut]()

    def adopt(self, unsplit: nn.Module | None, make: Callable[[], nn.Module]) -> None:
        """Take the slices of `unsplit`, or of one that is made now, with place 0's numbers."""
        if unsplit is None:
            unsplit = make()
            # Ranks' generators may differ by now, and slices have to be of one matrix.
            broadcast(unsplit.parameters(), self.member)
        for name, value in unsplit._parameters.items():
            if value is not None:
                whole, trained = value.detach(), value.requires_grad
                # A copy: a view of it would keep the whole matrix alive on every rank.
                mine = self.cuts[name].take(whole, self.member) if name in self.cuts else whole.clone()
                value = nn.Parameter(mine, trained)
            self.register_parameter(name, value)
        self.train(unsplit.training)


class ColumnParallelLinear(CutModule):
    """Rank r computes features r F/t to (r+1) F/t of nn.Linear(in_features, out_features): (B, T, D) -> (B, T, F/t).

    gather_output: (B, T, F) on every rank, to be used by all alike. sequence_parallel: x is (B, T/t, D), this rank's
    tokens. Further, for what is fused and shared:

    sections     sizes of what lies after each other in out_features, q | k | v say; each is cut on its own
    unit         features that stay together: head_dim
    gather_again     under sequence_parallel: keep this rank's tokens only for backward, and gather again there
    input_is_copied  somebody has copied (or gathered) x to the group for several layers at once
    """

    def __init__(self, in_features: int, out_features: int, bias: bool = True, gather_output: bool = False,
                 group: Group = None, sequence_parallel: bool = False, *, sections: Sequence[int] | None = None,
                 unit: int = 1, gather_again: bool = False, input_is_copied: bool = False,
                 unsplit: nn.Linear | None = None) -> None:
        super().__init__(group)
        self.in_features, self.out_features, self.gather_output = in_features, out_features, gather_output
        self.sequence_parallel, self.gather_again = sequence_parallel, gather_again
        self.input_is_copied = input_is_copied
        cut = cut_evenly(out_features, 0, self.member, "out_features", sections, unit)
        self.cuts = {"weight": cut, "bias": cut}
        if gather_output and len(cut.sections) > 1:
            raise ValueError(f"gather_output of {len(cut.sections)} sections, which would come in another order: "
                             "expected one of the two")
        self.adopt(unsplit, lambda: nn.Linear(in_features, out_features, bias))

    @classmethod
    def from_unsplit(cls, module: nn.Linear, group: Group = None, **options: Any) -> "ColumnParallelLinear":
        """This rank's slice of `module`, which has the same numbers on all ranks. `options`: as of the class."""
        require_kind(module, nn.Linear)
        return cls(module.in_features, module.out_features, group=group, unsplit=module, **options)

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, D), or (B, T/t, D) under sequence_parallel -> (B, T, F/t), or (B, T, F) with gather_output."""
        y = self.multiply(*as_autocast(x, self.weight, self.bias))  # by ColumnProduct, or what chapter 7 adds to it
        return gather_from_group(y, -1, self.member) if self.gather_output else y

    def multiply(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """x W^T + b (B, T, F/t), with the communication that this x needs."""
        if self.input_is_copied:
            return F.linear(x, weight, bias)  # whoever copied x adds up its gradient, once for several layers
        if not self.sequence_parallel:
            return ColumnProduct.apply(x, weight, bias, self.member)
        product = RegatheredColumnProduct if self.gather_again else GatheredColumnProduct
        return product.apply(x, weight, bias, self.member)

    def extra_repr(self) -> str:
        """Sizes and ranks: what print(model) shows."""
        return f"{self.in_features}, {self.out_features} / {self.member.n}, bias={self.bias is not None}"


class RowParallelLinear(CutModule):
    """Rank r multiplies features r D/t to (r+1) D/t of x: a summand of the output, and the ranks add up.

    The bias is whole on every rank, and added once, to the sum. input_is_parallel=False: x (B, T, D) is whole, and
    each rank takes its part. sequence_parallel: the sum is dealt out along T, (B, T/t, F); the bias's gradient is then
    this rank's tokens' part, until sum_partial_gradients adds it up.
    """

    def __init__(self, in_features: int, out_features: int, bias: bool = True, input_is_parallel: bool = True,
                 group: Group = None, sequence_parallel: bool = False, *, unsplit: nn.Linear | None = None) -> None:
        super().__init__(group)
        self.in_features, self.out_features = in_features, out_features
        self.input_is_parallel, self.sequence_parallel = input_is_parallel, sequence_parallel
        self.cuts = {"weight": cut_evenly(in_features, 1, self.member, "in_features")}
        self.adopt(unsplit, lambda: nn.Linear(in_features, out_features, bias))

    @classmethod
    def from_unsplit(cls, module: nn.Linear, group: Group = None, **options: Any) -> "RowParallelLinear":
        """This rank's slice of `module`, which has the same numbers on all ranks. `options`: as of the class."""
        require_kind(module, nn.Linear)
        return cls(module.in_features, module.out_features, group=group, unsplit=module, **options)

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, D/t), or (B, T, D) unless input_is_parallel -> (B, T, F), or (B, T/t, F) under sequence_parallel."""
        if not self.input_is_parallel:
            x = scatter_to_group(x, -1, self.member)
        # Without the bias: t ranks would add it t times.
        summand = F.linear(x, self.weight)  # (B, T, F)
        y = reduce_scatter_along(summand, -2, self.member) if self.sequence_parallel else \
            reduce_from_group(summand, self.member)
        return y if self.bias is None else y + self.bias.to(y.dtype)

    def extra_repr(self) -> str:
        """Sizes and ranks: what print(model) shows."""
        return f"{self.in_features} / {self.member.n}, {self.out_features}, bias={self.bias is not None}"


# Chapter 7: tokens are dealt out between the layers

class GatheredColumnProduct(torch.autograd.Function):
    """x (B, T/t, D), this rank's tokens, times this rank's columns -> (B, T, F/t)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, me: Member) -> Tensor:
        ctx.me = me
        x = start_all_gather_along(x, -2, me)()  # (B, T, D)
        ctx.save_for_backward(x, weight)
        return F.linear(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        need_x, need_weight, need_bias = current_needs(ctx)
        if need_x:
            dx = dy @ weight  # this rank's summand (B, T, D)
            adding_up = start_reduce_scatter_along(dx, -2, ctx.me)  # (B, T/t, D): the sum of this rank's tokens
        # While the summands travel: two gradients that no other rank needs.
        d_weight = dy.flatten(0, -2).T @ x.flatten(0, -2) if need_weight else None  # (F/t, D)
        d_bias = dy.flatten(0, -2).sum(0) if need_bias else None
        return adding_up() if need_x else None, d_weight, d_bias, None


class RegatheredColumnProduct(torch.autograd.Function):
    """x (B, T/t, D), this rank's tokens, times this rank's columns -> (B, T, F/t). Keeps no other rank's tokens."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, me: Member) -> Tensor:
        ctx.me = me
        ctx.save_for_backward(x, weight)  # before it is gathered
        x = start_all_gather_along(x, -2, me)()  # (B, T, D)
        return F.linear(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        need_x, need_weight, need_bias = current_needs(ctx)
        if need_weight:
            gathering = start_all_gather_along(x, -2, ctx.me)  # first: dx is computed while it travels
        if need_x:
            dx = dy @ weight  # this rank's summand (B, T, D)
            adding_up = start_reduce_scatter_along(dx, -2, ctx.me)  # (B, T/t, D): the sum of this rank's tokens
        # While the summands travel: two gradients that no other rank needs.
        d_weight = dy.flatten(0, -2).T @ gathering().flatten(0, -2) if need_weight else None  # (F/t, D)
        d_bias = dy.flatten(0, -2).sum(0) if need_bias else None
        return adding_up() if need_x else None, d_weight, d_bias, None
