"""What every collective stands on: a rank's place in its group, and messages to and from the other places.

    n  ranks in the group      r  this rank's place among them, 0 <= r < n

Places, not global ranks: an algorithm is the same in the world and in a sub-group.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor


@dataclass(frozen=True)
class Member:
    """This rank as a member of a group: place `r` of `n`. Empty messages are not sent; both ends know their size."""

    group: dist.ProcessGroup
    n: int
    r: int

    def send(self, tensor: Tensor, to: int) -> None:
        """Send `tensor` (contiguous) to place `to`; returns when it may be overwritten."""
        self._all_at_once([(dist.isend, tensor, to)])

    def receive(self, tensor: Tensor, source: int) -> Tensor:
        """Fill `tensor` (contiguous) with what place `source` sends, and return it."""
        self._all_at_once([(dist.irecv, tensor, source)])
        return tensor

    def exchange(self, outgoing: Tensor, to: int, incoming: Tensor, source: int) -> Tensor:
        """Send and receive at the same time, so that a circle of ranks cannot wait for itself; returns `incoming`."""
        self._all_at_once([(dist.irecv, incoming, source), (dist.isend, outgoing, to)])
        return incoming

    def start_send(self, tensor: Tensor, to: int) -> dist.Work:
        """Begin to send; `tensor` must not change before the returned work has been waited for."""
        return dist.isend(tensor, group=self.group, group_dst=to)

    def start_receive(self, tensor: Tensor, source: int) -> dist.Work:
        """Begin to receive; `tensor` is filled when the returned work has been waited for."""
        return dist.irecv(tensor, group=self.group, group_src=source)

    def _all_at_once(self, messages: list[tuple[Callable, Tensor, int]]) -> None:
        operations = [dist.P2POp(kind, tensor, group=self.group, group_peer=place)
                      for kind, tensor, place in messages if tensor.numel()]
        for work in dist.batch_isend_irecv(operations) if operations else []:
            work.wait()

    def place_of(self, rank: int, name: str) -> int:
        """The place of the global `rank`, the argument called `name`. ValueError when it is not in the group."""
        ranks = dist.get_process_group_ranks(self.group)
        if rank not in ranks:
            raise ValueError(f"{name}={rank!r} is not in the group: expected one of its global ranks {ranks}")
        return ranks.index(rank)


def member(group: dist.ProcessGroup | None) -> Member:
    """This rank's place in `group` (None: the world). ValueError where there is no group, or the rank is not in it."""
    if not dist.is_initialized():
        raise ValueError("there is no process group: expected a call on a rank, inside a function given to launch")
    group = dist.group.WORLD if group is None else group
    if group is dist.GroupMember.NON_GROUP_MEMBER:
        raise ValueError(f"rank {dist.get_rank()} is not in the group it was given: expected a call "
                         "on the ranks listed in new_group, and on no other")
    if not isinstance(group, dist.ProcessGroup):
        raise ValueError(f"group={group!r} is not a group: expected None (the world) or what new_group returns")
    return Member(group, group.size(), group.rank())


def sendable(tensor: Tensor, me: Member) -> Tensor:
    """`tensor` as a backend can send it: contiguous, outside autograd, and for gloo in the host's memory.

    The very same memory where it is so already, otherwise a copy.
    """
    device = "cpu" if dist.get_backend(me.group) == "gloo" else tensor.device
    return tensor.detach().to(device).contiguous()


@contextmanager
def in_place(tensor: Tensor, me: Member) -> Iterator[Tensor]:
    """`tensor` of any shape and stride as a flat one (N,) to send and receive into; `tensor` has the result after."""
    flat = sendable(tensor, me).view(-1)
    yield flat
    if flat.data_ptr() != tensor.data_ptr():
        tensor.detach().copy_(flat.view(tensor.shape))


def output(out: Tensor | None, shape: Sequence[int], tensor: Tensor) -> Tensor:
    """`out`, or a new tensor of `shape` like `tensor`, the input.

    ValueError unless `out` has as many elements as `shape`, and the dtype and device of `tensor`.
    """
    if out is None:
        return torch.empty(shape, dtype=tensor.dtype, device=tensor.device)
    same_size = out.numel() == math.prod(shape)
    if not (same_size and out.dtype == tensor.dtype and out.device == tensor.device):
        expected = described(torch.empty(shape, dtype=tensor.dtype, device="meta"), tensor.device)
        raise ValueError(f"out is {described(out, out.device)}: expected {expected}, "
                         f"or another shape of {math.prod(shape)} elements")
    return out


def described(tensor: Tensor, device: torch.device) -> str:
    """`float32[2, 3] on cpu`, for error messages."""
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)} on {device}"


def require_rows(tensor: Tensor) -> None:
    """ValueError for a tensor without a dim 0 to cut along."""
    if tensor.dim() == 0:
        raise ValueError("the tensor has no dimensions: expected one that can be cut along dim 0, shape (N, ...)")
