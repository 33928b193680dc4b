"""Chapter 2: the numbers are those of the formula."""

import torch
import torch.distributed as dist

from course_lib import collectives
from tests.pretend.trials.register import trial


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
