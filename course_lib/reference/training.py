"""The plain training loop: AdamW, one process, one hook through which a distributed run averages its
gradients.

B rows in the global batch, T tokens in a row.
"""

import math
from collections.abc import Callable, Iterable, Iterator

import torch
from torch import Tensor, nn

from course_lib.reference.gpt import GPTConfig
from course_lib.reference.progress import progress_bar
from course_lib.reference.text import batches, held_out_rows, load_text, split_text, unigram_entropy
from course_lib.reference.training_log import TrainingLog


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
        local = _finite(loss.item(), f"at step {step}")
        optimizer.zero_grad()
        loss.backward()
        if after_backward is not None:
            after_backward(model)
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
