"""Every chapter's library code on whatever device its ranks have, held against one process on the CPU.

Each trial is what a cell would do: models and rows lie on the rank's own device, which is the default one.
"""

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel as TorchDistributedDataParallel

from course_lib import collectives, data_parallel, pipeline_parallel, reference, zero
from course_lib.runtime import LaunchError, device, launch, record_communication, record_memory, record_timeline, span
from tests.pretend.cells import Outcome
from tests.pretend.hook import pretended
from tests.pretend.modes import MODES

TRIALS: dict[str, Callable[[], None]] = {}
TIMEOUT_S = 30.0


def trial(name: str, *arguments: object) -> Callable:
    """Register a function under `name`, and with an argument of its own for each of `arguments`."""
    def register(function: Callable) -> Callable:
        if not arguments:
            TRIALS[name] = function
        for each in arguments:
            TRIALS[f"{name} {each}"] = lambda each=each: function(each)
        return function
    return register


def run_all(mode: str, only: str = "") -> list[Outcome]:
    """Every trial whose name holds `only`, on four ranks each."""
    with pretended(MODES[mode]):
        return [run(name) for name in TRIALS if only in name]


def run(name: str) -> Outcome:
    try:
        launch(TRIALS[name], timeout=TIMEOUT_S)
    except LaunchError as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        return Outcome(name, False, f"{type(error).__name__}: {(lines + lines)[1]}")
    return Outcome(name, True)


def model() -> nn.Module:
    """Equal everywhere, and made on the CPU: an equal seed gives other numbers on a GPU."""
    with torch.device("cpu"):
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1)).double()


def rows(step: int) -> Tensor:
    """(12, 6), on the CPU."""
    generator = torch.Generator().manual_seed(step)
    return torch.randn(12, 6, generator=generator, dtype=torch.float64, device="cpu")


def mine(step: int) -> Tensor:
    return rows(step).chunk(dist.get_world_size())[dist.get_rank()].to(device())


def adamw(parameters: object) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-2)


def train(trained: nn.Module, optimizer: torch.optim.Optimizer, share: Callable[[int], Tensor]) -> nn.Module:
    for step in range(3):
        optimizer.zero_grad()
        trained(share(step)).square().mean().backward()
        optimizer.step()
    return trained


def off(values: dict[str, Tensor]) -> float:
    """The largest difference to one process on the CPU that sees all rows."""
    with torch.device("cpu"):
        alone = model()
        train(alone, adamw(alone.parameters()), rows)
    return max((values[name].cpu() - value).abs().max().item() for name, value in alone.state_dict().items())


# collectives

@trial("collectives all-reduce", "ring", "naive", "tree", "halving_doubling")
def all_reduce(algorithm: str) -> None:
    values = torch.arange(7.0) + dist.get_rank()
    getattr(collectives, f"{algorithm}_all_reduce")(values)
    n = dist.get_world_size()
    assert values.tolist() == [n * i + n * (n - 1) / 2 for i in range(7)], values


@trial("collectives one way")
def one_way() -> None:
    rank, n = dist.get_rank(), dist.get_world_size()
    values = torch.full((4,), float(rank))
    collectives.tree_broadcast(values, 0)
    assert values.tolist() == [0.0] * 4
    parts = collectives.gather(torch.full((2,), float(rank)), None, 0)
    assert rank or [part[0].item() for part in parts] == list(range(n))
    collectives.scatter(values, [torch.full((4,), float(j)) for j in range(n)] if rank == 0 else None, 0)
    assert values.tolist() == [float(rank)] * 4


@trial("collectives dealt out")
def dealt_out() -> None:
    rank, n = dist.get_rank(), dist.get_world_size()
    whole = collectives.ring_all_gather(torch.full((2,), float(rank)))
    assert whole.tolist() == [float(j) for j in range(n) for _ in range(2)]
    share = collectives.ring_reduce_scatter(torch.arange(8.0))
    assert share.tolist() == [n * i for i in torch.arange(8.0).tensor_split(n)[rank].tolist()]
    mixed = collectives.pairwise_all_to_all(torch.full((n,), float(rank)))
    assert mixed.tolist() == [float(j) for j in range(n)]


# data_parallel

HOOKS = ("all_reduce_hook", "fp16_hook", "bf16_hook", "top_k_hook", "power_sgd_hook")


@trial("data_parallel DDP")
def ddp() -> None:
    trained = data_parallel.DistributedDataParallel(model().to(device()), bucket_cap_mb=2e-4)
    train(trained, adamw(trained.parameters()), mine)
    assert off(trained.module.state_dict()) < 1e-12


@trial("data_parallel hook", *HOOKS)
def hook(name: str) -> None:
    chosen = getattr(data_parallel, name)
    chosen = chosen() if isinstance(chosen, type) else chosen
    trained = data_parallel.DistributedDataParallel(model().to(device()), hook=chosen)
    train(trained, adamw(trained.parameters()), mine)
    assert all(value.isfinite().all() for value in trained.module.state_dict().values())


@trial("data_parallel local SGD")
def local_sgd() -> None:
    trained = model().to(device())
    optimizer = data_parallel.LocalSGD(trained, adamw(trained.parameters()), sync_every=2)
    train(trained, optimizer, mine)
    optimizer.synchronize()


@trial("data_parallel sampler")
def sampler() -> None:
    own = list(data_parallel.ShardedSampler(10))
    assert len(own) == 3 and set(own) <= set(range(10))


@trial("data_parallel averages")
def averages() -> None:
    trained = model().to(device())
    trained(mine(0)).square().mean().backward()
    data_parallel.average_each(trained.parameters())
    data_parallel.average_flattened(trained.parameters())
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


# pipeline_parallel

SCHEDULES = ("gpipe", "one_f_one_b", "zb_h1", "zb_v", "dualpipe_v")


@trial("pipeline_parallel", *SCHEDULES)
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


# zero

@trial("zero stage", 1, 2)
def stage(number: int) -> None:
    trained = model().to(device())
    optimizer = zero.ZeroOptimizer(trained.parameters(), torch.optim.AdamW, stage=number, lr=1e-2)
    train(trained, optimizer, mine)
    assert off(trained.state_dict()) < 1e-12
    optimizer.clip_grad_norm_(1.0)
    optimizer.state_dict()


@trial("zero offload", 1, 2)
def offload(number: int) -> None:
    trained = model().to(device())
    optimizer = zero.ZeroOptimizer(trained.parameters(), torch.optim.AdamW, stage=number, offload=True, lr=1e-2)
    train(trained, optimizer, mine)
    assert off(trained.state_dict()) < 1e-12


@trial("zero fully sharded", False, True)
def fully_sharded(offloaded: bool) -> None:
    trained = zero.FullyShardedDataParallel(model().to(device()), offload=offloaded)
    optimizer = adamw(trained.parameters())
    train(trained, optimizer, mine)
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


# reference, runtime and torch's own beside them

@trial("reference train")
def reference_train() -> None:
    gpt = reference.GPT(reference.GPTConfig(num_layers=1, hidden_size=16, num_heads=2, sequence_length=16))
    log = reference.train(gpt, steps=2, batch_size=4, rank=dist.get_rank(), world_size=dist.get_world_size(),
                          progress=False)
    assert len(log.losses) == 2


@trial("runtime recordings")
def recordings() -> None:
    with record_communication() as communication, record_timeline(), span("step"):
        values = torch.ones(256)
        dist.all_reduce(values)
    assert communication.message_bytes("all_reduce") == 1024
    with record_memory() as memory:
        kept = torch.ones(2**18)
    assert memory.peak >= 2**20 and kept.sum().item() == 2**18


@trial("torch DDP")
def torch_ddp() -> None:
    trained = TorchDistributedDataParallel(model().to(device()))
    train(trained, adamw(trained.parameters()), mine)
    assert off(trained.module.state_dict()) < 1e-12


@trial("torch fully_shard")
def torch_fully_shard() -> None:
    trained = model().to(device())
    fully_shard(trained)
    train(trained, adamw(trained.parameters()), mine)
    assert off({name: value.full_tensor() for name, value in trained.state_dict().items()}) < 1e-12
