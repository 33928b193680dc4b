"""A tensor as a backend can send it, as an error names it, and as autocast would have it."""

import torch
from torch import Tensor

from course_lib.groups.membership import Member


def sendable(tensor: Tensor, me: Member) -> Tensor:
    """`tensor` as a backend can send it: contiguous, outside autograd, and where the group's wire begins.

    The very same memory where it is so already, otherwise a copy.
    """
    return tensor.detach().to(me.wire(tensor.device)).contiguous()


def describe(tensor: Tensor, device: torch.device | str | None = None) -> str:
    """`float32[2, 3] on cpu`, for error messages; `device` where another one than the tensor's own is to be named."""
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)} on {device or tensor.device}"


def as_autocast(*tensors: Tensor | None) -> list[Tensor | None]:
    """What F.linear would make of its arguments under torch.autocast: an autograd.Function has to do so itself."""
    kind = tensors[0].device.type
    if not torch.is_autocast_enabled(kind):
        return list(tensors)
    return [tensor if tensor is None else tensor.to(torch.get_autocast_dtype(kind)) for tensor in tensors]
