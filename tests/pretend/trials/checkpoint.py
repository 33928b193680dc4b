"""Chapter 9's checkpoints: what was saved on GPUs is loaded on them, and on the CPU."""

import tempfile
from pathlib import Path

import torch
import torch.distributed as dist

from course_lib import checkpoint
from course_lib.checkpoint.models import pieces
from course_lib.checkpoint.replicas import find_corruption
from course_lib.runtime import device
from course_lib.zero import FullyShardedDataParallel, ZeroOptimizer
from tests.pretend.trials.register import trial
from tests.pretend.trials.training import adamw, mine, model, off, train


def one_folder() -> Path:
    """The same on all ranks."""
    names = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(names, src=0)
    return Path(names[0])


@trial("checkpoint", "at once", "in the background")
def saved_and_loaded(how: str) -> None:
    folder, trained = one_folder(), model().to(device())
    optimizer = ZeroOptimizer(trained.parameters(), torch.optim.AdamW, lr=1e-2)
    train(trained, optimizer, mine)
    checkpoint.save(folder, trained, optimizer, 3, background=how != "at once")
    after = {name: value.clone() for name, value in train(trained, optimizer, mine).state_dict().items()}
    assert not find_corruption(pieces(trained, optimizer))
    checkpoint.finish()
    loaded = checkpoint.load(folder, trained, optimizer)
    assert loaded.same_layout and off(trained.state_dict()) < 1e-12
    train(trained, optimizer, mine)
    assert all(torch.equal(value, after[name]) for name, value in trained.state_dict().items())


@trial("checkpoint in another layout")
def another_layout() -> None:
    folder, sharded = one_folder(), FullyShardedDataParallel(model().to(device()))
    optimizer = adamw(sharded.parameters())
    train(sharded, optimizer, mine)
    checkpoint.save(folder, sharded, optimizer, 3)
    trained = model().to(device())
    other = ZeroOptimizer(trained.parameters(), torch.optim.AdamW, stage=2, lr=1e-2)
    checkpoint.load(folder, trained, other)
    assert off(trained.state_dict()) < 1e-12 and off(checkpoint.read_state_dict(folder)) < 1e-12
