"""A run that is killed again and again: `python -m tests.checkpoint.crashes FOLDER SEED KILLS` prints what happened.

Each attempt trains a small GPT under a layout drawn from LAYOUTS, dp2,pp2,tp2 mostly, goes on from the last checkpoint,
and saves after each step, until one rank is killed at a random line of what saves and loads. It forks its ranks from
this process, which has imported torch and computed nothing, so that an attempt takes no launch. Numbers are of 64 bits:
the losses under all layouts are one process's to 1e-9, so that a step of another state would be seen.
"""

import functools
import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

from course_lib import checkpoint
from course_lib.checkpoint import planners  # noqa: F401  which every save and load needs: imported before the forks
from course_lib.checkpoint.chaos import dying_at
from course_lib.checkpoint.folders import problems_of, read_manifest
from course_lib.hybrid_parallel import HybridTrainer, ParallelLayout, resume_run, save_run
from course_lib.reference import GPT, GPTConfig

LAYOUTS = ("dp2,pp2,tp2", "dp2,pp2,tp2", "pp2,tp2", "tp2")
CONFIG = GPTConfig(num_layers=2, hidden_size=8, num_heads=2, vocab_size=256, sequence_length=8)
MOST_LINES, MOST_S = 30_000, 120


def make_trainer(layout: str) -> HybridTrainer:
    layout = ParallelLayout.from_string(layout)
    return HybridTrainer(CONFIG, layout, batch_size=8, num_microbatches=2 if layout.pp > 1 else 1,
                         make_model=lambda: GPT(CONFIG).double())


def train(folder: Path, layout: str, line: int, who: int, background: bool) -> None:
    """On the ranks of one attempt: go on, and save after each step, until `who` has run `line` lines of what saves."""
    with dying_at(line if dist.get_rank() == who else 10**9):
        trainer = make_trainer(layout)
        resume_run(trainer, folder)
        while True:
            note(folder / "losses", f"{trainer.step_number} {trainer.step().loss!r}")
            saving = save_run(trainer, folder, keep=2, background=background)
            if background:
                saving.wait()
            note(folder / "completed", f"{trainer.step_number}")


def note(path: Path, line: str) -> None:
    if dist.get_rank() == 0:
        with open(path, "a", encoding="utf-8") as file:
            file.write(f"{line}\n")


def unbroken(num_steps: int) -> list[float]:
    """The losses of one process that nobody kills."""
    join(dist.HashStore(), 0, 1)
    trainer = make_trainer("dp1")
    return [trainer.step().loss for _ in range(num_steps)]


def join(store: dist.Store, r: int, n: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=store, rank=r, world_size=n)


def start(do: Callable[[], None]) -> int:
    """Fork a rank that does it: its process."""
    child = os.fork()
    if child == 0:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # the survivors say that a connection has been closed
        try:
            do()
        finally:
            os._exit(1)
    return child


def attempt(folder: Path, layout: str, line: int, who: int, background: bool) -> list[int]:
    """Fork the ranks, and wait until all have ended: as the one that is killed, or because that one is gone."""
    (folder / "store").unlink(missing_ok=True)
    n = ParallelLayout.from_string(layout).world_size

    def rank(r: int) -> None:
        join(dist.FileStore(str(folder / "store"), n), r, n)
        train(folder, layout, line, who, background)

    return wait_for([start(functools.partial(rank, r)) for r in range(n)], who)


def wait_for(ranks: list[int], who: int) -> list[int]:
    """How each process ended. Those that do not end, some seconds after `who`, are killed."""
    endings: dict[int, int] = {}
    deadline = time.monotonic() + MOST_S
    while len(endings) < len(ranks):
        for rank, child in enumerate(ranks):
            if rank not in endings and (ended := os.waitpid(child, os.WNOHANG))[0]:
                endings[rank] = os.waitstatus_to_exitcode(ended[1])
                deadline = min(deadline, time.monotonic() + 5) if rank == who else deadline
        if time.monotonic() > deadline:
            for rank, child in enumerate(ranks):
                if rank not in endings:
                    os.kill(child, signal.SIGKILL)
            assert who in endings, f"rank {who} has not died within {MOST_S} s"
        time.sleep(0.002)
    return [endings[rank] for rank in range(len(ranks))]


def found_in(folder: Path) -> dict:
    """What an attempt has left behind."""
    path = checkpoint.latest(folder)
    completed = (folder / "completed").read_text().split() if (folder / "completed").exists() else []
    return {"completed": int(completed[-1]) if completed else 0, "latest": read_manifest(path)["step"] if path else 0,
            "problems": problems_of(path) if path else [], "left": sorted(path.name for path in folder.glob(".*")),
            "kept": len(checkpoint.complete_checkpoints(folder))}


def main(folder: Path, seed: int, kills: int) -> None:
    rng, attempts, begun = random.Random(seed), [], time.monotonic()
    for number in range(kills):
        layout = LAYOUTS[number % len(LAYOUTS)]
        who = rng.randrange(ParallelLayout.from_string(layout).world_size)
        endings = attempt(folder, layout, rng.randrange(MOST_LINES), who, rng.random() < 0.5)
        attempts.append({"layout": layout, "killed": endings[who] == -signal.SIGKILL, **found_in(folder)})
        print(f"{attempts[-1]}, after {time.monotonic() - begun:.0f} s", file=sys.stderr)
    losses = [(int(step), float(loss)) for step, loss in map(str.split, (folder / "losses").read_text().splitlines())]
    print(json.dumps({"attempts": attempts, "losses": losses, "unbroken": unbroken(1 + max(losses)[0])}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
