"""What happens inside a rank: join the group, run the reader's function, report, and stay until everybody is done.

A rank of a team gets one call after the other; one of a launch is dismissed after its first.
"""

import atexit
import bdb
import faulthandler
import multiprocessing
import os
import random
import signal
import sys
import threading
from contextlib import suppress
from multiprocessing import util as multiprocessing_util
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.distributed as dist

from course_lib.runtime import backends, context
from course_lib.runtime.instruments import pending, recordings
from course_lib.runtime.ranks import debugging, showing
from course_lib.runtime.ranks.frames import frames_of_traceback, tensors_in_line
from course_lib.runtime.ranks.messages import Failed, Quit, Returned, Task
from course_lib.runtime.ranks.parcels import pack_result, unpack_call
from course_lib.runtime.ranks.processes import kill_own_children
from course_lib.runtime.ranks.watcher import RankWatcher, close_connections, close_kept, run_stoppable


def main(connection: Connection) -> None:
    """Run tasks until the rank may go, and end the process."""
    _run_tasks(connection)
    if context.device().type != "cpu" and dist.is_initialized():
        dist.destroy_process_group()  # NCCL complains otherwise; gloo's sockets go with the process
    # What a rank opened may need closing (temporary folders, worker processes): the exits of a normal interpreter.
    multiprocessing_util._exit_function()
    atexit._run_exitfuncs()
    _flush()
    os._exit(0)  # no return: below on the stack is the server that was forked, in the middle of its loop


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(ValueError, OSError):  # closed by the reader
            stream.flush()


def main_kept_warm(connection: Connection, folder: str) -> None:
    """Run tasks until the rank may go, and leave the interpreter fit for other ones. `folder` goes if the notebook dies
    meanwhile.
    """
    modules = set(sys.modules)
    pending.counts.clear()
    _run_tasks(connection, folder)
    backends.leave()
    kill_own_children()
    for name in set(sys.modules) - modules:  # the reader may edit his own before the next launch
        file = getattr(sys.modules[name], "__file__", None) or sys.prefix
        if not file.startswith((sys.prefix, sys.base_prefix)) and "site-packages" not in file:
            del sys.modules[name]


def _run_tasks(connection: Connection, folder: str | None = None) -> None:
    last: Task | None = None
    task: Task = connection.recv()
    watcher = RankWatcher(connection, folder)
    streams = (os.dup(1), os.dup(2)) if task.mark else ()  # a reader may close the numbers, and others then get them
    while task is not None:
        report = _run(task, last, watcher)
        _flush()
        # Before the report: who hears it knows that all output of this call lies in front of the marks.
        for stream in streams:
            os.write(stream, task.mark)
        watcher.report(report)
        # A rank that left now would make its peers fail with "connection closed", hiding the real story.
        last, task = task, watcher.tasks.get()
    for stream in streams:
        os.close(stream)
    watcher.stop()


def _run(task: Task, last: Task | None, watcher: RankWatcher) -> "Returned | Failed | Quit":
    """Run the call of `task`, by a rank that has run `last` before; how it ended."""
    try:
        if last is None:
            _join(task)
            showing.install()
            debugging.install(watcher)
        elif task.group != last.group:
            _join_anew(task)
        pending.waiting_in.pop(threading.get_ident(), None)  # a stop may have come just as a call had been noted
        # Only ranks that stay are stopped: of a launch that has failed, all ranks end.
        return run_stoppable(lambda: _call(task)) if task.mark else _call(task)
    except bdb.BdbQuit as quit_:
        return Quit(frames_of_traceback(quit_.__traceback__, skip=__file__), dict(pending.counts))
    except BaseException as error:
        return _report_of_error(error)
    finally:
        if sys.gettrace() is not None:  # a debugger's, which has stopped in this call, and would in the next one
            sys.settrace(None)


def _call(task: Task) -> "Returned | Failed":
    recordings.take()  # the last call may have failed, and have left some: they are not this one's
    function, args, kwargs = unpack_call(task.call)
    return _report_of_result(function(*args, **kwargs))


def _join(task: Task) -> None:
    os.environ.update(RANK=str(task.rank), LOCAL_RANK=str(task.rank), WORLD_SIZE=str(task.world_size),
                      LOCAL_WORLD_SIZE=str(task.world_size))
    # All ranks are on this host. Left alone, gloo looks up the host's name, which may fail, or take seconds.
    loopback = {"linux": "lo", "darwin": "lo0"}.get(sys.platform)
    if loopback:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", loopback)
    dump = open(task.dump, "w")  # stays open: faulthandler writes to its descriptor when Python cannot run any more
    faulthandler.enable(dump)  # a library that aborts leaves its stack there
    if hasattr(faulthandler, "register"):  # not on Windows
        faulthandler.register(signal.SIGUSR1, dump, all_threads=True)
    # The sockets of DataLoader's workers, which a rank that is killed could not remove.
    os.makedirs(task.multiprocessing_folder, exist_ok=True)
    multiprocessing.current_process()._config["tempdir"] = task.multiprocessing_folder
    # Ranks share the machine's cores: with torch's default each would start a thread for all of them.
    torch.set_num_threads(task.threads)
    # All pairs connect now. TORCH_GLOO_LAZY_INIT=1 saves a quarter of the time with 32 ranks and more, but then the
    # first isend or irecv of some pairs blocks until the other rank uses the pair too, and right programs deadlock.
    _meet(task)
    seed_everything(task.seed)


def _join_anew(task: Task) -> None:
    """After a call in which ranks did not all do the same: a group in which none of its messages is left."""
    close_connections()  # of what is still under way there, which nobody waits for any more
    backends.leave()
    pending.counts.clear()
    store = _meet(task)
    # A rank that has joined may be stopped. Its connections are closed then, and a peer that still waits for one of
    # them, inside gloo, would wait for ever.
    store.set(f"rank {task.rank} has joined", "")
    store.wait([f"rank {rank} has joined" for rank in range(task.world_size)])
    close_kept()


def _meet(task: Task) -> dist.Store:
    pending.install()
    store = dist.FileStore(task.meeting, task.world_size)
    backends.join(context.RankContext(task.rank, task.world_size, task.backend), backends.group_timeout(task.timeout_s),
                  store=store, rank=task.rank, world_size=task.world_size)
    return store


def seed_everything(seed: int) -> None:
    """The same seed on every rank: replicas start equal, and whoever wants ranks to differ adds the rank."""
    random.seed(seed)
    if context.device().type == "cpu":  # the same, without 10 ms of remembering, stack and all, a seed for each GPU
        torch.default_generator.manual_seed(seed)
    else:
        torch.manual_seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed % 2**32)


def _report_of_result(result: Any) -> "Returned | Failed":
    try:
        payload = pack_result((result, recordings.take()))
    except Exception as error:
        kind = f"{type(result).__module__}.{type(result).__qualname__}"
        kind = kind.replace("builtins.", "").replace("__main__.", "")
        message = (f"the function returned a {kind}, which cannot be sent back to the notebook "
                   f"({_text_of(error)}). Return tensors, numbers, strings, dataclasses, or lists and dicts of them.")
        return Failed("unpicklable result", message, (), None, False, counts=dict(pending.counts))
    return Returned(payload, dict(pending.counts))


def _report_of_error(error: BaseException) -> Failed:
    frames = frames_of_traceback(error.__traceback__, skip=__file__)
    notes = getattr(error, "__notes__", ())
    words = "\n".join(map(_text_of, [error, *(notes if isinstance(notes, (list, tuple)) else ())]))
    tensors, pickled = (), None
    with suppress(Exception):  # there is a failure to report, whatever the reader's objects do when they are looked at
        tensors = tensors_in_line(error.__traceback__)
    with suppress(Exception):
        pickled = pack_result(error.with_traceback(None))  # its tensors come to the CPU too
    in_communication = any(frame.is_communication for frame in frames)
    return Failed(type(error).__qualname__, words, frames, pickled, in_communication, tensors, dict(pending.counts))


def _text_of(value: Any) -> str:
    """str(value), for values of the reader's, whose __str__ may itself be wrong."""
    try:
        return str(value)
    except BaseException as error:  # whatever it is, the rank has a failure to report
        return f"(no text: its __str__ raised {type(error).__qualname__})"
