"""The models of chapter 3's tests, trained by sharded optimisers, by torch's own, and by one process.

Apart from the tests, since ranks import it in every launch: pytest would cost them a second.
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from course_lib.zero import FullyShardedDataParallel, ZeroOptimizer
from tests.data_parallel.cases import MODELS, batch, make, mine

OPTIMIZERS = {
    "AdamW": (torch.optim.AdamW, {"lr": 1e-2}),
    "SGD": (torch.optim.SGD, {"lr": 1e-2, "momentum": 0.9}),
    "Adam": (torch.optim.Adam, {"lr": 1e-2, "amsgrad": True}),
}
SMALL_BUCKETS_MB = 2e-4  # a handful of parameters each
KINDS = tuple(MODELS)


def train(model, optimizer, shards, steps=10, micro_batches=1, clip=None):
    """`steps` steps of `micro_batches` backward passes each on what `shards(number)` gives; the norms that `clip` says.
    """
    norms = []
    for step in range(steps):
        optimizer.zero_grad()
        for micro in range(micro_batches):
            (model(*shards(step * micro_batches + micro)) / micro_batches).backward()
        if clip is not None:
            norms.append(clip().item())
        optimizer.step()
    return norms


class Run:
    """A trained model, and the norms it was clipped by; `clip_to` None does not clip."""

    def __init__(self, kind, dtype=torch.float64, optimizer="AdamW", clip_to=None, seed=None, **how):
        self.kind, self.dtype, self.clip_to, self.how = kind, dtype, clip_to, how
        self.optimizer_class, self.options = OPTIMIZERS[optimizer]
        self.model = make(kind, dtype, seed=dist.get_rank() if seed is None else seed)  # rank 0's values must win

    def train(self, model, optimizer, clip, rows=mine):
        self.norms = train(model, optimizer, lambda step: rows(batch(self.kind, step, self.dtype)),
                           clip=clip and self.clip_to and (lambda: clip(self.clip_to)), **self.how)
        return self

    def alone(self):
        """One process on the whole batch."""
        return self.train(self.model, self.optimizer_class(self.model.parameters(), **self.options),
                          lambda to: nn.utils.clip_grad_norm_(self.model.parameters(), to), rows=lambda whole: whole)

    def zero(self, stage, offload=False, bucket_cap_mb=SMALL_BUCKETS_MB):
        self.sharded = ZeroOptimizer(self.model.parameters(), self.optimizer_class, stage=stage, offload=offload,
                                     bucket_cap_mb=bucket_cap_mb, **self.options)
        return self.train(self.model, self.sharded, self.sharded.clip_grad_norm_)

    def fsdp(self, **options):
        self.wrapped = FullyShardedDataParallel(self.model, **options)
        self.train(self.wrapped, self.optimizer_class(self.wrapped.parameters(), **self.options),
                   self.wrapped.clip_grad_norm_)
        self.model = make(self.kind, self.dtype)
        self.model.load_state_dict(self.wrapped.full_state_dict())
        return self

    def stage(self, number, **options):
        return self.fsdp(**options) if number == 3 else self.zero(number, **options)

    def torch_zero(self):
        model = DistributedDataParallel(self.model, find_unused_parameters="Unused" in self.kind)
        optimizer = ZeroRedundancyOptimizer(model.parameters(), self.optimizer_class, **self.options)
        return self.train(model, optimizer, lambda to: nn.utils.clip_grad_norm_(model.parameters(), to))

    def torch_fsdp(self, compute_dtype=None):
        policy = MixedPrecisionPolicy(param_dtype=compute_dtype, reduce_dtype=compute_dtype and torch.float32)
        for block in getattr(getattr(self.model, "gpt", None), "blocks", ()):
            fully_shard(block, mp_policy=policy)
        fully_shard(self.model, mp_policy=policy)
        self.train(self.model, self.optimizer_class(self.model.parameters(), **self.options),
                   lambda to: nn.utils.clip_grad_norm_(self.model.parameters(), to).full_tensor())
        whole = {name: value.full_tensor() for name, value in self.model.state_dict().items()}
        self.model = make(self.kind, self.dtype)
        self.model.load_state_dict(whole)
        return self


def difference(one, other):
    """Of the parameters of two runs, relative to the largest of each tensor, or of the norms, relative to each."""
    off = [((p.detach() - q.detach()).abs().max() / q.detach().abs().max().clamp(min=1e-3)).item()
           for p, q in zip(one.model.parameters(), other.model.parameters(), strict=True)]
    return max(off + [abs(a - b) / b for a, b in zip(one.norms, other.norms, strict=True)])
