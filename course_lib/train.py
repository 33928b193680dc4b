"""The command line: train the course's GPT under any layout, on this machine or, unchanged, on many under torchrun.

    python -m course_lib.train --layout dp2,pp2,tp2 --steps 50
    torchrun --nproc-per-node 8 -m course_lib.train --layout dp2,pp2,tp2 --steps 50
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

import torch.distributed as dist

from course_lib import checkpoint
from course_lib.hybrid_parallel import (
    SCHEDULES,
    HybridTrainer,
    LearningRate,
    ParallelLayout,
    TrainingReport,
    resume_run,
    save_run,
    saver,
)
from course_lib.hybrid_parallel.trainer import PRECISIONS
from course_lib.reference import GPTConfig
from course_lib.reference.text import load_text
from course_lib.runtime import launch

DAY_S = 24 * 3600.0
EXAMPLES = """examples
  8 ranks on this machine:        python -m course_lib.train --layout dp2,pp2,tp2 --micro-batches 4 --steps 50
  your text, in bf16:             python -m course_lib.train --layout dp4,zero3 --text book.txt --precision bf16
  no bubble:                      python -m course_lib.train --layout pp4 --schedule zb-v --micro-batches 8
  measured, and drawn:            python -m course_lib.train --layout cp2,tp2 --metrics run.jsonl --plot run.png
  saved, and gone on with:        python -m course_lib.train --layout dp4 --save runs/a --save-every 20 --steps 100
                                  python -m course_lib.train --layout tp2 --save runs/a --resume runs/a --steps 200
  two hosts, 8 devices each, on each of them (the first one's name is HOST, and RANK 0 there, 1 on the other):
      torchrun --nnodes 2 --node-rank RANK --nproc-per-node 8 --master-addr HOST --master-port 29500 \\
          -m course_lib.train --layout dp4,pp2,tp2 --micro-batches 4 --steps 50
  started again when a rank dies: torchrun --max-restarts 10 --nproc-per-node 8 -m course_lib.train \\
                                      --layout dp8 --save runs/a --resume runs/a --steps 1000
"""


def parser() -> argparse.ArgumentParser:
    arguments = argparse.ArgumentParser("python -m course_lib.train", description=__doc__.partition("\n")[0],
                                        epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter)
    layout = arguments.add_argument_group("layout")
    layout.add_argument("--layout", default="dp1", metavar="dp2,pp2,tp2", help="ranks along dp, pp, cp, tp, ep; zero1 "
                        "to zero3 for what ranks of dp and cp shard (default: dp1)")
    layout.add_argument("--order", default=ParallelLayout.order, help="axes, innermost first (default: %(default)s)")
    layout.add_argument("--schedule", default="1f1b", choices=SCHEDULES, help="of the pipeline (default: 1f1b)")
    layout.add_argument("--micro-batches", type=int, default=1, metavar="M", help="into which each rank's rows are cut")
    layout.add_argument("--sequence-parallel", action="store_true", help="ranks of tp deal out tokens between matrices")
    layout.add_argument("--device", default="auto", choices=("auto", "cpu"))
    run = arguments.add_argument_group("training")
    run.add_argument("--steps", type=int, default=50, metavar="N", help="in all, those before --resume too")
    run.add_argument("--batch-size", type=int, default=16, metavar="B", help="rows of all ranks together (default: 16)")
    run.add_argument("--text", type=Path, metavar="FILE", help="what to learn; default: Python's own help texts")
    run.add_argument("--learning-rate", type=float, default=1e-3)
    run.add_argument("--warmup", type=int, default=0, metavar="STEPS", help="until the rate is reached; then a cosine")
    run.add_argument("--max-norm", type=float, default=1.0, help="of the gradient, clipped (default: 1)")
    run.add_argument("--precision", default="fp32", choices=PRECISIONS, help="of matrix products")
    run.add_argument("--compile", action="store_true", help="each stage through torch.compile")
    run.add_argument("--seed", type=int, default=0)
    mine = arguments.add_argument_group("your own functions")
    mine.add_argument("--mine", type=Path, metavar="DIR", help="of exercises, workspace/exercises say: your answers in "
                      "the places of the course's own functions, each checked once")
    mine.add_argument("--without", nargs="*", default=(), metavar="5.5", help="answers to leave out")
    model = arguments.add_argument_group("model")
    for option, default in (("layers", 4), ("hidden-size", 64), ("heads", 4), ("sequence-length", 64)):
        model.add_argument(f"--{option}", type=int, default=default, help=f"(default: {default})")
    keeping = arguments.add_argument_group("checkpoints")
    keeping.add_argument("--save", type=Path, metavar="DIR", help="where to, at the end too; a folder all hosts see")
    keeping.add_argument("--save-every", type=int, default=50, metavar="N", help="steps (default: 50)")
    keeping.add_argument("--keep", type=int, default=3, metavar="K", help="how many stay (default: 3)")
    keeping.add_argument("--resume", type=Path, metavar="DIR", help="go on from the last checkpoint in it, under any "
                         "layout; from the beginning where there is none yet")
    out = arguments.add_argument_group("results")
    out.add_argument("--metrics", type=Path, metavar="FILE", help="a line of JSON for each step")
    out.add_argument("--plot", type=Path, metavar="FILE", help="a PNG of loss, bytes and memory")
    return arguments


def train(arguments: argparse.Namespace) -> TrainingReport:
    """What every rank does."""
    config = GPTConfig(arguments.layers, arguments.hidden_size, arguments.heads,
                       sequence_length=arguments.sequence_length)
    tokens = load_text(arguments.text, config.sequence_length) if arguments.text else None
    trainer = HybridTrainer(
        config, ParallelLayout.from_string(arguments.layout, arguments.order), batch_size=arguments.batch_size,
        num_microbatches=arguments.micro_batches, schedule=arguments.schedule, compiled=arguments.compile,
        sequence_parallel=arguments.sequence_parallel, precision=arguments.precision, max_norm=arguments.max_norm,
        tokens=tokens, seed=arguments.seed, learning_rate=LearningRate(
            arguments.learning_rate, arguments.warmup, max(arguments.steps, arguments.warmup + 1)))
    if arguments.resume:
        said = describe_resumed(resume_run(trainer, arguments.resume), arguments.resume)
        if dist.get_rank() == 0:
            print(said, flush=True)
    if trainer.step_number >= arguments.steps:
        raise ValueError(f"the run has taken {trainer.step_number} steps already: expected more of them in "
                         f"--steps {arguments.steps}, which counts from the beginning")
    report = trainer.train(arguments.steps - trainer.step_number, metrics_file=arguments.metrics,
                           after_step=saver(arguments.save, arguments.save_every, arguments.keep) if arguments.save
                           else None)
    if arguments.save and trainer.step_number % arguments.save_every:
        save_run(trainer, arguments.save, arguments.keep)
    checkpoint.finish()
    if dist.get_rank() == 0:
        if arguments.plot:
            report.save(arguments.plot)
        print(summary(report), flush=True)
    return report


def describe_resumed(loaded: checkpoint.Loaded | None, folder: Path) -> str:
    if loaded is None:
        return f"no checkpoint in {folder} yet: from the beginning"
    return f"on from {loaded.path}, saved under {loaded.extra['layout']} after {loaded.step} steps"


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


def main(words: Sequence[str] | None = None) -> TrainingReport:
    arguments = parser().parse_args(words)
    try:
        layout = ParallelLayout.from_string(arguments.layout, arguments.order)
    except ValueError as error:
        parser().error(str(error))
    if arguments.mine:
        from course_lib.mine.command import run  # which brings the exercises

        return run(train, arguments, layout.world_size, DAY_S)
    return launch(train, arguments, world_size=layout.world_size, device=arguments.device, timeout=DAY_S,
                  seed=arguments.seed)[0]


if __name__ == "__main__":
    main()
