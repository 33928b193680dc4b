"""The instruments on a GPU: bars that last, a stopwatch that waits, bytes beside the allocator's."""

from contextlib import nullcontext
from functools import partial

import torch
import torch.distributed as dist

from course_lib.data_parallel import DistributedDataParallel
from course_lib.reference import GPT, GPTConfig, batches
from course_lib.runtime import backends, launch, record_memory, record_timeline, seconds, span
from tools.gpu_day.steps import Step, require

DEADLINE_S = 90.0
MB = 1e6
CONFIG = GPTConfig(num_layers=8, hidden_size=512, num_heads=8, sequence_length=128)  # 26 million parameters


def steps(mode: str) -> list[Step]:
    num_gpus = backends.count_gpus()
    worlds = [("nccl", n) for n in sorted({1, num_gpus})] + [("gloo-cuda", 4)]
    return [
        *(Step(f"timeline, {backend} {n}", "bars and hidden share of an all-reduce", partial(timeline, backend, n))
          for backend, n in worlds),
        Step("timeline of DDP", "one step of our DDP, buckets overlapped", partial(timeline_of_ddp, *worlds[1])),
        Step("stopwatch", "seconds() of 1 and of 8 products", stopwatch),
        Step("memory", "record_memory against the allocator's peak", memory),
    ]


def overlapped() -> None:
    """An all-reduce of 64 MB that runs while the rank multiplies."""
    values, matrix = torch.ones(2**24), torch.randn(1024, 1024)
    for record in (False, True):  # the first time is slower
        with record_timeline() if record else nullcontext():
            work = dist.all_reduce(values, async_op=True)
            with span("products"):
                for _ in range(10):
                    matrix = (matrix @ matrix).clamp(-1, 1)
            work.wait()


def shares(backend: str, world_size: int, function: object) -> str:
    found = launch(function, world_size=world_size, backend=backend).timeline
    bars = [event.duration_s for event in found.events]
    share = sum(map(found.hidden_s, found.ranks)) / max(found.total_s(lane="communication"), 1e-12)
    lanes = {event.lane for event in found.events}
    figure = (f"{len(bars)} bars of {1e3 * min(bars, default=0.0):.3f} to {1e3 * max(bars, default=0.0):.2f} ms, "
              f"hidden {share:.0%}")
    return require(len(lanes) == 2 and min(bars) > 0 and 0 <= share <= 1, figure)


def timeline(backend: str, world_size: int) -> str:
    return shares(backend, world_size, overlapped)


def ddp_step() -> None:
    model = DistributedDataParallel(GPT(CONFIG), bucket_cap_mb=10)
    inputs, targets = batches(0, dist.get_rank(), dist.get_world_size(), sequence_length=CONFIG.sequence_length)
    model(inputs, targets)[1].backward()
    with record_timeline():
        with span("forward"):
            loss = model(inputs, targets)[1]
        with span("backward"):
            loss.backward()


def timeline_of_ddp(backend: str, world_size: int) -> str:
    return f"{backend} {world_size}: {shares(backend, world_size, ddp_step)}"


def products() -> tuple[float, float]:
    """On a rank: seconds of 1 and of 8 products of 2048 x 2048 matrices."""
    a, b = torch.randn(2048, 2048), torch.randn(2048, 2048)

    def multiply(times: int) -> None:
        for _ in range(times):
            a @ b

    multiply(8)
    return seconds(multiply, 1), seconds(multiply, 8)


def stopwatch() -> str:
    """Somebody who does not wait times the launching of kernels: then 8 would take no longer than a matrix's size."""
    one, eight = launch(products, world_size=1, backend="nccl")[0]
    rate = 8 * 2 * 2048**3 / eight / 1e12
    return require(2 < eight / one < 32, f"{1e3 * one:.2f} and {1e3 * eight:.2f} ms, {rate:.1f} TFLOP/s in float32")


def step_in_memory() -> None:
    model = GPT(CONFIG)
    optimizer = torch.optim.AdamW(model.parameters())
    with record_memory(model=model, optimizer=optimizer):
        for number in range(2):
            inputs, targets = batches(number, batch_size=8, sequence_length=CONFIG.sequence_length)
            optimizer.zero_grad()
            model(inputs, targets)[1].backward()
            optimizer.step()


def memory() -> str:
    """The allocator rounds up, and has workspaces that no tensor shows: it may only be higher."""
    log = launch(step_in_memory, world_size=1, backend="nccl").memory
    if log.allocator_peak is None:
        return f"{log.peak / MB:.1f} MB recorded; this device's allocator keeps no count"
    ratio = log.peak_on_gpu / log.allocator_peak
    figure = f"{log.peak_on_gpu / MB:.1f} MB recorded, {log.allocator_peak / MB:.1f} MB by the allocator: {ratio:.1%}"
    return require(0.8 <= ratio <= 1, figure)
