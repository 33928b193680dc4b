"""Sharded optimisers and sharded models take the steps of one process on the whole batch, and those of torch's own."""

import pytest
import torch
from torch import nn

from course_lib.runtime import launch
from tests.zero_cases import KINDS, OPTIMIZERS, Run, difference

STAGES = (1, 2, 3)


FEW = ("Frozen", "UsedBySomeRows", "Gpt")


@pytest.mark.parametrize("world_size, kinds, how", [
    (1, FEW, {"clip_to": 0.1}), (2, FEW, {"micro_batches": 2}), (3, FEW, {"clip_to": 0.1, "micro_batches": 2}),
    (4, KINDS, {"clip_to": 0.1}),
])
def test_ten_adamw_steps_end_where_one_process_on_the_whole_batch_ends(world_size, kinds, how):
    # In float64: the gradient of an attention's key bias is zero, and AdamW makes whole steps of its rounding errors,
    # which are others when a batch is cut. MixedDtypes has layers of both kinds.
    def body():
        found = {}
        for kind in kinds:
            alone = Run(kind, seed=0, **how).alone()
            for stage in STAGES:
                found[kind, stage] = difference(Run(kind, **how).stage(stage), alone)
        return found

    for of_rank in launch(body, world_size=world_size, timeout=120):
        wrong = {case: off for case, off in of_rank.items() if off > (1e-6 if "MixedDtypes" in case else 1e-12)}
        assert wrong == {}


def test_in_float32_they_agree_with_one_process_to_1e6():
    def body():
        found = {}
        for kind, optimizer in (("Tied", "AdamW"), ("Frozen", "AdamW"), ("UsedTwice", "SGD"), ("Gpt", "SGD")):
            alone = Run(kind, torch.float32, optimizer, seed=0).alone()
            for stage in STAGES:
                found[kind, stage] = difference(Run(kind, torch.float32, optimizer).stage(stage), alone)
        return found

    for of_rank in launch(body, world_size=2):
        assert {case: off for case, off in of_rank.items() if off > 1e-6} == {}


@pytest.mark.parametrize("world_size", [2, 3])
def test_they_agree_with_fully_shard_and_with_zero_redundancy_optimizer(world_size):
    def body():
        found = {}
        for kind in ("Tied", "Gpt"):
            how = {"micro_batches": 2, "steps": 5}
            runs = {stage: Run(kind, **how).stage(stage) for stage in STAGES}
            theirs = {"zero": Run(kind, **how).torch_zero(), "fsdp": Run(kind, seed=0, **how).torch_fsdp()}
            found |= {(kind, stage, name): difference(run, other) for stage, run in runs.items()
                      for name, other in theirs.items()}
            found[kind, "clipped"] = difference(Run(kind, clip_to=0.1, **how).fsdp(),
                                                Run(kind, clip_to=0.1, seed=0, **how).torch_fsdp())
        return found

    assert {case: off for case, off in launch(body, world_size=world_size)[0].items() if off > 1e-12} == {}


def test_every_option_gives_the_same_numbers():
    def body():
        found = {}
        for optimizer in OPTIMIZERS:
            alone = Run("Gpt", optimizer=optimizer, seed=0, steps=4).alone()
            ways = {"1 offload": lambda run: run.zero(1, offload=True),
                    "2 offload": lambda run: run.zero(2, offload=True),
                    "one bucket": lambda run: run.zero(2, bucket_cap_mb=25),
                    "offload, prefetch 0": lambda run: run.fsdp(offload=True, prefetch=0),
                    "prefetch 3": lambda run: run.fsdp(prefetch=3),
                    "kept for backward": lambda run: run.fsdp(reshard_after_forward=False),
                    "one unit": lambda run: run.fsdp(should_shard=lambda path, _: path == ""),
                    "matrices": lambda run: run.fsdp(should_shard=lambda _, module: isinstance(module, nn.Linear))}
            found |= {(optimizer, name): difference(way(Run("Gpt", optimizer=optimizer, steps=4)), alone)
                      for name, way in ways.items()}
        return found

    assert {case: off for case, off in launch(body, world_size=2)[0].items() if off > 1e-12} == {}
