"""The ranks that write a checkpoint together, also when there is one and no process group."""

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch.distributed as dist

from course_lib.groups.exchange import agree
from course_lib.groups.membership import member

T = TypeVar("T")


@dataclass(frozen=True)
class RankGroup:
    """Place `r` of `n`; `group` is None where there is no process group."""

    group: dist.ProcessGroup | None
    n: int
    r: int

    def everyones(self, fact: T) -> list[T]:
        """What each rank says, by place. Collective."""
        return [fact] if self.group is None else agree(None, fact, self.group)

    def each(self, do: Callable[[], T]) -> list[T]:
        """Each rank does it, and has all results; or all have the OSError or ValueError that one rank had. Collective.
        """
        said: tuple[Any, Exception | None]
        try:
            said = do(), None
        except (OSError, ValueError) as error:
            said = None, error
        everyones = self.everyones(said)
        for _, error in everyones:
            if error is not None:
                raise error
        return [result for result, _ in everyones]

    def first(self, do: Callable[[], T]) -> T:
        """What place 0 alone does: its result on every rank, or its error on all. Collective."""
        return self.each(do if self.r == 0 else lambda: None)[0]


def all_ranks() -> RankGroup:
    """The ranks of the world."""
    if not dist.is_initialized():
        return RankGroup(None, 1, 0)
    me = member()
    return RankGroup(me.group, me.n, me.r)


def beside() -> RankGroup:
    """The same ranks on a group of their own, through the host: what a thread says there does not meet what the step
    says meanwhile. Made once; collective.
    """
    ranks = all_ranks()
    if ranks.group is None:
        return ranks
    if ranks.group not in _beside:
        _beside[ranks.group] = dist.new_group(backend="gloo")
    return RankGroup(_beside[ranks.group], ranks.n, ranks.r)


_beside: "weakref.WeakKeyDictionary[dist.ProcessGroup, dist.ProcessGroup]" = weakref.WeakKeyDictionary()
