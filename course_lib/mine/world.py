"""torch.distributed, as code sees it whose whole world is one group of a larger run.

The exercises are written for the world: `dist.get_rank()`, `dist.all_reduce(x)`, `dist.isend(x, 1)`. In training the
same code works for the two ranks of tp, or the four of dp. So what it imports as torch.distributed is a World: every
call that names no group goes to this one, and ranks are counted in it.
"""

import functools
import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.distributed as dist

from course_lib.groups.membership import Member

PEERS = ("src", "dst", "peer")  # global ranks for torch; their names in a group begin with group_


class World:
    """sending(): a context around each call. instead: functions given out in the place of torch's."""

    def __init__(self, me: Member, sending: Callable[[], AbstractContextManager], instead: dict[str, Callable]) -> None:
        self._me, self._sending, self._instead = me, sending, instead

    def __getattr__(self, name: str) -> Any:
        found = getattr(dist, name)
        if name in self._instead:
            return self._instead[name]
        if name == "P2POp":
            return self._message
        return self._in_group(found) if inspect.isfunction(found) else found

    def _in_group(self, function: Callable) -> Callable:
        signature = inspect.signature(function)

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            given = dict(signature.bind(*args, **kwargs).arguments)
            if "group" in signature.parameters and given.get("group") is None:
                given["group"] = self._me.group
                for peer in PEERS:
                    if given.get(peer) is not None:
                        given[f"group_{peer}"] = given.pop(peer)
            with self._sending():
                return function(**given)

        return call

    def _message(self, op: Callable, tensor: torch.Tensor, peer: int | None = None, group: Any = None, tag: int = 0,
                 group_peer: int | None = None) -> dist.P2POp:
        op = inspect.unwrap(op, stop=lambda each: each in (dist.isend, dist.irecv))
        if group is not None:
            return dist.P2POp(op, tensor, peer, group, tag, group_peer)
        return dist.P2POp(op, tensor, group=self._me.group, tag=tag,
                          group_peer=peer if group_peer is None else group_peer)


class Torch:
    """torch, whose torch.distributed is a World."""

    def __init__(self, world: World) -> None:
        self.distributed = world

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


def modules_of(world: World) -> dict[str, Any]:
    """The modules that code in this world imports, by name."""
    return {"torch": Torch(world), "torch.distributed": world}
