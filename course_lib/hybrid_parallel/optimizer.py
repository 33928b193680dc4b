"""The optimiser of a HybridModel: any class of torch's, sharded as the layout says; its gradient's norm and its rate.

    stage 0, 3    one optimiser of what the rank has
    stage 1, 2    a ZeroOptimizer for each row of KINDS that is averaged over ranks of its own: experts over edp, the
                  rest over dp and cp. A parameter that two stages of the pipeline hold is with stage 1 in any case,
                  since its gradient is complete only when the stages have added up theirs

Of the whole model's gradient each rank has pieces, and in its norm every number counts once:

    split over tp, on another stage, sharded by ZeRO     pieces: they add up
    the same on all ranks of an axis                     one of them counts it
    tied: on two stages                                  the stage counts it where the parameter comes first

One number is added up over the world. torch's clip_grad_norm_ would take this rank's pieces for all there is; adding up
all ranks' squares would count what tp and dp have in common tp and dp times.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from course_lib.groups.gradients import clip, total_norm
from course_lib.groups.membership import member
from course_lib.hybrid_parallel.kinds import counts_here
from course_lib.hybrid_parallel.model import HybridModel, gradients_here
from course_lib.runtime import device
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

    def first_of(self, parameter: nn.Parameter) -> int | None:
        """Where in the parameter that piece begins, of all numbers in a row; None where it is not cut."""
        return next((part.pieces[parameter].first for part in self.parts
                     if isinstance(part, ZeroOptimizer) and parameter in part.pieces), None)

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


@torch.no_grad()
def clip_grad_norm_(model: HybridModel, max_norm: float, norm_type: float = 2.0) -> Tensor:
    """Scale all gradients so that the norm of the whole model's is at most `max_norm`; returns what it was.

    After forward_backward, on all ranks; norm_type is 1, 2, math.inf or any other number above 0.
    """
    gradients = gradients_here(model)
    counted = [gradient for name, gradient in gradients.items()
               if is_counted_here(model, name, model.shards_gradient(name))]
    norm = total_norm(counted, [], norm_type, member(), device())
    # All that are here, also those that another rank counted: copies have to stay equal.
    clip(list(gradients.values()), max_norm, norm)
    return norm


def is_counted_here(model: HybridModel, name: str, sharded: bool) -> bool:
    """Whether this rank counts its piece of what belongs to the parameter.

    sharded: ZeRO has cut it over the ranks that average gradients.
    """
    if model.tied.get(name, name) != name and "pp" in model.kinds[name].in_backward:
        return False
    return counts_here(model.kinds[name], model.layout, dist.get_rank(), sharded)


@dataclass(frozen=True)
class LearningRate:
    """The schedule: up in a straight line, then down along a cosine.

    peak: reached after `warmup_steps`. total_steps: where the cosine ends, at final * peak; None stays at the peak.
    Source: Loshchilov and Hutter 2017, "SGDR"; a tenth of the peak in the end, as GPT-3 has it (Brown et al. 2020).
    """

    peak: float = 1e-3
    warmup_steps: int = 0
    total_steps: int | None = None
    final: float = 0.1

    def __post_init__(self) -> None:
        if not self.peak > 0 or self.warmup_steps < 0 or not 0 <= self.final <= 1:
            raise ValueError(f"{self}: expected a peak above 0, warmup_steps of at least 0, final from 0 to 1")
        if self.total_steps is not None and self.total_steps <= self.warmup_steps:
            raise ValueError(f"total_steps={self.total_steps} with warmup_steps={self.warmup_steps}: expected more")

    def __call__(self, step: int) -> float:
        """The learning rate of step `step`, from 0."""
        if step < self.warmup_steps:
            return self.peak * (step + 1) / (self.warmup_steps + 1)
        if self.total_steps is None:
            return self.peak
        done = min(1.0, (step - self.warmup_steps) / (self.total_steps - self.warmup_steps))
        return self.peak * (self.final + (1 - self.final) * (1 + math.cos(math.pi * done)) / 2)
