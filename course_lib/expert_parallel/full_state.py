"""The state of a model whose experts are dealt out as if all of them were here, in torch's own form."""

import torch
import torch.distributed as dist
from torch import Tensor, nn

from course_lib.costs.experts import experts_per_rank
from course_lib.expert_parallel.layer import MoELayer, moe_layers
from course_lib.groups.membership import Member
from course_lib.groups.tensors import sendable


def layers_by_name(model: nn.Module) -> dict[str, MoELayer]:
    """The layer of each entry of `model`'s state that is dealt out."""
    moe_layers(model)
    return {f"{prefix}.experts.{name}" if prefix else f"experts.{name}": layer
            for prefix, layer in model.named_modules(remove_duplicate=False) if isinstance(layer, MoELayer)
            for name in layer.experts.state_dict()}


def gather_experts(mine: Tensor, num_experts: int, me: Member) -> Tensor:
    """All experts' (E, ...), of which the ranks hold `mine` (E_r, ...). Collective: a broadcast from each rank."""
    parts = [sendable(mine, me) if me.n > 1 else mine]
    if me.n > 1:
        parts = [parts[0] if place == me.r else parts[0].new_empty(here, *mine.shape[1:])
                 for place, here in enumerate(experts_per_rank(num_experts, me.n))]
        # Ranks may hold different numbers of experts, and an all-gather takes parts of one size only.
        for place, part in enumerate(parts):
            dist.broadcast(part, group=me.group, group_src=place)
    return torch.cat(parts).to(mine.device)


@torch.no_grad()
def full_state_dict(model: nn.Module) -> dict[str, Tensor]:
    """The state_dict that the model would have with all experts in one place, on the host, on every rank. Collective.
    """
    layers, state, wholes = layers_by_name(model), {}, {}
    for name, value in model.state_dict(keep_vars=True).items():
        # A tied parameter has several names: it is gathered once.
        if isinstance(value, Tensor) and value not in wholes:
            layer = layers.get(name)
            whole = value.detach() if layer is None else gather_experts(value.detach(), layer.num_experts, layer.member)
            wholes[value] = whole.to("cpu", copy=True)
        state[name] = wholes[value] if isinstance(value, Tensor) else value
    return state
