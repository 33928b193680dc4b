"""A fork, and then a GPU in the rank; numbers against the CPU's; and the instruments."""

from contextlib import nullcontext
from functools import partial

import torch
import torch.distributed as dist

from course_lib.reference import GPT, GPTConfig, batches, train
from course_lib.runtime import backends, context, device, launch, record_memory, record_timeline, seconds, span
from tools.gpu_day.steps import Step, require

STEPS = 20
FLOAT32_OFF, BFLOAT16_OFF = 1e-4, 0.1  # nats a token; numbers of bfloat16 above 4 are 0.03 apart
CONFIG = GPTConfig(num_layers=8, hidden_size=512, num_heads=8, sequence_length=128)  # 26 million parameters


def steps(mode: str) -> list[Step]:
    num_gpus = backends.count_gpus()
    worlds = [("nccl", n) for n in sorted({1, num_gpus})] + [("gloo-cuda", 4)]
    return [
        Step("fork, then a GPU", "a + b in a forked rank, twice", fork_then_gpu),
        Step("fork, then no GPU", "whether a rank on the CPU sees a GPU", no_gpu_on_the_cpu),
        Step("default device", "where a rank's tensors are made and arrive", where_tensors_are),
        Step("losses, float32", f"GPT, {STEPS} steps, no TF32, against the CPU",
             partial(near_the_cpu, torch.float32, 0.0, FLOAT32_OFF)),
        Step("losses, bfloat16", f"GPT, {STEPS} steps, against the CPU in float32",
             partial(near_the_cpu, torch.bfloat16, 1e-9, BFLOAT16_OFF)),
        *(Step(f"timeline, {backend} {n}", "bars and hidden share of an all-reduce", partial(timeline, backend, n))
          for backend, n in worlds),
        Step("stopwatch", "seconds() of 1 and of 8 products", stopwatch),
        Step("memory", "record_memory against the allocator's peak", memory),
    ]


def add() -> tuple[str, float]:
    a, b = torch.ones(1000), torch.full((1000,), 2.0)
    return (a + b).device.type, (a + b).sum().item()


def fork_then_gpu() -> str:
    """The server that forks ranks, and this process, must not have touched the driver before."""
    found = [launch(add, world_size=1, backend="nccl", timeout=60)[0] for _ in range(2)]
    return require(all(kind != "cpu" and total == 3000.0 for kind, total in found), f"{found}")


def no_gpu_on_the_cpu() -> str:
    found = launch(lambda: (torch.accelerator.is_available(), str(torch.ones(1).device)), world_size=2, device="cpu")
    return require(set(found) == {(False, "cpu")}, f"sees a GPU: {found[0][0]}, tensors on {found[0][1]}")


def where_tensors_are() -> str:
    came_in = torch.ones(2)

    def look(argument: torch.Tensor) -> list[bool]:
        here = [tensor.device == device() for tensor in (argument, came_in, torch.empty(1))]
        return [*here, context.device().type != "cpu"]

    result = launch(look, came_in, world_size=1, backend="nccl")[0]
    return require(all(result), f"argument, closure, new, GPU: {result}")


def losses(dtype: torch.dtype) -> tuple[float, ...]:
    """On a rank. The model is made on the CPU: equal seeds give other numbers on a GPU."""
    torch.set_float32_matmul_precision("highest")  # no TF32
    with torch.device("cpu"):
        torch.manual_seed(0)
        model = GPT(GPTConfig())
    return train(model.to(device(), dtype), steps=STEPS, held_out=False, progress=False).losses


def near_the_cpu(dtype: torch.dtype, least: float, most: float) -> str:
    """The largest difference to the CPU's float32 losses: none at all would say that the dtype was not used."""
    ours = launch(losses, dtype, world_size=1, backend="nccl")[0]
    theirs = launch(losses, torch.float32, world_size=1, device="cpu")[0]
    off = max(abs(a - b) for a, b in zip(ours, theirs))
    return require(least <= off <= most, f"{off:.1e} nats off at most, {most:g} allowed; last loss {ours[-1]:.4f}")


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


def timeline(backend: str, world_size: int) -> str:
    """Bars that last, in both lanes of the timeline."""
    found = launch(overlapped, world_size=world_size, backend=backend).timeline
    bars = [event.duration_s for event in found.events]
    share = sum(map(found.hidden_s, found.ranks)) / max(found.total_s(lane="communication"), 1e-12)
    figure = (f"{len(bars)} bars of {1e3 * min(bars, default=0.0):.3f} to "
              f"{1e3 * max(bars, default=0.0):.2f} ms, hidden {share:.0%}")
    return require(len({event.lane for event in found.events}) == 2 and min(bars) > 0 and 0 <= share <= 1, figure)


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
        return f"{log.peak / 1e6:.1f} MB recorded; this device's allocator keeps no count"
    ratio = log.peak_on_gpu / log.allocator_peak
    figure = f"{log.peak_on_gpu / 1e6:.1f} MB recorded, {log.allocator_peak / 1e6:.1f} MB by the allocator: {ratio:.1%}"
    return require(0.8 <= ratio <= 1, figure)
