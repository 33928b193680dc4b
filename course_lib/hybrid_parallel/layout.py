"""A layout: how many ranks each axis has, and which rank stands where on the mesh that they span.

    axis   what its ranks split           what they have in common       how often they talk
    tp     every matrix                   the tokens                     several times a layer
    cp     the tokens of each row         the parameters                 once a layer
    ep     the experts                    the parameters but experts     twice an expert layer
    etp    one expert's width             an expert's tokens             twice an expert layer
    dp     the rows of a batch            the parameters                 once a step
    pp     the layers                     the rows                       once a micro-batch, with one neighbour

Ranks count through the mesh as digits of a number do: the first axis of `order` is the fastest, so its ranks are
neighbours, on one node where they fit. tp comes first, whose messages hide least (Narayanan et al. 2021); the axis
that hides its messages best may come last (Llama 3: tp, cp, pp, dp).

ep and etp have no ranks of their own: they are the ranks of dp, cp and tp, the plane of one stage, counted as `order`
says. Its first etp ranks hold the parts of the same experts, its first ep*etp ranks hold all experts, the next ep*etp
ranks hold them again, and so on: `edp` are those that hold the same numbers. So attention may be cut over tp, and
experts be dealt out over the same ranks. Source: Liu et al. 2025, "MoE Parallel Folding" (Megatron-Core); torchtitan.
"""

import re
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from math import prod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

    from course_lib.groups.membership import Member

AXES = ("dp", "pp", "cp", "tp")  # whose sizes multiply to the world's
PLANE = ("dp", "cp", "tp")  # what etp, ep and edp divide among themselves
OF_EXPERTS = ("etp", "ep", "edp")  # innermost first
EVERY_AXIS = (*AXES, "ep", "etp", "edp")


@dataclass(frozen=True)
class ParallelLayout:
    """dp * pp * cp * tp ranks. `order` names the axes, innermost first. ValueError for what is no layout.

    ep: ranks that share the experts; etp: those that share one expert's width. ep * etp divides dp * cp * tp.
    zero_stage: what the ranks of dp and cp, for experts of edp, shard: 0 nothing, 1 the optimiser's state, 2 and
    gradients, 3 and parameters.

    >>> layout = ParallelLayout(dp=2, tp=4)
    >>> layout.world_size
    8
    >>> ParallelLayout(dp=0)
    Traceback (most recent call last):
    ValueError: dp=0: expected a whole number of at least 1
    """

    dp: int = 1
    pp: int = 1
    cp: int = 1
    tp: int = 1
    ep: int = 1
    etp: int = 1
    zero_stage: int = 0
    order: str = "tp,cp,dp,pp"

    def __post_init__(self) -> None:
        for axis in (*AXES, "ep", "etp"):
            size = getattr(self, axis)
            if type(size) is not int or size < 1:
                raise ValueError(f"{axis}={size!r}: expected a whole number of at least 1")
        if type(self.zero_stage) is not int or not 0 <= self.zero_stage <= 3:
            raise ValueError(f"zero_stage={self.zero_stage!r}: expected 0, 1, 2 or 3")
        if not isinstance(self.order, str) or sorted(self.axes) != sorted(AXES):
            raise ValueError(f"order={self.order!r}: expected {', '.join(AXES)} in the order that you want, innermost "
                             "first, such as 'tp,cp,dp,pp'; ep and etp lie inside dp, cp and tp, and have no places of "
                             "their own")
        plane, asked = self.size(*PLANE), self.ep * self.etp
        if plane % asked:
            told = f"ep={self.ep} times etp={self.etp}" if self.etp > 1 else f"ep={self.ep}"
            raise ValueError(f"{told} with dp={self.dp}, cp={self.cp} and tp={self.tp}: expected a number that divides "
                             f"dp*cp*tp={plane}, since experts are dealt out to the ranks of dp, cp and tp")

    @classmethod
    def from_string(cls, text: str, order: str = order) -> "ParallelLayout":
        """The layout that "dp2,pp2,tp2" names, or "dp2,tp2,ep4,zero1". What is not named is 1, the ZeRO stage 0.

        >>> layout = ParallelLayout.from_string("dp2,pp2,tp2,zero1")
        >>> layout.pp, layout.cp, layout.zero_stage
        (2, 1, 1)
        """
        sizes: dict[str, int] = {}
        for word in text.replace(",", " ").split():
            found = re.fullmatch(r"(dp|pp|cp|tp|ep|etp|zero)=?(\d+)", word)
            if not found:
                raise ValueError(f"{word!r} in the layout {text!r}: expected dp, pp, cp, tp, ep, etp or zero and a "
                                 "number, such as 'dp2,pp2,tp2'")
            name = "zero_stage" if found[1] == "zero" else found[1]
            if name in sizes:
                raise ValueError(f"{found[1]} twice in the layout {text!r}: expected it once")
            sizes[name] = int(found[2])
        return cls(**sizes, order=order)

    def __str__(self) -> str:
        """What from_string reads; axes of 1 are left out."""
        named = [f"{axis}{getattr(self, axis)}" for axis in (*AXES, "ep", "etp") if getattr(self, axis) > 1]
        return ",".join([*named, *([f"zero{self.zero_stage}"] if self.zero_stage else [])]) or "dp1"

    # Sizes

    @property
    def axes(self) -> tuple[str, ...]:
        """`order` as a tuple, innermost first."""
        return tuple(axis.strip() for axis in self.order.split(","))

    @cached_property
    def world_size(self) -> int:
        """dp * pp * cp * tp; experts' axes lie inside these."""
        return self.size(*AXES)

    @cached_property
    def edp(self) -> int:
        """How many ranks hold the same numbers of the same experts: dp*cp*tp / (ep*etp)."""
        return self.size(*PLANE) // (self.ep * self.etp)

    def size(self, *axes: str) -> int:
        """How many ranks a group of these axes has."""
        return prod(getattr(self, axis) for axis in self._require_axes(axes))

    # Who is where

    def coordinates(self, rank: int) -> dict[str, int]:
        """{"dp": ..., "pp": ..., "cp": ..., "tp": ..., "ep": ...} of a global rank, each from 0.

        >>> ParallelLayout(dp=2, tp=4).coordinates(5)
        {'dp': 1, 'pp': 0, 'cp': 0, 'tp': 1, 'ep': 0}
        """
        where = self._everywhere(rank)
        return {axis: where[axis] for axis in (*AXES, "ep")}

    def rank(self, **coordinates: int) -> int:
        """The rank at these coordinates, 0 where one is not named: coordinates() the other way around.

        >>> ParallelLayout(dp=2, tp=4).rank(dp=1, tp=1)
        5
        """
        if unknown := coordinates.keys() - set(AXES):
            raise ValueError(f"{sorted(unknown)}: expected coordinates along {', '.join(AXES)}")
        rank, stride = 0, 1
        for axis in self.axes:
            place, size = coordinates.get(axis, 0), getattr(self, axis)
            if not 0 <= place < size:
                raise ValueError(f"{axis}={place!r} in a layout with {axis}={size}: expected 0 to {size - 1}")
            rank, stride = rank + place * stride, stride * size
        return rank

    def groups(self, *axes: str) -> list[list[int]]:
        """The ranks that differ along `axes` only, group by group: of "tp", or of several together, "dp", "cp".

        Ranks ascend within and between groups, in whatever order the axes are named. "ep" are ranks that hold all
        experts together, or the same part of all of them; "etp" the parts of the same experts; "edp" the same numbers.

        >>> ParallelLayout(dp=2, tp=4).groups("tp")  # neighbours
        [[0, 1, 2, 3], [4, 5, 6, 7]]
        >>> ParallelLayout(dp=2, tp=4).groups("dp")
        [[0, 4], [1, 5], [2, 6], [3, 7]]
        """
        groups: list[list[int]] = []
        in_a_group: set[int] = set()
        for rank in range(self.world_size):
            if rank not in in_a_group:
                groups.append(self.group_of(rank, *axes))
                in_a_group.update(groups[-1])
        return groups

    def group_of(self, rank: int, *axes: str) -> list[int]:
        """The ranks of the group of `axes` that `rank` is in, ascending.

        >>> ParallelLayout(dp=2, tp=4).group_of(5, "dp")
        [1, 5]
        """
        named, where = set(self._require_axes(axes)), self._everywhere(rank)
        # Only the ranks of this group are counted through, not the world: the planner asks for thousands.
        choices = [range(getattr(self, axis)) if axis in named else [where[axis]] for axis in self._basis(named)]
        points = (dict(zip(self._basis(named), point)) for point in product(*choices))
        return sorted(self.rank(**self._off_the_plane(point)) for point in points)

    # On ranks

    def member(self, *axes: str) -> "Member":
        """The calling rank's place in its group of `axes`. The first time its ranks make the process group together.

        ValueError on a world of another size.
        """
        from course_lib.groups.membership import group_of_ranks, member  # the planner lays out ranks without torch

        world = member()
        if world.n != self.world_size:
            raise ValueError(f"the layout {self} is one of {self.world_size} ranks, and the world has {world.n}: "
                             "expected as many")
        # Made where it is first asked for: a layout that is only planned needs no process group.
        return member(group_of_ranks(self.group_of(world.r, *axes)))

    def mesh(self) -> "DeviceMesh":
        """The same ranks as torch's DeviceMesh, outermost axis first, on the same process groups. On all ranks."""
        import torch
        from torch.distributed.device_mesh import DeviceMesh

        from course_lib.runtime import device

        names = self.axes[::-1]
        groups = [self.member(axis).group for axis in names]
        ranks = torch.arange(self.world_size, device="cpu").view([self.size(axis) for axis in names])
        return DeviceMesh.from_group(groups, device().type, ranks, mesh_dim_names=names)

    # Inside

    def _require_axes(self, axes: tuple[str, ...]) -> tuple[str, ...]:
        unknown = [axis for axis in axes if axis not in EVERY_AXIS]
        if unknown or not axes:
            raise ValueError(f"axes {list(axes)}: expected one or more of {', '.join(EVERY_AXIS)}")
        if set(axes) & set(OF_EXPERTS) and set(axes) & set(PLANE):
            raise ValueError(f"axes {list(axes)}: ep, etp and edp are the ranks of dp, cp and tp cut in another way; "
                             "expected the ones or the others")
        return tuple(dict.fromkeys(axes))

    def _basis(self, named: set[str]) -> tuple[str, ...]:
        """Axes that tell all ranks apart, those in `named` among them."""
        return ("pp", *OF_EXPERTS) if named & set(OF_EXPERTS) else AXES

    @cached_property
    def _plane(self) -> tuple[str, ...]:
        """dp, cp and tp, the innermost first."""
        return tuple(axis for axis in self.axes if axis in PLANE)

    def _everywhere(self, rank: int) -> dict[str, int]:
        """Coordinates along every axis, those of experts too."""
        if type(rank) is not int or not 0 <= rank < self.world_size:
            raise ValueError(f"rank={rank!r} in a layout of {self.world_size} ranks: expected 0 to "
                             f"{self.world_size - 1}")
        where, left = {}, rank
        for axis in self.axes:
            left, where[axis] = divmod(left, getattr(self, axis))
        return where | self._recount(where, self._plane, OF_EXPERTS)

    def _off_the_plane(self, point: dict[str, int]) -> dict[str, int]:
        """Coordinates along dp, pp, cp and tp of a point that may be named by those of experts."""
        return {"pp": point["pp"], **self._recount(point, OF_EXPERTS, self._plane)} if "ep" in point else point

    def _recount(self, where: dict[str, int], old: tuple[str, ...], new: tuple[str, ...]) -> dict[str, int]:
        """A place in the plane, given along the axes `old` as digits are, along the axes `new`; innermost first."""
        number, found = 0, {}
        for axis in reversed(old):  # the outermost digit first, as a number is read
            number = number * getattr(self, axis) + where[axis]
        for axis in new:
            number, found[axis] = divmod(number, getattr(self, axis))
        return found
