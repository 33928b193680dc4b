"""Chapter 6: three steps equal those of one process that sees all rows."""

import torch

from course_lib import zero
from course_lib.runtime import device
from tests.pretend.trials.register import trial
from tests.pretend.trials.training import adamw, mine, model, off, train


@trial("zero stage", 1, 2)
def stage(number: int) -> None:
    trained = model().to(device())
    optimizer = zero.ZeroOptimizer(trained.parameters(), torch.optim.AdamW, stage=number, lr=1e-2)
    train(trained, optimizer, mine)
    assert off(trained.state_dict()) < 1e-12
    optimizer.clip_grad_norm_(1.0)
    optimizer.state_dict()


@trial("zero offload", 1, 2)
def offload(number: int) -> None:
    trained = model().to(device())
    optimizer = zero.ZeroOptimizer(trained.parameters(), torch.optim.AdamW, stage=number, offload=True, lr=1e-2)
    train(trained, optimizer, mine)
    assert off(trained.state_dict()) < 1e-12


@trial("zero fully sharded", False, True)
def fully_sharded(offloaded: bool) -> None:
    trained = zero.FullyShardedDataParallel(model().to(device()), offload=offloaded)
    optimizer = adamw(trained.parameters())
    train(trained, optimizer, mine)
    trained.clip_grad_norm_(1.0)
    assert off(trained.full_state_dict()) < 1e-12


@trial("zero scaler")
def scaler() -> None:
    trained = model().float().to(device())
    optimizer = zero.ZeroOptimizer(trained.parameters(), torch.optim.AdamW, lr=1e-2)
    scaled = zero.ShardedGradScaler()
    scaled.scale(trained(mine(0).float()).square().mean()).backward()
    scaled.step(optimizer)
    scaled.update()
