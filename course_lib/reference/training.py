"""The plain training loop: AdamW, one process, one hook through which a distributed run averages its gradients.

B rows in the global batch, T tokens in a row. What a run reports is a value that draws itself in a notebook.
"""

import math
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from tqdm import tqdm

from course_lib.pictures.drawn import Drawn, stable_output
from course_lib.pictures.palette import BLUE, INK, ORANGE
from course_lib.reference.gpt import GPTConfig
from course_lib.reference.text import batches, held_out_rows, load_text, split_text, unigram_entropy

if TYPE_CHECKING:
    from matplotlib.figure import Figure


GRID = "#E5E5E5"


@dataclass(frozen=True, repr=False)
class TrainingLog(Drawn):
    """The losses of one run, in nats a token.

    `losses[i]` is the mean over this rank's rows at step i, before the i-th update. `held_out_before` and
    `held_out_after` are the losses on held-out text before the first and after the last update, or None when
    they were not measured. `unigram_entropy` is that of the held-out text, the best that letter frequencies
    alone can do on it. `tokens_seen` counts the training tokens of all ranks together.
    """

    losses: tuple[float, ...]
    unigram_entropy: float
    tokens_seen: int
    held_out_before: float | None = None
    held_out_after: float | None = None

    @property
    def learned_from_context(self) -> bool:
        """Whether the held-out loss ended below what letter frequencies alone can reach."""
        return self.held_out_after is not None and self.held_out_after < self.unigram_entropy

    def finding(self) -> str:
        # Without a measured number: committed notebooks are compared word for word on any machine.
        run = f"TrainingLog: {len(self.losses):,} steps, {self.tokens_seen:,} tokens"
        if self.held_out_after is None:
            return run
        side = "below" if self.learned_from_context else "not below"
        return f"{run}; held-out loss {side} the unigram entropy of the text"

    def alternative(self) -> str:
        return f"{self.finding()}. {self._headline()}"

    def figure(self) -> "Figure":
        from matplotlib.figure import Figure  # only when drawn: ranks train without it

        figure = Figure(figsize=(8, 3.8), dpi=120, facecolor="white", layout="constrained")
        axes = figure.subplots()
        num_steps = len(self.losses)
        axes.plot(range(num_steps), self.losses, color=BLUE, linewidth=1.6, label="training batches")
        held_out = [(0, self.held_out_before), (num_steps, self.held_out_after)]
        held_out = [(updates, loss) for updates, loss in held_out if loss is not None]
        if held_out:
            axes.plot(*zip(*held_out, strict=True), "o", color=ORANGE, markersize=8, zorder=3, label="held-out text")
        for updates, loss in held_out:
            offset = {"xytext": (9, 0), "textcoords": "offset points", "va": "center"}
            axes.annotate(f"{loss:.2f}", (updates, loss), color=INK, weight="bold", **offset)
        label = f"unigram entropy, {self.unigram_entropy:.2f}: the best without context"
        axes.axhline(self.unigram_entropy, color=INK, linewidth=1.2, linestyle=(0, (5, 3)), label=label)
        axes.set(xlabel="optimizer steps done", ylabel="loss (nats per token)",
                 xlim=(-0.02 * num_steps, 1.09 * num_steps))
        axes.set_title(self._headline(), loc="left", color=INK, weight="bold", pad=12)
        axes.legend(frameon=False)
        axes.grid(axis="y", color=GRID, linewidth=0.7)
        axes.spines[["top", "right"]].set_visible(False)
        return figure

    def _headline(self) -> str:
        if self.held_out_after is None:
            return f"Training loss went from {self.losses[0]:.2f} to {self.losses[-1]:.2f} nats per token"
        learned = "Learned from context" if self.learned_from_context else "Not yet learned from context"
        return f"{learned}: held-out loss {self.held_out_after:.2f}, unigram entropy {self.unigram_entropy:.2f}"


def train(model: nn.Module, *, steps: int = 60, batch_size: int = 16, rank: int = 0, world_size: int = 1,
          after_backward: Callable[[nn.Module], object] | None = None, learning_rate: float = 1e-3,
          tokens: Tensor | None = None, seed: int = 0, held_out: bool = True, progress: bool = True) -> TrainingLog:
    """Train `model`, a GPT or a wrapper with the GPT in `.module`, in place; return what happened.

    Step i learns from `batches(i, rank, world_size, ...)`; `batch_size` is B, the rows of all ranks together.
    `after_backward(model)` runs between backward and the update: there a data-parallel run averages `.grad`
    over the ranks. The loss is the mean over the *local* rows. When world_size does not divide B, some ranks
    have a row more, and a plain average of the ranks' gradients is not the gradient of the whole batch:
    chapter 3 weights each rank.

    `held_out=False` skips the two evaluations, for a run whose bytes or memory are counted. Rank 0 shows the
    progress. Raises ValueError for arguments no run can use, and FloatingPointError at the first loss that is
    not finite.
    """
    if steps < 1:
        raise ValueError(f"steps must be at least 1, got {steps}")
    config, text = _config(model), load_text() if tokens is None else tokens
    floor = unigram_entropy(split_text(text)[1])
    if (largest := int(text.max())) >= config.vocab_size:
        raise ValueError(f"tokens must be below the model's vocab_size={config.vocab_size}, got a token {largest}")
    shard = {"batch_size": batch_size, "sequence_length": config.sequence_length, "tokens": text, "seed": seed}
    local_batches = (batches(step, rank, world_size, **shard) for step in range(steps))
    before = _finite(evaluate(model, tokens=text), "before step 0") if held_out else None
    losses: list[float] = []
    with progress_bar(steps, "training", shown=rank == 0 and progress) as bar:
        for loss in _steps(model, local_batches, learning_rate, after_backward):
            losses.append(loss)
            bar.set_postfix(loss=f"{loss:.3f}", refresh=False)
            bar.update()
    after = _finite(evaluate(model, tokens=text), f"after step {steps - 1}") if held_out else None
    return TrainingLog(tuple(losses), floor, steps * batch_size * config.sequence_length, before, after)


def _steps(model: nn.Module, local_batches: Iterable[tuple[Tensor, Tensor]], learning_rate: float,
           after_backward: Callable[[nn.Module], object] | None) -> Iterator[float]:
    """Take a step for each (inputs, targets), (B_local, T) each, and yield its loss, that of the local rows."""
    device = next(model.parameters()).device
    # beta2 = 0.95 (GPT-3, Brown et al. 2020): the average of 0.999 spans 1,000 steps, longer than our runs.
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, betas=(0.9, 0.95))
    model.train()
    for step, (inputs, targets) in enumerate(local_batches):
        _, loss = model(inputs.to(device), targets.to(device))
        optimizer.zero_grad()
        loss.backward()
        if after_backward is not None:
            after_backward(model)
        # Read now: a number that the host asks for waits for all that the GPU was given, and backward would begin late.
        local = _finite(loss.item(), f"at step {step}")
        optimizer.step()
        yield local


@torch.no_grad()
def evaluate(model: nn.Module, *, tokens: Tensor | None = None, num_rows: int = 64) -> float:
    """Mean loss in nats a token on `num_rows` rows spread evenly over the held-out text, without dropout.

    The rows are the same at every call and on every rank. `model` is left in the mode, train or eval, it came
    in.
    """
    inputs, targets = held_out_rows(num_rows, _config(model).sequence_length, tokens)  # (num_rows, T) each
    device = next(model.parameters()).device
    was_training = model.training
    model.eval()
    total = 0.0
    for rows, answers in zip(inputs.split(8), targets.split(8), strict=True):  # a few rows at a time: memory
        _, loss = model(rows.to(device), answers.to(device))
        total += loss.item() * len(rows)
    model.train(was_training)
    return total / num_rows


def _config(model: nn.Module) -> GPTConfig:
    while not hasattr(model, "config"):
        if not hasattr(model, "module"):
            given = type(model).__name__
            raise ValueError(f"model must be a GPT, or a wrapper that keeps one in .module, got {given}")
        model = model.module
    return model.config


def _finite(loss: float, moment: str) -> float:
    if not math.isfinite(loss):
        raise FloatingPointError(f"the loss is {loss} {moment}. Often the learning rate is too high, or gradients were "
                                 "added where they should have been averaged")
    return loss


def progress_bar(num_steps: int, title: str, shown: bool) -> tqdm:
    """A bar that counts steps, where it is `shown` and times may be in the output.

    On stdout in a notebook and its ranks, where what comes on stderr looks like an error; elsewhere on stderr. Jupyter
    names itself in the environment of each kernel, and ranks inherit that.
    """
    stream = sys.stdout if "JPY_PARENT_PID" in os.environ else sys.stderr
    return tqdm(total=num_steps, desc=title, unit="step", file=stream, disable=not shown or stable_output())
