"""A run with the reader's answers beside one process: whose code did what, and whether the loss is the same."""

import sys
from argparse import Namespace
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from course_lib.expert_parallel import SINGLE, auxiliary_loss
from course_lib.hybrid_parallel import ParallelLayout
from course_lib.mine.find import Answers, Part, find, table
from course_lib.mine.holes import AnswerFailed, filled
from course_lib.mine.loop import RATE, make_model, train
from course_lib.pictures.drawn import Drawn
from course_lib.reference import GPTConfig, batches, load_text, next_token_loss
from course_lib.runtime import LaunchError, context, launch

ALLOWED = 1e-8  # of the loss: in 64 bits another order of summation makes less than a millionth of it
DAY_S = 24 * 3600.0


def train_on_a_rank(answers: Answers, compare: bool, *arguments: Any, **options: Any) -> tuple:
    """train(*arguments) with `answers` in its holes: (losses, their calls, bytes that they sent), on this rank."""
    with filled(answers, compare) as ledger:
        return train(*arguments, **options), ledger.calls, ledger.sent


def train_one_process(config: GPTConfig, layout: ParallelLayout, steps: int, *, batch_size: int = 16,
                      num_microbatches: int = 1, experts: dict[str, Any] | None = None, learning_rate: Any = RATE,
                      max_norm: float = 1.0, tokens: Any = None, seed: int = 0) -> list[float]:
    """The losses of the same steps on the whole model. An auxiliary loss is of a micro-batch of all ranks."""
    model, dp, m, losses = make_model(config, experts, seed), layout.dp, num_microbatches, []
    adamw = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.95), weight_decay=0.01)
    for step in range(steps):
        rows = batches(step, batch_size=batch_size, sequence_length=config.sequence_length, tokens=tokens, seed=seed)
        parts = [each.view(dp, m, -1, each.shape[1]).transpose(0, 1).flatten(1, 2) for each in rows]  # m of (B, T)
        losses.append(0.0)
        for inputs, targets in zip(*parts):
            loss = next_token_loss(model(inputs)[0], targets)
            losses[-1] += loss.item() / m
            more = auxiliary_loss(model, model.balance, group=SINGLE) if experts else 0.0
            ((loss + more) / m).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        adamw.param_groups[0]["lr"] = learning_rate(step)
        adamw.step()
        adamw.zero_grad()
    return losses


def run(answers: Answers, layout: str | ParallelLayout, steps: int = 6, config: GPTConfig | None = None, *,
        compare: bool = True, timeout: float = 60.0, **options: Any) -> "Outcome":
    """Train on the layout's ranks, on the CPU, with `answers` in the holes, and once more on one process, to compare.

    options: of loop.train. ValueError for what it refuses; LaunchError, whose cause is AnswerFailed for an answer's.
    """
    layout = ParallelLayout.from_string(layout) if isinstance(layout, str) else layout
    config = config or GPTConfig()
    given = answers, compare, config, layout, steps
    found = launch(partial(train_on_a_rank, *given, **options), world_size=layout.world_size, device="cpu",
                   timeout=timeout)  # launch has a seed of its own
    calls, sent = (sum(counters, Counter()) for counters in list(zip(*found))[1:])
    for option in ("schedule", "sequence_parallel", "resume", "save", "verbose"):
        options.pop(option, None)
    alone = launch(partial(train_one_process, config, layout, steps, **options), world_size=1, device="cpu",
                   timeout=timeout)[0]
    losses = found[0][0]
    return Outcome(answers, str(layout), dict(calls), {number: int(sent[number]) for number in sorted(sent)},
                   int(found.communication.sent_bytes), losses, alone[len(alone) - len(losses):])


@dataclass(frozen=True, repr=False)
class Outcome(Drawn):
    """calls, sent: of the answers, by exercise, on all ranks; `sent`, and `sent_in_all`, are bytes of the last step.

    losses, one_process: of the same steps.
    """

    answers: Answers
    layout: str
    calls: dict[str, int]
    sent: dict[str, int]
    sent_in_all: int
    losses: Sequence[float]
    one_process: Sequence[float]

    @property
    def differences(self) -> list[float]:
        """Of each step's loss from one process's, as a share of it."""
        return [abs(a - b) / abs(b) for a, b in zip(self.losses, self.one_process)]

    @property
    def lies_on_one_process(self) -> bool:
        """Whether the loss of every step is that of one process, up to ALLOWED."""
        return max(self.differences) <= ALLOWED

    def describe_part(self, part: Part) -> str:
        """What came of a part in this run, in words."""
        if part.why:
            return part.whose
        calls = self.calls.get(part.number, 0)
        return f"{calls:,} calls" if calls else f"not used under {self.layout}"

    def finding(self) -> str:
        used = [part for part in self.answers.parts if self.calls.get(part.number)]
        yours, everything = sum(self.sent.values()), self.sent_in_all
        return "\n".join([
            f"{len(self.answers.numbers)} of {len(self.answers.parts)} parts are yours, and {len(used)} of them worked "
            f"under {self.layout}",
            f"your code sent {yours:,} of {everything:,} bytes of a step" + f" ({yours / max(1, everything):.0%})",
            *(f"  {part.number} {part.function}: {self.describe_part(part)}" + (
                f", {self.sent[part.number]:,} bytes" if self.sent.get(part.number) else "") for part in used),
            self.verdict()])

    def verdict(self) -> str:
        """Whether the losses are one process's, in words."""
        n = len(self.losses)
        if self.lies_on_one_process:
            return f"the losses of {n} steps lie on one process's, to {ALLOWED:g} of the loss"
        at = next(step for step, difference in enumerate(self.differences) if difference > ALLOWED)
        return (f"the losses leave one process's at step {at} of {n}: one of your parts passes its check and does "
                "something else in training. Leave them out one by one: --without 5.5")

    def html(self) -> str:
        first, second, *_, last = self.finding().splitlines()
        return table((first, second, last), ("", "function", "its work", "in this run", "bytes of a step"), (
            (part.number, part.function, part.work, self.describe_part(part), f"{self.sent.get(part.number, 0):,}")
            for part in self.answers.parts))


# python -m course_lib.train --mine workspace/exercises

REFUSED = {"precision": "fp32", "compile": False, "metrics": None, "plot": None, "overwrite": False,
           "save_every": 50, "keep": 3}  # and their defaults


def run_command(arguments: Namespace, layout: ParallelLayout, config: GPTConfig, experts: dict[str, Any] | None,
                learning_rate: Any) -> None:
    """Prints which answers there are, the losses, and the outcome. arguments: of course_lib.train.

    SystemExit with what is wrong, in a line or a few; ValueError for options that this loop does not know.
    """
    if context.under_torchrun():
        raise SystemExit("--mine checks your answers on ranks of its own: expected this command without torchrun")
    given = [f"--{option.replace('_', '-')}" for option, default in REFUSED.items()
             if getattr(arguments, option) != default]
    if given or experts and experts["balance"] == "bias":
        raise ValueError(f"--mine with {' '.join(given) or '--balance bias'}: the loop with your functions has 64 bits "
                         "and no such option. Expected the command without it, or without --mine")
    try:
        answers = find(arguments.mine, arguments.without, lambda number: print(f"checking: {number}", file=sys.stderr))
        print(answers, flush=True)
        print(run(answers, layout, arguments.steps, config, timeout=DAY_S, batch_size=arguments.batch_size,
                  num_microbatches=arguments.micro_batches, schedule=arguments.schedule,
                  sequence_parallel=arguments.sequence_parallel, learning_rate=learning_rate, seed=arguments.seed,
                  max_norm=arguments.max_norm, resume=arguments.resume, save=arguments.save, verbose=True,
                  tokens=load_text(arguments.text, config.sequence_length) if arguments.text else None,
                  experts=experts and {"num_experts": experts["num_experts"], "k": experts["k"],
                                       "balance": experts["weight"] * (experts["balance"] == "auxiliary")}), flush=True)
    except (ValueError, LaunchError) as error:
        cause = getattr(error, "cause", None)
        raise SystemExit(str(cause if isinstance(cause, (AnswerFailed, ValueError)) else error)) from error
