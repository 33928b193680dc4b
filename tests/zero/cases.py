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
from tests.data_parallel.cases import batch, make, mine

STAGES = (1, 2, 3)
OPTIMIZERS = {
    "AdamW": (torch.optim.AdamW, {"lr": 1e-2}),
    "SGD": (torch.optim.SGD, {"lr": 1e-2, "momentum": 0.9}),
    "Adam": (torch.optim.Adam, {"lr": 1e-2, "amsgrad": True}),
}
SMALL_BUCKETS_MB = 2e-4  # a handful of parameters each


def sharded(stage, module, optimizer=torch.optim.AdamW, how=None, **options):
    """(model, optimiser); `how` goes to what shards in this stage, `options` to the optimiser."""
    if stage == 3:
        module = FullyShardedDataParallel(module, **(how or {}))
        return module, optimizer(module.parameters(), **options)
    return module, ZeroOptimizer(module.parameters(), optimizer, stage, **(how or {}), **options)


def weights(model):
    """The state dict of the whole model."""
    return model.full_state_dict() if isinstance(model, FullyShardedDataParallel) else model.state_dict()


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

    def train(self, model, optimizer=None, clip=None, rows=mine):
        optimizer = optimizer or self.optimizer_class(model.parameters(), **self.options)
        clip = clip or (lambda to: nn.utils.clip_grad_norm_(model.parameters(), to))
        self.norms = train(model, optimizer, lambda step: rows(batch(self.kind, step, self.dtype)),
                           clip=self.clip_to and (lambda: clip(self.clip_to)), **self.how)
        return self

    def ends_with(self, state):
        """The model in one process, with what the ranks have made."""
        self.model = make(self.kind, self.dtype)
        self.model.load_state_dict(state)
        return self

    def alone(self):
        """One process on the whole batch."""
        return self.train(self.model, rows=lambda whole: whole)

    def stage(self, number, **how):
        how = how if number == 3 else {"bucket_cap_mb": SMALL_BUCKETS_MB} | how
        self.sharded, optimizer = sharded(number, self.model, self.optimizer_class, how, **self.options)
        self.train(self.sharded, optimizer, (self.sharded if number == 3 else optimizer).clip_grad_norm_)
        return self.ends_with(weights(self.sharded))

    def torch_zero(self):
        model = DistributedDataParallel(self.model)
        return self.train(model, ZeroRedundancyOptimizer(model.parameters(), self.optimizer_class, **self.options))

    def torch_fsdp(self, compute_dtype=None):
        policy = MixedPrecisionPolicy(param_dtype=compute_dtype, reduce_dtype=compute_dtype and torch.float32)
        for module in (*self.model.gpt.blocks, self.model):
            fully_shard(module, mp_policy=policy)
        self.train(self.model, clip=lambda to: nn.utils.clip_grad_norm_(self.model.parameters(), to).full_tensor())
        return self.ends_with({name: value.full_tensor() for name, value in self.model.state_dict().items()})


def difference(one, other):
    """Of the parameters of two runs, relative to the largest of each tensor, or of the norms, relative to each."""
    off = [((p.detach() - q.detach()).abs().max() / q.detach().abs().max().clamp(min=1e-3)).item()
           for p, q in zip(one.model.parameters(), other.model.parameters(), strict=True)]
    return max(off + [abs(a - b) / b for a, b in zip(one.norms, other.norms, strict=True)])
