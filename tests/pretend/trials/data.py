"""Chapters 3, 4, 6 and checkpoints: three steps of a small model equal those of one process that sees all rows."""

import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel as TorchDistributedDataParallel

from course_lib import checkpoint, data_parallel, pipeline_parallel, reference, zero
from course_lib.checkpoint.models import pieces
from course_lib.checkpoint.replicas import find_corruption
from course_lib.runtime import device, record_communication, record_memory, record_timeline, span
from tests.pretend.trials.register import adamw, mine, model, off, rows, train, trial

HOOKS = ("all_reduce_hook", "fp16_hook", "bf16_hook", "top_k_hook", "power_sgd_hook")


@trial("reference train")
def reference_train() -> None:
    gpt = reference.GPT(reference.GPTConfig(num_layers=1, hidden_size=16, num_heads=2, sequence_length=16))
    log = reference.train(gpt, steps=2, batch_size=4, rank=dist.get_rank(), world_size=dist.get_world_size(),
                          progress=False)
    assert len(log.losses) == 2


@trial("runtime recordings")
def recordings() -> None:
    with record_communication() as communication, record_timeline(), span("step"):
        dist.all_reduce(torch.ones(256))
    assert communication.message_bytes("all_reduce") == 1024
    with record_memory() as memory:
        kept = torch.ones(2**18)
    assert memory.peak >= 2**20 and kept.sum().item() == 2**18


@trial("torch", "DDP", "fully_shard")
def torchs_own(name: str) -> None:
    """What the course compares itself with."""
    trained = model().to(device())
    trained = TorchDistributedDataParallel(trained) if name == "DDP" else fully_shard(trained)
    train(trained, adamw(trained.parameters()))
    state = trained.module.state_dict() if name == "DDP" else {
        name: value.full_tensor() for name, value in trained.state_dict().items()}
    assert off(state) < 1e-12


@trial("data_parallel DDP")
def ddp() -> None:
    trained = data_parallel.DistributedDataParallel(model().to(device()), bucket_cap_mb=2e-4)
    train(trained, adamw(trained.parameters()))
    assert off(trained.module.state_dict()) < 1e-12


@trial("data_parallel hook", *HOOKS)
def hook(name: str) -> None:
    chosen = getattr(data_parallel, name)
    chosen = chosen() if isinstance(chosen, type) else chosen
    trained = data_parallel.DistributedDataParallel(model().to(device()), hook=chosen)
    train(trained, adamw(trained.parameters()))
    assert all(value.isfinite().all() for value in trained.module.state_dict().values())


@trial("data_parallel local SGD, averages")
def local_sgd() -> None:
    trained = model().to(device())
    optimizer = data_parallel.LocalSGD(trained, adamw(trained.parameters()), sync_every=2)
    train(trained, optimizer)
    optimizer.synchronize()
    data_parallel.average_each(trained.parameters())
    data_parallel.average_flat(trained.parameters())
    data_parallel.loss_weight(3)


@trial("data_parallel parameter server")
def parameter_server() -> None:
    trained = model().to(device())
    server = data_parallel.AsyncParameterServer(trained, adamw(trained.parameters()))
    if server.is_server:
        server.serve()
        return
    with server:
        for step in range(2):
            server.pull()
            trained.zero_grad()
            trained(mine(step)).square().mean().backward()
            server.push()


@trial("pipeline_parallel", "gpipe", "one_f_one_b", "zb_h1", "zb_v", "dualpipe_v")
def pipeline(name: str) -> None:
    n = dist.get_world_size()
    with torch.device("cpu"):
        torch.manual_seed(0)
        whole = nn.Sequential(*(nn.Linear(6, 6) for _ in range(2 * n))).double()
    schedule = getattr(pipeline_parallel, name)(n, 2 * n)
    stages = pipeline_parallel.partition(whole, schedule.num_stages)
    own = [stages[stage].to(device()) for stage in schedule.stages[dist.get_rank()]]
    inputs = rows(0)[:8]
    loss = pipeline_parallel.PipelineParallel(own, schedule, None, nn.functional.mse_loss).step(
        inputs.to(device()), inputs.flip(0).to(device()))
    with torch.device("cpu"):
        alone = nn.functional.mse_loss(whole.cpu()(inputs), inputs.flip(0))
    assert abs(loss.item() - alone.item()) < 1e-12, (loss, alone)


@trial("zero stage", (1, False), (2, False), (1, True), (2, True))
def stage(how: tuple[int, bool]) -> None:
    """(stage, offload)"""
    trained = model().to(device())
    optimizer = zero.ZeroOptimizer(trained.parameters(), torch.optim.AdamW, stage=how[0], offload=how[1], lr=1e-2)
    train(trained, optimizer)
    assert off(trained.state_dict()) < 1e-12
    optimizer.clip_grad_norm_(1.0)
    optimizer.state_dict()


@trial("zero fully sharded", False, True)
def fully_sharded(offloaded: bool) -> None:
    trained = zero.FullyShardedDataParallel(model().to(device()), offload=offloaded)
    train(trained, adamw(trained.parameters()))
    trained.clip_grad_norm_(1.0)
    assert off(trained.full_state_dict()) < 1e-12


@trial("zero scaler")
def scaler() -> None:
    trained = model().float().to(device())
    optimizer = zero.ZeroOptimizer(trained.parameters(), torch.optim.AdamW, lr=1e-2)
    scaled = zero.ShardedGradScaler()
    scaled.scale(trained(mine(0).float()).square().mean()).backward()
    scaled.step(optimizer)
    scaled.update()


def one_folder() -> Path:
    """The same on all ranks."""
    names = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(names, src=0)
    return Path(names[0])


@trial("checkpoint", "at once", "in the background")
def saved_and_loaded(how: str) -> None:
    folder, trained = one_folder(), model().to(device())
    optimizer = zero.ZeroOptimizer(trained.parameters(), torch.optim.AdamW, lr=1e-2)
    train(trained, optimizer)
    checkpoint.save(folder, trained, optimizer, 3, background=how != "at once")
    after = {name: value.clone() for name, value in train(trained, optimizer).state_dict().items()}
    assert not find_corruption(pieces(trained, optimizer))
    checkpoint.finish()
    loaded = checkpoint.load(folder, trained, optimizer)
    assert loaded.same_layout and off(trained.state_dict()) < 1e-12
    train(trained, optimizer)
    assert all(torch.equal(value, after[name]) for name, value in trained.state_dict().items())


@trial("checkpoint in another layout")
def another_layout() -> None:
    folder, sharded = one_folder(), zero.FullyShardedDataParallel(model().to(device()))
    optimizer = adamw(sharded.parameters())
    train(sharded, optimizer)
    checkpoint.save(folder, sharded, optimizer, 3)
    trained = model().to(device())
    other = zero.ZeroOptimizer(trained.parameters(), torch.optim.AdamW, stage=2, lr=1e-2)
    checkpoint.load(folder, trained, other)
    assert off(trained.state_dict()) < 1e-12 and off(checkpoint.read_state_dict(folder)) < 1e-12
