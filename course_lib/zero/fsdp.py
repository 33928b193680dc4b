"""FullyShardedDataParallel: stage 3. Every rank keeps one n-th of each parameter, and has it whole only while needed.

    forward    of a unit: gather its parameters, compute, free them       all-gather       (n-1)/n M
    backward   gather them again, compute, free them,                     all-gather       (n-1)/n M
               average the gradients, of which the own n-th is kept       reduce-scatter   (n-1)/n M

Half as much again as data parallelism, for memory that shrinks with n. While one unit computes, the parameters of the
next are on their way, and the gradients of the last.

Source: Zhao et al. 2023, "PyTorch FSDP: Experiences on Scaling Fully Sharded Data Parallel", and torch's fully_shard.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from course_lib.groups.exchange import require_same_module
from course_lib.groups.gradients import average_gradients, broadcast, clip_total_norm, require_reduce_dtype
from course_lib.groups.membership import Member, is_whole, member, require_kind
from course_lib.runtime.beside import CopiesToHost
from course_lib.runtime.tensors import tensors_in
from course_lib.runtime.torch_private import backward_number, tree_map, when_backward_ends
from course_lib.zero import consolidate
from course_lib.zero.units import ShardedParameter, Unit, UnitPhase, add_arrived, cut_into_units

ShouldShard = Callable[[str, nn.Module], bool]


class FullyShardedDataParallel(nn.Module):
    """`module` on every rank of `group` (None: the world), each parameter cut in n. Train it as one would without.

        model = FullyShardedDataParallel(GPT(config))
        optimizer = AdamW(model.parameters())       after, not before: these are the shards

    Rank 0's parameters and buffers are used, its buffers again before each forward pass in training mode. Parameters
    keep their names, flat and an n-th as long; .grad of each is the average over the ranks when backward returns.

    should_shard(name, module) says which modules are units, gathered and freed as one; a parameter belongs to the
    innermost unit around all modules that use it. Default: the children of each ModuleList, blocks usually, and
    the whole ("") takes the rest. A parameter that lies in no unit is replicated, its gradient averaged.

    compute_dtype: what parameters and floating-point inputs are while they compute, and gradients when they are sent;
    the shards, which the optimiser steps on, keep their dtype. reshard_after_forward=False keeps a unit from forward to
    backward: a third less is sent. prefetch: units gathered ahead. offload: shards live on the host, and so does what
    an optimiser keeps about them; on a GPU they come and gradients leave through pinned memory that is made once, on a
    stream of its own. reduce_dtype: what gradients are sent and added in, each sum rounded to it. None: sent in
    compute_dtype, and added in the shards' dtype over gloo, in compute_dtype between GPUs; torch.float32 makes both the
    same, as in fully_shard's MixedPrecisionPolicy. groups: {name of a unit: the ranks that hold the same numbers of
    it}, where these are not those of `group`, as of experts: they share this unit.

    Every rank calls forward and backward as often as the others, and its units in the same order.
    """

    def __init__(self, module: nn.Module, group: dist.ProcessGroup | None = None,
                 should_shard: ShouldShard | None = None, compute_dtype: torch.dtype | None = None,
                 reshard_after_forward: bool = True, prefetch: int = 1, offload: bool = False,
                 groups: Mapping[str, Member] | None = None, reduce_dtype: torch.dtype | None = None) -> None:
        super().__init__()
        require_shardable(module, should_shard, compute_dtype, prefetch)
        require_reduce_dtype(reduce_dtype)
        self.module, self.member = module, member(group)
        self.compute_dtype, self.reshard_after_forward, self.prefetch = compute_dtype, reshard_after_forward, prefetch
        require_same_module(module, self.member)
        self.groups = {} if groups is None else groups
        for name, others in self.groups.items():
            broadcast(module.get_submodule(name).parameters(), others)
        elsewhere = {parameter for name in self.groups for parameter in module.get_submodule(name).parameters()}
        broadcast([*(p for p in module.parameters() if p not in elsewhere), *module.buffers()], self.member)
        self.reduce_dtype, self.copies = reduce_dtype, CopiesToHost()
        self.units, self.replicated = cut_into_units(module, should_shard, self.member, compute_dtype, offload,
                                                     self.groups, reduce_dtype, self.copies)
        self.forward_order: list[Unit] = list(self.units)  # a guess until a forward pass has shown it
        self.entered: list[Unit] = []  # by the forward pass that runs, or has run; and in the order of leaving them,
        self.left: list[Unit] = []  # in which backward enters them again, from the end
        self.in_backward = False
        self.to_reduce: set[Unit] = set()  # whose gradients this backward pass has not sent yet
        for unit in self.units:
            unit.module.register_forward_pre_hook(self._hook(self._before_forward, unit), prepend=True,
                                                  with_kwargs=True)
            unit.module.register_forward_hook(self._hook(self._after_forward, unit))

    @staticmethod
    def _hook(method: Callable, unit: Unit) -> Callable:
        return lambda module, *arguments: method(unit, *arguments)

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """Those of `module`."""
        if not self._inside_backward():
            self._begin()
        outputs = self.module(*inputs, **named)
        if not self._inside_backward():
            self._end_of_forward(outputs)
        return outputs

    def _begin(self) -> None:
        if self.in_backward:
            raise RuntimeError("the last backward pass raised when messages were under way, so this rank is out of "
                               "step with the others: expected a new FullyShardedDataParallel on all ranks")
        for unit in self.units:  # a forward pass that raised may have left something
            unit.show_shards()
            if unit.phase is UnitPhase.ARRIVING or unit.phase is UnitPhase.GATHERED and self.reshard_after_forward:
                unit.free()
        self.entered, self.left = [], []
        if self.module.training:
            broadcast(self.module.buffers(), self.member)

    def _end_of_forward(self, outputs: Any) -> None:
        self.forward_order = list(self.entered) or self.forward_order
        for unit in self.units:
            if unit.phase is UnitPhase.ARRIVING:
                unit.free()  # gathered ahead, and not used
        for tensor in tensors_in(outputs):
            if tensor.requires_grad and tensor.grad_fn is not None:
                tensor.register_hook(lambda _: self._backward_begins())

    # Forward

    def _before_forward(self, unit: Unit, inputs: tuple, named: dict) -> tuple[tuple, dict]:
        unit.gather()
        unit.show_whole()
        if not self._inside_backward():
            self.entered.append(unit)
            # They travel while this unit computes, and begin after its own, which are needed sooner.
            self._gather_ahead(self._after(unit, self.forward_order))
        if self.compute_dtype is not None:
            inputs, named = tree_map(self._to_compute_dtype, (inputs, named))
        if torch.is_grad_enabled():
            inputs, named = WhenGradientsLeave.around(lambda: self._after_backward(unit), inputs, named)
        return inputs, named

    def _after_forward(self, unit: Unit, inputs: tuple, outputs: Any) -> None:
        if self._inside_backward() and unit.phase is UnitPhase.IN_BACKWARD:
            return  # recomputed, by torch.utils.checkpoint, and about to be used
        unit.show_shards()
        leaving = [tensor for tensor in tensors_in(outputs) if tensor.requires_grad]
        for tensor in leaving:  # backward may reach any of them first, or one of them only
            tensor.register_hook(lambda _: self._before_backward(unit))
        if not self._inside_backward():
            self.left.append(unit)
            unit.uses += bool(leaving)
        if self.reshard_after_forward or not leaving:  # nothing leaving, no backward that would use it
            unit.free()

    def _to_compute_dtype(self, value: Any) -> Any:
        if isinstance(value, Tensor) and value.is_floating_point():
            return value.to(self.compute_dtype)
        return value

    # Backward

    def _inside_backward(self) -> bool:
        return backward_number() != -1

    def _backward_begins(self) -> None:
        if not self.in_backward:
            self.in_backward, self.to_reduce = True, set(self.units)
            when_backward_ends(self._backward_ends)

    def _before_backward(self, unit: Unit) -> None:
        """The first gradient of one of the unit's outputs is there, and autograd is about to go through the unit."""
        self._backward_begins()
        if unit.phase is not UnitPhase.IN_BACKWARD:
            self.to_reduce.add(unit)  # once more, where autograd comes back to a unit that it has left
            with torch.no_grad():
                unit.gather(UnitPhase.IN_BACKWARD)
            unit.show_whole()
            self._gather_ahead(self._after(unit, self.left[::-1]))

    def _after_backward(self, unit: Unit) -> None:
        """The gradients of the unit's inputs are there: autograd has gone through the unit, and needs it no more."""
        unit.uses -= 1
        if unit.uses <= 0:
            self._free_and_reduce(unit)

    @torch.no_grad()
    def _free_and_reduce(self, unit: Unit) -> None:
        unit.uses = 0
        self.to_reduce.discard(unit)
        unit.show_shards()
        unit.free()  # before the gradients' message takes as much memory again
        for earlier in self.units:
            earlier.finish_reduce()  # had the time of a unit to arrive; one at a time is under way, for its memory
        unit.start_reduce()

    @torch.no_grad()
    def _backward_ends(self) -> None:
        """The units that autograd never left, the first one since its inputs are tokens, and those it never reached."""
        for unit in reversed(self.units):
            if unit in self.to_reduce:  # a rank that did not reach it sends all the same: the others wait for its part
                self._free_and_reduce(unit)
        for unit in self.units:
            unit.uses = 0
            unit.finish_reduce()
            if unit.phase is not UnitPhase.FREE:
                unit.free()
        # small ones, norms say: in one message
        average_gradients(self.replicated, self.member, cap_bytes=math.inf, reduce_dtype=self.reduce_dtype)
        add_arrived(self.copies, everything=True)
        self.in_backward = False

    # Ahead

    def _after(self, unit: Unit, order: list[Unit]) -> list[Unit]:
        """The next `prefetch` units of `order`."""
        position = order.index(unit) if unit in order else len(order)
        return order[position + 1:position + 1 + self.prefetch]

    def _gather_ahead(self, units: list[Unit]) -> None:
        with torch.no_grad():
            for unit in units:
                unit.start_gather()

    # All of it

    def clip_grad_norm_(self, max_norm: float, norm_type: float = 2.0) -> Tensor:
        """Scale all gradients so that their norm, over all shards, is at most `max_norm`; returns what it was.

        Collective: one number. torch.nn.utils.clip_grad_norm_ would take the norm of this rank's shards for the whole.
        """
        shards = [shard.grad for shard in self.shards() if shard.grad is not None]
        replicated = [p.grad for p in self.replicated if p.grad is not None]
        return clip_total_norm(shards, replicated, max_norm, norm_type, self._only_group, self.device)

    @property
    def _only_group(self) -> Member:
        if self.groups:
            raise ValueError(f"{', '.join(self.groups)} are sharded over other ranks than the rest: expected "
                             "hybrid_parallel's clip_grad_norm_, and checkpoints for the whole state")
        return self.member

    @property
    def device(self) -> torch.device:
        """Where the module computes."""
        return next((shards.device for unit in self.units for shards in unit.shards), torch.device("cpu"))

    def shards(self) -> dict[nn.Parameter, ShardedParameter]:
        """By parameter of the module as it is now, flat and an n-th as long: what it is a shard of."""
        return {p.sharded: p for unit in self.units for p in unit.parameters}

    def full_state_dict(self) -> dict[str, Tensor]:
        """The whole module's state_dict, as it would be without sharding, on the host, on every rank. Collective."""
        return consolidate.gather_module(self.module, self.shards(), self._only_group)


class WhenGradientsLeave(torch.autograd.Function):
    """The identity of some tensors; in backward it says that the gradients of all of them have been computed."""

    @staticmethod
    def around(say: Callable[[], None], *arguments: Any) -> Any:
        tensors = [t for t in tensors_in(arguments) if t.requires_grad]
        if not tensors:
            return arguments
        passed = dict(zip(map(id, tensors), WhenGradientsLeave.apply(say, *tensors)))
        return tree_map(lambda value: passed.get(id(value), value), arguments)

    @staticmethod
    def forward(context: Any, say: Callable[[], None], *tensors: Tensor) -> tuple[Tensor, ...]:
        context.say = say
        return tensors

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Any, ...]:
        context.say()
        return None, *gradients


def require_shardable(module: Any, should_shard: Any, compute_dtype: Any, prefetch: Any) -> None:
    """ValueError for arguments that FullyShardedDataParallel cannot work with."""
    require_kind(module)
    for inside, submodule in module.named_modules():
        if isinstance(submodule, FullyShardedDataParallel):
            raise ValueError(f"{inside or 'the module'} is a FullyShardedDataParallel already: expected a plain "
                             "module, and should_shard to say what inside it is gathered together")
    if not any(parameter.numel() for parameter in module.parameters()):
        raise ValueError(f"this {type(module).__name__} has no parameters, so there is nothing to shard")
    if should_shard is not None and not callable(should_shard):
        raise ValueError(f"should_shard={should_shard!r}: expected a function of (name, module) that says whether the "
                         "module is a unit, or None")
    if compute_dtype is not None and not (isinstance(compute_dtype, torch.dtype) and compute_dtype.is_floating_point):
        raise ValueError(f"compute_dtype={compute_dtype!r}: expected a dtype such as torch.bfloat16, or None")
    if not is_whole(prefetch, 0):
        raise ValueError(f"prefetch={prefetch!r}: expected how many units to gather ahead, a whole number from 0")
