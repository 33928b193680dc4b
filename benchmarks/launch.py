"""Starting ranks from a notebook cell: launch against accelerate's notebook_launcher, in the same real Jupyter kernel.

The functions below are sent to the kernel as the text of a cell, so both start what a reader would have written there.
"""

import atexit
import inspect
import socket

import torch
import torch.distributed as dist

from benchmarks.harness import Goal, Work, benchmark
from tools.harness.kernel import Kernel

IMPORT_OURS = "from course_lib.runtime import launch"
IMPORT_THEIRS = "from accelerate import notebook_launcher"
IMPORT_TORCH = "import torch, time, torch.distributed as dist"
OURS = "launch({body}, world_size={num_ranks}, device='cpu')"
# accelerate leaves it to the function to join the group: gloo, so that both start ranks on the CPU.
JOINED = """
def joined(body):
    def run():
        dist.init_process_group("gloo")
        body()
        dist.destroy_process_group()
    return run
"""
THEIRS = "notebook_launcher(joined({body}), num_processes={num_ranks}, use_port={port!r})"
PRELOADED = "from course_lib.runtime import launcher; launcher.pool().wait_for_preload()"


def all_reduce_a_scalar():
    dist.all_reduce(torch.ones(1))


def step_adamw():
    model = torch.nn.Linear(16, 16)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(2, 16)).sum().backward()
    optimizer.step()


def step_ddp():
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(16, 16))
    model(torch.ones(2, 16)).sum().backward()


def step_fully_sharded():
    from torch.distributed.fsdp import fully_shard

    mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (dist.get_world_size(),))
    model = fully_shard(torch.nn.Linear(16, 16), mesh=mesh)
    model(torch.ones(2, 16)).sum().backward()


def step_a_pipeline():
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

    rank, world_size = dist.get_rank(), dist.get_world_size()
    stage = PipelineStage(torch.nn.Linear(16, 16), rank, world_size, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, n_microbatches=4, loss_fn=torch.nn.functional.mse_loss)
    if rank == 0:
        schedule.step(torch.ones(8, 16))
    elif rank == world_size - 1:
        schedule.step(target=torch.ones(8, 16))
    else:
        schedule.step()


def _free_port() -> str:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return str(listener.getsockname()[1])


def _timed(kernel: Kernel, call: str) -> float:
    """Seconds that the call takes inside the kernel."""
    cell = f"started = time.perf_counter()\n{call}\nprint('took', time.perf_counter() - started)"
    reply = kernel.run(cell)
    if reply.error:
        raise RuntimeError("\n".join(reply.error["traceback"]))
    return float(reply.printed().rsplit("took ", 1)[1])


def _call(template: str, body: str, num_ranks: int) -> str:
    return template.format(body=body, num_ranks=num_ranks, port=_free_port())


def _in_one_kernel(body, num_ranks: int) -> tuple[Work, Work]:
    kernel = Kernel()
    atexit.register(kernel.stop)
    for cell in (IMPORT_TORCH, IMPORT_OURS, IMPORT_THEIRS, PRELOADED, JOINED, inspect.getsource(body)):
        kernel.run(cell)
    return (lambda: _timed(kernel, _call(OURS, body.__name__, num_ranks)),
            lambda: _timed(kernel, _call(THEIRS, body.__name__, num_ranks)))


@benchmark(runs=15, goal=Goal(0.09, "ours_s"))
def launch_4_ranks() -> tuple[Work, Work]:
    """A warm launch of 4 ranks that all-reduce a scalar."""
    return _in_one_kernel(all_reduce_a_scalar, 4)


@benchmark(runs=11)
def launch_8_ranks() -> tuple[Work, Work]:
    """A warm launch of 8 ranks that all-reduce a scalar."""
    return _in_one_kernel(all_reduce_a_scalar, 8)


@benchmark(runs=3)
def launch_adamw() -> tuple[Work, Work]:
    """A warm launch of 4 ranks that make a step of torch.optim.AdamW."""
    return _in_one_kernel(step_adamw, 4)


@benchmark(runs=3)
def launch_ddp() -> tuple[Work, Work]:
    """A warm launch of 4 ranks with torch's DistributedDataParallel."""
    return _in_one_kernel(step_ddp, 4)


@benchmark(runs=3)
def launch_fully_shard() -> tuple[Work, Work]:
    """A warm launch of 4 ranks with torch's fully_shard."""
    return _in_one_kernel(step_fully_sharded, 4)


@benchmark(runs=3)
def launch_pipelining() -> tuple[Work, Work]:
    """A warm launch of 4 ranks with torch.distributed.pipelining."""
    return _in_one_kernel(step_a_pipeline, 4)


@benchmark(runs=3)
def launch_first() -> tuple[Work, Work]:
    """The first launch of 4 ranks in a fresh kernel, right after the import (which is not counted)."""

    def first(import_launcher: str, template: str) -> float:
        with Kernel() as kernel:
            kernel.run("\n".join([IMPORT_TORCH, JOINED, inspect.getsource(all_reduce_a_scalar)]))
            kernel.run(import_launcher)
            return _timed(kernel, _call(template, "all_reduce_a_scalar", 4))

    return lambda: first(IMPORT_OURS, OURS), lambda: first(IMPORT_THEIRS, THEIRS)
