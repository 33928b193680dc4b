"""Parameters that lie on several ranks, such as an embedding that is the head as well: one gradient for all copies.

Each copy gets the gradient of its own use. The parameter's is their sum, and with it all copies take the same step.
"""

import functools
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn

from course_lib.groups.gradients import is_missing, mark_missing, write_gradient
from course_lib.groups.membership import Member
from course_lib.groups.tensors import sendable


def shared_parameters(stages: Sequence[nn.Module]) -> dict[str, nn.Parameter]:
    """This rank's parameters that other stages hold as well, by the name that all give them (see Stage.shared)."""
    return {common: stage.get_parameter(name) for stage in stages
            for name, common in getattr(stage, "shared", {}).items() if stage.get_parameter(name).requires_grad}


class SharedGradients:
    """The gradients of shared parameters in a step: `begin` before, `finish` after the last backward pass."""

    def __init__(self, mine: dict[str, nn.Parameter], everyones: list[list[str]], me: Member) -> None:
        self.me = me
        places = {name: [place for place, names in enumerate(everyones) if name in names] for name in mine}
        self.places = {name: places[name] for name in sorted(mine) if len(places[name]) > 1}
        self.parameters = mine

    def begin(self) -> None:
        """What earlier steps left in .grad is a sum already: put it aside."""
        self.before = {name: self.parameters[name].grad for name in self.places}
        for name in self.places:
            self.parameters[name].grad = None

    @torch.no_grad()
    def finish(self) -> None:
        """Sum the copies' gradients, in the same order on each rank, so that the copies stay equal to the bit."""
        for name, places in self.places.items():
            parameter = self.parameters[name]
            mine = torch.empty_like(parameter)
            # Every holder sends, also one whose copy got no gradient: the others wait for its part.
            if parameter.grad is None:
                mark_missing(mine)
            else:
                write_gradient(parameter.grad, mine)
            # Every rank adds in the order of places, its own in its turn: floating-point sums depend on the order.
            total = functools.reduce(torch.add, self._from_all(sendable(mine, self.me), places)).to(parameter.device)
            parameter.grad = self.before[name]
            if is_missing(total):
                continue
            if parameter.grad is None:
                parameter.grad = total
            else:
                parameter.grad += total

    def _from_all(self, mine: Tensor, places: list[int]) -> list[Tensor]:
        others = [place for place in places if place != self.me.r]
        arriving = {place: torch.empty_like(mine) for place in others}
        operations = [dist.P2POp(kind, tensor, group=self.me.group, group_peer=place) for place in others
                      for kind, tensor in ((dist.irecv, arriving[place]), (dist.isend, mine))]
        for work in dist.batch_isend_irecv(operations):
            work.wait()
        return [arriving.get(place, mine) for place in places]
