"""The optimiser of a HybridModel: any class of torch's, sharded as the layout says.

    stage 0, 3    one optimiser of what the rank has
    stage 1, 2    a ZeroOptimizer for each row of KINDS that is averaged over ranks of its own: experts over edp, the
                  rest over dp and cp. A parameter that two stages of the pipeline hold is with stage 1 in any case,
                  since its gradient is complete only when the stages have added up theirs
"""

from collections.abc import Iterable
from itertools import groupby
from typing import Any

import torch
from torch import Tensor, nn

from course_lib.hybrid_parallel.model import HybridModel
from course_lib.zero import ZeroOptimizer


class HybridOptimizer:
    """`parts` are the optimisers of torch behind it, and `param_groups` all of theirs, for a learning rate.

    defaults: of the optimiser class, lr=1e-3, weight_decay=0.1 say.
    """

    def __init__(self, model: HybridModel, optimizer_class: type[torch.optim.Optimizer] = torch.optim.AdamW,
                 **defaults: Any) -> None:
        self.model, stage = model, model.layout.zero_stage
        trained = [(name, parameter) for name, parameter in model.named_parts() if parameter.requires_grad]
        if stage in (1, 2):
            self.parts = [ZeroOptimizer(parameters, optimizer_class, stage_here, model.layout.member(*axes).group,
                                        **defaults)
                          for (axes, stage_here), parameters in by_ranks_and_stage(model, trained)]
        else:
            self.parts = [optimizer_class([parameter for _, parameter in trained], **defaults)]
        # The model asks it for gradients: under ZeRO 1 and 2 they are not in .grad.
        model.optimizer = self

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The groups of all parts: a learning rate that is set in each reaches every parameter."""
        return [group for part in self.parts for group in part.param_groups]

    def average_gradients(self) -> None:
        """Finish what ZeRO has to average, so that .grad can be read or clipped before step()."""
        for part in self.parts:
            if isinstance(part, ZeroOptimizer):
                part.average_gradients()

    def step(self) -> None:
        """Step on this rank's part of the parameters. Collective under ZeRO 1 and 2."""
        for part in self.parts:
            part.step()

    def zero_grad(self) -> None:
        """Forget the gradients of all parts."""
        for part in self.parts:
            part.zero_grad()

    def gradients(self) -> dict[str, Tensor]:
        """What each part steps on, by the parameter's name: .grad, or this rank's piece of it."""
        found = {}
        for name, parameter in self.model.named_parts():
            stepped = self.part_to_step(parameter)
            if stepped is not None and stepped.grad is not None:
                found[name] = stepped.grad
        return found

    def part_to_step(self, parameter: nn.Parameter) -> nn.Parameter | None:
        """What the optimiser steps on for `parameter`: itself, or this rank's piece of it; None where it has none."""
        for part in self.parts:
            if isinstance(part, ZeroOptimizer) and parameter in part.bucket_of:
                piece = part.pieces.get(parameter)
                return None if piece is None else piece.owned
        return parameter

    def range_of(self, parameter: nn.Parameter) -> tuple[int, int] | None:
        """Which numbers of the parameter that piece is, of all in a row; None where it is not cut."""
        piece = next((part.pieces[parameter] for part in self.parts
                      if isinstance(part, ZeroOptimizer) and parameter in part.pieces), None)
        return None if piece is None else (piece.first, piece.last)

    def tensors(self) -> list[Tensor]:
        """The state of all parts, for record_memory(optimizer_state=optimizer.tensors)."""
        return [value for part in self.parts for of_one in part.state.values() for value in of_one.values()
                if isinstance(value, Tensor)]


def by_ranks_and_stage(model: HybridModel, trained: Iterable[tuple[str, nn.Parameter]]
                       ) -> list[tuple[tuple[tuple[str, ...], int], list[nn.Parameter]]]:
    """((axes, ZeRO stage), parameters) of each ZeroOptimizer that the layout needs."""
    def where(named: tuple[str, nn.Parameter]) -> tuple[tuple[str, ...], int]:
        kind = model.kinds[named[0]]
        return kind.averaged, 1 if "pp" in kind.in_backward else model.layout.zero_stage

    # Sorted: groupby joins neighbours only, and all ranks must make their optimisers in one order.
    return [(key, [parameter for _, parameter in some]) for key, some in groupby(sorted(trained, key=where), where)]
