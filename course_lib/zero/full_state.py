"""What fully sharded ranks hold, put together as if nothing were sharded; and the other way."""

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from course_lib.groups.exchange import start_all_gather
from course_lib.groups.membership import Member
from course_lib.zero.consolidate import numbered, packed_groups
from course_lib.zero.units import ShardedParameter

if TYPE_CHECKING:
    from course_lib.zero.fsdp import FullyShardedDataParallel


@torch.no_grad()
def whole(shard: Tensor, parameter: ShardedParameter, me: Member, device: torch.device) -> Tensor:
    """All ranks' `shard` (S_i,) in the parameter's shape, on the host. Collective."""
    flat = torch.empty(me.n * parameter.S, dtype=shard.dtype, device=device)
    flat.chunk(me.n)[me.r].copy_(shard)
    start_all_gather(flat, me, tag=0)()
    return flat[:parameter.shape.numel()].view(parameter.shape).to("cpu", copy=True)


def cut(tensor: Tensor, parameter: ShardedParameter, me: Member) -> Tensor:
    """This rank's shard (S_i,) of a `tensor` in the parameter's shape."""
    if tensor.shape != parameter.shape:
        raise ValueError(f"a tensor of shape {list(tensor.shape)} for a parameter of shape {list(parameter.shape)}: "
                         "expected the state of the same module, unsharded")
    shard = tensor.new_zeros(parameter.S)
    mine = tensor.detach().reshape(-1)[me.r * parameter.S:(me.r + 1) * parameter.S]
    shard[:len(mine)] = mine
    return shard


def by_shard(model: "FullyShardedDataParallel") -> dict[nn.Parameter, ShardedParameter]:
    return {p.sharded: p for unit in model.units for p in unit.parameters}


def full_state_dict(model: "FullyShardedDataParallel") -> dict[str, Tensor]:
    sharded, wholes, state = by_shard(model), {}, {}
    named = dict(model.module.named_parameters(remove_duplicate=False))
    for name, value in model.module.state_dict().items():
        parameter = sharded.get(named.get(name))
        if parameter is None:
            state[name] = value.detach().to("cpu", copy=True) if isinstance(value, Tensor) else value
        else:
            if parameter not in wholes:  # a tied one is gathered once
                wholes[parameter] = whole(parameter.sharded, parameter, model.member, model.device)
            state[name] = wholes[parameter]
    return state


@torch.no_grad()
def load_full_state_dict(model: "FullyShardedDataParallel", state_dict: dict[str, Tensor]) -> None:
    sharded, own = by_shard(model), model.module.state_dict(keep_vars=True)
    if own.keys() != state_dict.keys():
        raise ValueError(f"the state has {sorted(state_dict.keys() - own.keys())} too many and lacks "
                         f"{sorted(own.keys() - state_dict.keys())}: expected the state_dict of the same module")
    for name, target in own.items():
        parameter, value = sharded.get(target), state_dict[name]
        if parameter is not None:
            target.copy_(cut(value, parameter, model.member))
        elif isinstance(target, Tensor):
            target.copy_(value)


def full_optimizer_state_dict(model: "FullyShardedDataParallel", optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    sharded, state = by_shard(model), {}
    for parameter, number in numbered(optimizer.param_groups).items():
        of_one = optimizer.state.get(parameter)
        if not of_one:
            continue
        info = sharded.get(parameter)
        state[number] = {key: whole(value, info, model.member, model.device)
                         if info is not None and isinstance(value, Tensor) and value.shape == parameter.shape else
                         value.detach().cpu().clone() if isinstance(value, Tensor) else value
                         for key, value in of_one.items()}
    return {"state": state, "param_groups": packed_groups(optimizer.param_groups)}


def load_full_optimizer_state_dict(model: "FullyShardedDataParallel", optimizer: torch.optim.Optimizer,
                                   state_dict: dict[str, Any]) -> None:
    sharded = by_shard(model)
    parameters = [p for options in optimizer.param_groups for p in options["params"]]
    numbers = [number for options in state_dict["param_groups"] for number in options["params"]]
    if len(parameters) != len(numbers):
        raise ValueError(f"the saved optimiser has {len(numbers)} parameters: expected {len(parameters)}")
    state = {}
    for number, parameter in zip(numbers, parameters):
        info, of_one = sharded.get(parameter), state_dict["state"].get(number)
        if of_one is not None:
            state[number] = {key: cut(value, info, model.member)
                             if info is not None and isinstance(value, Tensor) and value.shape == info.shape
                             and key != "step" else value for key, value in of_one.items()}
    optimizer.load_state_dict({"state": state, "param_groups": state_dict["param_groups"]})
