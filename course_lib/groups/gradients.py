"""Gradients on their way into one message, and one that is not there.

    N  numbers in the message

A parameter that no rank used has no gradient, and AdamW must leave it alone; one with a gradient of zeros decays. In a
sum over the ranks the two look alike. So a rank without a gradient sends minus zeros: whatever is added to them wins,
and only minus zeros add up to minus zeros. Everybody can see it in the sum, without a further message.
"""

import weakref
from collections.abc import Callable, Iterable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn

from course_lib.groups.membership import Group, member
from course_lib.groups.packing import LARGE_BYTES, cut_tensors, unpack


def when_complete(parameters: Iterable[nn.Parameter], method: Callable[[nn.Parameter], None]) -> None:
    """Autograd calls the bound `method` with each of `parameters` whose .grad is complete, while the method's object
    lives.

    Python's garbage collection does not look into the hooks of parameters: had they the method itself, the object, its
    parameters and its process group would hold each other for ever, and gloo's threads would outlive the interpreter.
    """
    weakly = weakref.WeakMethod(method)

    def hook(parameter: nn.Parameter) -> None:
        if (found := weakly()) is not None:
            found(parameter)

    for parameter in parameters:
        parameter.register_post_accumulate_grad_hook(hook)


def write_gradient(gradient: Tensor, part: Tensor, factor: float = 1.0) -> None:
    """`gradient` times `factor` into `part`, every minus zero as a zero: one pass over it, like any copy."""
    if part.element_size() < 4:
        torch.mul(gradient, factor, out=part).add_(0.0)  # the alpha below would be rounded to 16 bits, too
    else:
        torch.add(part.new_zeros(()), gradient, alpha=factor, out=part)


def mark_missing(part: Tensor) -> None:
    """Minus zeros: "no gradient here"."""
    part.fill_(-0.0)


def is_missing(total: Tensor) -> bool:
    """Whether no rank had this gradient, a sum over all of them, or any piece of it."""
    return bool(total.numel()) and all_minus_zeros(total.reshape(-1)[:1]) and all_minus_zeros(total)


def all_minus_zeros(numbers: Tensor) -> bool:
    return bool(((numbers == 0) & numbers.signbit()).all())


class GradientBucket:
    """Memory for the gradients of `parameters`, of one dtype and device, and those in it that have come.

    `gradient` (N,) is there from the first `take` to `free`, and a view of it for each parameter in `parts`; `missing`
    are the parameters that have brought none, `without` those that had none when the bucket left: only they can be
    missing in the sum. N may be more than they need: the rest is padding, zeros.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], num_elements: int | None = None) -> None:
        self.parameters = list(parameters)
        self.num_used = sum(parameter.numel() for parameter in parameters)
        self.num_elements = self.num_used if num_elements is None else num_elements
        self.without: set[nn.Parameter] = set()
        self.free()

    def allocate(self) -> None:
        """New memory each time: a .grad that the reader kept from the last one stays what it was."""
        like = self.parameters[0]
        self.gradient = torch.empty(self.num_elements, dtype=like.dtype, device=like.device)  # (N,)
        # Padding is added up, too: what memory happened to hold might be a NaN.
        self.gradient[self.num_used:] = 0
        self.parts = dict(zip(self.parameters, unpack(self.gradient, [p.shape for p in self.parameters])))
        self.missing, self.without = set(self.parameters), set()

    def take(self, parameter: nn.Parameter, factor: float = 1.0) -> Tensor:
        """Move the gradient of `parameter` in, times `factor`, and return its part."""
        if self.gradient is None:
            self.allocate()
        part = self.parts[parameter]
        write_gradient(parameter.grad, part, factor)
        self.missing.discard(parameter)
        return part

    def mark_missing(self) -> set[nn.Parameter]:
        """No more gradients will come: minus zeros for those that are missing, which are returned."""
        if self.gradient is None:
            self.allocate()
        self.without = set(self.missing)
        for parameter in self.without:
            mark_missing(self.parts[parameter])
        self.missing.clear()
        return self.without

    def free(self) -> None:
        """Let go of the memory; where .grad is a part of it, it lives on there."""
        self.gradient: Tensor | None = None
        self.parts: dict[nn.Parameter, Tensor] = {}
        self.missing = set(self.parameters)


@torch.no_grad()
def average_gradients(parameters: Iterable[nn.Parameter], group: Group = None, cap_bytes: float = LARGE_BYTES,
                      divide_by: int | None = None) -> None:
    """After backward: each .grad becomes the average over the ranks. One message for each dtype, and `cap_bytes` of it.

    A rank without a gradient counts as one of zeros; where no rank has one, there is none. divide_by: the sum by this
    number, where backward has added up gradients of more ranks than there are in the group.
    """
    me = member(group)
    divide_by = me.n if divide_by is None else divide_by
    if me.n == 1:
        for parameter in parameters if divide_by != 1 else ():
            if parameter.grad is not None:
                parameter.grad /= divide_by
        return
    # Also parameters without a gradient here: a message must have the same numbers on all ranks.
    for some in cut_tensors([p for p in parameters if p.requires_grad], cap_bytes):
        bucket = GradientBucket(some)
        for parameter in some:
            if parameter.grad is not None:
                bucket.take(parameter, 1 / divide_by)
        without = bucket.mark_missing()
        dist.all_reduce(bucket.gradient, group=me.group)
        for parameter, part in bucket.parts.items():
            parameter.grad = None if parameter in without and is_missing(part) else part


def require_dense(parameter: nn.Parameter, name: str) -> None:
    """ValueError for a gradient that cannot be averaged."""
    if parameter.grad.layout is not torch.strided:
        raise ValueError(f"{name} has a sparse gradient: expected a dense one, nn.Embedding(..., sparse=False)")
    if parameter.grad.requires_grad:
        raise ValueError(f"{name}: backward(create_graph=True): the averages would not belong to the graph. Expected "
                         "backward(), or torch.autograd.grad on the plain module")


def require_first(is_first: bool, name: str) -> None:
    """ValueError for a gradient of a parameter that has brought one in this backward pass."""
    if not is_first:
        raise ValueError(f"{name} got a second gradient in one backward pass, when the first was under way. Two "
                         "reentrant checkpoints that share a parameter do that: use checkpoint(use_reentrant=False)")
