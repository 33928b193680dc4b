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
from course_lib.runtime import record_communication, record_memory
from course_lib.zero import FullyShardedDataParallel, ShardedGradScaler
from tests.data_parallel import cases
from tests.data_parallel.cases import WIDTH, batch, make, mine
from tests.ranks import on_ranks
from tests.zero.cases import OPTIMIZERS, SMALL_BUCKETS_MB, STAGES, Run, difference, sharded, train, weights

# Saved and loaded

@on_ranks(3)
def test_a_run_is_saved_from_three_ranks_and_goes_on_in_one_process_and_sharded_again():
    straight = Run("Difficult", seed=0, steps=6).alone().model
    AdamW, options = OPTIMIZERS["AdamW"]
    for stage in (1, 2):
        how = {"bucket_cap_mb": SMALL_BUCKETS_MB}
        model, ours = sharded(stage, make("Difficult"), how=how, **options)
        train(model, ours, lambda step: mine(batch("Difficult", step)), steps=3)
        parameters, state = model.state_dict(), ours.state_dict()
        plain = make("Difficult", seed=1)
        plain.load_state_dict(parameters)
        theirs = AdamW(plain.parameters(), **options)
        assert theirs.state_dict()["param_groups"] == state["param_groups"]
        theirs.load_state_dict(copy.deepcopy(state))  # torch goes on with the very tensors it is given
        train(plain, theirs, lambda step: batch("Difficult", step + 3), steps=3)

        model, ours = sharded(stage, make("Difficult", seed=2), how=how, **options)
        model.load_state_dict(parameters)
        ours.load_state_dict(state)
        train(model, ours, lambda step: mine(batch("Difficult", step + 3)), steps=3)
        assert cases.difference(plain, straight) < 1e-12 and cases.difference(model, straight) < 1e-12, stage


# Sixteen bits

@on_ranks(2)
def test_master_weights_keep_updates_that_16_bits_round_away():
    for stage in (0, *STAGES):
        module = nn.Linear(8, 8, bias=False)
        nn.init.ones_(module.weight)
        how = {"compute_dtype": torch.bfloat16} if stage == 3 else {}
        model, options = module if stage == 3 else module.bfloat16(), {"lr": 1e-4}
        # a bf16 number near 1 moves in steps of 1/256
        model, optimizer = (sharded(stage, model, torch.optim.SGD, how, **options) if stage else
                            (model, torch.optim.SGD(model.parameters(), **options)))
        for _ in range(100):
            optimizer.zero_grad()
            model(torch.ones(1, 8, dtype=torch.bfloat16)).sum().backward()
            optimizer.step()
        assert round(weights(model)["weight"].float().mean().item(), 2) == (0.99 if stage else 1.0), stage


@on_ranks(2)
def test_bf16_parameters_hold_2_bytes_and_their_masters_a_share_each_and_come_back_exactly():
    model, optimizer = sharded(2, nn.Linear(64, 64).bfloat16(), lr=1e-2)
    with record_memory(model=model, optimizer=optimizer) as log:
        model(torch.ones(1, 64, dtype=torch.bfloat16)).sum().backward()
        optimizer.step()
    numbers = sum(p.numel() for p in model.parameters()) // 2
    assert (log.by_kind["parameters"], log.by_kind["gradients"]) == (2 * 2 * numbers, 4 * numbers)
    assert log.by_kind["optimizer_state"] == 12 * numbers + 4 * len(optimizer.state)  # K = 12, and AdamW's step counts
    state = optimizer.state_dict()
    other = nn.Linear(64, 64).bfloat16()
    other.load_state_dict(model.state_dict())
    _, resumed = sharded(1, other, lr=1e-2)
    resumed.load_state_dict(state)
    for a, b in zip(optimizer.state.values(), resumed.state.values(), strict=True):
        assert torch.equal(a["master_weight"], b["master_weight"])
    torch.optim.AdamW(other.parameters()).load_state_dict(state)


@on_ranks(2)
def test_bf16_compute_over_fp32_shards_gives_fully_shards_numbers():
    how = {"dtype": torch.float32, "steps": 3, "optimizer": "SGD"}
    ours = Run("Gpt", **how).stage(3, compute_dtype=torch.bfloat16)
    theirs = Run("Gpt", seed=0, **how).torch_fsdp(compute_dtype=torch.bfloat16)
    assert difference(ours, theirs) < 1e-3  # theirs adds the gradients up in 32 bits; ours sends 16, adds in 32


@pytest.mark.parametrize("stage", STAGES)
@on_ranks(2)
def test_a_scaler_finds_what_fp16_overflows_on_any_rank_and_all_skip_the_step(stage):
    module = nn.Linear(4, 4, bias=False)
    model, optimizer = (sharded(3, module, torch.optim.SGD, {"compute_dtype": torch.float16}, lr=0.1) if stage == 3 else
                        sharded(stage, module.half(), torch.optim.SGD, lr=1e4))
    scaler = ShardedGradScaler(init_scale=2.0**12, growth_interval=2)
    for step, (scale, moves) in enumerate([(4096, True), (2048, False), (2048, True), (4096, True)]):
        before = [p.detach().clone() for p in model.parameters()]
        optimizer.zero_grad()
        x = torch.full((1, 4), 1e-4, dtype=torch.float16)
        if step == 1 and dist.get_rank() == 1:
            x[0, 3] = 60000.0  # times 4096 / 1000 there is no such number
        scaler.scale(model(x).sum() * 1e-3).backward()
        scaler.unscale_(optimizer)
        norm = (model if stage == 3 else optimizer).clip_grad_norm_(100.0).item()
        if step == 0:
            assert norm == pytest.approx(4e-7, rel=0.01)  # 16 numbers of 1e-7, of which fp16 knows but one digit
        scaler.step(optimizer)
        scaler.update()
        assert scaler.get_scale() == scale
        assert any(not torch.equal(a, b) for a, b in zip(before, model.parameters())) == moves


# Together with what else there is

@on_ranks(2)
def test_rank_0s_buffers_arrive_before_a_forward_in_training_and_cost_nothing_in_evaluation():
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
    assert torch.allclose(mean, 0.9 * before + 0.1 * weights(model)["0.bias"])
    assert (training.calls("broadcast"), evaluation.calls("broadcast")) == (2, 0)  # floats, and the count of batches


class Checkpointed(nn.Module):
    """Blocks of which autograd keeps the input only."""

    def __init__(self, how):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH))
                                    for _ in range(3)).double()
        self.how = how

    def forward(self, x, y):
        x = x.requires_grad_()
        for block in self.blocks:
            x = checkpoint(block, x, **self.how) if self.how else block(x)
        return (x.sum(1) - y).square().mean()


@on_ranks(2)
def test_recomputation_changes_no_number():
    for stage in STAGES:
        ends = []
        for how in ({}, {"use_reentrant": False}, {"use_reentrant": True}):
            torch.manual_seed(0)
            model, optimizer = sharded(stage, Checkpointed(how), lr=1e-2)
            train(model, optimizer, lambda step: mine(batch("Tied", step)), steps=3)
            ends.append(weights(model))
        assert all(torch.equal(ends[0][name], end[name]) for end in ends for name in end), stage


@on_ranks(4)
def test_a_group_of_some_ranks_shards_among_them():
    pairs, rank = [dist.new_group([0, 2]), dist.new_group([1, 3])], dist.get_rank()
    for stage in STAGES:
        module = nn.Linear(2, 1, bias=False)
        nn.init.zeros_(module.weight)
        model, optimizer = sharded(stage, module, torch.optim.SGD, {"group": pairs[rank % 2]}, lr=1.0)
        model(torch.full((1, 2), float(rank))).sum().backward()
        optimizer.step()
        assert weights(model)["weight"].tolist() == [[-1.0 - rank % 2] * 2]


@pytest.mark.ci
@on_ranks(4)
def test_peak_memory_is_not_above_fully_shards():
    config = GPTConfig(num_layers=4, hidden_size=64, num_heads=4, vocab_size=256, sequence_length=32)
    peaks = []
    for is_ours in (True, False):
        model = GPT(config)
        if is_ours:
            model = FullyShardedDataParallel(model)
        else:
            for module in (*model.blocks, model):
                fully_shard(module)
        optimizer = torch.optim.AdamW(model.parameters())
        for rows in (1, 1, 8):
            optimizer.zero_grad()
            inputs, targets = batches(rows, dist.get_rank(), 4, batch_size=4 * rows, sequence_length=32)
            with record_memory(model=model, optimizer=optimizer) as log:
                model(inputs, targets)[1].backward()
                optimizer.step()
            peaks.append(log.peak)
    assert peaks[1] <= peaks[4] and peaks[2] <= peaks[5]


@pytest.mark.ci
@pytest.mark.skipif(importlib.util.find_spec("deepspeed") is None, reason="needs pip install .[deepspeed]")
@on_ranks(2, timeout=120)
def test_deepspeed_sees_the_same_losses_at_every_stage():
    from course_lib.zero.deepspeed import deepspeed_config, deepspeed_engine

    expected = None
    for theirs, stage in product((False, True), STAGES):
        torch.manual_seed(0)
        model, losses = GPT(GPTConfig(num_layers=2, hidden_size=32, num_heads=2)), []
        if theirs:
            model = deepspeed_engine(model, stage, deepspeed_config(stage, bucket_cap_mb=0.25), lr=1e-3)
        else:
            model, optimizer = sharded(stage, model, lr=1e-3)
        for step in range(4):
            loss = model(*batches(step, dist.get_rank(), 2, batch_size=4))[1]
            losses.append(loss.item())
            if theirs:
                model.backward(loss)
                model.step()
            else:
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
        expected = expected or losses
        assert losses == pytest.approx(expected, rel=1e-5), (theirs, stage)


def test_without_deepspeed_the_adapter_says_how_to_get_it(monkeypatch):
    from course_lib.zero.deepspeed import import_quietly

    monkeypatch.setitem(sys.modules, "deepspeed", None)
    with pytest.raises(ImportError, match=r"pip install .\[deepspeed\]"):
        import_quietly()
