"""How many servers a container's memory carries, by the number of ranks that each is expected to start."""

from pathlib import Path

import psutil

CGROUP = Path("/sys/fs/cgroup/memory.max")
HUB_BYTES = 500 * 10**6  # the hub, its proxy and what the system needs
# Measured: a server alone has 109 MB; with a notebook and four ranks that have trained the course's GPT 826 MB, 89 MB
# of them in each rank. The rest is room for cells that hold more.
NOTEBOOK_BYTES = 600 * 10**6
RANK_BYTES = 150 * 10**6


def server_bytes(ranks: int) -> int:
    """What a reader's server takes while a notebook runs `ranks` ranks.

    >>> server_bytes(4)
    1200000000
    """
    if ranks < 1:
        raise ValueError(f"{ranks} ranks: expected 1 or more; COURSE_RANKS says for how many memory is reserved")
    return NOTEBOOK_BYTES + ranks * RANK_BYTES


def servers_that_fit(memory_bytes: int, ranks: int) -> int:
    """How many readers may work at the same time.

    >>> servers_that_fit(8 * 10**9, ranks=4)
    6
    """
    fitting = (memory_bytes - HUB_BYTES) // server_bytes(ranks)
    if fitting < 1:
        raise ValueError(f"{memory_bytes / 1e9:.1f} GB do not carry one server with {ranks} ranks, which needs "
                         f"{(HUB_BYTES + server_bytes(ranks)) / 1e9:.1f} GB: give the container more (COURSE_MEMORY)")
    return fitting


def container_bytes() -> int:
    """The memory that this container may use: all of the machine's where no limit is set."""
    try:
        limit = CGROUP.read_text(encoding="utf-8").strip()
    except OSError:
        limit = "max"
    return psutil.virtual_memory().total if limit == "max" else int(limit)
