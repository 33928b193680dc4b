"""ZeroOptimizer: stages 1 and 2. Every rank steps on its share of the numbers, and gathers what the others stepped on.

    stage 1   gradients stay whole until step(), which averages this rank's block of them (reduce-scatter), steps on
              the block, and gathers all blocks of the parameters (all-gather): together an all-reduce's bytes
    stage 2   each bucket of gradients is averaged and freed as soon as backward has filled it; a block of it is kept

The optimiser's state, AdamW's two moments say, exists once in the group and not once a rank. What the stages do with
gradients is in stage1.py and stage2.py; all the rest is the same.

Source: Rajbhandari et al. 2020, "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", section 5.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from course_lib.groups.exchange import start_all_gather
from course_lib.groups.gradients import when_complete
from course_lib.groups.membership import member
from course_lib.groups.norms import clip, total_norm
from course_lib.groups.packing import broadcast
from course_lib.zero import checks
from course_lib.zero.consolidate import MASTER, gather_state, load_state, options_of
from course_lib.zero.flat import Piece, make_buckets
from course_lib.zero.stage1 import Stage1
from course_lib.zero.stage2 import Stage2


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
        self.member, self.offload, self.buckets = member(group), offload, []
        super().__init__(params, defaults)
        everything = [p for options in self.param_groups for p in options["params"]]
        trained = [p for p in everything if p.requires_grad and p.numel()]
        self.frozen = [p for p in everything if p.numel() and not p.requires_grad]
        checks.require_trainable(everything, trained)
        checks.require_same_groups(self.param_groups, bucket_cap_mb, self.member)
        broadcast(everything, self.member, bucket_cap_mb * 2**20)
        self.buckets = make_buckets(trained, bucket_cap_mb * 2**20, self.member, offload)
        self.bucket_of = {p: bucket for bucket in self.buckets for p in bucket.parameters}
        self.pieces: dict[nn.Parameter, Piece] = {p.parameter: p for b in self.buckets for p in b.pieces}
        self.inner = self._make_inner(optimizer_class, defaults)
        self.gradients = (Stage1 if stage == 1 else Stage2)(self.buckets, self.member)
        when_complete(trained, self._take)

    def _make_inner(self, optimizer_class: type, defaults: dict) -> torch.optim.Optimizer:
        """It knows this rank's pieces only, in the groups in which the reader gave their parameters."""
        groups = [{**options_of(group), "params": [self.pieces[p].owned for p in group["params"] if p in self.pieces]}
                  for group in self.param_groups]
        inner = optimizer_class(groups, **defaults)
        for own, theirs in zip(self.param_groups, inner.param_groups):
            for key, value in theirs.items():
                own.setdefault(key, value)  # the defaults of the class, for schedulers and state_dict
        return inner

    def add_param_group(self, param_group: dict) -> None:
        if self.buckets:
            raise ValueError("add_param_group on a ZeroOptimizer: the blocks are cut. Expected all groups at the start")
        super().add_param_group(param_group)

    # A step

    @torch.no_grad()
    def _take(self, parameter: nn.Parameter) -> None:
        """Autograd calls this when a parameter's .grad is complete, and goes on to the parameters before it."""
        checks.require_averageable(parameter)
        if self.gradients.closed:  # the reader may clear .grad without us, module.zero_grad() say
            checks.require_cleared(self.buckets)
            self.gradients.forget()
        self.gradients.take(parameter, self.bucket_of[parameter])

    @torch.no_grad()
    def average_gradients(self) -> None:
        """Every piece gets the average of its gradient; once a step. step() and clip_grad_norm_() call it.

        Collective: in stage 1 all bytes of the gradients are sent here, in stage 2 they were sent in backward.
        """
        checks.require_still_frozen(self.frozen)
        self.gradients.average()

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

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Average what is not averaged yet, step on this rank's pieces, gather everybody's. Collective."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self.average_gradients()
        for own, theirs in zip(self.param_groups, self.inner.param_groups):
            theirs.update(options_of(own))
        for bucket in self.buckets:
            bucket.update_master()
        self.inner.step()
        self._gather_parameters()
        self.gradients.closed = True
        return loss

    def _gather_parameters(self) -> None:
        under_way = []
        for bucket in self.buckets:
            bucket.round_master()
            under_way.append(start_all_gather(bucket.flat, self.member, bucket.index))
        for bucket, finish in zip(self.buckets, under_way):
            finish()
            torch.autograd.graph.increment_version(bucket.parameters)
            bucket.remember_versions()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget all gradients and their memory. In stage 1 set_to_none=False keeps zeros, as in torch."""
        self.gradients.forget()
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

    @property
    def host_bytes(self) -> int:
        """What lies on the host because of offload=True: this rank's masters and their state and gradients."""
        if not self.offload:
            return 0
        blocks = [block for bucket in self.buckets for block in (bucket.master, bucket.block_gradient)]
        state = [value for of_one in self.inner.state.values() for value in of_one.values()]
        return sum(value.nbytes for value in (*blocks, *state) if isinstance(value, Tensor))

    def state_dict(self) -> dict[str, Any]:
        """What `optimizer_class` itself would save on one process: whole tensors, on the host, on every rank.

        Collective. Loads into a plain optimiser; a 16-bit parameter's entry has its 32-bit `master_weight` besides.
        """
        return gather_state(self.param_groups, self.state, self.buckets, self.member)

    @torch.no_grad()
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take this rank's pieces of what state_dict(), or a plain optimiser, saved. Load the module first. Collective.
        """
        load_state(state_dict, self.param_groups, self.inner, self.buckets)
        self._gather_parameters()
