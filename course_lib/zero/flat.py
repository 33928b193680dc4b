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
from course_lib.groups.gradients import GradientBucket, is_missing
from course_lib.groups.membership import Member
from course_lib.groups.packing import cut_tensors, unpack


@dataclass(frozen=True, eq=False)
class FlatPiece:
    """Numbers `first` to `last` of `parameter` (flattened), `start` to `stop` of the block; `owned` is what steps."""

    parameter: nn.Parameter
    first: int
    last: int
    start: int
    stop: int
    owned: nn.Parameter


class FlatBucket(GradientBucket):
    """`parameters` of one dtype and device, views of `flat` (n S,), of which `block` (S,) is this rank's.

    `master` (S,): 32-bit numbers to step on where the parameters have fewer, or where `offload` steps on the host.
    `gradient` (n S,) fills while backward runs; `block_gradient` (S,) is the average of this rank's block of it.
    """

    def __init__(self, index: int, parameters: list[nn.Parameter], me: Member, offload: bool) -> None:
        self.index, self.me, self.offload = index, me, offload
        self.S = shard_size(sum(parameter.numel() for parameter in parameters), me.n)
        super().__init__(parameters, me.n * self.S)
        like = parameters[0]
        self.dtype, self.device = like.dtype, like.device
        self.step_dtype = torch.promote_types(like.dtype, torch.float32)
        self.flat = like.new_zeros(me.n * self.S).detach()  # (n S,)
        for parameter, view in self.views_of(self.flat).items():
            view.copy_(parameter.detach())
            parameter.data = view
        self.block = self.block_of(self.flat)  # (S,)
        self.master: Tensor | None = None
        if offload or self.dtype != self.step_dtype:
            self.master = self.new_block().copy_(self.block)
        self.pieces = self.make_pieces()
        self.block_gradient: Tensor | None = None
        self.remember_versions()

    def views_of(self, flat: Tensor) -> dict[nn.Parameter, Tensor]:
        """The part of `flat` (n S,) that belongs to each parameter, in its shape."""
        return dict(zip(self.parameters, unpack(flat, [parameter.shape for parameter in self.parameters])))

    def block_of(self, flat: Tensor) -> Tensor:
        """This rank's block (S,) of `flat` (n S,)."""
        return flat.chunk(self.me.n)[self.me.r]

    def new_block(self) -> Tensor:
        """(S,) where, and in the dtype in which, the optimiser steps."""
        if self.offload:
            return host_tensor(self.S, self.step_dtype, self.device)
        return torch.zeros(self.S, dtype=self.step_dtype, device=self.device)

    def make_pieces(self) -> list[FlatPiece]:
        steps_on, begin = self.block if self.master is None else self.master, self.me.r * self.S
        pieces, start = [], 0
        for parameter in self.parameters:
            first, last = max(begin - start, 0), min(begin + self.S - start, parameter.numel())
            if first < last:
                a, b = start + first - begin, start + last - begin
                pieces.append(FlatPiece(parameter, first, last, a, b, nn.Parameter(steps_on[a:b])))
            start += parameter.numel()
        return pieces

    # Reduce: gradients

    def add_gradient(self, average: Tensor) -> None:
        """Add to this block's gradient. Each piece gets its part, and none if no rank ever had one for it."""
        if self.block_gradient is None:
            self.block_gradient = average
        else:
            self.block_gradient += average
        for piece in self.pieces:
            part = self.block_gradient[piece.start:piece.stop]
            without = piece.parameter in self.without  # asked first: to look at the part holds up a GPU
            piece.owned.grad = None if without and is_missing(part) else part

    def forget_gradients(self) -> None:
        """The memory of the gradients, and of the averages of this rank's block, is free."""
        self.free()
        self.block_gradient = None
        for piece in self.pieces:
            piece.owned.grad = None

    # Step and gather: parameters

    def update_master(self) -> None:
        """A parameter that somebody changed by hand, load_state_dict say: the master copy follows."""
        if self.master is None:
            return
        for piece in self.pieces:
            if piece.parameter._version != self.versions[piece.parameter]:
                piece.owned.detach().copy_(self.block[piece.start:piece.stop])

    def remember_versions(self) -> None:
        """The master copy says what the parameters say now."""
        self.versions = {parameter: parameter._version for parameter in self.parameters}


def host_tensor(num_elements: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Zeros in the host's memory, to exchange with `device`, which has no room for them.

    Beside a GPU they are pinned: the system may not move or swap such pages, so that the copy engine reads them on its
    own, while kernels run. On the CPU the host's memory is all there is; the code is the same, and bytes are counted
    apart.
    """
    return torch.zeros(num_elements, dtype=dtype, device="cpu", pin_memory=device.type != "cpu")


def make_buckets(parameters: Sequence[nn.Parameter], cap_bytes: float, me: Member, offload: bool) -> list[FlatBucket]:
    """In reverse, as backward finds them; of one dtype and device, at most `cap_bytes` unless one alone has more."""
    messages = cut_tensors(parameters[::-1], cap_bytes)
    return [FlatBucket(index, content, me, offload) for index, content in enumerate(messages)]
