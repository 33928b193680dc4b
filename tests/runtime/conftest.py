"""A Jupyter kernel that all files share: starting one, with torch and the server of ranks, costs ten seconds of a core.
"""

from collections.abc import Iterator

import pytest

from tools.harness.kernel import Kernel

FIRST_CELL = "import os, sys, time, torch, torch.distributed as dist\nfrom course_lib.grading import check"
SERVER_RUNS = ("from course_lib.runtime import launch, start_ranks\nfrom course_lib.runtime.ranks.pools import pool\n"
               "not pool().has_ended")


@pytest.fixture(scope="session")
def kernel() -> Iterator[Kernel]:
    """Of an exercise's notebook: its first cell, which names no ranks, has started their server."""
    with Kernel() as kernel:
        assert kernel.run(FIRST_CELL).error is None
        reply = kernel.run(SERVER_RUNS)
        assert reply.value == "True", reply
        yield kernel
