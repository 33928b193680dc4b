"""Sharded training as it is used: saved and loaded, in 16 bits, recomputed, in groups, beside DeepSpeed."""

import copy
import importlib.util
import sys
from itertools import product

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.utils.checkpoint import checkpoint

from course_lib.reference import GPT, GPTConfig, batches
from course_lib.runtime import launch, record_communication, record_memory
from course_lib.zero import FullyShardedDataParallel, ShardedGradScaler, ZeroOptimizer
from tests.data_parallel.cases import WIDTH, batch, make, mine
from tests.zero.cases import OPTIMIZERS, Run, difference, train

STAGES = (1, 2, 3)


# Saved and loaded

def sharded(stage, module, optimizer, **options):
    kind, defaults = OPTIMIZERS[optimizer]
    if stage == 3:
        model = FullyShardedDataParallel(module, **options)
        return model, kind(model.parameters(), **defaults)
    return module, ZeroOptimizer(module.parameters(), kind, stage=stage, bucket_cap_mb=2e-4, **options, **defaults)


def test_a_run_is_saved_from_three_ranks_and_goes_on_in_one_process_and_sharded_again():
    def body():
        optimizer, found = "AdamW", {}
        kind, defaults = OPTIMIZERS[optimizer]
        straight = Run("Unused", optimizer=optimizer, seed=0, steps=6).alone().model
        for stage in (1, 2):
            model, ours = sharded(stage, make("Unused"), optimizer)
            train(model, ours, lambda step: mine(batch("Unused", step)), steps=3)
            weights, state = model.state_dict(), ours.state_dict()
            plain = make("Unused", seed=1)
            plain.load_state_dict(weights)
            theirs = kind(plain.parameters(), **defaults)
            reference = kind(make("Unused").parameters(), **defaults).state_dict()["param_groups"]
            theirs.load_state_dict(copy.deepcopy(state))  # torch goes on with the very tensors it is given
            same_form = theirs.state_dict()["param_groups"] == reference == state["param_groups"]
            train(plain, theirs, lambda step: batch("Unused", step + 3), steps=3)

            model, ours = sharded(stage, make("Unused", seed=2), optimizer)
            model.load_state_dict(weights)
            ours.load_state_dict(state)
            train(model, ours, lambda step: mine(batch("Unused", step + 3)), steps=3)
            again = make("Unused")
            again.load_state_dict(model.state_dict())
            found[stage] = [same_form] + [max((p - q).abs().max().item() for p, q in zip(
                one.parameters(), straight.parameters())) < 1e-12 for one in (plain, again)]
        return found

    for found in launch(body, world_size=3):
        assert found == {stage: [True] * 3 for stage in (1, 2)}


# Sixteen bits

def test_master_weights_keep_updates_that_16_bits_round_away():
    def body():
        found = {}
        for stage in (0, *STAGES):
            module = nn.Linear(8, 8, bias=False)
            nn.init.ones_(module.weight)
            options = {"lr": 1e-4}  # a bf16 number near 1 moves in steps of 1/256
            model = (FullyShardedDataParallel(module, compute_dtype=torch.bfloat16) if stage == 3 else
                     module.bfloat16())
            optimizer = (ZeroOptimizer(model.parameters(), torch.optim.SGD, stage=stage, **options)
                         if stage in (1, 2) else torch.optim.SGD(model.parameters(), **options))
            for _ in range(100):
                optimizer.zero_grad()
                model(torch.ones(1, 8, dtype=torch.bfloat16)).sum().backward()
                optimizer.step()
            weights = model.full_state_dict()["weight"] if stage == 3 else model.weight.detach()
            found[stage] = round(weights.float().mean().item(), 2)
        return found

    assert launch(body, world_size=2)[0] == {1: 0.99, 2: 0.99, 3: 0.99, 0: 1.0}


def test_bf16_parameters_hold_2_bytes_and_their_masters_a_share_each_and_come_back_exactly():
    def body():
        model = nn.Linear(64, 64).bfloat16()
        optimizer = ZeroOptimizer(model.parameters(), torch.optim.AdamW, stage=2, lr=1e-2)
        with record_memory(model=model, optimizer=optimizer) as log:
            model(torch.ones(1, 64, dtype=torch.bfloat16)).sum().backward()
            optimizer.step()
        state = optimizer.state_dict()
        other = nn.Linear(64, 64).bfloat16()
        other.load_state_dict(model.state_dict())
        resumed = ZeroOptimizer(other.parameters(), torch.optim.AdamW, stage=1, lr=1e-2)
        resumed.load_state_dict(state)
        exact = all(torch.equal(a["master_weight"], b["master_weight"])
                    for a, b in zip(optimizer.state.values(), resumed.state.values()))
        plain = torch.optim.AdamW(other.parameters())
        plain.load_state_dict(state)
        numbers, pieces = sum(p.numel() for p in model.parameters()) // 2, len(optimizer.state)
        return log.by_kind, exact, numbers, pieces

    for by_kind, exact, numbers, pieces in launch(body, world_size=2):
        assert exact
        assert (by_kind["parameters"], by_kind["gradients"]) == (2 * 2 * numbers, 4 * numbers)
        assert by_kind["optimizer_state"] == 12 * numbers + 4 * pieces  # K = 12, and AdamW's step counts


def test_bf16_compute_over_fp32_shards_gives_fully_shards_numbers():
    def body():
        how = {"dtype": torch.float32, "steps": 3, "optimizer": "SGD"}
        ours = Run("Gpt", **how).fsdp(compute_dtype=torch.bfloat16)
        theirs = Run("Gpt", seed=0, **how).torch_fsdp(compute_dtype=torch.bfloat16)
        return difference(ours, theirs)

    assert launch(body, world_size=2)[0] < 1e-3  # theirs adds the gradients up in 32 bits; ours sends 16, adds in 32


def test_a_scaler_finds_what_fp16_overflows_on_any_rank_and_all_skip_the_step():
    def body(stage):
        model = nn.Linear(4, 4, bias=False).half() if stage < 3 else nn.Linear(4, 4, bias=False)
        if stage == 3:
            model = FullyShardedDataParallel(model, compute_dtype=torch.float16)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        else:
            optimizer = ZeroOptimizer(model.parameters(), torch.optim.SGD, stage=stage, lr=1e4)
        scaler = ShardedGradScaler(init_scale=2.0**12, growth_interval=2)
        scales, moved, norms = [], [], []
        for step in range(4):
            before = [p.detach().clone() for p in model.parameters()]
            optimizer.zero_grad()
            x = torch.full((1, 4), 1e-4, dtype=torch.float16)
            if step == 1 and dist.get_rank() == 1:
                x[0, 3] = 60000.0  # times 4096 / 1000 there is no such number
            scaler.scale(model(x).sum() * 1e-3).backward()
            scaler.unscale_(optimizer)
            clipper = model if stage == 3 else optimizer
            norms.append(clipper.clip_grad_norm_(100.0).item())
            scaler.step(optimizer)
            scaler.update()
            scales.append(scaler.get_scale())
            moved.append(any(not torch.equal(a, b) for a, b in zip(before, model.parameters())))
        return scales, moved, norms[0]

    for stage in STAGES:
        for scales, moved, norm in launch(body, stage, world_size=2):
            assert (scales, moved) == ([4096, 2048, 2048, 4096], [True, False, True, True]), stage
            assert norm == pytest.approx(4e-7, rel=0.01)  # 16 numbers of 1e-7, of which fp16 knows but one digit


# Together with what else there is

def test_rank_0s_buffers_arrive_before_a_forward_in_training_and_cost_nothing_in_evaluation():
    def body():
        model = FullyShardedDataParallel(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH)))
        torch.manual_seed(dist.get_rank())
        model(torch.randn(4, WIDTH)).sum().backward()
        before = model.module[1].running_mean.clone()
        dist.broadcast(before, 0)
        with record_communication() as training:
            model(torch.zeros(4, WIDTH))
        mean = model.module[1].running_mean.clone()
        with record_communication() as evaluation:
            model.eval()(torch.zeros(4, WIDTH))
        expected = 0.9 * before + 0.1 * model.full_state_dict()["0.bias"]
        return torch.allclose(mean, expected), training.calls("broadcast"), evaluation.calls("broadcast")

    assert launch(body, world_size=2) == [(True, 2, 0)] * 2  # floats, and the count of batches


class Checkpointed(nn.Module):
    """Blocks of which autograd keeps the input only."""

    def __init__(self, reentrant, dtype=torch.float64):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH))
                                    for _ in range(3)).to(dtype)
        self.reentrant = reentrant

    def forward(self, x, y):
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=self.reentrant) if self.reentrant is not None else block(x)
        return (x.sum(1) - y).square().mean()


def test_recomputation_changes_no_number():
    def body(stage):
        ends = []
        for reentrant in (None, False, True):
            torch.manual_seed(0)
            model, optimizer = sharded(stage, Checkpointed(reentrant), "AdamW")

            def rows(step):
                x, y = mine(batch("Tied", step))
                return x.requires_grad_(), y

            train(model, optimizer, rows, steps=3)
            ends.append(list((model.full_state_dict() if stage == 3 else model.state_dict()).values()))
        return [all(torch.equal(a, b) for a, b in zip(ends[0], other)) for other in ends[1:]]

    for stage in STAGES:
        assert launch(body, stage, world_size=2)[0] == [True, True], stage


def test_parameters_in_no_unit_are_replicated_and_count_once_in_the_norm():
    def body():
        alone = Run("Gpt", seed=0, clip_to=0.1, steps=4).alone()
        run = Run("Gpt", clip_to=0.1, steps=4).fsdp(should_shard=lambda _, module: isinstance(module, nn.Linear))
        shapes = {name: tuple(p.shape) for name, p in run.wrapped.module.named_parameters()}
        return difference(run, alone), shapes["gpt.norm.weight"], shapes["gpt.blocks.0.mlp.input.weight"]

    assert [(off < 1e-12, *rest) for off, *rest in launch(body, world_size=2)] == [(True, (16,), (512,))] * 2


def test_a_group_of_some_ranks_shards_among_them():
    def body():
        pairs = [dist.new_group([0, 2]), dist.new_group([1, 3])]
        group, found = pairs[dist.get_rank() % 2], []
        for stage in STAGES:
            module = nn.Linear(2, 1, bias=False)
            nn.init.zeros_(module.weight)
            if stage == 3:
                model = FullyShardedDataParallel(module, group)
                optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
            else:
                model, optimizer = module, ZeroOptimizer(module.parameters(), torch.optim.SGD, stage, group, lr=1.0)
            model(torch.full((1, 2), float(dist.get_rank()))).sum().backward()
            optimizer.step()
            weight = model.full_state_dict()["weight"] if stage == 3 else module.weight
            found.append(weight.flatten().tolist())
        return found

    assert launch(body, world_size=4) == [[[-1.0, -1.0]] * 3, [[-2.0, -2.0]] * 3] * 2


@pytest.mark.ci
def test_peak_memory_is_not_above_fully_shards():
    config = GPTConfig(num_layers=4, hidden_size=64, num_heads=4, vocab_size=256, sequence_length=32)

    def peaks_of(ours):
        model = GPT(config)
        if ours:
            model = FullyShardedDataParallel(model)
        else:
            for block in model.blocks:
                fully_shard(block)
            fully_shard(model)
        optimizer = torch.optim.AdamW(model.parameters())
        peaks = []
        for rows in (1, 1, 8):
            optimizer.zero_grad()
            inputs, targets = batches(rows, dist.get_rank(), 4, batch_size=4 * rows, sequence_length=32)
            with record_memory(model=model, optimizer=optimizer) as log:
                model(inputs, targets)[1].backward()
                optimizer.step()
            peaks.append(log.peak)
        return peaks[1:]

    ours, theirs = launch(lambda: [peaks_of(True), peaks_of(False)], world_size=4)[0]
    assert all(a <= b for a, b in zip(ours, theirs)), (ours, theirs)


@pytest.mark.ci
@pytest.mark.skipif(importlib.util.find_spec("deepspeed") is None, reason="needs pip install .[deepspeed]")
def test_deepspeed_sees_the_same_losses_at_every_stage():
    def body():
        from course_lib.zero.deepspeed import deepspeed_config, deepspeed_engine

        losses = {}
        for theirs, stage in product((True, False), STAGES):
            torch.manual_seed(0)
            model = GPT(GPTConfig(num_layers=2, hidden_size=32, num_heads=2))
            if theirs:
                model = deepspeed_engine(model, stage, deepspeed_config(stage, bucket_cap_mb=0.25), lr=1e-3)
            else:
                model = FullyShardedDataParallel(model) if stage == 3 else model
                optimizer = (torch.optim.AdamW(model.parameters(), lr=1e-3) if stage == 3 else
                             ZeroOptimizer(model.parameters(), torch.optim.AdamW, stage, lr=1e-3))
            losses[theirs, stage] = []
            for step in range(4):
                loss = model(*batches(step, dist.get_rank(), 2, batch_size=4))[1]
                losses[theirs, stage].append(loss.item())
                if theirs:
                    model.backward(loss)
                    model.step()
                else:
                    loss.backward()
                    optimizer.step()
                    optimizer.zero_grad()
        return losses

    losses = launch(body, world_size=2, timeout=120)[0]
    for seen in losses.values():
        assert seen == pytest.approx(losses[False, 1], rel=1e-5)


def test_without_deepspeed_the_adapter_says_how_to_get_it(monkeypatch):
    from course_lib.zero.deepspeed import import_quietly

    monkeypatch.setitem(sys.modules, "deepspeed", None)
    with pytest.raises(ImportError, match=r"pip install .\[deepspeed\]"):
        import_quietly()
