"""Ranks that stay: how soon they are there, and how long a cell takes to go there and back.

Beside launch, which starts ranks anew for each call; and beside nbdistributed and ipyparallel, which keep ranks as
well. Neither is among the course's requirements. To have their rows too, put them into a folder of their own:

    pip install --target PEERS --no-deps nbdistributed ipyparallel decorator
    PYTHONPATH=PEERS python -m benchmarks start_4_beside_ipyparallel cell_beside_nbdistributed ...

All in real Jupyter kernels. A start counts until every rank has answered a first cell: with its rank, the number of
ranks and the sum of an all-reduce.
"""

import atexit
import importlib.util
import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness import Work, benchmark
from tools.harness.kernel import Kernel

IMPORTS = "import time, torch, torch.distributed as dist"
OURS = "from course_lib.runtime import launch, launcher, start_ranks\nlauncher.pool().wait_for_preload()"
CELL = ("x = torch.ones(1)\ndist.all_reduce(x)\n"
        "print(f'answer {dist.get_rank()} {dist.get_world_size()} {x.item()}')")
FUNCTION = "def body():\n    x = torch.ones(1)\n    dist.all_reduce(x)\n    return x.item()"


@dataclass(frozen=True)
class Peer:
    """Whoever keeps ranks: the cells that prepare a kernel, start ranks, run a cell in them, and end them."""

    prepares: tuple[str, ...]
    starts: tuple[str, ...]
    magic: str
    ends: str


COURSE = Peer((OURS,), ("team = start_ranks({n}, device='cpu')",), "%%ranks", "team.close()")

# Engines know nothing of one another: a cell makes them a group, over the loopback as ours is.
IPYPARALLEL = Peer(
    ("import ipyparallel, os, tempfile\nos.environ['GLOO_SOCKET_IFNAME'] = 'lo'",),
    ("cluster = ipyparallel.Cluster(n={n}, log_level=40)\n"
     "engines = cluster.start_and_connect_sync()\nengines.activate()\n"
     "store = os.path.join(tempfile.mkdtemp(), 'store')\n"
     "for number in engines.ids:\n    engines[number].push(dict(number=number, store=store))",
     f"%%px\n{IMPORTS}\n"
     "dist.init_process_group('gloo', store=dist.FileStore(store, {n}), rank=number, world_size={n})"),
    "%%px", "cluster.stop_cluster_sync()")

# It sends plain cells to its workers, too, until told not to; and what it sends to a worker that has not connected yet
# is lost, so that a first cell waits 30 s for an answer. Its own %dist_shutdown kills by name whatever is called like
# a worker, on the whole machine.
NBDISTRIBUTED = Peer(
    ("%load_ext nbdistributed",
     "def workers():\n    return get_ipython().magics_manager.registry['DistributedMagic']\n\n"
     "def wait_for_workers():\n    while True:\n        try:\n"
     "            return workers()._comm_manager.send_to_all('get_status', {}, timeout=0.2)\n"
     "        except TimeoutError:\n            pass"),
    ("%dist_init --num-processes {n}", "%dist_mode --disable", "wait_for_workers();"),
    "%%distributed",
    "workers()._comm_manager.shutdown()\nworkers()._process_manager.shutdown()\n"
    "workers()._comm_manager = workers()._process_manager = None")


def _kernel(*cells: str) -> Kernel:
    # nbdistributed starts whatever `python` is found first.
    kernel = Kernel(PATH=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
    atexit.register(kernel.stop)
    for cell in (IMPORTS, *cells):
        _run(kernel, cell)
    return kernel


def _run(kernel: Kernel, cell: str) -> None:
    reply = kernel.run(cell)
    if reply.error:
        raise RuntimeError("\n".join(reply.error["traceback"]))


def _seconds_of(kernel: Kernel, *cells: str, answers: int = 0) -> float:
    """Seconds that cells take inside the kernel: also those that begin with a magic, where nothing else may stand.

    RuntimeError where not as many ranks have answered CELL: what only says that it does not work is quick.
    """
    reply = kernel.run("started = time.perf_counter()\n"
                       f"for cell in {cells!r}:\n    get_ipython().run_cell(cell)\n"
                       "print('took', time.perf_counter() - started)")
    said = "".join(text for _, text in reply.streams)  # ipyparallel shows what engines print
    expected = {(str(rank), str(answers), f"{answers}.0") for rank in range(answers)}
    if reply.error or set(re.findall(r"answer (\d+) (\d+) (\S+)", said)) != expected:
        raise RuntimeError(f"not all of {answers} ranks answered: {reply.error or said!r:.2000}")
    return float(reply.printed().rsplit("took ", 1)[1])


def _starting(peer: Peer, num_ranks: int) -> Work:
    """Starts of `num_ranks`, each up to the answers to a first cell."""
    kernel = _kernel(*peer.prepares)
    cells = [cell.replace("{n}", str(num_ranks)) for cell in (*peer.starts, f"{peer.magic}\n{CELL}")]

    atexit.register(kernel.run, peer.ends)  # where one fails

    def start() -> float:
        took = _seconds_of(kernel, *cells, answers=num_ranks)
        _run(kernel, peer.ends)
        return took

    return start


def _cell_in(peer: Peer, num_ranks: int) -> Work:
    """The same cell again and again, in ranks that stay."""
    kernel = _kernel(*peer.prepares)
    cells = [cell.replace("{n}", str(num_ranks)) for cell in (*peer.starts, f"{peer.magic}\n{CELL}")]
    atexit.register(kernel.run, peer.ends)  # before the kernel is stopped: theirs would be left
    _seconds_of(kernel, *cells, answers=num_ranks)
    return lambda: _seconds_of(kernel, cells[-1], answers=num_ranks)


def _launching(num_ranks: int) -> Work:
    kernel = _kernel(OURS, FUNCTION)
    return lambda: _seconds_of(kernel, f"launch(body, world_size={num_ranks}, device='cpu')")


@benchmark(runs=11)
def start_team_of_4() -> tuple[Work, Work]:
    """Starting 4 ranks that stay and a first cell in them, against a launch of 4 that all-reduce a scalar."""
    return _starting(COURSE, 4), _launching(4)


@benchmark(runs=11)
def start_team_of_8() -> tuple[Work, Work]:
    """Starting 8 ranks that stay and a first cell in them, against a launch of 8 that all-reduce a scalar."""
    return _starting(COURSE, 8), _launching(8)


@benchmark(runs=21)
def cell_in_4_ranks() -> tuple[Work, Work]:
    """A cell that all-reduces a scalar in 4 ranks that stay, against a launch of 4 that do so."""
    return _cell_in(COURSE, 4), _launching(4)


if importlib.util.find_spec("ipyparallel"):

    @benchmark(runs=5)
    def start_4_beside_ipyparallel() -> tuple[Work, Work]:
        """Starting 4 ranks that stay and a first cell in them, against 4 engines with a group of gloo."""
        return _starting(COURSE, 4), _starting(IPYPARALLEL, 4)

    @benchmark(runs=5)
    def start_8_beside_ipyparallel() -> tuple[Work, Work]:
        """Starting 8 ranks that stay and a first cell in them, against 8 engines with a group of gloo."""
        return _starting(COURSE, 8), _starting(IPYPARALLEL, 8)

    @benchmark(runs=21)
    def cell_beside_ipyparallel() -> tuple[Work, Work]:
        """A cell that all-reduces a scalar in 4 ranks, against ipyparallel's %%px in 4 engines with a group of gloo."""
        return _cell_in(COURSE, 4), _cell_in(IPYPARALLEL, 4)


if importlib.util.find_spec("nbdistributed"):

    @benchmark(runs=5)
    def start_4_beside_nbdistributed() -> tuple[Work, Work]:
        """Starting 4 ranks that stay and a first cell in them, against 4 workers."""
        return _starting(COURSE, 4), _starting(NBDISTRIBUTED, 4)

    @benchmark(runs=5)
    def start_8_beside_nbdistributed() -> tuple[Work, Work]:
        """Starting 8 ranks that stay and a first cell in them, against 8 workers."""
        return _starting(COURSE, 8), _starting(NBDISTRIBUTED, 8)

    @benchmark(runs=21)
    def cell_beside_nbdistributed() -> tuple[Work, Work]:
        """A cell that all-reduces a scalar in 4 ranks, against %%distributed in nbdistributed's 4 workers."""
        return _cell_in(COURSE, 4), _cell_in(NBDISTRIBUTED, 4)
