"""A user's server in the hub, as that user: copies of the notebooks in ~/workspace, a bound on memory, then Jupyter.

The hub starts it in the user's home.
"""

import os
import resource
import sys
from pathlib import Path

from tools.hub.room import server_bytes
from tools.workspace import give_copies


def main(arguments: list[str]) -> None:
    give_copies(folder=Path.home() / "workspace")
    # A cell that fills the memory gets a MemoryError. The bound is one process's, not one user's: what several take
    # together is bounded by the container alone, and then these go before the hub does.
    bound = server_bytes(int(os.environ["COURSE_RANKS"]))
    resource.setrlimit(resource.RLIMIT_DATA, (bound, bound))
    Path("/proc/self/oom_score_adj").write_text("500", encoding="utf-8")
    os.execvp("jupyterhub-singleuser", ["jupyterhub-singleuser", *arguments])


if __name__ == "__main__":
    main(sys.argv[1:])
