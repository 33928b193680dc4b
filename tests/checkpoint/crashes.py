"""A run that is killed again and again: `python -m tests.checkpoint.crashes FOLDER SEED KILLS` prints what happened.

The work is to count: after step s all numbers of a tensor, whose rows are dealt out over the ranks, are s. Each attempt
forks its ranks from this process, which has imported torch and computed nothing, so that an attempt takes no launch.
"""

import json
import os
import random
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from course_lib import checkpoint
from course_lib.checkpoint import planners  # noqa: F401  which every save and load needs: imported before the forks
from course_lib.checkpoint.chaos import dying_at
from course_lib.checkpoint.folders import problems_of, read_manifest
from course_lib.checkpoint.models import pieces

ROWS, MOST_LINES, MOST_S = 6, 7000, 60


class Count(torch.nn.Module):
    """This rank's rows of each tensor, and one that all hold."""

    def __init__(self, r: int, n: int) -> None:
        super().__init__()
        self.place = checkpoint.Placement.cut((ROWS, 50), 0, r, n)
        self.tensors: dict[str, Tensor] = {f"dealt.{i}": torch.zeros(self.place.local_shape) for i in range(3)}
        self.whole = torch.zeros(20)


@pieces.register(Count)
def pieces_of_count(model, optimizer=None):
    dealt = {name: model.place.pieces(tensor) for name, tensor in model.tensors.items()}
    return {**dealt, "whole": checkpoint.whole(model.whole)}


def count(folder: Path, r: int, n: int, line: int, who: int, background: bool) -> None:
    """One rank of one attempt: load, and save after each step, until `who` has run `line` lines of what saves."""
    torch.set_num_threads(1)
    store = dist.FileStore(str(folder / "store"), n)
    dist.init_process_group("gloo", store=store, rank=r, world_size=n)
    model, step = Count(r, n), 0
    if checkpoint.latest(folder):
        step = checkpoint.load(folder, model).step
        assert all(tensor.eq(step).all() for tensor in (*model.tensors.values(), model.whole)), "not what was saved"
    with dying_at(line if r == who else 10**9):
        while True:
            step += 1
            for tensor in (*model.tensors.values(), model.whole):
                tensor += 1
            saving = checkpoint.save(folder, model, None, step, keep=2, background=background)
            if background:
                saving.wait()
            if r == 0:
                with open(folder / "completed", "a", encoding="utf-8") as file:
                    file.write(f"{step}\n")


def attempt(folder: Path, n: int, line: int, who: int, background: bool) -> list[int]:
    """Fork the ranks, and wait until all have ended: as the one that is killed, or because that one is gone."""
    (folder / "store").unlink(missing_ok=True)
    ranks = []
    for r in range(n):
        child = os.fork()
        if child == 0:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # the survivors say that a connection has been closed
            try:
                count(folder, r, n, line, who, background)
            finally:
                os._exit(1)
        ranks.append(child)
    endings, deadline = {}, time.monotonic() + MOST_S
    while len(endings) < n:
        for rank, child in enumerate(ranks):
            if rank not in endings and (ended := os.waitpid(child, os.WNOHANG))[0]:
                endings[rank] = os.waitstatus_to_exitcode(ended[1])
        if time.monotonic() > deadline or who in endings and len(endings) < n and \
                time.monotonic() > (deadline := min(deadline, time.monotonic() + 5)):
            for rank, child in enumerate(ranks):
                if rank not in endings:
                    os.kill(child, signal.SIGKILL)
        time.sleep(0.002)
    return [endings[rank] for rank in range(n)]


def main(folder: Path, seed: int, kills: int) -> None:
    rng, seen = random.Random(seed), []
    for _ in range(kills):
        n = rng.choice((1, 2, 3))
        plan = n, rng.randrange(MOST_LINES), rng.randrange(n), rng.random() < 0.5
        endings = attempt(folder, *plan)
        path = checkpoint.latest(folder)
        completed = [int(line) for line in (folder / "completed").read_text().split()] if path else [0]
        seen.append({
            "ranks": n, "killed": endings[plan[2]] == -signal.SIGKILL, "completed": completed[-1] if completed else 0,
            "latest": read_manifest(path)["step"] if path else 0, "problems": problems_of(path) if path else [],
            "left": sorted(path.name for path in folder.glob(".*")), "kept": len(checkpoint.completed(folder)),
        })
    print(json.dumps(seen))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
