"""Where rank processes come from: forked from a warm server (Linux), or interpreters kept warm (macOS, Windows).

Both pools give the same thing, `RankProcess`es to talk to, and promise the same thing: after `finish` nothing that a
rank started is alive.

The processes of some ranks from their start to their end: for the one call of a launch, or for all those of a team.

A supervisor follows one call in them; what outlasts a call is here.
"""

import glob
import os
import secrets
import shutil
import sys
import tempfile
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from multiprocessing import Pipe
from typing import Any

from course_lib.runtime.ranks.fork_pool import BranchPool, ForkPool
from course_lib.runtime.ranks.messages import DISMISS, Task
from course_lib.runtime.ranks.processes import RankProcess
from course_lib.runtime.ranks.warm_pool import WarmPool

_pool: ForkPool | WarmPool | None = None


def pool() -> ForkPool | WarmPool:
    """The pool of this process; COURSE_LIB_LAUNCHER=fork or =warm overrules the platform's choice."""
    global _pool
    if _pool is None:
        forks = os.environ.get("COURSE_LIB_LAUNCHER", "fork" if sys.platform == "linux" else "warm") == "fork"
        _pool = ForkPool() if forks else WarmPool()
    return _pool


def pool_that_stays() -> BranchPool | WarmPool:
    """A pool for the ranks of one team. Launches go on beside it."""
    global _pool
    ours = pool()
    if isinstance(ours, ForkPool):
        return branch(ours)
    ours.start()
    _pool = None  # its interpreters are the team's, and the next launch starts others
    return ours


def branch(root: ForkPool) -> BranchPool:
    """A pool for ranks that stay, while those of launches come and go in `root`."""
    root.begin()
    try:
        root.wait_for_preload()  # what is missing now, each of its ranks would have to import by itself
        ours, theirs = Pipe()
        folder = tempfile.mkdtemp(prefix="team_", dir=root.folder)
        with theirs:
            return BranchPool(root, folder, ours, root.ask("branch", folder, handles=[theirs.fileno()]))
    except BaseException:
        root.let_go()
        raise


def start_at_each_cell_of(shell: Any) -> None:
    """Start the pool now, and again with any cell that is run in the notebook after the pool has left."""
    pool().start()
    if _start not in shell.events.callbacks["pre_run_cell"]:
        shell.events.register("pre_run_cell", _start)


def _start(cell: Any) -> None:
    with suppress(OSError):  # a full disk: the launch that needs it will say so
        if not pool().is_busy:  # a cell need not wait for what another thread asks of a slow server
            pool().start()


LEAVE_S = 5.0  # time for a rank to close what it opened
Counts = dict[tuple[str, tuple[int, ...]], int]  # (op, group) -> communication calls begun so far


class Crew:
    """`task` has what all its ranks and calls have in common. `stays`: more calls may come after one that has ended."""

    def __init__(self, pool: "ForkPool | BranchPool | WarmPool", task: Task, env: dict[str, str], stays: bool = False):
        self.pool, self.task, self.env, self.stays = pool, task, env, stays
        self.processes: list[RankProcess] = []
        self.counts: dict[int, Counts] = {}  # rank -> its communication calls, as it last said
        self.lost: set[int] = set()  # ranks whose processes have ended
        self.forced: set[int] = set()  # of those the ones that had to be ended, since they did not leave a call
        self.group = 0

    def make_tasks(self, call: bytes, ranks: Collection[int] | None = None, group: int | None = None) -> list[Task]:
        """The same call for each of `ranks` (None: all), in the process group of that number (None: the newest)."""
        group = self.group if group is None else group
        return [replace(self.task, rank=rank, call=call, group=group) for rank in range(self.task.world_size)
                if ranks is None or rank in ranks]

    def start(self, tasks: list[Task]) -> Iterator[RankProcess]:
        """The processes that run `tasks`: with the first ones they are started, one after another, so that the first
        can start its work while the next is forked.
        """
        if self.processes:
            yield from (self.processes[task.rank] for task in tasks)
            return
        for process in self.pool.processes(self.task.world_size, self.env, tasks[0].call):
            if self.stays and not process.end_of_output:
                process.end_of_output = f"\0course_lib {secrets.token_hex(8)} {process.rank}\0".encode()
            self.processes.append(process)
            yield process

    def give(self, task: Task) -> None:
        """Send a task to its rank. OSError where the rank has ended."""
        process = self.processes[task.rank]
        process.send(replace(task, mark=process.end_of_output) if self.stays else task)

    def exit_code(self, rank: int) -> int | None:
        """None while the rank's process is alive."""
        return self.pool.exit_code(self.processes[rank])

    def is_in_step(self) -> bool:
        """Whether every rank has made the same calls on each group, and as many sends as receives: then no message of
        one can be taken for another one's later on.
        """
        keys = {key for counts in self.counts.values() for key in counts}
        made = {key: [self.counts.get(rank, {}).get(key, 0) for rank in key[1]] for key in keys}
        messages = {group: [sum(made.get((op, group), [0])) for op in ("send", "recv")] for _, group in keys}
        return (all(len(set(counts)) == 1 for (op, _), counts in made.items() if op not in ("send", "recv"))
                and all(sends == receives for sends, receives in messages.values()))

    def dismiss(self, ranks: Collection[int]) -> set[int]:
        """Ranks whose call has ended, well or not, may leave; the others can only be stopped."""
        for rank in ranks:
            try:
                self.processes[rank].send(DISMISS)
            except OSError:  # it has ended: the reader of its messages tells
                pass
        return set(ranks)

    def finish(self, dismissed: Collection[int]) -> None:
        """End all processes and whatever they have started. LaunchError where the pool's own process is gone."""
        self.pool.finish(dismissed, LEAVE_S)

    def clear_up(self) -> None:
        """When nobody reads from the ranks any more: their files go, and the pool may go."""
        for path in glob.glob(glob.escape(self.task.store) + "*"):
            if os.path.isdir(path):
                shutil.rmtree(path, ignore_errors=True)
            else:
                os.unlink(path)
        self.pool.release()  # after the files: it may leave with its folder

    def note_counts(self, counts: Mapping[int, Counts]) -> None:
        """What ranks said when a call ended."""
        self.counts |= counts
