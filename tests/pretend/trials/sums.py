"""Gradients of 16 bits, added up in a dtype that one can choose; and what goes to the host and back."""

import torch
import torch.distributed as dist
from torch import Tensor, nn

from course_lib import data_parallel, zero
from course_lib.groups.membership import member
from course_lib.runtime import device
from tests.pretend.trials.register import trial


class Given(nn.Module):
    """A parameter whose gradient is the tensor given to forward."""

    def __init__(self, dtype: torch.dtype, size: int = 61) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(size, dtype=dtype, device=device()))

    def forward(self, gradient: Tensor) -> Tensor:
        return (self.weight * gradient).sum()


def given(n: int, size: int = 61) -> Tensor:
    """(n, size): the gradient of each rank, in bf16, on the CPU."""
    return torch.randn(n, size, generator=torch.Generator().manual_seed(0), device="cpu").bfloat16()


def averages(reduce_dtype: torch.dtype | None) -> dict[str, Tensor]:
    """What each way makes of `given`: whole, on the CPU; of the sharded ones this rank's part."""
    n, r = dist.get_world_size(), dist.get_rank()
    gradient, found = given(n)[r].to(device()), {}
    model = data_parallel.DistributedDataParallel(Given(torch.bfloat16), reduce_dtype=reduce_dtype)
    model(gradient).backward()
    found["ddp"] = model.module.weight.grad
    for stage in (1, 2):
        alone = Given(torch.bfloat16)
        optimizer = zero.ZeroOptimizer(alone.parameters(), torch.optim.SGD, stage, lr=1.0, reduce_dtype=reduce_dtype)
        alone(gradient).backward()
        optimizer.average_gradients()
        (piece,) = optimizer.pieces.values()
        found[f"zero {stage}"] = piece.owned.grad
    model = zero.FullyShardedDataParallel(Given(torch.float32), compute_dtype=torch.bfloat16, reduce_dtype=reduce_dtype)
    model(gradient).backward()
    found["zero 3"] = model.module.weight.grad
    return {way: value.cpu() for way, value in found.items()}


@trial(torch.float32, torch.bfloat16)
def sums_in(reduce_dtype: torch.dtype) -> dict[str, Tensor]:
    """The bits of a count by hand: one sum after the other in this dtype, and then the average. DDP divides first.

    In 16 bits the order counts, and NCCL has its own: there each addition may be off by half a digit of the 8.
    """
    n, r = dist.get_world_size(), dist.get_rank()
    found, shares = averages(reduce_dtype), given(n).to(reduce_dtype)
    total = shares[0].clone()
    for share in shares[1:]:
        total += share
    if reduce_dtype is torch.float32:
        assert torch.equal(total, given(n).double().sum(0).float())  # no digit is lost
    S = -(-len(total) // n)
    mine = (total / n)[r * S:(r + 1) * S].float()
    assert torch.equal(found["ddp"], (total / n).bfloat16()) or reduce_dtype is torch.bfloat16, "ddp"
    in_order = member().wire(device()).type == "cpu"
    most = n * 2**-8 * (given(n).abs().float().sum(0) / n)[r * S:(r + 1) * S]
    for way in ("zero 1", "zero 2", "zero 3"):
        part = found[way][:len(mine)].float()
        if in_order or reduce_dtype is torch.float32:
            assert torch.equal(part, mine), way
        else:
            assert ((part - mine).abs() <= most).all(), way
    return found if reduce_dtype is torch.float32 else {}


@trial()
def pinned_memory_is_made_once() -> list[Tensor]:
    """In each stage, with two backward passes a step: after the first step there is none to make."""
    made, found = [], []
    empty = torch.empty

    def count(*size: int, **options: object) -> Tensor:
        made.append(bool(options.get("pin_memory")))
        return empty(*size, **options)

    torch.empty = count
    try:
        for stage in (1, 2, 3):
            model = Given(torch.float32)
            if stage == 3:
                model = zero.FullyShardedDataParallel(model, offload=True)
                optimizer = torch.optim.AdamW(model.parameters())
            else:
                optimizer = zero.ZeroOptimizer(model.parameters(), torch.optim.AdamW, stage, offload=True)
            for step in range(3):
                if step == 1:
                    assert any(made) == (device().type != "cpu"), stage
                    made.clear()
                for _ in range(2):
                    model(torch.ones(61, device=device()) * (dist.get_rank() + 1)).backward()
                optimizer.step()
                optimizer.zero_grad()
            assert not any(made), stage
            found += [p.detach().cpu() for p in model.parameters()]
            made.clear()
    finally:
        torch.empty = empty
    return found
