"""Start real ranks from a notebook cell: `launch(fn, world_size=4)` runs fn on every rank and returns their results.

Each rank is a process of its own with the default process group initialised. This file checks what is asked for and
sends it off; `supervisor.py` follows the ranks from there.
"""

import inspect
import itertools
import os
import threading
from collections.abc import Callable
from typing import Any, Literal

import cloudpickle

from course_lib.runtime import backends, context
from course_lib.runtime.ranks.messages import Task
from course_lib.runtime.ranks.pools import pool
from course_lib.runtime.ranks.supervisor import Supervisor
from course_lib.runtime.results import Results
from course_lib.runtime.torchrun import launch_under_torchrun

_launches = itertools.count()
_one_at_a_time = threading.Lock()


def launch(
    fn: Callable[..., Any],
    *args: Any,
    world_size: int = 4,
    backend: Literal["auto", "nccl", "gloo", "gloo-cuda"] = "auto",
    timeout: float = 60.0,
    seed: int = 0,
    threads: int = 1,
    env: dict[str, str] | None = None,
    **kwargs: Any,
) -> Results:
    """Run `fn(*args, **kwargs)` on `world_size` ranks and return their results in rank order.

    fn may be any function, also one defined in a notebook cell. Inside, `torch.distributed` is initialised; `device()`
    is the rank's own device. What ranks print appears at once as `[rank r] ...`. Results are CPU tensors and anything
    that can be pickled. Logs of record_communication, record_memory and record_timeline come along, merged, as
    `.communication`, `.memory` and `.timeline` of the returned list.

    backend: "auto" is NCCL when there is a GPU for each rank, otherwise gloo on the CPU; "gloo-cuda" shares one GPU.
    timeout: seconds after which ranks that have not returned are stopped.
    seed: of Python's, NumPy's and torch's random numbers, the same on every rank.
    threads: CPU threads that torch may use in each rank.
    env: environment variables to set in the ranks.

    Under torchrun the same call joins the group that torchrun describes (world_size, threads and env are then its
    business) and returns every rank's result on every rank.

    Raises ValueError for arguments that cannot work, and otherwise a LaunchError: RankFailed (a rank raised), RankDied
    (its process ended), Deadlock (all wait for one another), LaunchTimeout. Then all ranks have been stopped.
    """
    _check(fn, world_size, timeout, seed, threads, env)
    if context.in_rank():
        raise ValueError("launch was called inside a rank. A rank cannot start ranks: call launch from the notebook, "
                         "or use torch.distributed's functions here")
    if context.under_torchrun():
        return launch_under_torchrun(fn, args, kwargs, world_size, backend, timeout, seed)
    backend = backends.choose(backend, world_size)
    call = _pickle_call(fn, args, kwargs)
    with _one_at_a_time:
        ours = pool()
        ours.start()
        store = os.path.join(ours.folder, f"launch-{next(_launches)}")
        tasks = [Task(rank, world_size, backend, store, seed, threads, timeout, call) for rank in range(world_size)]
        return Supervisor(ours, tasks, env or {}, timeout).results()


def _check(fn: Any, world_size: int, timeout: float, seed: int, threads: int, env: dict[str, str] | None) -> None:
    if not callable(fn):
        raise ValueError(f"launch expects a function to run on every rank, got {fn!r} (a {type(fn).__name__}); "
                         "pass the function itself, launch(train, ...), not its result, launch(train(...))")
    for name, value in (("world_size", world_size), ("threads", threads)):
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ValueError(f"{name} must be a whole number of at least 1, got {value!r}")
    if not isinstance(timeout, (int, float)) or not timeout > 0:
        raise ValueError(f"timeout must be a number of seconds above 0, got {timeout!r}")
    if not isinstance(seed, int):
        raise ValueError(f"seed must be a whole number, got {seed!r}")
    if env is not None and not (isinstance(env, dict) and all(isinstance(s, str) for s in (*env, *env.values()))):
        raise ValueError(f"env must be a dict of strings, such as {{'OMP_NUM_THREADS': '2'}}, got {env!r}")


def _pickle_call(fn: Callable, args: tuple, kwargs: dict) -> bytes:
    try:
        return cloudpickle.dumps((fn, args, kwargs))
    except Exception as error:
        culprits = [*_unpicklable({f"argument {n}": value for n, value in enumerate(args)} | kwargs),
                    *_unpicklable(_names_used_by(fn))]
        raise ValueError(f"{getattr(fn, '__name__', fn)!s} cannot be sent to the ranks: "
                         f"{', '.join(culprits) or 'it'} cannot be pickled ({error}). "
                         "Make such an object inside the function instead") from None


def _names_used_by(fn: Callable) -> dict[str, Any]:
    used = inspect.getclosurevars(fn) if inspect.isfunction(fn) else None
    return {**used.globals, **used.nonlocals} if used else {}


def _unpicklable(values: dict[str, Any]) -> list[str]:
    bad = []
    for name, value in values.items():
        try:
            cloudpickle.dumps(value)
        except Exception:
            bad.append(f"{name} (a {type(value).__name__})")
    return bad
