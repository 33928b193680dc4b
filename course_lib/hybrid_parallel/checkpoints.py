"""A trainer's checkpoints: saved under one layout, gone on with under any other.

    trainer = HybridTrainer(config, layout, ...)
    resume_run(trainer, "runs/a")                                       from the last checkpoint, if there is one
    trainer.train(20, after_step=saver("runs/a", every=5, keep=2))      in the background, every fifth step
    checkpoint.finish()                                                 what is under way, before the rank returns
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from course_lib import checkpoint
from course_lib.checkpoint import models
from course_lib.groups.agreement import fingerprint
from course_lib.hybrid_parallel.model import HybridModel
from course_lib.hybrid_parallel.optimizer import HybridOptimizer
from course_lib.hybrid_parallel.state import pieces
from course_lib.hybrid_parallel.trainer import HybridTrainer
from course_lib.reference.text import load_text


@models.pieces.register(HybridModel)
def all_pieces(model: HybridModel, optimizer: HybridOptimizer | None = None) -> checkpoint.State:
    """What state.pieces has, and buffers, which all ranks hold whole: the bias of a router, say."""
    buffers = {name: checkpoint.whole(buffer) for stage in models.unwrapped(model)
               for name, buffer in getattr(stage, "module", stage).named_buffers()}
    return {**pieces(model, optimizer), **buffers}


def data_of(trainer: HybridTrainer) -> dict[str, Any]:
    """What the rows of a step depend on besides its number: a run that goes on must not change it."""
    tokens = load_text() if trainer.tokens is None else trainer.tokens
    some = tokens[::max(1, len(tokens) // 4096)].tolist()
    return {"batch_size": trainer.batch_size, "sequence_length": trainer.config.sequence_length, "seed": trainer.seed,
            "text": fingerprint(f"{len(tokens)} {some}")}


def save_run(trainer: HybridTrainer, folder: str | Path, keep: int | None = None, background: bool = True
             ) -> Path | checkpoint.Saving:
    """A checkpoint of `trainer` in `folder`: see checkpoint.save. Collective."""
    extra = {"layout": str(trainer.layout), "data": data_of(trainer)}
    return checkpoint.save(folder, trainer.model, trainer.optimizer, trainer.step_number, extra=extra, keep=keep,
                           background=background)


def saver(folder: str | Path, every: int, keep: int | None = None) -> Callable[[HybridTrainer], None]:
    """after_step of HybridTrainer.train: saves when `every` divides the number of steps taken."""
    if isinstance(every, bool) or not isinstance(every, int) or every < 1:
        raise ValueError(f"every={every!r}: expected a whole number of steps of at least 1")

    def after_step(trainer: HybridTrainer) -> None:
        if trainer.step_number % every == 0:
            save_run(trainer, folder, keep)

    return after_step


def resume_run(trainer: HybridTrainer, folder: str | Path) -> checkpoint.Loaded | None:
    """Go on from the last checkpoint in `folder`, or from the checkpoint that it is. None, and nothing has changed,
    where there is none yet: a run that is started again by a script begins this way, too. Collective.

    ValueError where it was trained on other rows: another text, batch size, length of a row or seed.
    """
    found = checkpoint.find(folder, missing_ok=True)
    everyones: list[Path | None] = [None] * dist.get_world_size()
    dist.all_gather_object(everyones, found)
    if everyones[0] is None:
        return None
    said, mine = checkpoint.read_manifest(everyones[0])["extra"].get("data"), data_of(trainer)
    if said is not None and said != mine:
        names = [name for name in mine if said.get(name) != mine[name]]
        raise ValueError(f"the run in {str(folder)!r} was on other rows: {', '.join(names)} differ ("
                         + ", ".join(f"{name}={said.get(name)!r}, and here {mine[name]!r}" for name in names)
                         + "). Expected the same, since a step's number says where in the text the run is")
    loaded = checkpoint.load(everyones[0], trainer.model, trainer.optimizer)
    trainer.step_number = loaded.step
    if not loaded.same_layout:  # what is dropped: the same on ranks of tp, drawn anew elsewhere
        at = trainer.layout.coordinates(dist.get_rank())
        torch.manual_seed(fingerprint(f"{trainer.seed} {loaded.step} {at['dp']} {at['cp']} {at['pp']}") % 2**32)
    return loaded
