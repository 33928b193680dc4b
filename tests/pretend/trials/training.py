"""What the trials train, on the ranks and in one process on the CPU."""

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor, nn

from course_lib.runtime import device


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
