"""Start real ranks from a notebook cell: `launch(fn, world_size=4)` runs fn on every rank and returns their results.

Each rank is a process of its own with the default process group initialised. This file checks what is asked for and
sends it off; ranks/supervisor.py follows the ranks from there. Under torchrun the processes exist already: `launch`
joins their group and runs. And whoever calls torch.distributed in the notebook itself, where there is no process group,
is told a sentence, since torch's own advice, to call init_process_group, leads astray there.
"""

import atexit
import gc
import itertools
import os
import pickle
import sys
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Literal

import torch.distributed as dist
import torch.distributed.nn.functional  # noqa: F401  before there is a group, see _join

from course_lib.runtime import backends, context
from course_lib.runtime.errors import LaunchError
from course_lib.runtime.instruments import pending, recordings
from course_lib.runtime.instruments.communication import CommunicationLog
from course_lib.runtime.instruments.memory import MemoryLog
from course_lib.runtime.instruments.timeline import Timeline
from course_lib.runtime.ranks.crew import Crew
from course_lib.runtime.ranks.messages import Task
from course_lib.runtime.ranks.parcels import pack_call, pack_result, unpack_call
from course_lib.runtime.ranks.pools import pool
from course_lib.runtime.ranks.rank import seed_everything
from course_lib.runtime.ranks.supervisor import Supervisor

_launches = itertools.count()
_one_at_a_time = threading.Lock()  # the pool has the ranks of one launch: another thread's launch waits for its turn
TORCHRUN_TIMEOUT_S = 600.0  # as torch's own for NCCL
SENTENCE = ("Only ranks have a process group, and this notebook is none. Put these lines in a function f and call "
            "launch(f, world_size=4): f itself, without a call.")


class Results(list):
    """A list, one result per rank. `recorded[r]` holds the logs that rank r closed, in order."""

    def __init__(self, results: list[Any], recorded: list[list[Any]]) -> None:
        super().__init__(results)
        self.recorded = recorded

    @property
    def communication(self) -> CommunicationLog:
        """Every record_communication() of every rank, as one log."""
        return self._merge(CommunicationLog)

    @property
    def memory(self) -> MemoryLog:
        """Every record_memory() of every rank, as one log."""
        return self._merge(MemoryLog)

    @property
    def timeline(self) -> Timeline:
        """Every record_timeline() of every rank, as one timeline."""
        return self._merge(Timeline)

    def _merge(self, kind: type[recordings.Recording]) -> Any:
        logs = [log for of_rank in self.recorded for log in of_rank if isinstance(log, kind)]
        if not logs:
            raise ValueError(f"nothing was recorded: use `with record_{kind.records}(): ...` inside the launched "
                             "function")
        return kind.merge(logs)


def launch(fn: Callable[..., Any], *args: Any, world_size: int = 4,
           backend: Literal["auto", "nccl", "gloo", "gloo-cuda"] = "auto", device: Literal["auto", "cpu"] = "auto",
           timeout: float = 60.0, seed: int = 0, threads: int = 1, env: dict[str, str] | None = None, **kwargs: Any
           ) -> Results:
    """Run `fn(*args, **kwargs)` on `world_size` ranks and return their results in rank order.

    fn may be any function, also one defined in a notebook cell. Inside, `torch.distributed` is initialised; `device()`
    is the rank's own device, where the tensors of fn's arguments and closure arrive, and where new ones are made: the
    same function runs on CPUs and on GPUs. What ranks print appears at once as `[rank r] ...`. Results are CPU tensors
    and anything that can be pickled. Logs of record_communication, record_memory and record_timeline come along,
    merged, as `.communication`, `.memory` and `.timeline` of the returned list.

    backend: "auto" is NCCL when there is a GPU for each rank, otherwise gloo on the CPU; "gloo-cuda" shares one GPU.
    device: "cpu" keeps to gloo and the CPU also where GPUs suffice. On the CPU ranks see no GPU at all.
    timeout: seconds after which ranks that have not returned are stopped.
    seed: of Python's, NumPy's and torch's random numbers, the same on every rank. A GPU makes other numbers of it than
        the CPU; what a generator of the CPU draws is the same everywhere.
    threads: CPU threads that torch may use in each rank.
    env: environment variables to set in the ranks, {"CUDA_DEVICE_MAX_CONNECTIONS": "1"} for example.

    Under torchrun the same call joins the group that torchrun describes (world_size, threads, timeout and env are then
    its business) and returns every rank's result on every rank. Nobody watches there: see join_torchrun.

    Raises ValueError for arguments that cannot work, and otherwise a LaunchError: RankFailed (a rank raised), RankDied
    (its process ended), Deadlock (all wait for one another), LaunchTimeout. Then all ranks have been stopped.
    """
    check_is_function(fn, "launch")
    check_options(world_size, timeout, seed, threads, env)
    if context.in_rank():
        raise ValueError("launch was called inside a rank. A rank cannot start ranks: call launch from the notebook, "
                         "or use torch.distributed's functions here")
    if context.under_torchrun():
        return launch_under_torchrun(fn, args, kwargs, world_size, backend, device, seed)
    backend = backends.choose(backend, device, world_size)
    env = {**backends.hide_gpus(backend), **(env or {})}
    call = pack_call(fn, args, kwargs)
    with _one_at_a_time:
        ours = pool()
        ours.begin()
        store = os.path.join(ours.folder, f"launch-{next(_launches)}")
        crew = Crew(ours, Task(0, world_size, backend, store, seed, threads, timeout, call), env)
        return Results(*Supervisor(crew, crew.make_tasks(call), timeout).run())


def check_is_function(fn: Any, caller: str) -> None:
    """ValueError for what cannot be run, in the name of whom the reader has called."""
    if not callable(fn):
        raise ValueError(f"{caller} expects a function to run on every rank, got {fn!r} (a {type(fn).__name__}); "
                         f"pass the function itself, {caller}(train, ...), not its result, {caller}(train(...))")


def check_options(world_size: int, timeout: float, seed: int, threads: int, env: dict[str, str] | None) -> None:
    """ValueError, with what was given, for options of launch and start_ranks that cannot work."""
    for name, value in (("world_size", world_size), ("threads", threads)):
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ValueError(f"{name} must be a whole number of at least 1, got {value!r}")
    if not isinstance(timeout, (int, float)) or not timeout > 0:
        raise ValueError(f"timeout must be a number of seconds above 0, got {timeout!r}")
    if not isinstance(seed, int):
        raise ValueError(f"seed must be a whole number, got {seed!r}")
    if env is not None and not (isinstance(env, dict) and all(isinstance(s, str) for s in (*env, *env.values()))):
        raise ValueError(f"env must be a dict of strings, such as {{'OMP_NUM_THREADS': '2'}}, got {env!r}")


def launch_under_torchrun(fn: Callable[..., Any], args: tuple, kwargs: dict, world_size: int, backend: str, device: str,
                          seed: int) -> Results:
    """Run fn here, as the rank that torchrun made of this process, and return every rank's result on every rank.

    Exceptions go up as they are: torchrun reports them and stops the other ranks.
    """
    if not dist.is_initialized():
        join_torchrun(backend, device)
    if dist.get_rank() == 0 and world_size != dist.get_world_size():
        print(f"launch: world_size={world_size} was asked for, but torchrun started {dist.get_world_size()} ranks: "
              f"using {dist.get_world_size()}", file=sys.stderr)
    if context.device().type != "cpu":
        fn, args, kwargs = unpack_call(pack_call(fn, args, kwargs))  # its tensors arrive on this rank's GPU
    seed_everything(seed)
    recordings.take()  # whatever was recorded outside launch is not this launch's
    result = fn(*args, **kwargs)
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, pack_result((result, recordings.take())))
    returned = [pickle.loads(each) for each in everyone]
    return Results([result for result, _ in returned], [logs for _, logs in returned])


def join_torchrun(backend: str = "auto", device: str = "auto", timeout_s: float = TORCHRUN_TIMEOUT_S) -> None:
    """Be the rank that torchrun made of this process. launch does so, where it was not done before.

    timeout_s: a call that has waited so long for other ranks ends its rank, and torchrun the others. Nobody looks there
    for ranks that hang, and they would hold their GPUs for as long.
    """
    backend = backends.choose(backend, device, int(os.environ.get("LOCAL_WORLD_SIZE", os.environ["WORLD_SIZE"])))
    if backend == "gloo":
        os.environ.update(backends.NO_GPUS)
    # torch.distributed.nn.functional keeps the group that it finds when it is imported (as a default argument), and any
    # optimiser imports it. Then destroying the group at the end would not end gloo's threads, and one that is late in
    # freeing a tensor asks a Python that is no more: "terminate called without an active exception".
    rank = context.RankContext(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), backend)
    pending.install()
    timeout = timedelta(seconds=timeout_s)
    backends.join(rank, timeout, **_rendezvous(timeout))
    atexit.register(_leave)


def _leave() -> None:
    gc.collect()  # what holds the group and waits to be collected would keep gloo's threads, too
    dist.destroy_process_group()


def _rendezvous(timeout: timedelta) -> dict[str, Any]:
    """Where the ranks find each other's addresses: torchrun's own store, a part of it for each time that it has started
    them. With --max-restarts the addresses of those that died still stand there, and a new group would call them.
    """
    store, rank, world_size = next(iter(dist.rendezvous("env://", timeout=timeout)))
    store.set_timeout(timeout)
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return {"store": dist.PrefixStore(f"attempt {attempt}", store), "rank": rank, "world_size": world_size}


def explain_in(shell: Any) -> None:
    """Say the sentence below the traceback of each cell of `shell` that needs it. A second call changes nothing."""
    # An event: set_custom_exc has room for one handler only, and would take the place of the reader's.
    if _explain not in shell.events.callbacks["post_run_cell"]:
        shell.events.register("post_run_cell", _explain)


def _explain(result: Any) -> None:
    if is_outside_ranks(result.error_in_exec):
        print(SENTENCE, file=sys.stderr)


def is_outside_ranks(error: BaseException | None) -> bool:
    """Whether `error` is torch's for a process without a group, and this process cannot have one."""
    return (isinstance(error, ValueError) and not isinstance(error, LaunchError)
            and "init_process_group" in str(error) and "has not been initialized" in str(error)
            and not context.in_rank() and not context.under_torchrun())
