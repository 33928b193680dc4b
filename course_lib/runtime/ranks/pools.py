"""Where rank processes come from: forked from a warm server (Linux), or interpreters kept warm (macOS, Windows).

Both pools give the same thing, `RankProcess`es to talk to, and promise the same thing: after `finish` nothing that a
rank started is alive.
"""

import os
import sys
import tempfile
from contextlib import suppress
from multiprocessing import Pipe
from typing import Any

from course_lib.runtime.ranks.branch_pool import BranchPool
from course_lib.runtime.ranks.fork_pool import ForkPool
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
