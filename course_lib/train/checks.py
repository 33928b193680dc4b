"""Mistakes in what was asked for, found by the library's own checks in this process, and said in the reader's words.

    layout, model, batch, schedule     hybrid_parallel.require_trainable, on a model that has no memory
    text                               the rows of the first step
    folders                            whose checkpoints lie in --save, and what --resume goes on from
"""

import argparse
import os
import re
from dataclasses import asdict
from pathlib import Path

import torch

from course_lib import checkpoint
from course_lib.checkpoint.folders import complete_checkpoints, origin, problems_of
from course_lib.hybrid_parallel import LearningRate, ParallelLayout
from course_lib.hybrid_parallel.checkpoints import describe_data, require_same_data
from course_lib.hybrid_parallel.dry_run import require_trainable
from course_lib.reference import GPTConfig, batches
from course_lib.reference.text import load_text
from course_lib.train.experts import describe_experts, make_model

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
    of_saved = extra.get("experts") or {}
    saved = {**extra["model"], "experts": of_saved.get("num_experts"), "top_k": of_saved.get("k")}
    different = [f"{OPTIONS.get(name, '--' + name.replace('_', '-'))} {saved.get(name)}, and here {value}"
                 for name, value in mine.items() if saved.get(name) != value]
    if different:
        raise ValueError(f"the run in {path} is of another model: {'; '.join(different)}. Expected the same")
