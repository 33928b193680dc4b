"""Where rank processes come from: forked from a warm server (Linux), or interpreters kept warm (macOS, Windows).

Both pools give the same thing, `RankProcess`es to talk to, and promise the same thing: after `finish` nothing that a
rank started is alive.
"""

import os
import sys

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
