"""A bucket of parameters in one flat piece of memory, of which each rank owns one block.

    n ranks, r this one      S numbers in a block, n S in the bucket: the last numbers are padding where n does not
                             divide      piece: what of one parameter lies in the block of this rank

Each parameter stays what it is, a view of the flat memory: what is gathered there, the model has. The optimiser knows
nothing of buckets. It is given the pieces, each as a parameter of its own, so that one that nobody used has no
gradient and is left alone, and the step that AdamW counts is that of its parameter.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from course_lib.costs.sharding import shard_size
from course_lib.groups.gradients import is_missing, mark_missing, write_gradient
from course_lib.groups.membership import Member
from course_lib.groups.packing import cut_tensors, unpack
from course_lib.zero.host import host_tensor


@dataclass(frozen=True, eq=False)
class Piece:
    """Numbers `first` to `last` of `parameter` (flattened), `start` to `stop` of the block; `owned` is what steps."""

    parameter: nn.Parameter
    first: int
    last: int
    start: int
    stop: int
    owned: nn.Parameter


class FlatBucket:
    """`parameters` of one dtype and device. `master`: 32-bit numbers to step on, kept where `offload` says.

    `gradient` (n S,) is there while gradients are, `block_gradient` (S,) once they are averaged.
    """

    def __init__(self, index: int, parameters: list[nn.Parameter], me: Member, offload: bool) -> None:
        self.index, self.parameters, self.me, self.offload = index, parameters, me, offload
        sizes = [parameter.numel() for parameter in parameters]
        self.S = shard_size(sum(sizes), me.n)
        like = parameters[0]
        self.dtype, self.device = like.dtype, like.device
        self.step_dtype = torch.promote_types(like.dtype, torch.float32)
        self.starts = dict(zip(parameters, torch.tensor([0, *sizes]).cumsum(0).tolist()))
        self.flat = like.new_zeros(me.n * self.S).detach()  # (n S,)
        for parameter, view in self.views(self.flat).items():
            view.copy_(parameter.detach())
            parameter.data = view
        self.block = self.flat.chunk(me.n)[me.r] if self.S else self.flat  # (S,)
        self.master = self.new_master()
        self.versions = {parameter: parameter._version for parameter in parameters}
        self.pieces = self.cut()
        self.forget_gradients()

    def views(self, flat: Tensor) -> dict[nn.Parameter, Tensor]:
        """The part of `flat` (n S,) that belongs to each parameter, in its shape."""
        return dict(zip(self.parameters, unpack(flat, [parameter.shape for parameter in self.parameters])))

    def new_block(self) -> Tensor:
        """(S,) where, and in the dtype in which, the optimiser steps."""
        if self.offload:
            return host_tensor(self.S, self.step_dtype, self.device)
        return torch.zeros_like(self.block, dtype=self.step_dtype)

    def new_master(self) -> Tensor | None:
        return self.new_block() if self.offload or self.dtype != self.step_dtype else None

    def cut(self) -> list[Piece]:
        steps_on, begin = self.block if self.master is None else self.master, self.me.r * self.S
        pieces = []
        for parameter, start in self.starts.items():
            first, last = max(begin - start, 0), min(begin + self.S - start, parameter.numel())
            if first < last:
                a, b = start + first - begin, start + last - begin
                pieces.append(Piece(parameter, first, last, a, b, nn.Parameter(steps_on[a:b])))
        return pieces

    # Gradients

    def forget_gradients(self) -> None:
        self.gradient: Tensor | None = None  # (n S,) in the parameters' dtype
        self.block_gradient: Tensor | None = None  # (S,) as the optimiser reads it
        self.parts: dict[nn.Parameter, Tensor] = {}
        self.missing = set(self.parameters)
        for piece in getattr(self, "pieces", ()):
            piece.owned.grad = None

    def open(self) -> None:
        self.gradient = self.flat.new_empty(self.flat.shape)
        self.gradient[sum(p.numel() for p in self.parameters):] = 0
        self.parts, self.missing = self.views(self.gradient), set(self.parameters)

    def take(self, parameter: nn.Parameter) -> Tensor:
        """Move the gradient of `parameter` in, and return its part."""
        if self.gradient is None:
            self.open()
        write_gradient(parameter.grad, self.parts[parameter])
        self.missing.discard(parameter)
        return self.parts[parameter]

    def mark_missing(self) -> None:
        if self.gradient is None:
            self.open()
        for parameter in self.missing:
            mark_missing(self.parts[parameter])

    def hand_out(self) -> None:
        """Give each piece its gradient, and none to those that no rank had one for."""
        for piece in self.pieces:
            part = self.block_gradient[piece.start:piece.stop]
            piece.owned.grad = None if is_missing(part) else part

    # Master copies

    def refresh_master(self) -> None:
        """A parameter that somebody changed by hand, load_state_dict say: the master copy follows."""
        changed = {p for p in self.parameters if p._version != self.versions[p]}
        if self.master is not None:
            for piece in self.pieces:
                if piece.parameter in changed:
                    piece.owned.detach().copy_(self.block[piece.start:piece.stop])

    def publish(self) -> None:
        """What the optimiser stepped on, rounded, is this rank's block of the parameters."""
        if self.master is not None:
            self.block.copy_(self.master)

    def published(self) -> None:
        """All blocks are there: autograd shall know that the parameters changed."""
        torch.autograd.graph.increment_version(self.parameters)
        self.versions = {parameter: parameter._version for parameter in self.parameters}


def make_buckets(parameters: Sequence[nn.Parameter], cap_bytes: float, me: Member, offload: bool) -> list[FlatBucket]:
    """In reverse, as backward finds them; of one dtype and device, at most `cap_bytes` unless one alone has more."""
    messages = cut_tensors(parameters[::-1], cap_bytes)
    return [FlatBucket(index, content, me, offload) for index, content in enumerate(messages)]
