"""For tests of the pretended GPU: without a compiler, importing this loudly skips the whole file."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist

from course_lib.runtime import launch
from course_lib.runtime.launcher import Results
from tools.harness.pretend import build
from tools.harness.pretend.hook import pretended
from tools.harness.pretend.modes import MODES

MISSING = build.why_not()
if MISSING:
    pytest.skip(f"NO PRETENDED GPU HERE: {MISSING}", allow_module_level=True)


@pytest.fixture(scope="module", autouse=True)
def built() -> None:
    build.build()  # RuntimeError, not a skip, where there is a compiler and it fails


def on(mode: str, function: Callable, *arguments: Any, world_size: int = 2, **options: Any) -> Results:
    """`launch` on the machine of `mode`."""
    with pretended(MODES[mode]):
        return launch(function, *arguments, world_size=world_size, **options)


def wait_for(works: list) -> None:
    for work in works:
        work.wait()


def peer() -> int:
    return 1 - dist.get_rank()


OPERATIONS = {  # of two ranks, each with one tensor of 4
    "send": lambda t: wait_for([dist.isend(t, peer()), dist.irecv(t.clone(), peer())]),
    "recv": lambda t: wait_for([dist.irecv(t.clone(), peer()), dist.isend(t, peer())]),
    "broadcast": lambda t: dist.broadcast(t, 0),
    "all_reduce": dist.all_reduce,
    "reduce": lambda t: dist.reduce(t, 0),
    "all_gather": lambda t: dist.all_gather([torch.empty_like(t) for _ in range(2)], t),
    "gather": lambda t: dist.gather(t, [torch.empty_like(t) for _ in range(2)] if dist.get_rank() == 0 else None, 0),
    "scatter": lambda t: dist.scatter(t, [t.clone(), t.clone()] if dist.get_rank() == 0 else None, 0),
    "reduce_scatter": lambda t: dist.reduce_scatter_tensor(torch.empty_like(t[:2]), t),
    "all_to_all": lambda t: dist.all_to_all_single(torch.empty_like(t), t),
}
