"""A unit: the parameters of one module, a transformer block say, that are gathered together and freed together.

`cut_into_units` says which parameters make a unit. What a unit does with them has the phases of ZeRO 1 and 2, gather
and reduce; the step between is any optimiser's. `watch` sees in one process, which shards nothing, what a step needs of
memory: costs.sharding counts the peak of each stage from it.

    n ranks, r this one      S_i = ceil(numel_i / n) numbers of parameter i on each rank, the last ones padding
    S = sum of S_i: what one rank holds of the unit, and sends in one message

Parameter i exists twice. `sharded` (S_i,) is this rank's part, which the optimiser steps on; it lives as long as the
model. `whole` has the parameter's own shape and computes. Autograd saves views of it (`weight.t()`), so to free it we
free the storage that all of them share, and to gather it again we fill the same storage: the views are right again.

What arrives lies rank by rank and is copied parameter by parameter: for that moment a unit is there twice, as in
torch's fully_shard. Only a message for each parameter would spare it. step_peak counts it.
"""

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from enum import IntEnum
from itertools import accumulate

import torch
from torch import Tensor, nn

from course_lib.costs.sharding import BACKWARD, FORWARD, GRADIENT, LEFT, Event, Watched, shard_size
from course_lib.groups.exchange import start_all_gather, start_reduce_scatter
from course_lib.groups.gradients import find_missing, mark_missing, remember_replacement, write_gradient
from course_lib.groups.membership import Member
from course_lib.runtime import record_memory
from course_lib.runtime.beside import CopiesToHost, Copy, HostBlocks, start_copy
from course_lib.runtime.tensors import tensors_in

Home = tuple[nn.Module, str]  # where a parameter is registered; a tied one has several


@dataclass(eq=False)
class ShardedParameter:
    """One parameter of a unit. `padded` (n S_i,) is the memory behind `whole`, empty while it is not gathered."""

    homes: list[Home]
    shape: torch.Size
    S: int
    offset: int  # of its S numbers among those of the unit
    sharded: nn.Parameter
    whole: nn.Parameter
    padded: Tensor

    def register(self, which: nn.Parameter) -> None:
        """Where the module looks its parameter up, it finds `which`: `sharded` or `whole`."""
        for module, name in self.homes:
            module._parameters[name] = which


class Shards:
    """Those of a unit's parameters that have one dtype: what a message can hold.

    The trained ones come first, so that a message with gradients is the beginning of one with parameters.
    """

    def __init__(self, parameters: dict[nn.Parameter, list[Home]], me: Member, compute_dtype: torch.dtype | None,
                 offload: bool, tag: int, reduce_dtype: torch.dtype | None, copies: CopiesToHost) -> None:
        self.me, self.tag, self.copies = me, tag, copies
        ordered = sorted(parameters, key=lambda parameter: not parameter.requires_grad)  # stable
        sizes = [shard_size(p.numel(), me.n) for p in ordered]
        self.S = sum(sizes)
        self.S_trained = sum(size for p, size in zip(ordered, sizes) if p.requires_grad)
        like = ordered[0]
        self.device, self.dtype = like.device, like.dtype
        self.compute_dtype = compute_dtype if compute_dtype and self.dtype.is_floating_point else self.dtype
        self.reduce_dtype = reduce_dtype if self.dtype.is_floating_point else None
        self.on_host = HostBlocks(self.device) if offload else None
        self.own = self.new_numbers(self.S).zero_()  # (S,)
        self.parameters = [self.shard(p, parameters[p], size, offset) for p, size, offset in
                           zip(ordered, sizes, accumulate(sizes, initial=0))]
        self.arriving: tuple[Tensor, Callable[[], None]] | None = None  # an all-gather under way
        self.leaving: tuple[Tensor, Callable[[Tensor], Copy | None]] | None = None  # a reduce-scatter under way
        self.without: set[ShardedParameter] = set()  # those of it that had no gradient on this rank

    def new_numbers(self, num_elements: int) -> Tensor:
        """Where the shards live, and in their dtype; they hold anything."""
        if self.on_host is not None:
            return self.on_host.take(num_elements, self.dtype)
        return torch.empty(num_elements, dtype=self.dtype, device=self.device)

    def shard(self, original: nn.Parameter, homes: list[Home], S: int, offset: int) -> ShardedParameter:
        """Copy this rank's S numbers of `original` to `own`, and register the shard instead of it."""
        own = self.own[offset:offset + S]
        mine = original.detach().reshape(-1)[self.me.r * S:(self.me.r + 1) * S]
        own[:len(mine)] = mine
        sharded = nn.Parameter(own, requires_grad=original.requires_grad)
        padded = torch.empty(self.me.n * S, dtype=self.compute_dtype, device=self.device)
        whole = nn.Parameter(padded.new_empty(0), requires_grad=original.requires_grad)
        whole.data = padded[:original.numel()].view(original.shape)  # .data: its version does not count gathering
        padded.untyped_storage().resize_(0)
        parameter = ShardedParameter(homes, original.shape, S, offset, sharded, whole, padded)
        parameter.register(sharded)
        return parameter

    @property
    def trained(self) -> list[ShardedParameter]:
        return [p for p in self.parameters if p.offset < self.S_trained]

    # Gather: parameters

    def start_gather(self) -> None:
        """Send this rank's S numbers, and begin to receive everybody's, (n S,)."""
        flat = torch.empty(self.me.n * self.S, dtype=self.compute_dtype, device=self.device)
        # Rounded to compute_dtype, and from the host to the device: then the message goes behind the copy, and what
        # computes waits for neither of them yet.
        copy = start_copy(flat.chunk(self.me.n)[self.me.r], self.own)
        with copy or nullcontext():
            wait = start_all_gather(flat, self.me, self.tag)

        def finish() -> None:
            wait()
            if copy is not None:
                copy.join()

        self.arriving = flat, finish

    def finish_gather(self) -> None:
        """Wait for everybody's numbers, and put each parameter's together in the memory behind `whole`."""
        flat, wait = self.arriving
        self.arriving = None
        wait()
        for p in self.parameters:
            p.padded.untyped_storage().resize_(p.padded.numel() * p.padded.element_size())
        # It came rank by rank, and is wanted parameter by parameter: a column of it for each.
        by_rank = flat.view(self.me.n, self.S)  # (n S,) -> (n, S), of which columns (n, S_i) are parameter i, padded
        torch.split_with_sizes_copy(by_rank, [p.S for p in self.parameters], dim=1,
                                    out=[p.padded.view(self.me.n, p.S) for p in self.parameters])

    def free(self) -> None:
        """Empty the storage behind `whole`; the tensors stay, and so do views of them."""
        for p in self.parameters:
            p.padded.untyped_storage().resize_(0)

    # Reduce: gradients

    def start_reduce(self) -> None:
        """Send the gradients of the whole parameters, and free each as soon as it is in the message."""
        if not self.S_trained:
            return
        flat = torch.empty(self.me.n * self.S_trained, dtype=self.reduce_dtype or self.compute_dtype,
                           device=self.device)
        by_rank = flat.view(self.me.n, self.S_trained)
        self.without = {p for p in self.trained if p.whole.grad is None}
        # Rank j's part of every gradient has to lie in block j, so the gradients are cut and laid out in columns.
        for p in self.trained:
            lay_out(p.whole.grad, by_rank[:, p.offset:p.offset + p.S])
            p.whole.grad = None
        # One block ahead: memory for all others' blocks would be another whole unit's.
        self.leaving = flat, start_reduce_scatter(flat, self.me, self.tag + 1, 1, self.reduce_dtype)

    def finish_reduce(self) -> None:
        """Add the average to the shards' gradients, in the dtype of the shards, or let it go on to the host."""
        if self.leaving is None:
            return
        wait, self.leaving = self.leaving[1], None
        average = self.new_numbers(self.S_trained)  # (S,) or less
        self.copies.add(wait(average), (self, average, self.without))
        add_arrived(self.copies)

    def add_average(self, average: Tensor, without: set[ShardedParameter]) -> None:
        parts = {p: average[p.offset:p.offset + p.S] for p in self.trained}
        # To look at a part holds up a GPU: only those that nobody may have had.
        asked = [p for p in self.trained if p in without and p.sharded.grad is None]
        missing = {asked[place] for place in find_missing([parts[p] for p in asked])}
        for p, part in parts.items():
            if p.sharded.grad is not None:  # of an earlier micro-batch
                p.sharded.grad += part
            elif p not in missing:
                p.sharded.grad = part


def add_arrived(copies: CopiesToHost, everything: bool = False) -> None:
    """Add the averages that are there to the gradients of their shards; `everything`: wait for all."""
    for shards, average, without in copies.arrived(everything):
        shards.add_average(average, without)


def lay_out(gradient: Tensor | None, rows: Tensor) -> None:
    """Lay a gradient out in `rows` (n, S_i), row j for rank j, with zeros where it ends."""
    n, S = rows.shape
    if gradient is None:
        return mark_missing(rows)
    numbers = gradient.reshape(-1)
    full = len(numbers) // S
    if full:
        write_gradient(numbers[:full * S].view(full, S), rows[:full])
    if full < n:
        rows[full:] = 0
        write_gradient(numbers[full * S:], rows[full, :len(numbers) - full * S])


class UnitPhase(IntEnum):
    """Where the whole parameters of a unit are: each phase has all that the one before it has."""

    FREE = 0
    ARRIVING = 1  # their all-gather is under way
    GATHERED = 2
    IN_BACKWARD = 3  # gathered, and autograd is inside the unit


class Unit:
    """All parameters that belong to `module` and to no unit inside it, one Shards a dtype, and their phase."""

    def __init__(self, name: str, module: nn.Module, shards: list[Shards]) -> None:
        self.name, self.module, self.shards = name, module, shards
        self.phase = UnitPhase.FREE
        self.uses = 0  # forward passes whose backward pass has not come by yet
        self.versions: list[int] = []

    @property
    def parameters(self) -> list[ShardedParameter]:
        return [p for shards in self.shards for p in shards.parameters]

    def start_gather(self) -> None:
        """Ahead of time: the parameters travel, and are what the shards say now."""
        if self.phase is UnitPhase.FREE:
            for shards in self.shards:
                shards.start_gather()
            self.phase, self.versions = UnitPhase.ARRIVING, self.current_versions()

    def gather(self, phase: UnitPhase = UnitPhase.GATHERED) -> None:
        """The whole parameters are there when this returns, and they are what the shards say now."""
        phase = max(phase, self.phase)  # a forward pass that is repeated in backward does not end the unit's backward
        if self.phase is not UnitPhase.FREE and self.versions != self.current_versions():
            self.free()  # the optimiser stepped in between
        self.start_gather()
        if self.phase is UnitPhase.ARRIVING:
            for shards in self.shards:
                shards.finish_gather()
        self.phase = phase

    def free(self) -> None:
        """The memory of the whole parameters is given back; what is still on its way is waited for."""
        for shards in self.shards:
            if shards.arriving is not None:
                shards.arriving[1]()
                shards.arriving = None
            shards.free()
        self.phase = UnitPhase.FREE

    def current_versions(self) -> list[int]:
        """They change when anybody, an optimiser say, changes the shards."""
        return [p.sharded._version for p in self.parameters]

    def show_whole(self) -> None:
        """What the module's own code reads from now on."""
        for p in self.parameters:
            p.whole.requires_grad_(p.sharded.requires_grad)
            p.register(p.whole)

    def show_shards(self) -> None:
        """What everybody else reads: the optimiser, parameters(), state_dict()."""
        for p in self.parameters:
            p.register(p.sharded)

    def start_reduce(self) -> None:
        for shards in self.shards:
            shards.start_reduce()

    def finish_reduce(self) -> None:
        for shards in self.shards:
            shards.finish_reduce()


# Which parameters make a unit

def cut_into_units(module: nn.Module, should_shard: Callable[[str, nn.Module], bool] | None, me: Member,
                   compute_dtype: torch.dtype | None, offload: bool, groups: Mapping[str, Member],
                   reduce_dtype: torch.dtype | None, copies: CopiesToHost) -> tuple[list[Unit], list[nn.Parameter]]:
    """The units in the order of registration, outer ones first, and the parameters that lie in none of them."""
    chosen = blocks_and_the_whole(module) if should_shard is None else {
        name for name, submodule in module.named_modules() if should_shard(name, submodule)}
    members: dict[str | None, dict[nn.Parameter, list[Home]]] = {}
    for parameter, names in homes(module).items():
        unit = innermost_around([name for name, _ in names], chosen)
        if parameter.numel():
            members.setdefault(unit, {})[parameter] = [(module.get_submodule(name), key) for name, key in names]
    rest = list(members.pop(None, {}))
    remember_replacement((parameter for of_unit in members.values() for parameter in of_unit),
                         "FullyShardedDataParallel")
    units, tag = [], 0
    for name in [name for name, _ in module.named_modules() if name in members]:
        shards = []
        for kind in dict.fromkeys((p.dtype, p.device) for p in members[name]):
            of_kind = {p: where for p, where in members[name].items() if (p.dtype, p.device) == kind}
            shards.append(Shards(of_kind, groups.get(name, me), compute_dtype, offload, tag, reduce_dtype, copies))
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


# What a step needs in memory

def watch(model: nn.Module, run: Callable[[], Tensor]) -> Watched:
    """See what `run`, which returns the loss of `model`, and the loss's backward() need in memory, in one process.

    All parameters are of one dtype and trained (ValueError otherwise). Units are those of FullyShardedDataParallel.
    """
    parameters = list(model.parameters())
    if len({p.dtype for p in parameters}) != 1 or not all(p.requires_grad for p in parameters):
        raise ValueError("watch(model, ...): expected parameters of one dtype, all trained; got "
                         f"{sorted({str(p.dtype) for p in parameters})} and "
                         f"{sum(not p.requires_grad for p in parameters)} that need no gradient")
    names = blocks_and_the_whole(model)
    unit_of = {p: innermost_around([name for name, _ in where], names) for p, where in homes(model).items()}
    positions = {p: position for position, p in enumerate(parameters)}
    seen: list[tuple[int, str, str, int | None]] = []  # (changes of memory so far, kind, unit, parameter)

    def note(kind: str, unit: str, parameter: nn.Parameter | None = None) -> None:
        seen.append((len(log.over_time()) - 1, kind, unit, positions.get(parameter)))

    def left(unit: str, outputs: Tensor) -> None:
        note(LEFT, unit)
        for tensor in tensors_in(outputs):
            if tensor.requires_grad:
                tensor.register_hook(lambda _: note(BACKWARD, unit))

    handles = [p.register_post_accumulate_grad_hook(lambda p: note(GRADIENT, unit_of[p], p)) for p in parameters]
    for unit in sorted(names):
        module = model.get_submodule(unit)
        handles += [module.register_forward_pre_hook(lambda *_, unit=unit: note(FORWARD, unit)),
                    module.register_forward_hook(lambda _, __, outputs, unit=unit: left(unit, outputs))]
    try:
        with record_memory(model=model) as log:
            run().backward()
    finally:
        for handle in handles:
            handle.remove()
    besides = [everything - of_model for everything, of_model in zip(log.over_time(), log.over_time("parameters"))]
    finished, events = 0, []
    for (first, kind, unit, position), (last, *_) in zip(seen, [*seen[1:], (len(besides) - 1,)]):
        at_first = besides[first] - finished
        finished += parameters[position].nbytes if kind == GRADIENT else 0
        events.append(Event(kind, unit, position, at_first, max(besides[first:last + 1]) - finished))
    return Watched(tuple(events), tuple(p.numel() for p in parameters), tuple(unit_of[p] for p in parameters),
                   parameters[0].element_size())
