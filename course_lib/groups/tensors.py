"""A tensor as a backend can send it, and as an error names it."""

import torch
import torch.distributed as dist
from torch import Tensor

from course_lib.groups.membership import Member


def sendable(tensor: Tensor, me: Member) -> Tensor:
    """`tensor` as a backend can send it: contiguous, outside autograd, and for gloo in the host's memory.

    The very same memory where it is so already, otherwise a copy.
    """
    device = "cpu" if dist.get_backend(me.group) == "gloo" else tensor.device
    return tensor.detach().to(device).contiguous()


def described(tensor: Tensor, device: torch.device) -> str:
    """`float32[2, 3] on cpu`, for error messages."""
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)} on {device}"
