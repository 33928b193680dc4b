"""ZeroOptimizer: stages 1 and 2. Every rank steps on its share of the numbers, and gathers what the others stepped on.

    stage 1   gradients stay whole until step(), which averages this rank's block of them (reduce-scatter), steps on
              the block, and gathers all blocks of the parameters (all-gather): together an all-reduce's bytes
    stage 2   each bucket of gradients is averaged and freed as soon as backward has filled it; a block of it is kept

The optimiser's state, AdamW's two moments say, exists once in the group and not once a rank.

Source: Rajbhandari et al. 2020, "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", section 5.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd import Variable

from course_lib.groups.agreement import require_same
from course_lib.groups.exchange import start_all_gather, start_reduce_scatter
from course_lib.groups.gradients import require_dense, require_first
from course_lib.groups.membership import member
from course_lib.groups.tensors import describe
from course_lib.zero import checks, consolidate
from course_lib.zero.flat import FlatBucket, Piece, make_buckets
from course_lib.zero.norms import clip, total_norm


class ZeroOptimizer(torch.optim.Optimizer):
    """Any element-wise optimiser class, its state cut over the ranks of `group` (None: the world).

    Like `optimizer_class(params, **defaults)` in a program that averages gradients over the ranks, which this does
    itself: no DistributedDataParallel around the module. Rank 0's parameters are broadcast now. Parameters of 16 bits
    get 32-bit master copies, of which a rank has its share, and `offload=True` keeps masters and state on the host.

    Every rank takes every step. Stage 1 sends gradients once a step, however many backward passes it took; stage 2 in
    each. .grad is this rank's own in stage 1 until step() or clip_grad_norm_(), and None in stage 2. Begin a step with
    zero_grad(). ValueError for what cannot work: an optimiser that mixes the numbers of a tensor, for example.
    """

    def __init__(self, params: Iterable, optimizer_class: type[torch.optim.Optimizer], stage: int = 1,
                 group: dist.ProcessGroup | None = None, offload: bool = False, *, bucket_cap_mb: float = 25,
                 **defaults: Any) -> None:
        checks.require_stage(stage, bucket_cap_mb)
        checks.require_element_wise(optimizer_class, defaults)
        self.member, self.stage, self.offload, self.buckets = member(group), stage, offload, []
        super().__init__(params, defaults)
        everything = [p for options in self.param_groups for p in options["params"]]
        trained = [p for p in everything if p.requires_grad and p.numel()]
        self.frozen = [p for p in everything if p.numel() and not p.requires_grad]
        checks.require_trainable(everything, trained)
        lines = [f"number {number} {describe(p, p.device.type)}, requires_grad={p.requires_grad}, group {group_number}"
                 for number, (p, group_number) in enumerate((p, index) for index, options in
                                                            enumerate(self.param_groups) for p in options["params"])]
        require_same([*lines, f"bucket_cap_mb={bucket_cap_mb}"], self.member, "parameters", "the same ones and options")
        self.buckets = make_buckets(trained, bucket_cap_mb * 2**20, self.member, offload)
        self.bucket_of = {p: bucket for bucket in self.buckets for p in bucket.parameters}
        self._broadcast()
        self.pieces: dict[nn.Parameter, Piece] = {p.parameter: p for b in self.buckets for p in b.pieces}
        self.inner = self._inner_optimizer(optimizer_class, defaults)
        self.underway: list[tuple[FlatBucket, Callable[[Tensor], None]]] = []
        self._start_over()
        for parameter in trained:
            parameter.register_post_accumulate_grad_hook(self._gradient_is_there)

    def _inner_optimizer(self, optimizer_class: type, defaults: dict) -> torch.optim.Optimizer:
        """It knows this rank's pieces only, in the groups in which the reader gave their parameters."""
        groups = [{**{key: value for key, value in options.items() if key not in ("params", "param_names")},
                   "params": [self.pieces[p].owned for p in options["params"] if p in self.pieces]}
                  for options in self.param_groups]
        inner = optimizer_class(groups, **defaults)
        for own, theirs in zip(self.param_groups, inner.param_groups):
            for key, value in theirs.items():
                own.setdefault(key, value)  # the defaults of the class, for schedulers and state_dict
        return inner

    @torch.no_grad()
    def _broadcast(self) -> None:
        for tensor in [bucket.flat for bucket in self.buckets] + [p.detach() for p in self.frozen]:
            if self.member.n > 1:
                dist.broadcast(tensor.contiguous(), group=self.member.group, group_src=0)
        for bucket in self.buckets:
            if bucket.master is not None:
                bucket.master.copy_(bucket.block)

    @property
    def state(self) -> dict[nn.Parameter, dict[str, Any]]:
        """What this rank keeps, by parameter: flat pieces of its state, and of its master copy where there is one."""
        kept = {}
        for parameter, piece in getattr(self, "pieces", {}).items():
            master = {} if self.bucket_of[parameter].master is None else {consolidate.MASTER: piece.owned.detach()}
            kept[parameter] = {**self.inner.state.get(piece.owned, {}), **master}
        return kept

    @state.setter
    def state(self, _: Any) -> None:
        """torch.optim.Optimizer begins with an empty one; ours is that of the inner optimiser."""

    @property
    def host_bytes(self) -> int:
        """What lies on the host because of offload=True: this rank's masters and their state and gradients."""
        if not self.offload:
            return 0
        gradients = [bucket.block_gradient for bucket in self.buckets if bucket.block_gradient is not None]
        state = [value for of_one in self.inner.state.values() for value in of_one.values()]
        masters = [bucket.master for bucket in self.buckets]
        return sum(value.nbytes for value in (*masters, *gradients, *state) if isinstance(value, Tensor))

    def add_param_group(self, param_group: dict) -> None:
        if self.buckets:
            raise ValueError("add_param_group on a ZeroOptimizer: the blocks are cut. Expected all groups at the start")
        super().add_param_group(param_group)

    # Gradients, while backward runs

    @torch.no_grad()
    def _gradient_is_there(self, parameter: nn.Parameter) -> None:
        """Autograd calls this when a parameter's .grad is complete, and goes on to the parameters before it."""
        require_dense(parameter, f"a parameter of shape {list(parameter.shape)}")
        bucket = self.bucket_of[parameter]
        if self.stage == 1:
            if parameter.grad is not bucket.parts.get(parameter):  # otherwise it was added to in place
                self._begin_again_after_a_step()
                parameter.grad = bucket.take(parameter)
            elif self.averaged:
                checks.complain_about_missing_zero_grad()
            return
        if not self.in_backward:
            if self.stepped:
                checks.complain_about_missing_zero_grad()
            self.in_backward, self.averaged = True, False
            Variable._execution_engine.queue_callback(self._backward_ends)
        require_first(parameter, f"a parameter of shape {list(parameter.shape)}", bucket)
        bucket.take(parameter)
        parameter.grad = None
        while self.sent < len(self.buckets) and not self.buckets[self.sent].missing:
            self._send_next_bucket()

    def _begin_again_after_a_step(self) -> None:
        """The reader may clear .grad without us, module.zero_grad() say: then the averages are of the past, too."""
        if self.averaged:
            checks.require_cleared(self.bucket_of)
            self._start_over()

    def _send_next_bucket(self) -> None:
        """In one order on all ranks. The bucket before is finished first: at most two are in memory."""
        bucket = self.buckets[self.sent]
        self.sent += 1
        bucket.mark_missing()
        self.underway.append((bucket, start_reduce_scatter(bucket.gradient, self.member, bucket.index,
                                                          blocks_ahead=None)))
        if len(self.underway) > 1:
            self._finish_a_bucket()

    def _finish_a_bucket(self) -> None:
        bucket, finish = self.underway.pop(0)
        in_place = self.stage == 1 and bucket.master is None
        block = bucket.gradient.chunk(self.member.n)[self.member.r] if in_place else bucket.new_block()  # (S,)
        finish(block)
        if self.stage == 1 or bucket.block_gradient is None:
            bucket.block_gradient = block
        else:
            bucket.block_gradient += block
        if self.stage == 2:
            bucket.gradient, bucket.parts, bucket.missing = None, {}, set(bucket.parameters)

    @torch.no_grad()
    def _backward_ends(self) -> None:
        if self.in_backward:
            self._send_all()
            self.in_backward = False

    def _send_all(self) -> None:
        while self.sent < len(self.buckets):
            self._send_next_bucket()
        while self.underway:
            self._finish_a_bucket()
        self.sent = 0

    # A step

    @torch.no_grad()
    def average_gradients(self) -> None:
        """Every piece gets the average of its gradient; once a step. step() and clip_grad_norm_() call it.

        Collective: in stage 1 all bytes of the gradients are sent here, in stage 2 they were sent in backward.
        """
        if self.averaged:
            return
        checks.require_in_step(self.in_backward)
        checks.require_still_frozen(self.frozen)
        if self.stage == 1:
            for parameter, bucket in self.bucket_of.items():
                if parameter.grad is None:
                    bucket.missing.add(parameter)
                elif parameter.grad is not bucket.parts.get(parameter):
                    parameter.grad = bucket.take(parameter)  # set by hand
            self._send_all()
        else:
            checks.require_taken(self.bucket_of)
            if any(bucket.block_gradient is None for bucket in self.buckets):
                self._send_all()  # this rank's loss reached no parameter: it takes part all the same
        for bucket in self.buckets:
            bucket.hand_out()
        self.averaged = True

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Average what is not averaged yet, step on this rank's pieces, gather everybody's. Collective."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self.average_gradients()
        for own, theirs in zip(self.param_groups, self.inner.param_groups):
            theirs.update({key: value for key, value in own.items() if key not in ("params", "param_names")})
        for bucket in self.buckets:
            bucket.refresh_master()
        self.inner.step()
        self._gather()
        self.stepped = True
        return loss

    def _gather(self) -> None:
        under_way = []
        for bucket in self.buckets:
            bucket.publish()
            under_way.append(start_all_gather(bucket.flat, self.member, bucket.index))
        for bucket, finish in zip(self.buckets, under_way):
            finish()
            bucket.published()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget all gradients and their memory. In stage 1 set_to_none=False keeps zeros, as in torch."""
        checks.require_in_step(self.in_backward and bool(self.underway or self.sent))
        self._start_over()
        super().zero_grad(set_to_none)

    def _start_over(self) -> None:
        self.averaged, self.stepped, self.in_backward, self.sent = False, False, False, 0
        for bucket in self.buckets:
            bucket.forget_gradients()

    @torch.no_grad()
    def clip_grad_norm_(self, max_norm: float, norm_type: float = 2.0) -> Tensor:
        """Scale all gradients so that their norm, over all ranks' pieces, is at most `max_norm`; returns what it was.

        Collective: one number is added up. The norm of this rank's pieces alone would be another one on each rank.
        """
        self.average_gradients()
        gradients = [piece.owned.grad for piece in self.pieces.values() if piece.owned.grad is not None]
        norm = total_norm(gradients, [], norm_type, self.member, self.buckets[0].device)
        clip(gradients, max_norm, norm)
        return norm

    # Saved and loaded

    def state_dict(self) -> dict[str, Any]:
        """What `optimizer_class` itself would save on one process: whole tensors, on the host, on every rank.

        Collective. Loads into a plain optimiser; a 16-bit parameter's entry has its 32-bit `master_weight` besides.
        """
        return consolidate.state_dict(self)

    @torch.no_grad()
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take this rank's pieces of what state_dict(), or a plain optimiser, saved. Load the module first. Collective.
        """
        consolidate.load_state_dict(self, state_dict)
        self._gather()
