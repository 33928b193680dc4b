"""A lab for accidents: ranks are killed at moments that chance has chosen, and the run goes on from its checkpoint.

    Kill           which rank dies, and when: at the beginning of a step, or in the midst of saving
    draw_kills     as many as wanted, from a seed
    survive        launch, be killed, launch again, also with fewer ranks, until the work is done

A killed process does not clean up, flush or say good-bye (SIGKILL), as when its machine loses power. Under torchrun the
same training function survives by `--max-restarts`: torchrun starts all ranks again, and they load the last checkpoint.
"""

import os
import random
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch.distributed as dist

from course_lib.runtime import launch
from course_lib.runtime.errors import LaunchError, RankDied

SAVING_CODE = (os.path.join("course_lib", "checkpoint", ""), os.path.join("torch", "distributed", "checkpoint", ""))


@dataclass(frozen=True)
class Kill:
    """`rank` dies at the beginning of `step`; or, with `line`, in the save that comes after it, when that has run so
    many lines of Python.
    """

    rank: int
    step: int
    line: int | None = None

    def __str__(self) -> str:
        where = f"before step {self.step}" if self.line is None else f"in the save after step {self.step}"
        return f"rank {self.rank} dies {where}"

    def before_step(self, step: int) -> None:
        """Call it at the beginning of each step."""
        if self.line is None and step == self.step and self._is_me():
            die()

    @contextmanager
    def around_save(self, step: int) -> Iterator[None]:
        """Put it around each save(), `step` being the last one taken. It kills at the latest when the save returns."""
        if self.line is None or step != self.step or not self._is_me():
            yield
            return
        with dying_at(self.line):
            yield
        die()

    def _is_me(self) -> bool:
        return (dist.get_rank() if dist.is_initialized() else 0) == self.rank


NOBODY = Kill(rank=-1, step=-1)


def draw_kills(num: int, steps: int, world_size: int, save_every: int, seed: int = 0) -> list[Kill]:
    """`num` of them in a run of `steps` steps, in the order of their steps; every other one in a save. Each is of one
    attempt: see survive.
    """
    rng = random.Random(seed)
    saves = range(save_every - 1, steps, save_every)  # the steps after which a run saves
    if not 1 <= num <= len(saves):
        raise ValueError(f"num={num}: expected 1 to {len(saves)}, since a run of {steps} steps that saves after each "
                         f"{save_every} is to get on between two kills")
    found = []
    for number, last in enumerate(sorted(rng.sample(saves, num))):
        rank = rng.randrange(world_size)
        if number % 2:
            found.append(Kill(rank, last, line=rng.randrange(3000)))
        else:
            found.append(Kill(rank, last - rng.randrange(save_every)))
    return found


@dataclass(frozen=True)
class Attempt:
    """One launch: on `world_size` ranks, with this `kill` ahead. `error` is None where it came to its end."""

    world_size: int
    kill: Kill
    error: LaunchError | None
    results: list[Any] | None


def survive(train: Callable[..., Any], *args: Any, kills: Sequence[Kill], world_sizes: Sequence[int], **options: Any
            ) -> list[Attempt]:
    """launch(train, kill, *args) again and again, each time with the next of `kills`, and at the end with none.

    train(kill, *args) loads the last checkpoint, if there is one, calls kill.before_step(step) and puts
    kill.around_save(step) around save. world_sizes: of the first attempt, the second, and so on; the last one stays.
    options: of launch. An error that is no death goes up as it is.
    """
    attempts = []
    for number, kill in enumerate([*kills, NOBODY]):
        n = world_sizes[min(number, len(world_sizes) - 1)]
        try:
            attempts.append(Attempt(n, kill, None, launch(train, kill, *args, world_size=n, **options)))
            return attempts
        except RankDied as error:
            attempts.append(Attempt(n, kill, error, None))
    return attempts


def die() -> None:
    """At once: nothing is flushed, closed or told to anybody."""
    os.kill(os.getpid(), signal.SIGKILL if hasattr(signal, "SIGKILL") else signal.SIGTERM)


@contextmanager
def dying_at(line: int) -> Iterator[None]:
    """Die when the code that saves and loads, ours and torch's, has run `line` lines, on this and on new threads."""
    left = [line]

    def enter(frame: FrameType, event: str, argument: Any) -> Callable | None:
        return count if any(part in frame.f_code.co_filename for part in SAVING_CODE) else None

    def count(frame: FrameType, event: str, argument: Any) -> Callable:
        left[0] -= event == "line"
        if left[0] < 0:
            die()
        return count

    threading.settrace(enter)
    sys.settrace(enter)
    try:
        yield
    finally:
        sys.settrace(None)
        threading.settrace(None)
