"""Chapter 6 on pretended GPUs: each stage's peak is the formula's. (That it takes the CPU's steps: trials/data.py.)"""

import pytest
import torch
import torch.distributed as dist

from course_lib.data_parallel import DistributedDataParallel
from course_lib.reference import GPT, GPTConfig, batches
from course_lib.runtime import record_memory
from course_lib.zero import FullyShardedDataParallel, ZeroOptimizer, step_peak, watch
from tests.pretend.needed import built, on  # noqa: F401  a fixture

pytestmark = pytest.mark.ci
STAGES = (0, 1, 2, 3)
BUCKET = 1 << 17  # bytes
# On a GPU it steps on all tensors at once, and needs 4 bytes a number meanwhile. eps: a gradient of nearly 0 must not
# decide by its rounding where its parameter goes.
ADAMW = {"foreach": False, "eps": 1e-3}
CONFIG = GPTConfig(num_layers=4, hidden_size=64, num_heads=4, sequence_length=32)


def loss_of(model, number):
    return model(*batches(number, dist.get_rank(), dist.get_world_size(), batch_size=8, sequence_length=32))[1]


def build(model, stage):
    if stage in (1, 2):
        return model, ZeroOptimizer(model.parameters(), torch.optim.AdamW, stage, bucket_cap_mb=BUCKET / 2**20, **ADAMW)
    model = FullyShardedDataParallel(model) if stage else DistributedDataParallel(model, bucket_cap_mb=BUCKET / 2**20)
    return model, torch.optim.AdamW(model.parameters(), **ADAMW)


def peaks():
    """For each stage (this rank's peak on its GPU, what the formula says of it), in bytes; watched here, too."""
    model = GPT(CONFIG)
    seen = watch(model, lambda: loss_of(model, 0))
    found = []
    for stage in STAGES:
        model, optimizer = build(GPT(CONFIG), stage)
        for number in range(2):
            optimizer.zero_grad()
            with record_memory(model=model, optimizer=optimizer) as log:
                loss_of(model, number).backward()
                optimizer.step()
        found.append((log.peak_on_gpu, step_peak(seen, dist.get_world_size(), stage, dist.get_rank(), BUCKET)))
    return found


@pytest.mark.parametrize("mode, world_size", [("nccl", 4), ("gloo-cuda", 2)])
def test_the_formula_of_the_peak_holds_within_two_percent_also_where_nccl_sends(mode, world_size):
    for measured, formula in [pair for found in on(mode, peaks, world_size=world_size) for pair in found]:
        assert abs(measured / formula - 1) < 0.02, (measured, formula)
