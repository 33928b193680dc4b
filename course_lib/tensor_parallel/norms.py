"""The norm of a gradient of which each rank has a part: slices add up, and what all ranks have whole counts once."""

import torch
from torch import Tensor, nn

from course_lib.groups.norms import clip, total_norm
from course_lib.tensor_parallel.linear import CutModule


def cut_modules(model: nn.Module) -> list[CutModule]:
    """The modules of `model` that hold slices. ValueError where there is none."""
    found = [module for module in model.modules() if isinstance(module, CutModule)]
    if not found:
        raise ValueError(f"this {type(model).__name__} has no tensor-parallel layer: expected one that parallelize has "
                         "cut, or that has a ColumnParallelLinear")
    return found


@torch.no_grad()
def clip_grad_norm_(model: nn.Module, max_norm: float, norm_type: float = 2.0) -> Tensor:
    """Scale all gradients so that the norm of the whole model's is at most `max_norm`; returns what it was.

    Collective: one number. torch.nn.utils.clip_grad_norm_ would take the slices of this rank for all there is, so that
    ranks would scale differently; and adding up all ranks' squares would count what is whole t times.
    """
    cut = cut_modules(model)
    # A layer without a bias has None in its place.
    slices = {module._parameters[name] for module in cut for name in module.cuts} - {None}
    trained = [parameter for parameter in model.parameters() if parameter.grad is not None]
    parts = [parameter.grad for parameter in trained if parameter in slices]
    # All ranks hold the same gradient of these: one of t equal squares counts.
    wholes = [parameter.grad for parameter in trained if parameter not in slices]
    device = trained[0].device if trained else torch.device("cpu")
    norm = total_norm(parts, wholes, norm_type, cut[0].member, device)
    clip([*parts, *wholes], max_norm, norm)
    return norm
