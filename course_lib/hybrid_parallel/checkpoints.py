"""A trainer's checkpoints: saved under one layout, gone on with under any other.

    trainer = HybridTrainer(config, layout, ...)
    resume_run(trainer, "runs/a")                                       from the last checkpoint, if there is one
    save_run(trainer, "runs/a", keep=2)                                 in the background, while steps go on
    checkpoint.finish()                                                 what is under way, before the rank returns

A trainer's run gets its name at the first save, and carries on that of the checkpoint that it goes on from: nobody
else's checkpoints are touched. The schedule of the learning rate is the run's, too.
"""

import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from course_lib import checkpoint
from course_lib.groups.exchange import fingerprint
from course_lib.hybrid_parallel.optimizer import LearningRate
from course_lib.hybrid_parallel.trainer import HybridTrainer
from course_lib.reference.text import load_text

NO_MORE: Mapping[str, Any] = {}


def data_of(trainer: HybridTrainer) -> dict[str, Any]:
    """What the rows of a step depend on besides its number: a run that goes on must not change it."""
    return describe_data(trainer.tokens, trainer.batch_size, trainer.config.sequence_length, trainer.seed)


def describe_data(tokens: torch.Tensor | None, batch_size: int, sequence_length: int, seed: int) -> dict[str, Any]:
    """What data a trainer that will be made trains on, as a checkpoint says it. tokens: None for the reference's text.
    """
    tokens = load_text() if tokens is None else tokens
    # A sample, since a text may have gigabytes: enough to tell one text from another.
    some = tokens[::max(1, len(tokens) // 4096)].tolist()
    return {"batch_size": batch_size, "sequence_length": sequence_length, "seed": seed,
            "text": fingerprint(f"{len(tokens)} {some}")}


def require_same_data(path: str | Path, mine: Mapping[str, Any]) -> None:
    """ValueError where the checkpoint at `path` is of a run on other rows than `mine`, of describe_data."""
    saved = checkpoint.read_manifest(Path(path))["extra"].get("data")
    if saved is not None and saved != mine:
        saved = saved if isinstance(saved, dict) else {}
        names = [name for name in mine if saved.get(name) != mine[name]]
        raise ValueError(f"the run in {str(path)!r} was on other rows: {', '.join(names)} differ ("
                         + ", ".join(f"{name}={saved.get(name)!r:.60}, and here {mine[name]!r}" for name in names)
                         + "). Expected the same, since a step's number says where in the text the run is")


def save_run(trainer: HybridTrainer, folder: str | Path, keep: int | None = None, background: bool = True,
             overwrite: bool = False, more: Mapping[str, Any] = NO_MORE) -> Path | checkpoint.Saving:
    """A checkpoint of `trainer` in `folder`: see checkpoint.save. Collective.

    ValueError, on all ranks, where `folder` has checkpoints of another run; with overwrite=True they are deleted when
    the first one of this run is complete. more: what the checkpoint is to remember besides, plain JSON.
    """
    if trainer.run is None:
        trainer.run = checkpoint.begin_run(overwrite)
    rate = trainer.learning_rate
    extra = {"layout": str(trainer.layout), "data": data_of(trainer), "model": asdict(trainer.config),
             "schedule": asdict(rate) if isinstance(rate, LearningRate) else None, **more}
    return checkpoint.save(folder, trainer.model, trainer.optimizer, trainer.step_number, extra=extra, keep=keep,
                           background=background, run=trainer.run)


def resume_run(trainer: HybridTrainer, folder: str | Path, *,
               schedule: Callable[[LearningRate], LearningRate] | None = None) -> checkpoint.Loaded | None:
    """Go on from the last intact checkpoint in `folder`, or from the checkpoint that it is. None, and nothing has
    changed, where there is none yet: a run that is started again by a script begins this way, too. Collective.

    schedule: makes of the run's LearningRate, which was saved, the one to go on with; by default the trainer's own is
    used. Rank 0 says so on stderr where the rate changes, and where a damaged checkpoint had to be passed over.

    DamagedCheckpoint where none is intact. ValueError where it was trained on other rows: another text, batch size,
    length of a row or seed.
    """
    path, said = checkpoint.find_intact(folder)
    if path is None:
        return None
    require_same_data(path, data_of(trainer))
    # find_intact has read every byte a moment ago, so nothing is verified twice.
    loaded = checkpoint.load_and_verify(path, trainer.model, trainer.optimizer)
    trainer.step_number, trainer.run = loaded.step, checkpoint.continue_run(path)
    said += go_on_with_schedule(trainer, loaded.extra.get("schedule"), schedule)
    # All ranks know the same; one line is enough.
    if dist.get_rank() == 0:
        for line in said:
            print(f"WARNING: {line}", file=sys.stderr, flush=True)
    if not loaded.same_layout:  # what is dropped: the same on ranks of tp, drawn anew elsewhere
        at = trainer.layout.coordinates(dist.get_rank())
        torch.manual_seed(fingerprint(f"{trainer.seed} {loaded.step} {at['dp']} {at['cp']} {at['pp']}") % 2**32)
    return loaded


def go_on_with_schedule(trainer: HybridTrainer, saved: Mapping[str, Any] | None,
                        schedule: Callable[[LearningRate], LearningRate] | None) -> list[str]:
    """Give the trainer the schedule that it goes on with; what a reader has to hear, where it is not the saved one."""
    if not saved or not isinstance(trainer.learning_rate, LearningRate):
        return []
    try:
        before = LearningRate(**saved)
    except TypeError as error:
        raise ValueError(f"the checkpoint's schedule of the learning rate is none: {str(error)[:200]}") from error
    after = trainer.learning_rate = trainer.learning_rate if schedule is None else schedule(before)
    changes = [f"{name} {old} -> {asdict(after)[name]}" for name, old in asdict(before).items()
               if asdict(after)[name] != old]
    step = trainer.step_number
    return [f"the learning rate goes from {before(step):.3g} to {after(step):.3g} at step {step}: its schedule is not "
            f"the run's any more: {', '.join(changes)}"] if changes else []
