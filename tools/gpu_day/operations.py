"""Every way in which ranks pass numbers on: NCCL on one GPU and on all of them, gloo between four ranks that share one.

The operations of a world run on one team, one after the other. One that fails or hangs costs its team, and the next one
gets another.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from course_lib import pipeline_parallel
from course_lib.runtime import Team, backends, device, seconds, start_ranks
from tools.gpu_day.steps import LIMIT_S, Figure, Step

TIMEOUT_S = LIMIT_S - 5.0  # a team ends its ranks itself; the step's limit is for what hangs in the driver
SIZE = 2**18  # numbers in a message: 1 MiB, and divisible by the usual world sizes
Came = tuple[Tensor, Tensor | float]


@dataclass(frozen=True)
class Operation:
    """`run` is a function of (rank, world size) that returns what came, and what was expected of it: integers, so that
    sums are exact.
    """

    run: Callable[[int, int], Came]
    least: int = 1  # ranks that it needs
    only: str | None = None  # the backend that alone has it


def steps(mode: str) -> list[Step]:
    worlds = [("nccl", n) for n in sorted({1, backends.count_gpus()})] + [("gloo-cuda", 4)]
    return [Step(f"{backend} {n}: {name}", f"1 MiB a rank, {n} rank{'s' * (n > 1)}", partial(try_it, backend, n, name))
            for backend, n in worlds for name, one in OPERATIONS.items()
            if n >= one.least and one.only in (None, backend)]


TEAMS: dict[tuple[str, int], Team] = {}  # the one that runs


def try_it(backend: str, world_size: int, name: str) -> Figure:
    took = max(call_on_team(backend, world_size, right_and_timed, name))
    return Figure(f"right, {1e3 * took:.2f} ms", {"seconds": took})


def call_on_team(backend: str, world_size: int, function: Callable, *arguments: object) -> Sequence[Any]:
    """What the ranks return. The team stays for the next call; one that a call has broken does not."""
    world = backend, world_size
    if world not in TEAMS:
        end_teams()
        TEAMS[world] = start_ranks(world_size, backend=backend, timeout=TIMEOUT_S)
    try:
        return TEAMS[world].run(function, *arguments)
    except BaseException:
        end_teams()
        raise


def end_teams() -> None:
    for world in list(TEAMS):
        TEAMS.pop(world).close()


def right_and_timed(name: str) -> float:
    """On a rank: do it twice, check what came, and return the seconds of a third time."""
    one, rank, n = OPERATIONS[name], dist.get_rank(), dist.get_world_size()
    for _ in range(2):
        came, expected = one.run(rank, n)
        wrong = (came.cpu() != torch.as_tensor(expected).cpu()).sum().item()
        assert not wrong, f"{name}: {wrong} of {came.numel()} numbers are wrong on rank {rank}"
    dist.barrier()
    return seconds(one.run, rank, n)


def own(rank: int, size: int = SIZE) -> Tensor:
    return torch.full((size,), float(rank + 1))


def everyones(n: int) -> Tensor:
    """Every rank's `own`, one after the other."""
    return torch.arange(1.0, n + 1).repeat_interleave(SIZE)


def total(n: int) -> float:
    return n * (n + 1) / 2


def after(values: Tensor, call: Callable, *arguments: object) -> Tensor:
    """What a call has made of the values, or put in their place."""
    call(values, *arguments)
    return values


def parts(n: int, call: Callable, *arguments: object) -> Tensor:
    """What a call has put into n tensors, as one."""
    into = [torch.empty(SIZE) for _ in range(n)]
    call(into, *arguments)
    return torch.cat(into)


def all_reduce_async(rank: int, n: int) -> Came:
    values = own(rank)
    work = dist.all_reduce(values, async_op=True)
    other = own(rank) @ own(rank)
    work.wait()
    return torch.stack([values[0], values[-1], other]), torch.tensor([total(n), total(n), SIZE * (rank + 1.0) ** 2])


def gather(rank: int, n: int) -> Came:
    came = parts(n, lambda into: dist.gather(own(rank), into if rank == 0 else None, 0))
    return (came, everyones(n)) if rank == 0 else (own(rank), rank + 1.0)


def all_gather_object(rank: int, n: int) -> Came:
    objects = [None] * n
    dist.all_gather_object(objects, {"rank": rank})
    return torch.tensor([float(each["rank"]) for each in objects]), torch.arange(float(n))


def down_the_line(rank: int, n: int) -> Came:
    values = torch.zeros(SIZE)
    if rank > 0:
        dist.recv(values, rank - 1)
    values += 1
    if rank < n - 1:
        dist.send(values, rank + 1)
    return values, rank + 1.0


def ring(rank: int, n: int) -> Came:
    theirs = torch.empty(SIZE)
    messages = [dist.P2POp(dist.isend, own(rank), (rank + 1) % n), dist.P2POp(dist.irecv, theirs, (rank - 1) % n)]
    for work in dist.batch_isend_irecv(messages):
        work.wait()
    return theirs, (rank - 1) % n + 1.0


def pairs(rank: int, n: int) -> Came:
    groups = [list(range(first, min(first + 2, n))) for first in range(0, n, 2)]
    mine = [dist.new_group(group) for group in groups][rank // 2]
    values = own(rank)
    dist.all_reduce(values, group=mine)
    return values, float(sum(each + 1 for each in groups[rank // 2]))


def partial_pipeline(rank: int, n: int) -> Came:
    """1F1B over all ranks but the first, its loss held against the whole model's."""
    group, p = dist.new_group(list(range(1, n))), n - 1
    if rank == 0:
        return own(rank, 1), 1.0
    with torch.device("cpu"):
        torch.manual_seed(0)
        whole = nn.Sequential(*(nn.Linear(6, 6) for _ in range(p)))
        inputs = torch.randn(2 * p, 6)
    stages = pipeline_parallel.partition(whole, p)
    line = pipeline_parallel.PipelineParallel([stages[rank - 1].to(device())], pipeline_parallel.one_f_one_b(p, 2 * p),
                                              group, nn.functional.mse_loss)
    loss = line.step(inputs.to(device()), inputs.flip(0).to(device())).item()
    alone = nn.functional.mse_loss(whole.cpu()(inputs), inputs.flip(0)).item()
    assert abs(loss - alone) < 1e-5, f"loss {loss} on the ranks, {alone} on one CPU"
    return own(rank, 1), rank + 1.0


OPERATIONS = {
    "barrier": Operation(lambda r, n: (after(own(r, 1), lambda _: dist.barrier()), r + 1)),
    "broadcast": Operation(lambda r, n: (after(own(r), dist.broadcast, n - 1), n)),
    "all_reduce": Operation(lambda r, n: (after(own(r), dist.all_reduce), total(n))),
    "all_reduce, async": Operation(all_reduce_async),
    "all_reduce, AVG": Operation(
        lambda r, n: (after(2 * own(r), dist.all_reduce, dist.ReduceOp.AVG), n + 1), only="nccl"),
    "all_reduce, host's tensors": Operation(lambda r, n: (after(own(r).cpu(), dist.all_reduce), total(n))),
    "reduce": Operation(lambda r, n: (after(own(r), dist.reduce, 0)[:SIZE if r == 0 else 0], total(n))),
    "all_gather": Operation(lambda r, n: (parts(n, dist.all_gather, own(r)), everyones(n))),
    "all_gather_into_tensor": Operation(
        lambda r, n: (after(torch.empty(n * SIZE), dist.all_gather_into_tensor, own(r)), everyones(n))),
    "gather": Operation(gather),
    "scatter": Operation(
        lambda r, n: (after(torch.empty(SIZE), dist.scatter, list(map(own, range(n))) if r == 0 else None, 0), r + 1)),
    "reduce_scatter": Operation(
        lambda r, n: (after(torch.empty(SIZE), dist.reduce_scatter, list(map(own, range(n)))), n * (r + 1))),
    "reduce_scatter_tensor": Operation(
        lambda r, n: (after(torch.empty(SIZE), dist.reduce_scatter_tensor, everyones(n)), n * (r + 1))),
    "all_to_all": Operation(lambda r, n: (parts(n, dist.all_to_all, [own(r) for _ in range(n)]), everyones(n))),
    "all_to_all_single": Operation(
        lambda r, n: (after(torch.empty(n * SIZE), dist.all_to_all_single, own(r, n * SIZE)), everyones(n))),
    "all_gather_object": Operation(all_gather_object),
    "send and recv, in a line": Operation(down_the_line, 2),
    "messages in a batch, ring": Operation(ring, 2),
    "sub-groups: pairs": Operation(pairs, 2),
    "pipeline, partial group": Operation(partial_pipeline, 3),
}
