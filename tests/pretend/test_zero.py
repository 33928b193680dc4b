"""Chapter 6 on pretended GPUs: every stage takes the CPU's steps, and its peak is the formula's."""

import copy

import pytest
import torch
import torch.distributed as dist

from course_lib.data_parallel import DistributedDataParallel
from course_lib.reference import GPT, GPTConfig, batches
from course_lib.runtime import device, launch, record_memory
from course_lib.zero import FullyShardedDataParallel, ZeroOptimizer, step_peak, watch
from tests.pretend.needed import built, on  # noqa: F401  a fixture

STAGES = (0, 1, 2, 3)
BUCKET = 1 << 17  # bytes
# On a GPU it steps on all tensors at once, and needs 4 bytes a number meanwhile. eps: a gradient of nearly 0 must not
# decide by its rounding where its parameter goes.
ADAMW = {"foreach": False, "eps": 1e-3}
CONFIG = GPTConfig(num_layers=4, hidden_size=64, num_heads=4, sequence_length=32)


def loss_of(model, number):
    return model(*batches(number, dist.get_rank(), dist.get_world_size(), batch_size=8, sequence_length=32))[1]


def build(model, stage):
    """(model, optimizer, a function that says what this rank has of the averaged gradients)"""
    if stage in (1, 2):
        optimizer = ZeroOptimizer(model.parameters(), torch.optim.AdamW, stage, bucket_cap_mb=BUCKET / 2**20, **ADAMW)
        return model, optimizer, lambda: [piece.owned.grad for piece in optimizer.pieces.values()]
    model = FullyShardedDataParallel(model) if stage else DistributedDataParallel(model, bucket_cap_mb=BUCKET / 2**20)
    return model, torch.optim.AdamW(model.parameters(), **ADAMW), lambda: [p.grad for p in model.parameters()]


def steps(start, stage):
    """The losses of three steps, and this rank's gradients (three, all its numbers)."""
    model, optimizer, gradients = build(copy.deepcopy(start), stage)
    losses, averages = [], []
    for number in range(3):
        optimizer.zero_grad()
        loss = loss_of(model, number)
        loss.backward()
        if stage in (1, 2):
            optimizer.average_gradients()
        losses.append(loss.detach())
        averages.append(torch.cat([gradient.flatten() for gradient in gradients()]))
        optimizer.step()
    return torch.stack(losses), torch.stack(averages)


def test_losses_and_gradients_of_every_stage_are_the_cpus_on_every_rank():
    torch.manual_seed(0)
    start = GPT(CONFIG)

    def body():
        return [steps(start, stage) for stage in STAGES]

    for on_gpu, on_cpu in zip(on("nccl", body, world_size=4), launch(body, device="cpu"), strict=True):
        for ours, expected in zip(on_gpu, on_cpu, strict=True):
            torch.testing.assert_close(ours, expected, rtol=0, atol=1e-6)


def peaks():
    """For each stage (this rank's peak on its GPU, what the formula says of it), in bytes; watched here, too."""
    model = GPT(CONFIG)
    seen = watch(model, lambda: loss_of(model, 0))
    found = []
    for stage in STAGES:
        model, optimizer, _ = build(GPT(CONFIG), stage)
        for number in range(2):
            optimizer.zero_grad()
            with record_memory(model=model, optimizer=optimizer) as log:
                loss_of(model, number).backward()
                optimizer.step()
        found.append((log.peak_on_gpu, step_peak(seen, dist.get_world_size(), stage, dist.get_rank(), BUCKET)))
    return found


@pytest.mark.parametrize("mode, world_size", [("nccl", 2), ("nccl", 4), ("gloo-cuda", 2)])
def test_the_formula_of_the_peak_holds_within_two_percent_also_where_nccl_sends(mode, world_size):
    for measured, formula in [pair for found in on(mode, peaks, world_size=world_size) for pair in found]:
        assert abs(measured / formula - 1) < 0.02, (measured, formula)


def saved(start):
    """For stages 1 and 2: where the saved state lies, all its numbers, and where a plain AdamW has it after loading."""
    found = []
    for stage in (1, 2):
        model, optimizer, _ = build(copy.deepcopy(start), stage)
        loss_of(model, 0).backward()
        optimizer.step()
        state = optimizer.state_dict()
        numbers = [value for of_one in state["state"].values() for value in of_one.values()]
        plain = torch.optim.AdamW(copy.deepcopy(start).parameters())
        plain.load_state_dict(state)
        moments = [of_one["exp_avg"] for of_one in plain.state.values()]
        found.append(({value.device.type for value in numbers}, torch.cat([value.flatten() for value in numbers]),
                      {moment.device == device() for moment in moments}))
    return found


def test_a_saved_state_is_the_cpus_on_the_host_and_loads_onto_a_gpu():
    torch.manual_seed(0)
    start = GPT(CONFIG)
    for on_gpu, on_cpu in zip(on("nccl", saved, start), launch(saved, start, world_size=2, device="cpu"), strict=True):
        for (where, numbers, loaded), (_, expected, _) in zip(on_gpu, on_cpu, strict=True):
            assert (where, loaded) == ({"cpu"}, {True})
            torch.testing.assert_close(numbers, expected, rtol=0, atol=1e-6)
