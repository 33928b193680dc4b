"""record_memory on real ranks: what DDP, FSDP2 and tensor parallelism hold, and logs of many ranks."""

import pickle

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from course_lib.reference import GPT, GPTConfig, batches
from course_lib.runtime import launch, record_memory, span

FLOAT = 4  # bytes


def gpt():
    return GPT(GPTConfig(num_layers=2, hidden_size=32, num_heads=4, sequence_length=16))


def parameter_bytes(model):
    return sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())


def adamw_bytes(of_parameters):
    """Two moments, and a step count for each parameter that is a scalar tensor."""
    return 2 * of_parameters + len(list(gpt().parameters())) * FLOAT


def parallel_step(how):
    model = gpt()
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    if how == "fsdp":
        for block in model.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
    elif how == "ddp":
        model = nn.parallel.DistributedDataParallel(model)
    else:
        for block in model.blocks:
            parallelize_module(block.mlp, mesh, {"input": ColwiseParallel(), "output": RowwiseParallel()})
    optimizer = torch.optim.AdamW(model.parameters())
    with record_memory(model=model, optimizer=optimizer) as log:
        with span("forward"):
            _, loss = model(*batches(0, batch_size=2, sequence_length=16))
        with span("backward"):
            loss.backward()
        with span("step"):
            optimizer.step()
    return log


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_fsdp2_shards_parameters_gradients_and_state_and_gathers_one_block_at_a_time(world_size):
    whole, block = parameter_bytes(gpt()), parameter_bytes(gpt().blocks[0])  # every parameter divides by 4
    results = launch(parallel_step, "fsdp", world_size=world_size)
    for log in results:
        assert log.by_kind["parameters"] == log.by_kind["gradients"] == whole // world_size
        assert log.by_kind["optimizer_state"] == adamw_bytes(whole // world_size)
        if world_size > 1:  # the root keeps its own parameters gathered; then one of two blocks
            assert log.peak_by_kind["parameters"] == whole // world_size + (whole - 2 * block) + block
    assert results.memory.ranks == tuple(range(world_size))


SPLIT = (32 * 128 + 128 + 128 * 32) * FLOAT  # in each of two MLPs both matrices and the first bias


@pytest.mark.parametrize("how, less", [("ddp", 0), ("tensor parallel", 2 * SPLIT // 2)])
def test_ddp_replicates_everything_and_of_a_dtensor_the_local_shard_counts(how, less):
    local = parameter_bytes(gpt()) - less
    for log in launch(parallel_step, how, world_size=2):
        assert log.by_kind["parameters"] == log.by_kind["gradients"] == local
        assert log.by_kind["optimizer_state"] == adamw_bytes(local)


def step_of_growing_batches():
    rank = dist.get_rank()
    model = nn.Linear(100, 100, bias=False)
    for size in (1, 100):
        with record_memory(model=model), span("forward"):
            model(torch.ones(size * (rank + 1), 100)).sum()
    return None


def test_a_merged_log_answers_for_its_fullest_rank_and_keeps_the_others(snapshot):
    merged = launch(step_of_growing_batches, world_size=4).memory
    assert merged.ranks == (0, 1, 2, 3)
    weight, rows = 40_000, 100 * 100 * FLOAT
    for rank in range(4):
        assert merged.by_rank(rank).peak == weight + 2 * (rank + 1) * rows + FLOAT
    assert merged.peak == merged.by_rank(3).peak and merged.by_rank(0).phases[-1].name == "forward"
    assert repr(merged) == snapshot
    copy = pickle.loads(pickle.dumps(merged))
    drawn = copy._repr_mimebundle_()
    assert drawn["text/plain"] == repr(merged) and drawn["image/png"].startswith(b"\x89PNG")
    with pytest.raises(ValueError, match="rank 9 recorded no memory"):
        merged.by_rank(9)
    with pytest.raises(ValueError, match="unknown kind 'weights'; the kinds are parameters, "):
        merged.over_time("weights")
