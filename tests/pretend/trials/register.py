"""Trials by name, and what became of them; what they train."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from course_lib.reference import GPT, GPTConfig
from course_lib.runtime import LaunchError, device, launch

if TYPE_CHECKING:
    from tools.cells import Outcome

TRIALS: dict[str, Callable[[], Any]] = {}
CLOSE = 1e-11  # numbers have 64 bits, but where whole ones are added


def trial(*ways: object) -> Callable:
    """Register a function under its name; one with ways does each of them and gives what each returns."""
    def register(function: Callable) -> Callable:
        TRIALS[function.__name__] = (lambda: {way: function(way) for way in ways}) if ways else function
        return function
    return register


def run(name: str) -> Outcome:
    """On four ranks, and on four of the CPU: they have to return the same."""
    from tools.cells import Outcome  # here: ranks import this file, and nbformat would cost each 2 s

    try:
        found, expected = (list(launch(TRIALS[name], timeout=60.0, device=where)) for where in ("auto", "cpu"))
        torch.testing.assert_close(found, expected, rtol=CLOSE, atol=CLOSE)
    except (LaunchError, AssertionError) as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        return Outcome(name, False, f"{type(error).__name__}: {(lines + lines)[1]} {lines[-1]}")
    return Outcome(name, True)


# Made on the CPU: an equal seed gives other numbers on a GPU.

def drawn(*shape: int, seed: int = 0) -> Tensor:
    """Small whole numbers in 64 bits, on the rank's device."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-8, 9, shape, generator=generator, device="cpu").double().to(device())


def gpt(vocab_size: int = 32, dropout: float = 0.0) -> GPT:
    with torch.device("cpu"):
        torch.manual_seed(0)
        whole = GPT(GPTConfig(2, 16, 4, vocab_size, 16, dropout)).double()
    return whole.to(device())


def tokens(step: int, size: int = 8, vocab_size: int = 32, length: int = 17) -> Tensor:
    """(size, length)"""
    generator = torch.Generator().manual_seed(step)
    return torch.randint(vocab_size, (size, length), generator=generator, device="cpu").to(device())


def mine(step: int) -> Tensor:
    """This rank's two rows."""
    return tokens(step).chunk(dist.get_world_size())[dist.get_rank()]


def loss_of(model: nn.Module, rows: Tensor) -> Tensor:
    return model(rows[:, :-1], rows[:, 1:])[1]


def adamw(parameters: object) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-2, eps=1e-5)


def train(model: nn.Module, optimizer: Any = None, rows: Callable[[int], Tensor] = mine,
          before: Callable[[], object] = list, after: Callable[[], object] = list) -> nn.Module:
    """Three steps; `before` and `after` surround the optimiser's."""
    optimizer = optimizer or adamw(model.parameters())
    for step in range(3):
        optimizer.zero_grad()
        loss_of(model, rows(step)).backward()
        before()
        optimizer.step()
        after()
    return model
