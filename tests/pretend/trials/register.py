"""Trials by name, and what became of them; what they train, on the ranks and in one process on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor, nn

from course_lib.reference import GPT, GPTConfig
from course_lib.runtime import LaunchError, device, launch
from tools.harness.pretend.hook import pretended
from tools.harness.pretend.modes import MODES

if TYPE_CHECKING:
    from tools.cells import Outcome

TRIALS: dict[str, Callable[[], None]] = {}
TIMEOUT_S = 60.0


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
    from tools.cells import Outcome  # here: ranks import this file, and nbformat would cost each 2 s

    try:
        launch(TRIALS[name], timeout=TIMEOUT_S)
    except LaunchError as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        return Outcome(name, False, f"{type(error).__name__}: {(lines + lines)[1]}")
    return Outcome(name, True)


# Models are equal everywhere, and made on the CPU: an equal seed gives other numbers on a GPU.

def model() -> nn.Module:
    with torch.device("cpu"):
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1)).double()


def gpt(vocab_size: int = 32, sequence_length: int = 16, dropout: float = 0.0) -> GPT:
    with torch.device("cpu"):
        torch.manual_seed(0)
        return GPT(GPTConfig(2, 16, 4, vocab_size, sequence_length, dropout)).double()


def rows(step: int) -> Tensor:
    """(12, 6), on the CPU."""
    generator = torch.Generator().manual_seed(step)
    return torch.randn(12, 6, generator=generator, dtype=torch.float64, device="cpu")


def mine(step: int) -> Tensor:
    return rows(step).chunk(dist.get_world_size())[dist.get_rank()].to(device())


def tokens(step: int, size: int, vocab_size: int, length: int) -> Tensor:
    """(size, length), on the CPU."""
    return torch.randint(vocab_size, (size, length), generator=torch.Generator().manual_seed(step), device="cpu")


def adamw(parameters: object) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-2)


def train(trained: nn.Module, optimizer: torch.optim.Optimizer, share: Callable[[int], Tensor] = mine) -> nn.Module:
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
    return difference(values, alone.state_dict())


def difference(values: dict[str, Tensor], expected: dict[str, Tensor]) -> float:
    return max((values[name].cpu() - value).abs().max().item() for name, value in expected.items())
