"""Chapters 3, 4, 6 and checkpoints: what three steps of a small model make of it."""

import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel as TorchDistributedDataParallel

from course_lib import checkpoint, data_parallel, pipeline_parallel, zero
from course_lib.checkpoint.accidents import find_corruption
from course_lib.checkpoint.piece import pieces
from course_lib.runtime import device
from tests.pretend.trials.register import adamw, drawn, gpt, loss_of, mine, train, trial


@trial()
def torchs_own() -> list:
    """What the course compares itself with."""
    sharded = train(fully_shard(gpt())).state_dict()
    return [train(TorchDistributedDataParallel(gpt())).module.state_dict(),
            {name: value.full_tensor() for name, value in sharded.items()}]


@trial(None, "all_reduce_hook", "fp16_hook", "bf16_hook", "top_k_hook", "power_sgd_hook")
def data_parallel_with_hook(name: str | None) -> dict:
    chosen = getattr(data_parallel, name) if name else None
    hook = {"hook": chosen() if isinstance(chosen, type) else chosen} if chosen else {"bucket_cap_mb": 2e-3}
    return train(data_parallel.DistributedDataParallel(gpt(), **hook)).module.state_dict()


@trial()
def local_sgd_and_averages() -> dict:
    model = gpt()
    optimizer = data_parallel.LocalSGD(model, adamw(model.parameters()), sync_every=2)
    train(model, optimizer)
    optimizer.synchronize()
    data_parallel.average_each(model.parameters())
    data_parallel.average_flat(model.parameters())
    data_parallel.loss_weight(3)
    return model.state_dict()


@trial()
def parameter_server() -> None:
    """Pushes come in any order."""
    model = gpt()
    server = data_parallel.AsyncParameterServer(model, adamw(model.parameters()))
    if server.is_server:
        server.serve()
        return
    with server:
        for step in range(2):
            server.pull()
            model.zero_grad()
            loss_of(model, mine(step)).backward()
            server.push()


@trial(*pipeline_parallel.SCHEDULES)
def pipeline(name: str) -> list:
    schedule = pipeline_parallel.SCHEDULES[name](4, 8)
    with torch.device("cpu"):
        torch.manual_seed(0)
        whole = nn.Sequential(*(nn.Linear(6, 6) for _ in range(8))).double()
    stages = pipeline_parallel.partition(whole, schedule.num_stages)
    own = [stages[stage].to(device()) for stage in schedule.stages[dist.get_rank()]]
    loss = pipeline_parallel.PipelineParallel(own, schedule, None, nn.functional.mse_loss).step(
        drawn(8, 6) / 8, drawn(8, 6, seed=1) / 8)
    return [loss, [p.grad for stage in own for p in stage.parameters()]]


@trial((1, False), (2, False), (1, True), (2, True), (3, False), (3, True))
def zero_stage(how: tuple[int, bool]) -> list:
    """(stage, offload)"""
    model, (number, offload) = gpt(), how
    if number == 3:
        sharded = train(zero.FullyShardedDataParallel(model, offload=offload))
        return [sharded.clip_grad_norm_(1.0), sharded.full_state_dict()]
    optimizer = zero.ZeroOptimizer(model.parameters(), torch.optim.AdamW, stage=number, offload=offload, lr=1e-2)
    train(model, optimizer)
    return [optimizer.clip_grad_norm_(1.0), model.state_dict(), optimizer.state_dict()]


@trial()
def zero_scaler() -> dict:
    model = gpt()
    optimizer, scaled = zero.ZeroOptimizer(model.parameters(), torch.optim.AdamW, lr=1e-2), zero.ShardedGradScaler()
    scaled.scale(loss_of(model, mine(0))).backward()
    scaled.step(optimizer)
    scaled.update()
    return model.state_dict()


def one_folder() -> Path:
    """The same on all ranks."""
    names = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(names, src=0)
    return Path(names[0])


@trial("at once", "in the background")
def checkpoint_saved(how: str) -> dict:
    folder, model = one_folder(), gpt()
    optimizer = zero.ZeroOptimizer(model.parameters(), torch.optim.AdamW, lr=1e-2)
    train(model, optimizer)
    checkpoint.save(folder, model, optimizer, 3, background=how != "at once")
    after = {name: value.clone() for name, value in train(model, optimizer).state_dict().items()}
    assert not find_corruption(pieces(model, optimizer))
    checkpoint.finish()
    assert checkpoint.load(folder, model, optimizer).same_layout
    train(model, optimizer)
    assert all(torch.equal(value, after[name]) for name, value in model.state_dict().items())
    return after


@trial()
def checkpoint_in_another_layout() -> list[dict]:
    folder, sharded, model = one_folder(), zero.FullyShardedDataParallel(gpt()), gpt()
    optimizer = adamw(sharded.parameters())
    train(sharded, optimizer)
    checkpoint.save(folder, sharded, optimizer, 3)
    checkpoint.load(folder, model, zero.ZeroOptimizer(model.parameters(), torch.optim.AdamW, stage=2, lr=1e-2))
    return [sharded.full_state_dict(), model.state_dict(), checkpoint.read_state_dict(folder)]
