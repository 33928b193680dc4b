"""Collectives along a dimension of a tensor, begun now and finished later, so that something is computed in between.

Each returns a function that waits and gives the result, a new tensor; what was given must not change before that.
Autograd does not see them: differentiable.py does, and layers that overlap their backward pass call them themselves.
"""

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor

from course_lib.groups.exchange import all_gather_single, reduce_scatter_single
from course_lib.groups.membership import Member
from course_lib.groups.tensors import sendable

Finish = Callable[[], Tensor]


def start_all_reduce(x: Tensor, me: Member) -> Finish:
    """The sum of all ranks' `x`, which is ours and may be overwritten."""
    total = sendable(x, me)
    work = dist.all_reduce(total, group=me.group, async_op=True)

    def finish() -> Tensor:
        work.wait()
        # Under gloo the message lies in the host's memory, and x may lie on a GPU.
        return total.to(x.device)

    return finish


def start_all_gather_along(x: Tensor, dim: int, me: Member) -> Finish:
    """All ranks' `x` (..., N, ...) along `dim`, in rank order: (..., n N, ...)."""
    mine = sendable(x, me)  # (..., N, ...)
    # A message is one stretch of memory, so ranks' parts arrive one behind the other; `dim` comes in when they are
    # joined.
    pieces = mine.new_empty(me.n, *mine.shape)  # (n, ..., N, ...)
    work = all_gather_single(pieces.flatten(0, 1), mine, group=me.group, async_op=True)

    def finish() -> Tensor:
        work.wait()
        return torch.cat(pieces.unbind(), dim).to(x.device)

    return finish


def start_reduce_scatter_along(x: Tensor, dim: int, me: Member) -> Finish:
    """Piece r of the sum of all ranks' `x` (..., N, ...), cut along `dim` into n pieces: (..., N/n, ...)."""
    # Stacked: rank j's piece has to be one stretch of memory, whatever `dim` is cut.
    pieces = sendable(torch.stack(x.chunk(me.n, dim)), me)  # (n, ..., N/n, ...)
    total = torch.empty_like(pieces[0])
    work = reduce_scatter_single(total, pieces.flatten(0, 1), group=me.group, async_op=True)

    def finish() -> Tensor:
        work.wait()
        return total.to(x.device)

    return finish
