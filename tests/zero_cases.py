"""The models of chapter 3's tests, trained by sharded optimisers, by torch's own, and by one process.

Apart from the tests, since ranks import it in every launch: pytest would cost them a second.
"""

import torch
import torch.distributed as dist
from torch import nn

from course_lib.zero import ZeroOptimizer
from tests.data_parallel_cases import MODELS, batch, make, mine

OPTIMIZERS = {
    "AdamW": (torch.optim.AdamW, {"lr": 1e-2}),
    "SGD": (torch.optim.SGD, {"lr": 1e-2, "momentum": 0.9}),
    "Adam": (torch.optim.Adam, {"lr": 1e-2, "weight_decay": 0.1}),
}
SMALL_BUCKETS_MB = 2e-4  # a handful of parameters each


def train(model, optimizer, shards, steps=10, micro_batches=1, clip_to=None, clip=None):
    """`steps` steps of `micro_batches` backward passes each on what `shards(number)` gives; the norms clipped."""
    norms = []
    for step in range(steps):
        optimizer.zero_grad()
        for micro in range(micro_batches):
            (model(*shards(step * micro_batches + micro)) / micro_batches).backward()
        if clip_to is not None:
            norms.append(clip(clip_to).item())
        optimizer.step()
    return norms


def train_alone(kind, dtype, optimizer="AdamW", **how):
    """One process on the whole batch."""
    model = make(kind, dtype)
    kind_of, options = OPTIMIZERS[optimizer]
    norms = train(model, kind_of(model.parameters(), **options), lambda step: batch(kind, step, dtype),
                  clip=lambda to: nn.utils.clip_grad_norm_(model.parameters(), to), **how)
    return model, norms


def train_zero(kind, dtype, stage, optimizer="AdamW", offload=False, bucket_cap_mb=SMALL_BUCKETS_MB, **how):
    model = make(kind, dtype, seed=dist.get_rank())  # rank 0's values must win
    kind_of, options = OPTIMIZERS[optimizer]
    sharded = ZeroOptimizer(model.parameters(), kind_of, stage=stage, offload=offload, bucket_cap_mb=bucket_cap_mb,
                            **options)
    norms = train(model, sharded, lambda step: mine(batch(kind, step, dtype)), clip=sharded.clip_grad_norm_, **how)
    return model, sharded, norms


def difference(a, b):
    """The largest difference of two models' parameters, relative to the largest of them, over all of one kind."""
    found = 0.0
    for p, q in zip(a.parameters(), b.parameters(), strict=True):
        found = max(found, ((p.detach() - q.detach()).abs().max() / q.detach().abs().max().clamp(min=1e-3)).item())
    return found


KINDS = tuple(MODELS)
