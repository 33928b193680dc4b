"""Which parameters are gathered together: a module is cut into units."""

from collections.abc import Callable, Mapping

import torch
from torch import nn

from course_lib.groups.membership import Member
from course_lib.groups.replaced import remember_replaced
from course_lib.zero.units import Home, Shards, Unit


def cut_into_units(module: nn.Module, should_shard: Callable[[str, nn.Module], bool] | None, me: Member,
                   compute_dtype: torch.dtype | None, offload: bool, groups: Mapping[str, Member]
                   ) -> tuple[list[Unit], list[nn.Parameter]]:
    """The units in the order of registration, outer ones first, and the parameters that lie in none of them."""
    chosen = blocks_and_the_whole(module) if should_shard is None else {
        name for name, submodule in module.named_modules() if should_shard(name, submodule)}
    members: dict[str | None, dict[nn.Parameter, list[Home]]] = {}
    for parameter, names in homes(module).items():
        unit = innermost_around([name for name, _ in names], chosen)
        if parameter.numel():
            members.setdefault(unit, {})[parameter] = [(module.get_submodule(name), key) for name, key in names]
    rest = list(members.pop(None, {}))
    remember_replaced([parameter for of_unit in members.values() for parameter in of_unit], "FullyShardedDataParallel")
    units, tag = [], 0
    for name in [name for name, _ in module.named_modules() if name in members]:
        shards = []
        for kind in dict.fromkeys((p.dtype, p.device) for p in members[name]):
            of_kind = {p: where for p, where in members[name].items() if (p.dtype, p.device) == kind}
            shards.append(Shards(of_kind, groups.get(name, me), compute_dtype, offload, tag))
            tag += 2
        units.append(Unit(name, module.get_submodule(name), shards))
    return units, rest


def blocks_and_the_whole(module: nn.Module) -> set[str]:
    lists = [name for name, submodule in module.named_modules() if isinstance(submodule, nn.ModuleList)]
    return {""} | {f"{name}.{key}" if name else key for name in lists
                   for key, _ in module.get_submodule(name).named_children()}


def homes(module: nn.Module) -> dict[nn.Parameter, list[tuple[str, str]]]:
    """Each parameter with all (name of a module, name in it) where it is registered."""
    found: dict[nn.Parameter, list[tuple[str, str]]] = {}
    for name, submodule in module.named_modules():
        for key, parameter in submodule._parameters.items():
            if parameter is not None:
                found.setdefault(parameter, []).append((name, key))
    return found


def innermost_around(names: list[str], chosen: set[str]) -> str | None:
    """The longest name in `chosen` of a module around all modules in `names`; None where there is none."""
    around = [unit for unit in chosen
              if all(not unit or name == unit or name.startswith(unit + ".") for name in names)]
    return max(around, key=len, default=None)
