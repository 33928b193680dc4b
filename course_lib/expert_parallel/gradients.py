"""What experts that are dealt out change for all others: averages of gradients, their norm, and the whole state.

    W ranks that hold different tokens     R ranks that share the experts, W/R times      the loss: mean over all W

    router, attention, ...   on every rank: its own tokens' gradient            summed over the world,   divided by W
    experts                  on W/R ranks: the gradient of R ranks' tokens      summed over these W/R,   divided by W

Backward's all-to-all has added up the tokens of R ranks already, so a mean over the W/R copies would leave experts with
gradients R times too large. AdamW hides it: a step does not change when its gradient is multiplied by a number; with
clipping, weight decay or SGD it does.

Sources: Rajbhandari et al. 2022, "DeepSpeed-MoE"; Megatron-LM's expert data parallel group.
"""

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor, nn

from course_lib.costs.splitting import experts_per_rank
from course_lib.expert_parallel.layer import MoELayer, moe_layers
from course_lib.groups.gradients import average_gradients as average
from course_lib.groups.gradients import clip_total_norm
from course_lib.groups.membership import SINGLE, Group, Member, member_or_single, sendable


def make_groups(ranks_per_group: int) -> tuple[dist.ProcessGroup, dist.ProcessGroup]:
    """(the group that shares the experts, the group that holds the same ones) of this rank.

    Neighbours share: ranks 0 to R-1, R to 2R-1, and so on. Collective over the world; ValueError where R does not
    divide it.
    """
    W, R, rank = dist.get_world_size(), ranks_per_group, dist.get_rank()
    if R < 1 or W % R:
        raise ValueError(f"ranks_per_group={R} of {W} ranks: expected a number that divides them")
    shared = [dist.new_group(range(first, first + R)) for first in range(0, W, R)]
    same = [dist.new_group(range(first, W, R)) for first in range(R)]
    return shared[rank // R], same[rank % R]


def average_gradients(model: nn.Module, group: Group = None, same_experts: Group = None) -> None:
    """After backward of each rank's mean loss: all gradients become those of the mean over the ranks of `group`.

    group: the ranks that hold different tokens. same_experts: among them those that hold the same experts (expert data
    parallel); None where the layers themselves say it, since the whole group shares the experts, or nobody shares them.
    Two messages for each dtype. Once for each backward pass from zero, on all ranks.
    """
    world = member_or_single(group)
    sharing = {layer.member.n for layer in moe_layers(model)}
    if same_experts is None:
        if not sharing <= {1, world.n}:
            raise ValueError(f"experts are shared by {sorted(sharing)} of {world.n} ranks: expected same_experts, the "
                             "ranks that hold the same ones; make_groups gives both")
        same_experts = world if sharing == {1} else SINGLE
    same = member_or_single(same_experts)
    if sharing != {world.n // same.n}:
        raise ValueError(f"experts are shared by {sorted(sharing)} ranks and held {same.n} times in a group of "
                         f"{world.n}: expected numbers that multiply to it")
    average_expert_gradients(expert_parameters(model), same, world.n)
    average_replicated_gradients(replicated_parameters(model), world)


def average_expert_gradients(parameters: Iterable[nn.Parameter], same_experts: Group, num_ranks: int) -> None:
    """Sum over the ranks that hold the same experts, divided by all `num_ranks` whose tokens went into it."""
    average(parameters, member_or_single(same_experts), divide_by=num_ranks)


def average_replicated_gradients(parameters: Iterable[nn.Parameter], group: Group = None) -> None:
    """Mean over all ranks: of routers, shared experts, and whatever is no expert."""
    average(parameters, member_or_single(group))


def expert_parameters(model: nn.Module) -> list[nn.Parameter]:
    """The parameters that are dealt out over ranks: those of experts, not of routers nor of shared experts."""
    return list(dict.fromkeys(p for layer in moe_layers(model) for p in layer.experts.parameters()))


def replicated_parameters(model: nn.Module) -> list[nn.Parameter]:
    """The parameters that every rank holds whole: all but expert_parameters."""
    experts = set(expert_parameters(model))
    return [parameter for parameter in model.parameters() if parameter not in experts]


def clip_grad_norm_(model: nn.Module, max_norm: float, norm_type: float = 2.0) -> Tensor:
    """Scale all gradients so that the norm of the whole model's is at most `max_norm`; returns what it was.

    After average_gradients. Experts add up over the ranks that share them, all else counts once. Collective: one
    number, among the ranks that share the experts of the first layer.
    """
    experts = [p.grad for p in expert_parameters(model) if p.grad is not None]
    others = [p.grad for p in replicated_parameters(model) if p.grad is not None]
    return clip_total_norm(experts, others, max_norm, norm_type, moe_layers(model)[0].member,
                           next(model.parameters()).device)


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
