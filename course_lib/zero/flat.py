"""A bucket of parameters in one flat piece of memory, of which each rank owns one block; and what cannot be cut so.

    n ranks, r this one      S numbers in a block, n S in the bucket: the last numbers are padding where n does not
                             divide      piece: what of one parameter lies in the block of this rank

Each parameter stays what it is, a view of the flat memory: what is gathered there, the model has. The optimiser knows
nothing of buckets. It is given the pieces, each as a parameter of its own, so that one that nobody used has no
gradient and is left alone, and the step that AdamW counts is that of its parameter.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from course_lib.costs.sharding import shard_size
from course_lib.groups.exchange import require_same
from course_lib.groups.gradients import GradientBucket, cut_tensors, find_missing, require_cap, unpack
from course_lib.groups.membership import Member, describe
from course_lib.runtime.beside import HostBlocks


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

    def __init__(self, index: int, parameters: list[nn.Parameter], me: Member, offload: bool,
                 gradient_dtype: torch.dtype | None) -> None:
        self.index, self.me, self.offload = index, me, offload
        self.S = shard_size(sum(parameter.numel() for parameter in parameters), me.n)
        super().__init__(parameters, me.n * self.S, gradient_dtype)
        like = parameters[0]
        self.dtype, self.device = like.dtype, like.device
        self.step_dtype = torch.promote_types(like.dtype, torch.float32)
        self.flat = like.new_zeros(me.n * self.S).detach()  # (n S,)
        for parameter, view in self.views_of(self.flat).items():
            view.copy_(parameter.detach())
            parameter.data = view
        self.block = self.block_of(self.flat)  # (S,)
        self.on_host = HostBlocks(self.device) if offload else None
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
        """(S,) where, and in the dtype in which, the optimiser steps; it holds anything."""
        if self.on_host is not None:
            return self.on_host.take(self.S, self.step_dtype)
        return torch.empty(self.S, dtype=self.step_dtype, device=self.device)

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

    def add_gradient(self, average: Tensor, without: set[nn.Parameter]) -> None:
        """Add to this block's gradient. Each piece gets its part, and none if no rank ever had one for it.

        without: the parameters for which this rank had none: to look at the part of others would hold up a GPU.
        """
        if self.block_gradient is None:
            self.block_gradient = average
        else:
            self.block_gradient += average
        parts = [self.block_gradient[piece.start:piece.stop] for piece in self.pieces]
        asked = [place for place, piece in enumerate(self.pieces) if piece.parameter in without]
        missing = {asked[place] for place in find_missing([parts[place] for place in asked])}
        for place, piece in enumerate(self.pieces):
            piece.owned.grad = None if place in missing else parts[place]

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


def make_buckets(parameters: Sequence[nn.Parameter], cap_bytes: float, me: Member, offload: bool,
                 gradient_dtype: torch.dtype | None) -> list[FlatBucket]:
    """In reverse, as backward finds them; of one dtype and device, at most `cap_bytes` unless one alone has more."""
    messages = cut_tensors(parameters[::-1], cap_bytes)
    return [FlatBucket(index, content, me, offload, gradient_dtype) for index, content in enumerate(messages)]


def require_stage(stage: Any, bucket_cap_mb: Any) -> None:
    if isinstance(stage, bool) or stage not in (1, 2):
        more = ", and FullyShardedDataParallel for stage 3" if stage == 3 else ""
        raise ValueError(f"stage={stage!r}: expected 1 (optimiser state) or 2 (and gradients){more}")
    require_cap(bucket_cap_mb)


def require_element_wise(optimizer_class: Any, defaults: dict[str, Any]) -> None:
    """ValueError unless a matrix steps to the same numbers when it is cut: tried out, on eight numbers, for two steps.

    LBFGS looks at all numbers at once, Adafactor at rows and columns, Muon at matrices: they cannot work on pieces.
    """
    if not (isinstance(optimizer_class, type) and issubclass(optimizer_class, torch.optim.Optimizer)):
        raise ValueError(f"optimizer_class={optimizer_class!r}: expected a class such as torch.optim.AdamW, of which a "
                         "ZeroOptimizer makes its own")
    if issubclass(optimizer_class, torch.optim.LBFGS):
        raise_mixes(optimizer_class)
    values = torch.arange(1.0, 9.0)
    whole = [nn.Parameter(values.view(2, 4).clone())]
    step_twice(optimizer_class(whole, **defaults), whole)  # with options that are wrong this raises, and may
    pieces = [nn.Parameter(part.clone()) for part in values.split([3, 5])]
    try:
        step_twice(optimizer_class(pieces, **defaults), pieces)
    except (ValueError, RuntimeError, IndexError):
        raise_mixes(optimizer_class)
    if not torch.allclose(whole[0].detach().flatten(), torch.cat([piece.detach() for piece in pieces]), rtol=1e-4):
        raise_mixes(optimizer_class)


def step_twice(optimizer: torch.optim.Optimizer, parameters: list[nn.Parameter]) -> None:
    for number in (1, 2):
        for parameter in parameters:
            parameter.grad = parameter.detach().pow(number) / 10
        optimizer.step()


def raise_mixes(optimizer_class: type) -> None:
    raise ValueError(f"{optimizer_class.__name__} does not step element by element, so it cannot step on pieces of "
                     "parameters: expected one that does, such as AdamW, Adam, SGD or RMSprop")


def require_trainable(everything: Sequence[nn.Parameter], trained: Sequence[nn.Parameter]) -> None:
    if not trained:
        raise ValueError(f"none of the {len(everything)} parameters requires a gradient: expected some to train")
    for parameter in trained:
        if not parameter.is_floating_point():
            raise ValueError(f"a parameter is {describe(parameter)}: expected real numbers")
        if not parameter.is_leaf:
            raise ValueError("a parameter is the result of a computation: expected leaves, module.parameters() say")


def require_same_groups(param_groups: list[dict[str, Any]], bucket_cap_mb: float, reduce_dtype: torch.dtype | None,
                        me: Member) -> None:
    """ValueError, on all ranks, unless all were given the same parameters in the same groups."""
    grouped = [(parameter, index) for index, options in enumerate(param_groups) for parameter in options["params"]]
    lines = [f"number {number} {describe(parameter, parameter.device.type)}, requires_grad={parameter.requires_grad}, "
             f"group {index}" for number, (parameter, index) in enumerate(grouped)]
    lines += [f"bucket_cap_mb={bucket_cap_mb}", f"reduce_dtype={reduce_dtype}"]
    require_same(lines, me, "parameters", "the same ones, options included,")


def require_no_average(buckets: Sequence[FlatBucket]) -> None:
    """ValueError where gradients of the step before are still there; only the reader of stage 1 has them in .grad."""
    for bucket in buckets:
        if not bucket.parts or any(parameter.grad is part for parameter, part in bucket.parts.items()):
            raise ValueError("backward after the gradients were averaged for a step, which would be added to again: "
                             "expected zero_grad() of the ZeroOptimizer before the next step's backward")


def require_no_gradient_by_hand(buckets: Sequence[FlatBucket]) -> None:
    if any(parameter.grad is not None for bucket in buckets for parameter in bucket.parameters):
        raise ValueError("a .grad was set by hand: in stage 2 expected gradients that backward brings, which are taken "
                         "as they come; stage 1 takes what is in .grad")


def require_still_frozen(parameters: Iterable[Tensor]) -> None:
    for parameter in parameters:
        if parameter.requires_grad:
            raise ValueError(f"a parameter of shape {list(parameter.shape)} was frozen when the ZeroOptimizer was made "
                             "and requires a gradient now, which nobody would step on: unfreeze first")


def require_in_step(broken_off: bool) -> None:
    """RuntimeError where a backward pass raised in the middle and messages are under way."""
    if broken_off:
        raise RuntimeError("the last backward pass raised before its end, so this rank is out of step with the others: "
                           "expected a new ZeroOptimizer on all ranks")
