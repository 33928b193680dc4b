"""ZeroOptimizer: stages 1 and 2 on a page. Every rank owns one block of the numbers, and a step has three phases.

    reduce   the owner of a block averages its gradients over the ranks       reduce-scatter   (n-1)/n M
    step     the owner steps on the block: only here is optimiser state       nothing is sent
    gather   all ranks get the block as it is now                             all-gather       (n-1)/n M

    stage 1   reduces in step(): gradients stay whole until then, however many backward passes they come from
    stage 2   reduces in backward: each bucket as soon as it is full, of which one block is kept, and the rest is freed

Reduce and gather are the two halves of an all-reduce, so both stages send what data parallelism sends. The optimiser's
state, AdamW's two moments say, exists once in the group and not once per rank.

Loss scaling is at the end: gradients too small for fp16, which ends at 6e-8 below and 65504 above, are multiplied into
its range with the loss, and divided back. Where one has become infinite the step is left out and the factor halved;
after many good steps it is doubled. All ranks must leave out the same steps, so they ask one another.

Sources: Rajbhandari et al. 2020, "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", section 5;
Micikevicius et al. 2018, "Mixed Precision Training", section 3.2.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from course_lib.groups.exchange import start_all_gather, start_reduce_scatter
from course_lib.groups.gradients import (
    broadcast,
    clip_total_norm,
    require_dense,
    require_first,
    require_reduce_dtype,
    when_complete,
)
from course_lib.groups.membership import Member, member
from course_lib.runtime import device
from course_lib.runtime.beside import CopiesToHost, Copy, cores_of_host, start_copy
from course_lib.runtime.torch_private import when_backward_ends
from course_lib.zero import flat
from course_lib.zero.consolidate import MASTER, gather_state, load_state, options_of
from course_lib.zero.flat import FlatBucket, FlatPiece, make_buckets


class ZeroOptimizer(torch.optim.Optimizer):
    """Any element-wise optimiser class, its state cut over the ranks of `group` (None: the world).

    Like `optimizer_class(params, **defaults)` in a program that averages gradients over the ranks, which this does
    itself: no DistributedDataParallel around the module. Rank 0's parameters are broadcast now. Parameters of 16 bits
    get 32-bit master copies, of which a rank has its share.

    offload=True keeps masters, averaged gradients and state on the host, which steps with its cores. On a GPU they are
    copied through pinned memory that is made once, on a stream of its own: gradients beside the rest of backward, and
    the weights of a bucket while those of the bucket before are gathered. Nothing hides the step itself.

    reduce_dtype: what gradients are sent and added in, each sum rounded to it. None: sent in their own dtype, in stage
    2 one backward pass after the other; sums of 16 bits are made in 32 over gloo, and in 16 between GPUs. torch.float32
    makes both the same, for four bytes a number. In stage 1 passes add up in .grad, in the parameter's dtype.

    Every rank takes every step. Stage 1 sends gradients once a step, however many backward passes it took; stage 2 in
    each. .grad is this rank's own in stage 1 until step() or clip_grad_norm_(), and None in stage 2. Begin a step with
    zero_grad(). ValueError for what cannot work: an optimiser that mixes the numbers of a tensor, for example.
    """

    def __init__(self, params: Iterable, optimizer_class: type[torch.optim.Optimizer], stage: int = 1,
                 group: dist.ProcessGroup | None = None, offload: bool = False, *, bucket_cap_mb: float = 25,
                 reduce_dtype: torch.dtype | None = None, **defaults: Any) -> None:
        flat.require_stage(stage, bucket_cap_mb)
        require_reduce_dtype(reduce_dtype)
        flat.require_element_wise(optimizer_class, defaults)
        self.member, self.offload, self.buckets = member(group), offload, []
        super().__init__(params, defaults)
        everything = [p for options in self.param_groups for p in options["params"]]
        trained = [p for p in everything if p.requires_grad and p.numel()]
        self.frozen = [p for p in everything if p.numel() and not p.requires_grad]
        flat.require_trainable(everything, trained)
        flat.require_same_groups(self.param_groups, bucket_cap_mb, reduce_dtype, self.member)
        broadcast(everything, self.member, bucket_cap_mb * 2**20)
        # In stage 1 a bucket's memory is .grad, of the parameter's dtype.
        self.buckets = make_buckets(trained, bucket_cap_mb * 2**20, self.member, offload,
                                    None if stage == 1 else reduce_dtype)
        self.steps_for = self.buckets[0].device if offload else None  # whom the host stands in for
        self.bucket_of = {p: bucket for bucket in self.buckets for p in bucket.parameters}
        self.pieces: dict[nn.Parameter, FlatPiece] = {p.parameter: p for b in self.buckets for p in b.pieces}
        self.inner = self._make_inner(optimizer_class, defaults)
        self.stage = (Stage1 if stage == 1 else Stage2)(self.buckets, self.member, reduce_dtype)
        when_complete(trained, self._gradient_is_there)

    def _make_inner(self, optimizer_class: type, defaults: dict) -> torch.optim.Optimizer:
        """It knows this rank's pieces only, in the groups in which the reader gave their parameters."""
        groups = [{**options_of(group), "params": [self.pieces[p].owned for p in group["params"] if p in self.pieces]}
                  for group in self.param_groups]
        inner = optimizer_class(groups, **defaults)
        for group, inner_group in zip(self.param_groups, inner.param_groups):
            for key, value in inner_group.items():
                group.setdefault(key, value)  # the defaults of the class, for schedulers and state_dict
        return inner

    def add_param_group(self, param_group: dict) -> None:
        if self.buckets:
            raise ValueError("add_param_group on a ZeroOptimizer: the blocks are cut. Expected all groups at the start")
        super().add_param_group(param_group)

    @torch.no_grad()
    def _gradient_is_there(self, parameter: nn.Parameter) -> None:
        """Autograd calls this when a parameter's .grad is complete, and goes on to the parameters before it."""
        require_dense(parameter, f"a parameter of shape {list(parameter.shape)}")
        self.stage.collect(parameter, self.bucket_of[parameter])

    # A step: reduce, step, gather

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Average what is not averaged yet, step on this rank's pieces, gather everybody's. Collective."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self.average_gradients()  # phase 1, reduce; clip_grad_norm_ may have done it, stage 2 has done it in backward
        self._step_pieces()  # phase 2
        self._gather()  # phase 3
        self.stage.close()
        return loss

    @torch.no_grad()
    def average_gradients(self) -> None:
        """Phase 1: every piece gets the average of its gradient; once a step. step() and clip_grad_norm_() call it.

        Collective: in stage 1 all bytes of the gradients are sent here, in stage 2 they were sent in backward.
        """
        flat.require_still_frozen(self.frozen)
        self.stage.reduce()

    def _step_pieces(self) -> None:
        """Phase 2: the inner optimiser steps on the pieces, which lie in this rank's blocks or in their masters."""
        for group, inner_group in zip(self.param_groups, self.inner.param_groups):
            inner_group.update(options_of(group))  # schedulers change ours
        for bucket in self.buckets:
            bucket.update_master()
        with cores_of_host(self.steps_for):
            self.inner.step()

    def _gather(self) -> None:
        """Phase 3: all blocks arrive in the buckets' memory, of which the model's parameters are views."""
        # 32 bits are rounded before they are sent: half the bytes. What comes from the host comes beside the messages.
        copies = [bucket.master is not None and start_copy(bucket.block, bucket.master) for bucket in self.buckets]
        waits = []
        # All begin before one is waited for: what arrives has its memory already.
        for bucket, copy in zip(self.buckets, copies):
            if copy:
                copy.join()
            waits.append(start_all_gather(bucket.flat, self.member, bucket.index))
        for bucket, wait in zip(self.buckets, waits):
            wait()
            torch.autograd.graph.increment_version(bucket.parameters)  # autograd did not see what came by message
            bucket.remember_versions()

    def clip_grad_norm_(self, max_norm: float, norm_type: float = 2.0) -> Tensor:
        """Scale all gradients so that their norm, over all ranks' pieces, is at most `max_norm`; returns what it was.

        Collective: one number is added up. The norm of this rank's pieces alone would be another one on each rank.
        """
        self.average_gradients()
        gradients = [piece.owned.grad for piece in self.pieces.values() if piece.owned.grad is not None]
        return clip_total_norm(gradients, [], max_norm, norm_type, self.member, self.buckets[0].device)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget all gradients and their memory. In stage 1 set_to_none=False keeps zeros, as in torch."""
        self.stage.forget()
        super().zero_grad(set_to_none)

    # What is kept, saved and loaded

    @property
    def state(self) -> dict[nn.Parameter, dict[str, Any]]:
        """What this rank keeps, by parameter: flat pieces of its state, and of its master copy where there is one."""
        kept = {}
        for parameter, piece in getattr(self, "pieces", {}).items():
            master = {} if self.bucket_of[parameter].master is None else {MASTER: piece.owned.detach()}
            kept[parameter] = {**self.inner.state.get(piece.owned, {}), **master}
        return kept

    @state.setter
    def state(self, _: Any) -> None:
        """torch.optim.Optimizer begins with an empty one; ours is that of the inner optimiser."""

    def state_dict(self) -> dict[str, Any]:
        """What `optimizer_class` itself would save on one process: whole tensors, on the host, on every rank.

        Collective. Loads into a plain optimiser; a 16-bit parameter's entry has its 32-bit `master_weight` besides.
        """
        return gather_state(self.param_groups, self.state, self.buckets, self.member)

    @torch.no_grad()
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take this rank's pieces of what state_dict(), here or in torch, has saved. After the module. Collective."""
        load_state(state_dict, self.param_groups, self.inner, self.buckets)
        self._gather()


class Stage:
    """Phase 1: when gradients are collected, averaged and forgotten. Stages 1 and 2 say how.

    `closed`: the gradients are final, a step may use them, and nothing may be added to them.
    """

    def __init__(self, buckets: Sequence[FlatBucket], me: Member, reduce_dtype: torch.dtype | None) -> None:
        self.buckets, self.me, self.reduce_dtype, self.closed = buckets, me, reduce_dtype, False
        self.under_way: tuple[FlatBucket, Callable[[Tensor], Copy | None]] | None = None
        self.copies = CopiesToHost()

    def forget_used(self) -> None:
        """A gradient has come: those that a step has used go. ValueError where the reader would add to them."""
        if self.closed:  # the reader may clear .grad without us, module.zero_grad() say
            flat.require_no_average(self.buckets)
            self.forget()

    def close(self) -> None:
        """The step is over."""
        self.closed = True

    def forget(self) -> None:
        """The memory of all gradients is free."""
        self._add_arrived(everything=True)  # before their memory is another's
        for bucket in self.buckets:
            bucket.forget_gradients()
        self.closed = False

    def _send(self, bucket: FlatBucket) -> None:
        # (n S,) of each rank -> (S,) on the owner
        wait = start_reduce_scatter(bucket.gradient, self.me, bucket.index, reduce_dtype=self.reduce_dtype)
        # The bucket before had the time until now. Two are under way at most: each needs memory for what arrives.
        self._finish_last()
        self.under_way = bucket, wait

    def _finish_last(self) -> None:
        if self.under_way is not None:
            self._keep_block(*self.under_way)
            self.under_way = None

    def _keep(self, bucket: FlatBucket, average: Tensor, copy: Copy | None) -> None:
        """Add `average` (S,) to the bucket's gradient, as soon as its copy to the host is there."""
        self.copies.add(copy, (bucket, average, bucket.without))
        self._add_arrived()

    def _add_arrived(self, everything: bool = False) -> None:
        for bucket, average, without in self.copies.arrived(everything):
            bucket.add_gradient(average, without)


class Stage1(Stage):
    """Reduce in the step: until then gradients stay whole, and after any number of passes they are sent once."""

    def collect(self, parameter: nn.Parameter, bucket: FlatBucket) -> None:
        """A gradient is complete: its part of the bucket becomes .grad, where autograd adds those of later passes."""
        self.forget_used()
        if parameter.grad is not bucket.parts.get(parameter):
            parameter.grad = bucket.take(parameter)

    def reduce(self) -> None:
        """Block r of every bucket is averaged on rank r."""
        if self.closed:
            return
        for bucket in self.buckets:
            for parameter in bucket.parameters:  # what is in .grad now is what counts, whoever put it there
                if parameter.grad is None:
                    bucket.missing.add(parameter)
                else:
                    self.collect(parameter, bucket)
            bucket.mark_missing()
            self._send(bucket)
        self._finish_last()
        self._add_arrived(everything=True)
        self.close()

    def _keep_block(self, bucket: FlatBucket, wait: Callable[[Tensor], Copy | None]) -> None:
        own = bucket.block_of(bucket.gradient)  # (S,), whose memory will do unless a master copy steps
        average = own if bucket.master is None else bucket.new_block()
        self._keep(bucket, average, wait(average))


class Stage2(Stage):
    """Reduce in backward: a full bucket is sent while backward computes the next, and one block of it is kept."""

    in_backward, num_sent = False, 0  # num_sent: buckets that have left in this backward pass

    def collect(self, parameter: nn.Parameter, bucket: FlatBucket) -> None:
        """A gradient is complete: it moves into its bucket, and buckets that are full leave."""
        self.forget_used()
        if not self.in_backward:
            self.in_backward = True
            when_backward_ends(self._reduce_rest)
        is_first = parameter in bucket.missing and bucket.index >= self.num_sent
        require_first(is_first, f"a parameter of shape {list(parameter.shape)}")
        bucket.take(parameter)
        parameter.grad = None  # else the whole gradient would stay until the step, as in stage 1
        # Gradients may come in another order than buckets, but all ranks have to send in one order.
        while self.num_sent < len(self.buckets) and not self.buckets[self.num_sent].missing:
            self._send_next()

    def _send_next(self) -> None:
        self.num_sent += 1
        self._send(self.buckets[self.num_sent - 1])

    def _keep_block(self, bucket: FlatBucket, wait: Callable[[Tensor], Copy | None]) -> None:
        average = bucket.new_block()  # (S,)
        copy = wait(average)  # with offload it goes on to the host
        bucket.free()  # (n S,): the other blocks are others'
        self._keep(bucket, average, copy)  # added to what earlier passes of this step have left

    @torch.no_grad()
    def _reduce_rest(self) -> None:
        """Backward is over: the buckets leave that wait for a gradient that did not come."""
        while self.num_sent < len(self.buckets):
            self.buckets[self.num_sent].mark_missing()  # the message leaves all the same: the others wait for it
            self._send_next()
        self._finish_last()
        self.in_backward, self.num_sent = False, 0

    def reduce(self) -> None:
        """Backward has done it. A rank whose loss reached no parameter had none, and takes part here."""
        flat.require_in_step(self.in_backward)
        flat.require_no_gradient_by_hand(self.buckets)
        self._add_arrived(everything=True)
        if any(bucket.block_gradient is None for bucket in self.buckets):
            self._reduce_rest()
            self._add_arrived(everything=True)

    def forget(self) -> None:
        """The memory of all gradients is free."""
        flat.require_in_step(self.num_sent > 0)
        super().forget()
        self.in_backward = False


class ShardedGradScaler(torch.amp.GradScaler):
    """torch.amp.GradScaler where each rank sees only shards of the gradients: what one finds infinite, all skip.

    For a ZeroOptimizer, and for any optimiser of a FullyShardedDataParallel's parameters. Use it as torch's own.
    `group` is theirs (None: the world); `options` are torch's (init_scale=2.0**16, growth_interval=2000, ...).
    """

    def __init__(self, group: dist.ProcessGroup | None = None, **options: Any) -> None:
        self.member = member(group)
        options.setdefault("device", device().type)
        super().__init__(**options)

    def _unscale_grads_(self, optimizer: torch.optim.Optimizer, inv_scale: Tensor, found_inf: Tensor,
                        allow_fp16: bool) -> dict[torch.device, Tensor]:
        if isinstance(optimizer, ZeroOptimizer):
            optimizer.average_gradients()
            optimizer = optimizer.inner
        found = super()._unscale_grads_(optimizer, inv_scale, found_inf, allow_fp16=True)
        anywhere = found_inf.clone()
        for on_device in found.values():
            anywhere = torch.maximum(anywhere, on_device.to(anywhere.device))
        dist.all_reduce(anywhere, dist.ReduceOp.MAX, group=self.member.group)
        return {anywhere.device: anywhere}
