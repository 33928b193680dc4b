"""Every operation in a launch of its own: NCCL on one GPU and on all of them, gloo between ranks that share one."""

from functools import partial

from course_lib.runtime import backends, launch
from tools.gpu_day.operations import OPERATIONS, right_and_timed
from tools.gpu_day.steps import Step

TIMEOUT_S = 30.0
DEADLINE_S = 60.0  # launch ends its ranks itself; this is for what hangs in the driver


def steps(mode: str) -> list[Step]:
    num_gpus = backends.count_gpus()
    worlds = [("nccl", n) for n in sorted({1, num_gpus})] + [("gloo-cuda", 4)]
    return [Step(f"{backend} {n}: {name}", f"1 MiB a rank, {n} rank{'s' * (n > 1)}", partial(run, name, backend, n))
            for backend, n in worlds for name, operation in OPERATIONS.items()
            if n >= operation.least and operation.only in (None, backend)]


def run(name: str, backend: str, world_size: int) -> str:
    slowest_s = max(launch(right_and_timed, name, world_size=world_size, backend=backend, timeout=TIMEOUT_S))
    return f"right, {1e3 * slowest_s:.2f} ms"
