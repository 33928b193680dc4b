"""The norm of the whole model's gradient, of which each rank has pieces: every number counts once.

    split over tp, on another stage, sharded by ZeRO     pieces: they add up
    the same on all ranks of an axis                     one of them counts it
    tied: on two stages                                  the stage counts it where the parameter comes first

One number is added up over the world. torch's clip_grad_norm_ would take this rank's pieces for all there is; adding up
all ranks' squares would count what tp and dp have in common tp and dp times.
"""

import torch
import torch.distributed as dist
from torch import Tensor

from course_lib.groups.gradients import clip, total_norm
from course_lib.groups.membership import member
from course_lib.hybrid_parallel.kinds import counts_here
from course_lib.hybrid_parallel.model import HybridModel
from course_lib.runtime import device


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


def gradients_here(model: HybridModel) -> dict[str, Tensor]:
    """What this rank has of the gradient, by name: what its optimiser will step on."""
    if model.optimizer is not None:
        return model.optimizer.gradients()
    return {name: parameter.grad for name, parameter in model.named_parts() if parameter.grad is not None}


def is_counted_here(model: HybridModel, name: str, sharded: bool) -> bool:
    """Whether this rank counts its piece of what belongs to the parameter; who writes it, checkpoint.dealing says.

    sharded: ZeRO has cut it over the ranks that average gradients.
    """
    if model.tied.get(name, name) != name and "pp" in model.kinds[name].in_backward:
        return False
    return counts_here(model.kinds[name], model.layout, dist.get_rank(), sharded)
