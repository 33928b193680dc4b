"""What fully sharded ranks hold, put together as if nothing were sharded; and the other way.

`shards`: for each parameter that a module has now, a flat piece, what it is a piece of.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from course_lib.groups.exchange import start_all_gather
from course_lib.groups.membership import Member
from course_lib.zero.consolidate import number_groups, number_parameters
from course_lib.zero.units import ShardedParameter

Shards = Mapping[nn.Parameter, ShardedParameter]


@torch.no_grad()
def gather_whole(shard: Tensor, parameter: ShardedParameter, me: Member) -> Tensor:
    """All ranks' `shard` (S_i,) in the parameter's shape, on the host. Collective."""
    flat = torch.empty(me.n * parameter.S, dtype=shard.dtype, device=parameter.padded.device)
    flat.chunk(me.n)[me.r].copy_(shard)
    start_all_gather(flat, me, tag=0)()
    return flat[:parameter.shape.numel()].view(parameter.shape).to("cpu", copy=True)


def take_shard(whole: Tensor, parameter: ShardedParameter, me: Member) -> Tensor:
    """This rank's shard (S_i,) of a tensor in the parameter's shape."""
    if whole.shape != parameter.shape:
        raise ValueError(f"a tensor of shape {list(whole.shape)} for a parameter of shape {list(parameter.shape)}: "
                         "expected the state of the same module, unsharded")
    shard = whole.new_zeros(parameter.S)
    mine = whole.detach().reshape(-1)[me.r * parameter.S:(me.r + 1) * parameter.S]
    shard[:len(mine)] = mine
    return shard


def gather_module(module: nn.Module, shards: Shards, me: Member) -> dict[str, Tensor]:
    """See FullyShardedDataParallel.full_state_dict."""
    wholes, state = {}, {}
    named = dict(module.named_parameters(remove_duplicate=False))
    for name, value in module.state_dict().items():
        parameter = shards.get(named.get(name))
        if parameter is None:
            state[name] = value.detach().to("cpu", copy=True) if isinstance(value, Tensor) else value
        else:
            if parameter not in wholes:  # a tied one is gathered once
                wholes[parameter] = gather_whole(parameter.sharded, parameter, me)
            state[name] = wholes[parameter]
    return state


@torch.no_grad()
def load_module(module: nn.Module, shards: Shards, me: Member, saved: dict[str, Tensor]) -> None:
    """See FullyShardedDataParallel.load_full_state_dict."""
    own = module.state_dict(keep_vars=True)
    if own.keys() != saved.keys():
        raise ValueError(f"the state has {sorted(saved.keys() - own.keys())} too many and lacks "
                         f"{sorted(own.keys() - saved.keys())}: expected the state_dict of the same module")
    for name, target in own.items():
        parameter, value = shards.get(target), saved[name]
        if parameter is not None:
            target.copy_(take_shard(value, parameter, me))
        elif isinstance(target, Tensor):
            target.copy_(value)


def gather_optimizer(optimizer: torch.optim.Optimizer, shards: Shards, me: Member) -> dict[str, Any]:
    """See FullyShardedDataParallel.full_optimizer_state_dict."""
    state = {}
    for parameter, number in number_parameters(optimizer.param_groups).items():
        of_one = optimizer.state.get(parameter)
        if not of_one:
            continue
        shard = shards.get(parameter)
        state[number] = {key: gather_whole(value, shard, me)
                         if shard is not None and isinstance(value, Tensor) and value.shape == parameter.shape else
                         value.detach().cpu().clone() if isinstance(value, Tensor) else value
                         for key, value in of_one.items()}
    return {"state": state, "param_groups": number_groups(optimizer.param_groups)}


def load_optimizer(optimizer: torch.optim.Optimizer, shards: Shards, me: Member, saved: dict[str, Any]) -> None:
    """See FullyShardedDataParallel.load_full_optimizer_state_dict."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    numbers = [number for group in saved["param_groups"] for number in group["params"]]
    if len(parameters) != len(numbers):
        raise ValueError(f"the saved optimiser has {len(numbers)} parameters: expected {len(parameters)}")
    state = {}
    for number, parameter in zip(numbers, parameters):
        shard, of_one = shards.get(parameter), saved["state"].get(number)
        if of_one is not None:
            state[number] = {key: take_shard(value, shard, me)
                             if shard is not None and isinstance(value, Tensor) and value.shape == shard.shape
                             and key != "step" else value for key, value in of_one.items()}
    optimizer.load_state_dict({"state": state, "param_groups": saved["param_groups"]})
