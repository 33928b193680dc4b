"""What every rank does, and what the command says at its end."""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch import nn

from course_lib import checkpoint
from course_lib.expert_parallel import BiasBalancer, moe_layers
from course_lib.hybrid_parallel import (
    HybridTrainer,
    LearningRate,
    ParallelLayout,
    TrainingReport,
    resume_run,
    save_run,
)
from course_lib.reference.text import load_text
from course_lib.runtime import RankFailed, context, launch
from course_lib.runtime.launcher import join_torchrun
from course_lib.train import results
from course_lib.train.arguments import check, config_of, describe_experts, learning_rate_of, make_model, parser

DAY_S = 24 * 3600.0


def make_trainer(arguments: argparse.Namespace) -> HybridTrainer:
    """The trainer that the options describe, the same on every rank."""
    config, experts = config_of(arguments), describe_experts(arguments)
    tokens = load_text(arguments.text, config.sequence_length) if arguments.text else None
    return HybridTrainer(
        config, ParallelLayout.from_string(arguments.layout, arguments.order), batch_size=arguments.batch_size,
        num_microbatches=arguments.micro_batches, schedule=arguments.schedule, compiled=arguments.compile,
        sequence_parallel=arguments.sequence_parallel, precision=arguments.precision, max_norm=arguments.max_norm,
        tokens=tokens, seed=arguments.seed, make_model=lambda: make_model(config, experts),
        learning_rate=learning_rate_of(arguments))


def train(arguments: argparse.Namespace) -> TrainingReport:
    """What every rank does: make the trainer, resume, train, save, report."""
    trainer, experts = make_trainer(arguments), describe_experts(arguments)
    if arguments.resume:
        loaded = resume_run(trainer, arguments.resume,
                            schedule=lambda saved: learning_rate_of(arguments, saved))
        say(describe_resume(loaded, arguments.resume))
        say_where_the_schedule_ends(trainer.learning_rate, arguments.steps)
    if trainer.step_number >= arguments.steps:
        raise ValueError(f"the run has taken {trainer.step_number} steps already: expected more of them in "
                         f"--steps {arguments.steps}, which counts from the beginning")
    how = {"keep": arguments.keep, "overwrite": arguments.overwrite, "more": {"experts": experts}}
    balancer = make_balancer(trainer, experts)

    def after_step(trainer: HybridTrainer) -> None:
        if balancer is not None:  # before the step is saved
            balancer.step()
        if arguments.save and trainer.step_number % arguments.save_every == 0:
            save_run(trainer, arguments.save, **how)

    report = trainer.train(arguments.steps - trainer.step_number, metrics_file=arguments.metrics, after_step=after_step)
    if arguments.save and trainer.step_number % arguments.save_every:
        save_run(trainer, arguments.save, **how)
    checkpoint.finish()
    if arguments.plot and dist.get_rank() == 0:
        report.save(arguments.plot)
    say(summary(report))
    return report


def say(text: str) -> None:
    """Print on rank 0."""
    if dist.get_rank() == 0:
        print(text, flush=True)


def make_balancer(trainer: HybridTrainer, experts: Mapping[str, Any] | None) -> BiasBalancer | None:
    """For --balance bias, which takes a step after each of the trainer's; None for the other ways."""
    if experts is None or experts["balance"] != "bias" or not has_experts(trainer.model):
        return None
    everyones = trainer.layout.member("dp", "cp", "tp")  # ranks of tp that count the same tokens change no sign
    return BiasBalancer(trainer.model, experts["weight"], everyones)


def has_experts(model: nn.Module) -> bool:
    """Whether this rank's stage has layers with experts."""
    try:
        return bool(moe_layers(model))
    except ValueError:  # a stage with no block
        return False


def describe_resume(loaded: checkpoint.Loaded | None, folder: Path) -> str:
    """From which checkpoint the run goes on, or that it begins."""
    if loaded is None:
        return f"no checkpoint in {folder} yet: a new run, from the beginning"
    return f"on from {loaded.path}, saved under {results.layout_in(loaded.extra)} after {loaded.step} steps"


def say_where_the_schedule_ends(rate: LearningRate, steps: int) -> None:
    """Warn where the learning rate has reached its end before the last step."""
    if rate.total_steps is not None and rate.total_steps < steps:
        say(f"the run's learning rate ends its cosine at step {rate.total_steps} of {steps} and stays "
            f"{rate(rate.total_steps):g}: --decay-steps {steps} draws it out")


def summary(report: TrainingReport) -> str:
    """The end of a run in a few lines."""
    last = report.steps[-1]
    lines = [f"{report.layout} on {report.world_size} ranks: loss {report.losses[0]:.4f} -> {last.loss:.4f} in "
             f"{len(report.steps)} steps, took {report.step_s * 1e3:.1f} ms a step, "
             f"{last.tokens / report.step_s:,.0f} tokens/s" + (f", MFU {last.mfu:.1%}" if last.mfu else "")]
    if report.bytes_by_axis:
        lines.append(f"bytes sent in a step, all ranks: {json.dumps(report.bytes_by_axis)}")
    if report.memory_by_kind:
        lines.append(f"bytes held at most by a rank: {json.dumps(report.memory_by_kind)}")
    return "\n".join(lines)


def main(words: Sequence[str] | None = None) -> TrainingReport | None:
    """The command: training, or one of results.COMMANDS. A mistake ends it with status 2 and one line."""
    words = sys.argv[1:] if words is None else list(words)
    if words and words[0] in results.COMMANDS:
        return results.main(words)
    command = parser()
    arguments = command.parse_args(words)
    try:
        if arguments.mine:
            from course_lib.mine.yours import run_command  # which brings the exercises

            return run_command(arguments, command.get_default, check(arguments), config_of(arguments))
        layout = check(arguments)
        if context.under_torchrun():
            join_torchrun(device=arguments.device, timeout_s=arguments.timeout)
        return launch(train, arguments, world_size=layout.world_size, device=arguments.device, timeout=DAY_S,
                      seed=arguments.seed)[0]
    except ValueError as error:  # the reader's; under torchrun a rank's, too
        command.error(str(error))
    except RankFailed as error:
        # A disk that is full is the reader's as well, and a connection that broke is not.
        is_of_files = isinstance(error.cause, OSError) and not isinstance(error.cause, (ConnectionError, TimeoutError))
        if not (is_of_files or isinstance(error.cause, ValueError)):
            raise
        command.error(str(error.cause))
