"""Every way in which ranks pass numbers on, each in a launch of its own: NCCL on one GPU and on all of them, gloo
between four ranks that share one.

An operation is a function of (rank, world size) that returns what came, and what was expected of it: integers, so that
sums are exact.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn

from course_lib import pipeline_parallel
from course_lib.runtime import backends, device, launch, seconds
from tools.gpu_day.steps import Step

TIMEOUT_S = 30.0
DEADLINE_S = 60.0  # launch ends its ranks itself; this is for what hangs in the driver
SIZE = 2**18  # numbers in a message: 1 MiB, and divisible by the usual world sizes
Came = tuple[Tensor, Tensor | float]


@dataclass(frozen=True)
class Operation:
    run: Callable[[int, int], Came]
    least: int  # ranks that it needs
    only: str | None  # the backend that alone has it
    on_host: bool  # whether its tensors lie there, also where ranks have GPUs


OPERATIONS: dict[str, Operation] = {}


def operation(name: str, least: int = 1, only: str | None = None, on_host: bool = False) -> Callable:
    def register(run: Callable[[int, int], Came]) -> Callable[[int, int], Came]:
        OPERATIONS[name] = Operation(run, least, only, on_host)
        return run
    return register


def steps(mode: str) -> list[Step]:
    worlds = [("nccl", n) for n in sorted({1, backends.count_gpus()})] + [("gloo-cuda", 4)]
    return [Step(f"{backend} {n}: {name}", f"1 MiB a rank, {n} rank{'s' * (n > 1)}", partial(try_it, name, backend, n))
            for backend, n in worlds for name, one in OPERATIONS.items()
            if n >= one.least and one.only in (None, backend)]


def try_it(name: str, backend: str, world_size: int) -> str:
    slowest_s = max(launch(right_and_timed, name, world_size=world_size, backend=backend, timeout=TIMEOUT_S))
    return f"right, {1e3 * slowest_s:.2f} ms"


def right_and_timed(name: str) -> float:
    """On a rank: do it twice, check what came, and return the seconds of a third time."""
    one, rank, n = OPERATIONS[name], dist.get_rank(), dist.get_world_size()
    for _ in range(2):
        came, expected = one.run(rank, n)
        wrong = (came.cpu() != torch.as_tensor(expected).cpu()).sum().item()
        assert not wrong, f"{name}: {wrong} of {came.numel()} numbers are wrong on rank {rank}"
        assert came.device == (torch.device("cpu") if one.on_host else device()), came.device
    dist.barrier()
    return seconds(one.run, rank, n)


def own(rank: int, size: int = SIZE) -> Tensor:
    return torch.full((size,), float(rank + 1))


def everyones(n: int, size: int = SIZE) -> Tensor:
    """Every rank's `own`, one after the other."""
    return torch.arange(1.0, n + 1).repeat_interleave(size)


def total(n: int) -> float:
    return n * (n + 1) / 2


@operation("barrier")
def barrier(rank: int, n: int) -> Came:
    dist.barrier()
    return own(rank, 1), rank + 1.0


@operation("broadcast")
def broadcast(rank: int, n: int) -> Came:
    values = own(rank)
    dist.broadcast(values, n - 1)
    return values, float(n)


@operation("all_reduce")
def all_reduce(rank: int, n: int) -> Came:
    values = own(rank)
    dist.all_reduce(values)
    return values, total(n)


@operation("all_reduce, async")
def all_reduce_async(rank: int, n: int) -> Came:
    values = own(rank)
    work = dist.all_reduce(values, async_op=True)
    other = own(rank) @ own(rank)
    work.wait()
    return torch.stack([values[0], values[-1], other]), torch.tensor([total(n), total(n), SIZE * (rank + 1.0) ** 2])


@operation("all_reduce, AVG", only="nccl")
def all_reduce_average(rank: int, n: int) -> Came:
    values = own(rank) * 2
    dist.all_reduce(values, dist.ReduceOp.AVG)
    return values, n + 1.0


@operation("all_reduce, host's tensors", on_host=True)
def all_reduce_on_host(rank: int, n: int) -> Came:
    values = torch.full((SIZE,), float(rank + 1), device="cpu")
    dist.all_reduce(values)
    return values, total(n)


@operation("reduce")
def reduce(rank: int, n: int) -> Came:
    values = own(rank)
    dist.reduce(values, 0)
    return (values, total(n)) if rank == 0 else (own(rank), rank + 1.0)


@operation("all_gather")
def all_gather(rank: int, n: int) -> Came:
    parts = [torch.empty(SIZE) for _ in range(n)]
    dist.all_gather(parts, own(rank))
    return torch.cat(parts), everyones(n)


@operation("all_gather_into_tensor")
def all_gather_into_tensor(rank: int, n: int) -> Came:
    whole = torch.empty(n * SIZE)
    dist.all_gather_into_tensor(whole, own(rank))
    return whole, everyones(n)


@operation("gather")
def gather(rank: int, n: int) -> Came:
    parts = [torch.empty(SIZE) for _ in range(n)] if rank == 0 else None
    dist.gather(own(rank), parts, 0)
    return (torch.cat(parts), everyones(n)) if parts else (own(rank), rank + 1.0)


@operation("scatter")
def scatter(rank: int, n: int) -> Came:
    mine = torch.empty(SIZE)
    dist.scatter(mine, [own(j) for j in range(n)] if rank == 0 else None, 0)
    return mine, rank + 1.0


@operation("reduce_scatter")
def reduce_scatter(rank: int, n: int) -> Came:
    mine = torch.empty(SIZE)
    dist.reduce_scatter(mine, [own(j) for j in range(n)])
    return mine, n * (rank + 1.0)


@operation("reduce_scatter_tensor")
def reduce_scatter_tensor(rank: int, n: int) -> Came:
    mine = torch.empty(SIZE)
    dist.reduce_scatter_tensor(mine, everyones(n))
    return mine, n * (rank + 1.0)


@operation("all_to_all")
def all_to_all(rank: int, n: int) -> Came:
    parts = [torch.empty(SIZE) for _ in range(n)]
    dist.all_to_all(parts, [own(rank) for _ in range(n)])
    return torch.cat(parts), everyones(n)


@operation("all_to_all_single")
def all_to_all_single(rank: int, n: int) -> Came:
    whole = torch.empty(n * SIZE)
    dist.all_to_all_single(whole, own(rank, n * SIZE))
    return whole, everyones(n)


@operation("all_gather_object")
def all_gather_object(rank: int, n: int) -> Came:
    objects = [None] * n
    dist.all_gather_object(objects, {"rank": rank})
    return torch.tensor([float(each["rank"]) for each in objects]), torch.arange(float(n))


@operation("send and recv, in a line", least=2)
def down_the_line(rank: int, n: int) -> Came:
    values = torch.zeros(SIZE)
    if rank > 0:
        dist.recv(values, rank - 1)
    values += 1
    if rank < n - 1:
        dist.send(values, rank + 1)
    return values, rank + 1.0


@operation("messages in a batch, ring", least=2)
def ring(rank: int, n: int) -> Came:
    theirs = torch.empty(SIZE)
    messages = [dist.P2POp(dist.isend, own(rank), (rank + 1) % n), dist.P2POp(dist.irecv, theirs, (rank - 1) % n)]
    for work in dist.batch_isend_irecv(messages):
        work.wait()
    return theirs, (rank - 1) % n + 1.0


@operation("sub-groups: pairs", least=2)
def pairs(rank: int, n: int) -> Came:
    groups = [list(range(first, min(first + 2, n))) for first in range(0, n, 2)]
    mine = [dist.new_group(group) for group in groups][rank // 2]
    values = own(rank)
    dist.all_reduce(values, group=mine)
    return values, float(sum(each + 1 for each in groups[rank // 2]))


@operation("pipeline, partial group", least=3)
def partial_pipeline(rank: int, n: int) -> Came:
    """1F1B over all ranks but the first, its loss held against the whole model's."""
    members = list(range(1, n))
    group, p = dist.new_group(members), n - 1
    if rank == 0:
        return own(rank, 1), 1.0
    with torch.device("cpu"):
        torch.manual_seed(0)
        whole = nn.Sequential(*(nn.Linear(6, 6) for _ in range(p)))
        inputs = torch.randn(2 * p, 6)
    stages = pipeline_parallel.partition(whole, p)
    line = pipeline_parallel.PipelineParallel([stages[rank - 1].to(device())], pipeline_parallel.one_f_one_b(p, 2 * p),
                                              group, nn.functional.mse_loss)
    loss = line.step(inputs.to(device()), inputs.flip(0).to(device()))
    alone = nn.functional.mse_loss(whole.cpu()(inputs), inputs.flip(0))
    off = abs(loss.item() - alone.item())
    assert off < 1e-5, f"loss {loss.item()} on the ranks, {alone.item()} on one CPU"
    return own(rank, 1), rank + 1.0
