"""Collectives that autograd sees through: each comes with what it means for the gradients.

    n  ranks in the group      whole: all ranks hold the same tensor      part: rank r holds piece r of n along dim
    sum: rank r holds one of n summands of the tensor

    operator                x -> y           forward           gradient of y -> of x    backward
    copy_to_group           whole -> whole   identity          sum -> whole             all-reduce        Megatron's f
    reduce_from_group       sum -> whole     all-reduce        whole -> whole           identity          Megatron's g
    scatter_to_group        whole -> part    own piece         part -> whole            all-gather
    gather_from_group       part -> whole    all-gather        whole -> part            own piece
    all_gather_along        part -> whole    all-gather        sum -> part              reduce-scatter
    reduce_scatter_along    sum -> part      reduce-scatter    part -> whole            all-gather
    all_to_all_along        part -> part     all-to-all        part -> part             all-to-all back

So gather_from_group is for what all ranks then do alike, all_gather_along for what they do differently. A direction is
one call of torch.distributed, or none where nothing has to be sent. Results are new contiguous tensors, inputs stay as
they are, sizes that n does not divide are refused. All ranks bring the same shape and dtype, which is not compared,
since that would be a second call: gloo aborts a rank that gets more bytes than it expects, and launch says where.

The same without autograd, begun now and finished later, so that something is computed in between: start_all_reduce and
the like return a function that waits and gives the result, a new tensor; what was given must not change before that.
Layers that overlap their backward pass call them themselves.

Sources: Shoeybi et al. 2019, "Megatron-LM" (f and g); Korthikanti et al. 2022, "Reducing Activation Recomputation in
Large Transformer Models" (along T); Jacobs et al. 2023, "DeepSpeed Ulysses" (all-to-all).
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from course_lib.groups.exchange import all_gather_single, reduce_scatter_single, wait_then
from course_lib.groups.membership import Group, Member, describe, member, sendable

Finish = Callable[[], Tensor]


def copy_to_group(x: Tensor, group: Group = None) -> Tensor:
    """A copy of `x`, which each rank uses in its own way: backward all-reduces what they have to say of it."""
    me = member(group)
    # A new tensor also where nothing is sent: whoever changes the result in place does not change x.
    return Pair.apply(x, contiguous_copy, partial(all_reduce, me=me))


def reduce_from_group(x: Tensor, group: Group = None) -> Tensor:
    """The sum of all ranks' `x`, which all ranks use alike: each summand's gradient is the sum's, as it is."""
    me = member(group)
    return Pair.apply(x, partial(all_reduce, me=me), lambda gradient: gradient)


def scatter_to_group(x: Tensor, dim: int, group: Group = None) -> Tensor:
    """Piece r of `x` (..., N, ...), the same on all ranks, cut along `dim` into n pieces: (..., N/n, ...)."""
    me = member(group)
    dim = divisible_dim(x, dim, "dim", me)
    return Pair.apply(x, partial(own_piece, dim=dim, me=me), partial(all_gather, dim=dim, me=me))


def gather_from_group(x: Tensor, dim: int, group: Group = None) -> Tensor:
    """All ranks' `x` (..., N, ...) along `dim`, in rank order: (..., n N, ...), which all ranks use alike."""
    me = member(group)
    dim = dim_of(x, dim, "dim")
    # All ranks use the result alike, so each already has the whole gradient: its own piece is all it needs.
    return Pair.apply(x, partial(all_gather, dim=dim, me=me), partial(own_piece, dim=dim, me=me))


def all_gather_along(x: Tensor, dim: int, group: Group = None) -> Tensor:
    """All ranks' `x` (..., N, ...) along `dim`, in rank order: (..., n N, ...), which each rank uses in its own way."""
    me = member(group)
    dim = dim_of(x, dim, "dim")
    # Each rank's gradient is that of its own use only. The sum of all is wanted, so backward adds up.
    return Pair.apply(x, partial(all_gather, dim=dim, me=me), partial(reduce_scatter, dim=dim, me=me))


def reduce_scatter_along(x: Tensor, dim: int, group: Group = None) -> Tensor:
    """Piece r of the sum of all ranks' `x` (..., N, ...), cut along `dim` into n pieces: (..., N/n, ...)."""
    me = member(group)
    dim = divisible_dim(x, dim, "dim", me)
    return Pair.apply(x, partial(reduce_scatter, dim=dim, me=me), partial(all_gather, dim=dim, me=me))


def all_to_all_along(x: Tensor, split_dim: int, concat_dim: int, group: Group = None) -> Tensor:
    """Cut `x` along `split_dim` into n pieces, send piece j to rank j, and join what arrives along `concat_dim`.

    x (..., N, ..., M, ...) -> (..., N/n, ..., n M, ...): a tensor that was in parts along M is now so along N.
    """
    me = member(group)
    split_dim, concat_dim = divisible_dim(x, split_dim, "split_dim", me), dim_of(x, concat_dim, "concat_dim")
    return Pair.apply(x, partial(all_to_all, split_dim=split_dim, concat_dim=concat_dim, me=me),
                      partial(all_to_all, split_dim=concat_dim, concat_dim=split_dim, me=me))


class Pair(torch.autograd.Function):
    """y = there(x), and the gradient of x is back(gradient of y): a pair again, the other way round."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, there: Callable[[Tensor], Tensor], back: Callable[[Tensor], Tensor]) -> Tensor:
        """there(x). Backward will do `back` to the gradient."""
        # No tensor is saved: all pairs are linear, so the gradient does not depend on x.
        ctx.there, ctx.back = there, back
        return there(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        """back(gradient), itself differentiable: its own backward is `there` again."""
        return Pair.apply(gradient, ctx.back, ctx.there), None, None


def contiguous_copy(x: Tensor) -> Tensor:
    """A contiguous copy of x, which a collective may overwrite."""
    return x.clone(memory_format=torch.contiguous_format)


def own_piece(x: Tensor, dim: int, me: Member) -> Tensor:
    """This rank's n-th part of x along `dim`, as a copy."""
    return contiguous_copy(x.chunk(me.n, dim)[me.r])  # or a gradient of one piece would keep the memory of all


def all_reduce(x: Tensor, me: Member) -> Tensor:
    """The sum of all ranks' x, of the same shape, in a new tensor."""
    # The message is written over, and autograd may still need x.
    return start_all_reduce(contiguous_copy(x), me)()


def all_gather(x: Tensor, dim: int, me: Member) -> Tensor:
    """All ranks' x (..., N/n, ...), joined along `dim` into (..., N, ...) in the order of ranks."""
    return start_all_gather_along(x, dim, me)()


def reduce_scatter(x: Tensor, dim: int, me: Member) -> Tensor:
    """The sum of all ranks' x (..., N, ...), of which this rank gets its part (..., N/n, ...) along `dim`."""
    return start_reduce_scatter_along(x, dim, me)()


def all_to_all(x: Tensor, split_dim: int, concat_dim: int, me: Member) -> Tensor:
    """Part j of x along `split_dim` to rank j; what comes is joined along `concat_dim`: (..., N, ..., M, ...) becomes
    (..., N/n, ..., M n, ...).
    """
    # Stacked: an all-to-all sends stretches of memory, and a chunk along an inner dimension is none.
    outgoing = sendable(torch.stack(x.chunk(me.n, split_dim)), me)  # (n, ..., N/n, ..., M, ...)
    incoming = torch.empty_like(outgoing)
    dist.all_to_all_single(incoming, outgoing, group=me.group)
    return torch.cat(incoming.unbind(), concat_dim).to(x.device)


# Begun now and finished later

def start_all_reduce(x: Tensor, me: Member) -> Finish:
    """The sum of all ranks' `x`, which is ours and may be overwritten."""
    total = sendable(x, me)
    # Under gloo the message lies in the host's memory, and x may lie on a GPU.
    return wait_then(dist.all_reduce(total, group=me.group, async_op=True), lambda: total.to(x.device))


def start_all_gather_along(x: Tensor, dim: int, me: Member) -> Finish:
    """All ranks' `x` (..., N, ...) along `dim`, in rank order: (..., n N, ...)."""
    mine = sendable(x, me)  # (..., N, ...)
    # A message is one stretch of memory, so ranks' parts arrive one behind the other; `dim` comes in when they are
    # joined.
    pieces = mine.new_empty(me.n, *mine.shape)  # (n, ..., N, ...)
    work = all_gather_single(pieces.flatten(0, 1), mine, group=me.group, async_op=True)
    return wait_then(work, lambda: torch.cat(pieces.unbind(), dim).to(x.device))


def start_reduce_scatter_along(x: Tensor, dim: int, me: Member) -> Finish:
    """Piece r of the sum of all ranks' `x` (..., N, ...), cut along `dim` into n pieces: (..., N/n, ...)."""
    # Stacked: rank j's piece has to be one stretch of memory, whatever `dim` is cut.
    pieces = sendable(torch.stack(x.chunk(me.n, dim)), me)  # (n, ..., N/n, ...)
    total = torch.empty_like(pieces[0])
    work = reduce_scatter_single(total, pieces.flatten(0, 1), group=me.group, async_op=True)
    return wait_then(work, lambda: total.to(x.device))


def dim_of(x: Tensor, dim: int, name: str) -> int:
    """`dim`, the argument called `name`, counted from the front. ValueError unless it is a dimension of `x`."""
    if not isinstance(dim, int) or isinstance(dim, bool):
        raise ValueError(f"{name}={dim!r} is a {type(dim).__name__}: expected a whole number")
    if not -x.dim() <= dim < x.dim():
        expected = f"{-x.dim()} to {x.dim() - 1}" if x.dim() else "a tensor that has dimensions"
        raise ValueError(f"{name}={dim} of {describe(x)}: expected {expected}")
    return dim % x.dim()


def divisible_dim(x: Tensor, dim: int, name: str, me: Member) -> int:
    """The dimension as a number from 0. ValueError unless `x` has it, and n divides the size of `x` there."""
    dim = dim_of(x, dim, name)
    if x.shape[dim] % me.n:
        raise ValueError(f"{x.shape[dim]} elements along {name}={dim} of {describe(x)}: expected a number "
                         f"that the {me.n} ranks of the group divide")
    return dim
