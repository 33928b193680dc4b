"""A run in one process, whose checkpoints are looked at in misuse.py."""

from pathlib import Path

import torch

from course_lib import checkpoint
from course_lib.reference import GPT, GPTConfig

TINY = GPTConfig(num_layers=1, hidden_size=8, num_heads=2, vocab_size=11, sequence_length=4)


class One:
    """A run in one process: a model, its optimiser, and whose checkpoints they are."""

    def __init__(self, config: GPTConfig = TINY, overwrite: bool = False) -> None:
        torch.manual_seed(0)
        self.model = GPT(config)
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        self.run = checkpoint.begin_run(overwrite)

    def step(self) -> None:
        tokens = torch.arange(8).view(2, 4)
        self.model(tokens, tokens)[1].backward()
        self.optimizer.step()

    def save(self, folder: Path, step: int, keep: int | None = None, background: bool = False) -> object:
        return checkpoint.save(folder, self.model, self.optimizer, step, keep=keep, run=self.run, background=background)

    def resume(self, folder: Path, strict: bool = False) -> str:
        """From where, and what a reader heard of it."""
        path, said = checkpoint.find_intact(folder, strict)
        if path is None:
            return "nothing there: from the beginning"
        checkpoint.load_and_verify(path, self.model, self.optimizer)
        self.run = checkpoint.continue_run(path)
        return "; ".join([f"on from {path.name}", *said])


def first_run(folder: Path) -> One:
    run = One()
    for step in (1, 2, 3):
        run.step()
        run.save(folder, step)
    return run
