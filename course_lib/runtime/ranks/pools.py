"""Where rank processes come from: forked from a warm server (Linux), or interpreters kept warm (macOS, Windows).

Both pools give the same thing, `RankProcess`es to talk to, and promise the same thing: after `finish` nothing that a
rank started is alive.
"""

import os
import sys
from contextlib import suppress
from typing import Any

from course_lib.runtime.ranks.fork_pool import BranchPool, ForkPool
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
        return ours.branch()
    ours.start()
    _pool = None  # its interpreters are the team's, and the next launch starts others
    return ours


def start_at_each_cell_of(shell: Any) -> None:
    """Start the pool now, and again with any cell that is run in the notebook after the pool has left."""
    pool().start()
    if _start not in shell.events.callbacks["pre_run_cell"]:
        shell.events.register("pre_run_cell", _start)


def _start(cell: Any) -> None:
    with suppress(OSError):  # a full disk: the launch that needs it will say so
        pool().start()
