"""A run in one process, whose checkpoints are looked at, and the damage that is done to them."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from course_lib import checkpoint
from course_lib.checkpoint import manifest
from course_lib.reference import GPT, GPTConfig

TINY = GPTConfig(num_layers=1, hidden_size=8, num_heads=2, vocab_size=11, sequence_length=4)


class One:
    """A model, its optimiser, and whose checkpoints they are."""

    def __init__(self, seed: int = 0, overwrite: bool = False, **changed: int) -> None:
        torch.manual_seed(seed)
        self.model = GPT(replace(TINY, **changed))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
        self.run = checkpoint.begin_run(overwrite)

    @property
    def both(self) -> tuple[GPT, torch.optim.Optimizer]:
        return self.model, self.optimizer

    def step(self) -> None:
        tokens = torch.arange(8).view(2, 4)
        self.optimizer.zero_grad()
        self.model(tokens, tokens)[1].backward()
        self.optimizer.step()

    def save(self, folder: Path, step: int, **how: object) -> object:
        return checkpoint.save(folder, *self.both, step, run=self.run, **how)

    def resume(self, folder: Path) -> str:
        """From where, and what a reader heard of it."""
        path, said = checkpoint.find_intact(folder)
        if path is None:
            return "nothing there: from the beginning"
        checkpoint.load_and_verify(path, *self.both)
        self.run = checkpoint.continue_run(path)
        return "; ".join([f"on from {path.name}", *said])


def first_run(folder: Path) -> One:
    """A run that has saved after steps 1 to 3."""
    run = One()
    for step in (1, 2, 3):
        run.step()
        run.save(folder, step)
    return run


def said_by(do: Callable, *arguments: object, **named: object) -> str:
    """What it raises."""
    with pytest.raises((ValueError, OSError, RuntimeError)) as raised:
        do(*arguments, **named)
    return f"{type(raised.value).__name__}: {raised.value}"


def cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))


def rewrite(path: Path, **changes: object) -> None:
    """The manifest with other facts, or, of None, without them: as it was written before there were runs."""
    facts = {**manifest.read_manifest(path), **changes}
    facts = {name: value for name, value in facts.items() if value is not None}
    (path / "manifest.json").write_text(json.dumps({**facts, "sha256": manifest.checksum(facts)}))
