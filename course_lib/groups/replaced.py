"""Parameters that were cut, and replaced by their parts: whoever made an optimiser before steps on what no module uses.

Their .grad is None for ever, so that such an optimiser changes nothing, and says nothing.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

REPLACED_BY = "_replaced_by"


def remember_replacement(parameters: Iterable[nn.Parameter], by: str) -> None:
    """From now on an optimiser of one of `parameters` raises ValueError when it steps. `by`: who has cut them."""
    for parameter in parameters:
        setattr(parameter, REPLACED_BY, by)


def require_parts(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    for by in (getattr(p, REPLACED_BY, None) for options in optimizer.param_groups for p in options["params"]):
        if by is not None:
            raise ValueError(f"this {type(optimizer).__name__} was made before {by} cut the parameters it steps on: "
                             "expected an optimiser made afterwards, of the parameters() that the module has then")


# For all optimisers there are and will be: who cuts a parameter does not know who steps on it.
register_optimizer_step_pre_hook(require_parts)
