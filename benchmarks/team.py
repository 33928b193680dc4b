"""Ranks that stay: how soon they are there, and how long a cell takes to go there and back.

Beside launch, which starts ranks anew for each call; and beside nbdistributed and ipyparallel, which keep ranks as
well, where they are installed: none of the course's own extras brings them. All in real Jupyter kernels.
"""

import atexit
import importlib.util

from benchmarks.harness import Work, benchmark
from tools.harness.kernel import Kernel

IMPORTS = "import time, torch, torch.distributed as dist"
OURS = "from course_lib.runtime import launch, launcher, start_ranks\nlauncher.pool().wait_for_preload()"
CELL = "x = torch.ones(1)\ndist.all_reduce(x)\nprint(x.item())"
FUNCTION = "def body():\n    x = torch.ones(1)\n    dist.all_reduce(x)\n    return x.item()"


def _kernel(*cells: str) -> Kernel:
    kernel = Kernel()
    atexit.register(kernel.stop)
    for cell in (IMPORTS, *cells):
        _run(kernel, cell)
    return kernel


def _run(kernel: Kernel, cell: str) -> None:
    reply = kernel.run(cell)
    if reply.error:
        raise RuntimeError("\n".join(reply.error["traceback"]))


def _seconds_of(kernel: Kernel, cell: str) -> float:
    """Seconds that a cell takes inside the kernel: also one that begins with a magic, where nothing else may stand."""
    reply = kernel.run(_timed(cell))
    if reply.error:
        raise RuntimeError("\n".join(reply.error["traceback"]))
    return float(reply.printed().rsplit("took ", 1)[1])


def _timed(cell: str) -> str:
    return ("started = time.perf_counter()\n"
            f"get_ipython().run_cell({cell!r})\nprint('took', time.perf_counter() - started)")


def _round_trip_s(kernel: Kernel, cell: str, num_ranks: int) -> float:
    """Seconds of a cell that every rank answers with the sum: what only says that it does not work is quick."""
    reply = kernel.run(_timed(cell))
    said = "".join(text for _, text in reply.streams)  # ipyparallel shows what engines print
    if reply.error or said.count(f"{num_ranks}.0") < num_ranks:
        raise RuntimeError(f"not all of {num_ranks} ranks answered: {reply.error or said!r:.2000}")
    return float(reply.printed().rsplit("took ", 1)[1])


def _start(num_ranks: int) -> tuple[Work, Work]:
    kernel = _kernel(OURS, FUNCTION)

    def ours() -> float:
        took = _seconds_of(kernel, f"team = start_ranks({num_ranks}, device='cpu')")
        kernel.run("team.close()")
        return took

    return ours, lambda: _seconds_of(kernel, f"launch(body, world_size={num_ranks}, device='cpu')")


@benchmark(runs=11)
def start_team_of_4() -> tuple[Work, Work]:
    """Starting 4 ranks that stay, against a launch of 4 that all-reduce a scalar."""
    return _start(4)


@benchmark(runs=11)
def start_team_of_8() -> tuple[Work, Work]:
    """Starting 8 ranks that stay, against a launch of 8 that all-reduce a scalar."""
    return _start(8)


def _cell_in(num_ranks: int) -> Work:
    kernel = _kernel(OURS, f"team = start_ranks({num_ranks}, device='cpu')")
    return lambda: _round_trip_s(kernel, f"%%ranks\n{CELL}", num_ranks)


@benchmark(runs=21)
def cell_in_4_ranks() -> tuple[Work, Work]:
    """A cell that all-reduces a scalar in 4 ranks that stay, against a launch of 4 that do so."""
    kernel = _kernel(OURS, FUNCTION)
    return _cell_in(4), lambda: _seconds_of(kernel, "launch(body, world_size=4, device='cpu')")


if importlib.util.find_spec("ipyparallel"):

    @benchmark(runs=21)
    def cell_beside_ipyparallel() -> tuple[Work, Work]:
        """A cell that all-reduces a scalar in 4 ranks, against ipyparallel's %%px in 4 engines with a group of gloo."""
        theirs = _kernel(IPYPARALLEL, f"%%px\n{IMPORTS}", JOINS)
        return _cell_in(4), lambda: _round_trip_s(theirs, f"%%px\n{CELL}", 4)


IPYPARALLEL = """
import ipyparallel, tempfile
cluster = ipyparallel.Cluster(n=4, log_level=40)
engines = cluster.start_and_connect_sync()
engines.activate()
for number in range(4):
    engines[number].push({"number": number, "store": tempfile.gettempdir() + f"/store-{engines.ids}-{id(engines)}"})
"""
JOINS = """%%px
dist.init_process_group("gloo", store=dist.FileStore(store, 4), rank=number, world_size=4)
"""

if importlib.util.find_spec("nbdistributed"):

    @benchmark(runs=21)
    def cell_beside_nbdistributed() -> tuple[Work, Work]:
        """A cell that all-reduces a scalar in 4 ranks, against one of nbdistributed's 4 workers."""
        theirs = _kernel("%load_ext nbdistributed", "%dist_init --num-processes 4")
        return _cell_in(4), lambda: _round_trip_s(theirs, f"%%distributed\n{CELL}", 4)
