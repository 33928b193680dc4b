"""Who am I in a group, messages to its other ranks, and what every chapter asks of its arguments.

    n  ranks in the group      r  this rank's place among them, 0 <= r < n

Places, not global ranks: an algorithm is the same in the world and in a sub-group. A backend sends what is contiguous
and lies where its wire begins: `sendable` makes it so.
"""

import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from course_lib.runtime import backends
from course_lib.runtime.torch_private import name_new_groups


@dataclass(frozen=True)
class Member:
    """This rank as a member of a group: place `r` of `n`. Empty messages are not sent; both ends know their size."""

    group: dist.ProcessGroup
    n: int
    r: int

    def __deepcopy__(self, memo: dict) -> "Member":
        return self  # a copied module is in the same group, and no process group can be copied

    def wire(self, device: torch.device) -> torch.device:
        """Where a message about something on `device` has to lie: there, or in the host's memory (gloo)."""
        return backends.wire(self.group, device)

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

    def start_exchange(self, outgoing: Tensor, to: int, incoming: Tensor, source: int) -> Callable[[], Tensor]:
        """Begin to send and to receive. The function returned waits for both, and gives `incoming`.

        Until then `outgoing` must not change.
        """
        works = self._begin([(dist.irecv, incoming, source), (dist.isend, outgoing, to)])

        def finish() -> Tensor:
            for work in works:
                work.wait()
            return incoming

        return finish

    def start_send(self, tensor: Tensor, to: int) -> dist.Work:
        """Begin to send; `tensor` must not change before the returned work has been waited for."""
        return dist.isend(tensor, group=self.group, group_dst=to)

    def start_receive(self, tensor: Tensor, source: int) -> dist.Work:
        """Begin to receive; `tensor` is filled when the returned work has been waited for."""
        return dist.irecv(tensor, group=self.group, group_src=source)

    def _all_at_once(self, messages: list[tuple[Callable, Tensor, int]]) -> None:
        for work in self._begin(messages):
            work.wait()

    def _begin(self, messages: list[tuple[Callable, Tensor, int]]) -> list[dist.Work]:
        operations = [dist.P2POp(kind, tensor, group=self.group, group_peer=place)
                      for kind, tensor, place in messages if tensor.numel()]
        # In one batch, since NCCL works off one call after the other: two ranks that both send first would wait for
        # ever.
        return dist.batch_isend_irecv(operations) if operations else []

    def groups_of_links(self, links: Iterable[tuple[int, int]]) -> dict[tuple[int, int], dist.ProcessGroup]:
        """New process groups of two ranks, one for each link (source, dest) that this rank is an end of.

        All ranks of this group ask for the same links, and each makes its own.
        """
        ranks = dist.get_process_group_ranks(self.group)
        _numbers[self.group] = number = _numbers.get(self.group, 0) + 1  # torch keeps groups by name
        # In one order on all ranks, or two would wait for each other. Every second pair comes first, so that a chain's
        # pairs do not wait for one another all along.
        mine = [link for link in sorted(links, key=lambda link: (min(link) % 2, link)) if self.r in link]
        return {(source, dest): make_group([ranks[source], ranks[dest]],
                                           f"{self.group.group_name} links {number}: {source} to {dest}")
                for source, dest in mine}

    def place_of(self, rank: int, name: str) -> int:
        """The place of the global `rank`, the argument called `name`. ValueError when it is not in the group."""
        ranks = dist.get_process_group_ranks(self.group)
        if rank not in ranks:
            raise ValueError(f"{name}={rank!r} is not in the group: expected one of its global ranks {ranks}")
        return ranks.index(rank)


_numbers: "weakref.WeakKeyDictionary[dist.ProcessGroup, int]" = weakref.WeakKeyDictionary()  # times it was given links
_made: "weakref.WeakKeyDictionary[dist.ProcessGroup, dict[tuple[int, ...], dist.ProcessGroup]]" = \
    weakref.WeakKeyDictionary()  # the groups of ranks in a world
Group = Member | dist.ProcessGroup | None  # how a group is given; None is the world


def make_group(ranks: Sequence[int], name: str) -> dist.ProcessGroup:
    """A new process group of these global ranks, which all of them make, and nobody else needs to. `name` is new.

    torch makes an NCCL communicator by splitting the world's, in which all ranks of the world have to take part. So
    where only some are here, the world looks as if it had no device, and the group gets a communicator of its own: now,
    because one that is made by the first message holds up the sender until somebody receives. And torch would name the
    group by how many groups the rank is in, which others of its ranks need not be.
    """
    world = dist.group.WORLD
    bound, world.bound_device_id = world.bound_device_id, None
    try:
        with name_new_groups(name):
            return dist.new_group(list(ranks), use_local_synchronization=True, device_id=bound)
    finally:
        world.bound_device_id = bound


def group_of_ranks(ranks: Sequence[int]) -> dist.ProcessGroup:
    """The process group of these global ranks, this one among them: made together the first time, and kept."""
    if len(ranks) == dist.get_world_size():
        return dist.group.WORLD
    # By world: ranks that are launched again have a new one, and the groups of the old one are gone with it.
    made = _made.setdefault(dist.group.WORLD, {})
    key = tuple(sorted(ranks))
    if key not in made:
        made[key] = make_group(key, f"ranks {key}")
    return made[key]


def member(group: Group = None) -> Member:
    """This rank's place in `group`. ValueError where there is no group, or the rank is not in it."""
    if isinstance(group, Member):
        return group
    if not dist.is_initialized():
        raise ValueError("there is no process group: expected a call on a rank, inside a function given to launch")
    group = dist.group.WORLD if group is None else group
    if group is dist.GroupMember.NON_GROUP_MEMBER:
        raise ValueError(f"rank {dist.get_rank()} is not in the group it was given: expected a call "
                         "on the ranks listed in new_group, and on no other")
    if not isinstance(group, dist.ProcessGroup):
        raise ValueError(f"group={group!r} is not a group: expected None (the world) or what new_group returns")
    return Member(group, group.size(), group.rank())


SINGLE = Member(None, 1, 0)  # a group of one, which needs no process group: all is here, and nothing is sent


def member_or_single(group: Group = None) -> Member:
    """As member, but usable outside of launch, where the world is this one process."""
    return SINGLE if group is None and not dist.is_initialized() else member(group)


def sendable(tensor: Tensor, me: Member) -> Tensor:
    """`tensor` as a backend can send it: contiguous, outside autograd, and where the group's wire begins.

    The very same memory where it is so already, otherwise a copy.
    """
    return tensor.detach().to(me.wire(tensor.device)).contiguous()


def describe(tensor: Tensor, device: torch.device | str | None = None) -> str:
    """`float32[2, 3] on cpu`, for error messages; `device` where another one than the tensor's own is to be named."""
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)} on {device or tensor.device}"


def require_kind(value: Any, kind: type = nn.Module, name: str = "module") -> None:
    """ValueError unless `value`, the argument called `name`, is an nn.Module, or another `kind` of torch.nn."""
    if not isinstance(value, kind):
        raise ValueError(f"{name}={value!r} is a {type(value).__name__}: expected an nn.{kind.__name__}")


def is_whole(value: Any, least: int) -> bool:
    """Whether `value` is an int, and no bool, of `least` or more."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def as_autocast(*tensors: Tensor | None) -> list[Tensor | None]:
    """What F.linear would make of its arguments under torch.autocast: an autograd.Function has to do so itself."""
    kind = tensors[0].device.type
    if not torch.is_autocast_enabled(kind):
        return list(tensors)
    return [tensor if tensor is None else tensor.to(torch.get_autocast_dtype(kind)) for tensor in tensors]
