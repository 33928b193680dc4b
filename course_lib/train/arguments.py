"""What can be asked for on the command line, and what is refused in one line, before a rank starts.

Mistakes are found by the library's own checks in this process, and said in the reader's words:

    layout, model, batch, schedule     hybrid_parallel.require_trainable, on a model that has no memory
    text                               the rows of the first step
    folders                            whose checkpoints lie in --save, and what --resume goes on from
"""

import argparse
import math
import os
import re
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from course_lib import checkpoint
from course_lib.checkpoint.folders import complete_checkpoints, origin
from course_lib.checkpoint.manifest import problems_of
from course_lib.command_line import Parser, above_zero, whole
from course_lib.expert_parallel import SINGLE, moe_gpt
from course_lib.hybrid_parallel import LearningRate, ParallelLayout
from course_lib.hybrid_parallel.checkpoints import describe_data, require_same_data
from course_lib.hybrid_parallel.parallelize import require_trainable
from course_lib.hybrid_parallel.trainer import PRECISIONS
from course_lib.pipeline_parallel import SCHEDULES, find_schedule
from course_lib.reference import GPT, GPTConfig, batches
from course_lib.reference.text import load_text
from course_lib.runtime.launcher import TORCHRUN_TIMEOUT_S

PROGRAM = "python -m course_lib.train"
BALANCES = {"auxiliary": 0.01, "bias": 0.001, "none": 0.0}  # their default weights: GShard's, DeepSeek-V3's
DESCRIPTION = "Train the course's GPT under any layout, on this machine or, unchanged, on many under torchrun."
EXAMPLES = """examples
  8 ranks on this machine:        python -m course_lib.train --layout dp2,pp2,tp2 --micro-batches 4 --steps 50
  your text, in bf16:             python -m course_lib.train --layout dp4,zero3 --text book.txt --precision bf16
  a mixture of experts:           python -m course_lib.train --layout dp4,ep2 --experts 8 --top-k 2 --balance bias
  saved, and gone on with:        python -m course_lib.train --layout dp4 --save runs/a --save-every 20 --steps 100
                                  python -m course_lib.train --layout tp2 --save runs/a --resume runs/a --steps 200
  two hosts, 8 devices each, on each of them (the first one's name is HOST, and RANK 0 there, 1 on the other):
      torchrun --nnodes 2 --node-rank RANK --nproc-per-node 8 --master-addr HOST --master-port 29500 \\
          -m course_lib.train --layout dp4,pp2,tp2 --micro-batches 4 --steps 50

afterwards, each with --help:     python -m course_lib.train inspect | evaluate | sample | export runs/a ...
"""


def parser() -> Parser:
    """All options of the command."""
    arguments = Parser(PROGRAM, description=DESCRIPTION, epilog=EXAMPLES,
                       formatter_class=argparse.RawDescriptionHelpFormatter)
    layout = arguments.add_argument_group("layout")
    layout.add_argument("--layout", default="dp1", metavar="dp2,pp2,tp2", help="ranks along dp, pp, cp, tp, ep; zero1 "
                        "to zero3 for what ranks of dp and cp shard (default: dp1)")
    layout.add_argument("--order", default=ParallelLayout.order, help="axes, innermost first (default: %(default)s)")
    layout.add_argument("--schedule", default="1F1B", type=schedule_name, metavar="NAME",
                        help=f"of the pipeline: {', '.join(SCHEDULES)} (default: 1F1B)")
    layout.add_argument("--micro-batches", type=whole(1), default=1, metavar="M",
                        help="into which each rank's rows are cut")
    layout.add_argument("--sequence-parallel", action="store_true", help="ranks of tp deal out tokens between matrices")
    layout.add_argument("--device", default="auto", choices=("auto", "cpu"))
    layout.add_argument("--timeout", type=above_zero, default=TORCHRUN_TIMEOUT_S, metavar="SECONDS", help="under "
                        "torchrun: a call that has waited so long for other ranks ends the run (default: 600)")
    add_training(arguments)
    add_model(arguments)
    add_checkpoints(arguments)
    add_mine(arguments)
    out = arguments.add_argument_group("results")
    out.add_argument("--metrics", type=Path, metavar="FILE", help="a line of JSON for each step")
    out.add_argument("--plot", type=Path, metavar="FILE", help="a PNG of loss, bytes and memory")
    return arguments


def schedule_name(text: str) -> str:
    """For argparse: a schedule's name as SCHEDULES has it."""
    try:
        return find_schedule(text).name
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def add_training(arguments: Parser) -> None:
    """Options of the run: steps, batch, learning rate, precision."""
    run = arguments.add_argument_group("training")
    run.add_argument("--steps", type=whole(1), default=50, metavar="N", help="in all, those before --resume too")
    run.add_argument("--batch-size", type=whole(1), default=16, metavar="B",
                     help="rows of all ranks together (default: 16)")
    run.add_argument("--text", type=Path, metavar="FILE", help="what to learn; default: Python's own help texts")
    run.add_argument("--learning-rate", type=above_zero, metavar="RATE",
                     help="at its highest (default: 0.001; of a run that goes on: its own)")
    run.add_argument("--warmup", type=whole(0), metavar="STEPS", help="until the rate is reached; then a cosine")
    run.add_argument("--decay-steps", type=whole(1), metavar="STEPS", help="where the cosine ends (default: --steps; "
                     "of a run that goes on: where it was to end at first)")
    run.add_argument("--max-norm", type=above_zero, default=1.0, help="of the gradient, clipped (default: 1)")
    run.add_argument("--precision", default="fp32", choices=PRECISIONS, help="of matrix products")
    run.add_argument("--compile", action="store_true", help="each stage through torch.compile")
    run.add_argument("--seed", type=whole(0), default=0)


def add_model(arguments: Parser) -> None:
    """Options of the model's sizes."""
    model = arguments.add_argument_group("model")
    for option, default in (("layers", 4), ("hidden-size", 64), ("heads", 4), ("sequence-length", 64)):
        model.add_argument(f"--{option}", type=whole(1), default=default, help=f"(default: {default})")
    model.add_argument("--experts", type=whole(1), metavar="E", help="in the place of each MLP, which ep deals out")
    model.add_argument("--top-k", type=whole(1), default=2, metavar="K", help="experts for each token (default: 2)")
    model.add_argument("--balance", default="auxiliary", choices=BALANCES,
                       help="what keeps experts equally busy: a loss, or a bias of the choice (default: auxiliary)")
    model.add_argument("--balance-weight", type=above_zero, metavar="W",
                       help="of that loss (default: 0.01), or by how much a bias moves in a step (default: 0.001)")


def add_checkpoints(arguments: Parser) -> None:
    """Options of saving and resuming."""
    keeping = arguments.add_argument_group("checkpoints")
    keeping.add_argument("--save", type=Path, metavar="DIR", help="where to, at the end too; a folder all hosts see, "
                         "with no checkpoints of another run in it")
    keeping.add_argument("--save-every", type=whole(1), default=50, metavar="N", help="steps (default: 50)")
    keeping.add_argument("--keep", type=whole(1), default=3, metavar="K", help="how many of the run stay (default: 3)")
    keeping.add_argument("--resume", type=Path, metavar="DIR", help="go on from the last intact checkpoint in it, or "
                         "from the checkpoint that it is, under any layout. With --save of the same folder: from the "
                         "beginning where there is none yet")
    keeping.add_argument("--overwrite", action="store_true", help="the checkpoints of another run in --save go, when "
                         "the first one of this run is complete")


def add_mine(arguments: Parser) -> None:
    """Options that put the reader's own functions into the run."""
    mine = arguments.add_argument_group("your own functions")
    mine.add_argument("--mine", type=Path, metavar="DIR", help="of exercises, workspace/exercises say: your answers, "
                      "each checked once, are called by a loop of their own, on the CPU in 64 bits, under dp, pp, cp, "
                      "tp and zero2")
    mine.add_argument("--without", nargs="*", default=(), metavar="5.5", help="answers to leave out")


# The model

def describe_experts(arguments: argparse.Namespace) -> dict[str, Any] | None:
    """What a checkpoint remembers of them, plain JSON; None where there are none."""
    if arguments.experts is None:
        return None
    weight = arguments.balance_weight or BALANCES[arguments.balance]
    return {"num_experts": arguments.experts, "k": arguments.top_k, "balance": arguments.balance, "weight": weight}


def saved_model(path: Path, extra: Mapping[str, Any]) -> tuple[GPTConfig, Mapping[str, Any] | None]:
    """The sizes and the experts that the checkpoint at `path` says in its `extra`. ValueError where it names no model,
    or none that can be made.
    """
    model, experts = extra.get("model"), extra.get("experts")
    if not model:
        raise ValueError(f"{path} does not say of what model it is: expected one that {PROGRAM} --save wrote")
    try:
        if experts is not None:
            sizes, weight = (experts["num_experts"], experts["k"]), experts["weight"]
            if any(type(size) is not int or size < 1 for size in sizes) or not 0 <= weight < math.inf:
                raise ValueError(f"num_experts and k are {sizes}, weight {weight}")
        return GPTConfig(**model), experts
    except (TypeError, ValueError, KeyError) as error:
        raise ValueError(f"{path} names a model that cannot be made: {str(error)[:200]!r}") from error


def make_model(config: GPTConfig, experts: Mapping[str, Any] | None) -> GPT:
    """A plain GPT, or one with all its experts, which parallelize deals out. ValueError for what cannot be."""
    model = GPT(config)
    if experts is None:
        return model
    weight = experts["weight"] if experts["balance"] == "auxiliary" else 0.0
    return moe_gpt(model, experts["num_experts"], experts["k"], balance=weight, group=SINGLE, tokens_group=SINGLE)


def config_of(arguments: argparse.Namespace) -> GPTConfig:
    """The model's sizes that the options name."""
    return GPTConfig(arguments.layers, arguments.hidden_size, arguments.heads,
                     sequence_length=arguments.sequence_length)


def learning_rate_of(arguments: argparse.Namespace, saved: LearningRate | None = None) -> LearningRate:
    """The run's schedule where one is `saved`, with what was asked for in its place."""
    warmup = arguments.warmup or 0
    before = saved or LearningRate(1e-3, warmup, max(arguments.steps, warmup + 1))
    given = {"peak": arguments.learning_rate, "warmup_steps": arguments.warmup, "total_steps": arguments.decay_steps}
    return LearningRate(**{**asdict(before), **{name: value for name, value in given.items() if value is not None}})


# What is refused

OPTIONS = {"batch_size": "--batch-size", "num_microbatches": "--micro-batches", "num_layers": "--layers",
           "hidden_size": "--hidden-size", "num_heads": "--heads", "sequence_length": "--sequence-length",
           "total_steps": "--decay-steps", "warmup_steps": "--warmup", "zero_stage": "zero", "schedule": "--schedule",
           "k": "--top-k", "seed": "--seed", "path": "--text"}


def check(arguments: argparse.Namespace) -> ParallelLayout:
    """The layout that was asked for. ValueError, one line in the words of the command, for what cannot be trained."""
    try:
        layout = ParallelLayout.from_string(arguments.layout, arguments.order)
        tokens = load_text(arguments.text, arguments.sequence_length) if arguments.text else None
        batches(0, batch_size=arguments.batch_size, sequence_length=arguments.sequence_length, tokens=tokens)
        learning_rate_of(arguments)
        check_model(arguments, layout)
        for option in ("metrics", "plot"):
            check_file(f"--{option}", getattr(arguments, option))
        check_folders(arguments)
        if arguments.resume:
            check_resume(arguments, describe_data(tokens, arguments.batch_size, arguments.sequence_length,
                                                   arguments.seed))
    except ValueError as error:
        raise ValueError(in_options(str(error))) from error
    return layout


def in_options(message: str) -> str:
    """batch_size=3 -> --batch-size 3, and so on; in one line."""
    names = "|".join(OPTIONS)
    said = re.sub(rf"(?<![-\w.])({names})=(?=\S)", lambda found: OPTIONS[found[1]] + " ", message)
    said = re.sub(r"\b(\w+_\w+|path)\b(?![(=])", lambda found: OPTIONS.get(found[1], found[1]), said)
    return " ".join(said.split())


def check_model(arguments: argparse.Namespace, layout: ParallelLayout) -> None:
    """ValueError where model, layout, batch and schedule do not go together; the model is made without memory."""
    experts = describe_experts(arguments)
    if layout.ep > 1 and experts is None:
        raise ValueError(f"--layout {layout} deals out experts over ep, and the model has none: expected --experts E, "
                         f"a number that {layout.ep} divides")
    if experts is not None and experts["num_experts"] % layout.ep:
        raise ValueError(f"--experts {experts['num_experts']} --layout {layout}: expected a number of experts that "
                         f"ep={layout.ep} divides")
    with torch.device("meta"):
        model = make_model(config_of(arguments), experts)
    try:
        require_trainable(model, layout, batch_size=arguments.batch_size, num_microbatches=arguments.micro_batches,
                          schedule=arguments.schedule, sequence_parallel=arguments.sequence_parallel)
    except ValueError as error:
        raise ValueError(f"--layout {layout}: {error}") from error


def check_file(option: str, path: Path | None) -> None:
    """ValueError where no file can be written at `path`, the value of `option`."""
    if path is not None and not path.absolute().parent.is_dir():
        raise ValueError(f"{option} {path}: there is no folder {path.parent}: expected one that is there")
    if path is not None and path.is_dir():
        raise ValueError(f"{option} {path}: that is a folder: expected the name of a file")


# Folders of checkpoints

def resumes_what_it_saves(arguments: argparse.Namespace) -> bool:
    """Whether --resume names the folder of --save, or a checkpoint in it."""
    if not (arguments.resume and arguments.save):
        return False
    return arguments.save.resolve() in (arguments.resume.resolve(), arguments.resume.resolve().parent)


def check_folders(arguments: argparse.Namespace) -> None:
    """ValueError where --save, --resume and --overwrite contradict one another, or the folder holds another run."""
    save, resume = arguments.save, arguments.resume
    if arguments.overwrite and save is None:
        raise ValueError("--overwrite without --save DIR: expected the folder whose checkpoints may go")
    if save is not None and save.exists() and not save.is_dir():
        raise ValueError(f"--save {save}: that is a file: expected a folder")
    if arguments.overwrite and resumes_what_it_saves(arguments):
        raise ValueError(f"--overwrite with --resume {resume}: a run that goes on keeps its checkpoints. Expected the "
                         "one or the other")
    if arguments.overwrite and os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0":
        raise ValueError(f"--overwrite in a run that torchrun has started again, which may have saved into {save} "
                         f"already: expected --resume {save}")
    there = complete_checkpoints(save) if save is not None and not arguments.overwrite else []
    if there and not resumes_what_it_saves(arguments):
        raise ValueError(f"--save {save}: it holds {len(there)} checkpoint{'s' * (len(there) > 1)} of another run, the "
                         f"last is {there[-1].name}. Expected an empty folder, or --resume {save} to go on with that "
                         "run, or --overwrite to put this one in its place")


def check_resume(arguments: argparse.Namespace, data: dict) -> None:
    """What the last checkpoint whose manifest can be read says; damaged ones the ranks pass over, or refuse."""
    folder = arguments.resume
    last = checkpoint.find(folder, missing_ok=True)
    if last is None:
        if arguments.save and arguments.save.resolve() == folder.resolve():
            return  # as a script begins a run, and goes on with it
        there = f"{folder}: no such folder" if not folder.is_dir() else f"{folder}: it holds no checkpoint"
        raise ValueError(f"--resume {there}. Expected a folder that --save wrote to; the same folder in --save and "
                         "--resume begins a run where there is none yet")
    paths = [last] if last == folder else reversed(complete_checkpoints(folder))
    readable = [path for path in paths if origin(path).run]
    if not readable:
        return
    require_same_data(readable[0], data)
    manifest = checkpoint.read_manifest(readable[0])
    check_same_model(arguments, readable[0], manifest["extra"])
    if manifest["step"] >= arguments.steps and not problems_of(readable[0]):  # a damaged one is passed over
        raise ValueError(f"the run in {folder} has taken {manifest['step']} steps already: expected more of them in "
                         f"--steps {arguments.steps}, which counts from the beginning")


def check_same_model(arguments: argparse.Namespace, path: Path, extra: dict) -> None:
    """ValueError where the checkpoint at `path` is of another model than the options name."""
    experts = describe_experts(arguments) or {}
    mine = {**asdict(config_of(arguments)), "experts": experts.get("num_experts"), "top_k": experts.get("k")}
    if "model" not in extra:
        return  # one of before, which the ranks compare by names and shapes
    config, of_saved = saved_model(path, extra)
    of_saved = of_saved or {}
    saved = {**asdict(config), "experts": of_saved.get("num_experts"), "top_k": of_saved.get("k")}
    different = [f"{OPTIONS.get(name, '--' + name.replace('_', '-'))} {saved.get(name)}, and here {value}"
                 for name, value in mine.items() if saved.get(name) != value]
    if different:
        raise ValueError(f"the run in {path} is of another model: {'; '.join(different)}. Expected the same")
