"""Sharded optimisers and sharded models take the steps of one process on the whole batch, and those of torch's own."""

import functools

import pytest
import torch
import torch.distributed as dist
from torch import nn

from course_lib.runtime import launch
from course_lib.zero import FullyShardedDataParallel, ZeroOptimizer
from tests.data_parallel.cases import batch, make, mine
from tests.zero.cases import KINDS, Run, difference

STAGES = (1, 2, 3)


FEW = ("Frozen", "UsedBySomeRows", "Gpt")
RUNS = [(2, FEW, {"micro_batches": 2}), (3, KINDS, {"clip_to": 0.1}),
        (1, FEW, {"clip_to": 0.1}), (4, KINDS, {"clip_to": 0.1, "micro_batches": 2})]


@pytest.mark.sweep("run", few=RUNS[:2], all=RUNS, ids=lambda run: f"{run[0]} ranks", words="2 and 3 ranks of 1 to 4")
def test_five_adamw_steps_end_where_one_process_on_the_whole_batch_ends(run):
    world_size, kinds, how = run

    # In float64: the gradient of an attention's key bias is zero, and AdamW makes whole steps of its rounding errors,
    # which are others when a batch is cut. MixedDtypes has layers of both kinds.
    def body():
        found = {}
        for kind in kinds:
            alone = Run(kind, seed=0, steps=5, **how).alone()
            for stage in STAGES:
                found[kind, stage] = difference(Run(kind, steps=5, **how).stage(stage), alone)
        return found

    for of_rank in launch(body, world_size=world_size, timeout=120):
        wrong = {case: off for case, off in of_rank.items() if off > (1e-6 if "MixedDtypes" in case else 1e-12)}
        assert wrong == {}


def test_in_float32_they_agree_with_one_process_to_1e6():
    def body():
        found = {}
        for kind, optimizer in (("Tied", "AdamW"), ("Frozen", "AdamW"), ("UsedTwice", "SGD"), ("Gpt", "SGD")):
            alone = Run(kind, torch.float32, optimizer, seed=0, steps=5).alone()
            for stage in STAGES:
                found[kind, stage] = difference(Run(kind, torch.float32, optimizer, steps=5).stage(stage), alone)
        return found

    for of_rank in launch(body, world_size=2):
        assert {case: off for case, off in of_rank.items() if off > 1e-6} == {}


@pytest.mark.sweep("world_size", few=[3], all=[1, 2, 3, 4], words="3 ranks of 1 to 4")
def test_they_agree_with_fully_shard_and_with_zero_redundancy_optimizer(world_size):
    def body():
        how = {"micro_batches": 2, "clip_to": 0.1, "steps": 4}
        theirs = {"zero": Run("Gpt", **how).torch_zero(), "fsdp": Run("Gpt", seed=0, **how).torch_fsdp()}
        return {(stage, name): difference(run, other) for stage, run in
                ((stage, Run("Gpt", **how).stage(stage)) for stage in STAGES) for name, other in theirs.items()}

    assert {case: off for case, off in launch(body, world_size=world_size)[0].items() if off > 1e-12} == {}


WAYS = {
    "1": lambda run: run.zero(1), "2": lambda run: run.zero(2), "3": lambda run: run.fsdp(),
    "1 offload": lambda run: run.zero(1, offload=True),
    "2 offload": lambda run: run.zero(2, offload=True),
    "one bucket": lambda run: run.zero(2, bucket_cap_mb=25),
    "offload, prefetch 0": lambda run: run.fsdp(offload=True, prefetch=0),
    "prefetch 3": lambda run: run.fsdp(prefetch=3),
    "kept for backward": lambda run: run.fsdp(reshard_after_forward=False),
    "one unit": lambda run: run.fsdp(should_shard=lambda path, _: path == ""),
    "matrices": lambda run: run.fsdp(should_shard=lambda _, module: isinstance(module, nn.Linear)),
}


def test_every_option_and_optimiser_gives_the_same_numbers():
    def body():
        found = {}
        for optimizer, ways in (("AdamW", tuple(WAYS)), ("SGD", "123"), ("Adam", "123")):
            alone = Run("Gpt", optimizer=optimizer, seed=0, steps=4).alone()
            found |= {(optimizer, way): difference(WAYS[way](Run("Gpt", optimizer=optimizer, steps=4)), alone)
                      for way in ways}
        return found

    assert {case: off for case, off in launch(body, world_size=2)[0].items() if off > 1e-12} == {}


def test_parameter_groups_and_schedulers_work_as_in_torch():
    def run(make_optimizer, rows):
        model = make("Tied")
        optimizer = make_optimizer([{"params": model.first.parameters(), "lr": 1e-2},
                                    {"params": [model.second.bias, *model.last.parameters()], "weight_decay": 0.5}])
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)
        for step in range(5):
            optimizer.zero_grad()
            model(*rows(batch("Tied", step))).backward()
            optimizer.step()
            scheduler.step()
        return model, [options["lr"] for options in optimizer.param_groups]

    def body():
        alone, rates = run(lambda groups: torch.optim.AdamW(groups, lr=3e-3), lambda whole: whole)
        found = []
        for stage in (1, 2):
            model, ours = run(functools.partial(ZeroOptimizer, optimizer_class=torch.optim.AdamW, stage=stage, lr=3e-3),
                              mine)
            found.append((ours == rates, all(torch.allclose(p, q, rtol=1e-12) for p, q in zip(
                model.parameters(), alone.parameters()))))
        return found

    assert launch(body, world_size=2)[0] == [(True, True)] * 2


class Branches(nn.Module):
    """Parameters with a gradient, with one of zeros, with one of minus zeros, on one rank only, and with none."""

    def __init__(self):
        super().__init__()
        self.used, self.zeros, self.minus, self.rank_1, self.unused = (nn.Parameter(torch.ones(5)) for _ in range(5))

    def forward(self, x):
        branch = self.rank_1 if dist.get_rank() == 1 else 1.0
        return (x * self.used + 0.0 * self.zeros + torch.full((5,), -0.0) * self.minus + branch).sum()


def test_a_parameter_with_a_gradient_of_zeros_decays_and_one_that_nobody_used_stays():
    def body():
        found = {}
        for stage in (1, 2, 3):
            module, options = Branches(), {"lr": 0.1, "weight_decay": 1.0}
            if stage == 3:
                model = FullyShardedDataParallel(module)
                optimizer = torch.optim.AdamW(model.parameters(), **options)
            else:
                model, optimizer = module, ZeroOptimizer(module.parameters(), torch.optim.AdamW, stage, **options)
            model(torch.ones(5)).backward()
            optimizer.step()
            state = model.full_state_dict() if stage == 3 else model.state_dict()
            found[stage] = {name: round(value.mean().item(), 3) for name, value in state.items()}
        return found

    expected = {"used": 0.8, "zeros": 0.9, "minus": 0.9, "rank_1": 0.8, "unused": 1.0}
    for of_rank in launch(body, world_size=3):
        assert of_rank == {1: expected, 2: expected, 3: expected}


def test_a_rank_whose_loss_reaches_no_parameter_takes_part_with_zeros():
    def body():
        found = []
        for stage in (1, 2):
            factor = nn.Parameter(torch.ones(3))
            optimizer = ZeroOptimizer([factor], torch.optim.SGD, stage, lr=1.0)
            x = torch.ones(3, requires_grad=True)
            (x * factor if dist.get_rank() == 0 else x).sum().backward()
            optimizer.step()
            found += factor.tolist()
        return found

    assert launch(body, world_size=3) == [pytest.approx([2 / 3] * 6)] * 3


def test_weights_that_are_held_or_on_their_way_when_the_optimiser_steps_are_gathered_again():
    def losses(model, rows):
        """After each step, of three. Before it an evaluation before backward, and a forward pass without backward."""
        optimizer, found = torch.optim.SGD(model.parameters(), lr=0.5), []
        for step in range(3):
            optimizer.zero_grad()
            loss = model(*rows(batch("Gpt", step)))
            with torch.no_grad():
                model.eval()(*rows(batch("Gpt", step + 2)))
            loss.backward()
            model.train()(*rows(batch("Gpt", step + 1)))
            optimizer.step()
            with torch.no_grad():
                found += [model(*rows(batch("Gpt", step + 2))), model.eval()(*rows(batch("Gpt", step)))]
        return torch.stack(found)

    def body():
        expected, off = losses(make("Gpt"), lambda whole: whole), []
        for options in ({}, {"reshard_after_forward": False}, {"reshard_after_forward": False, "prefetch": 0}):
            ours = losses(FullyShardedDataParallel(make("Gpt"), **options), mine)
            dist.all_reduce(ours)
            off.append((ours / 2 - expected).abs().max().item())
        return max(off)

    assert max(launch(body, world_size=2)) < 1e-12
