"""What the card does while it does something else: kernels that spin, copies beside products, and a pipeline's first
step, whose receives are posted ahead.
"""

import time
from collections.abc import Callable
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor

from course_lib.pipeline_parallel import PipelineParallel, one_f_one_b, partition
from course_lib.reference import GPT
from course_lib.runtime import backends, device, launch, record_timeline, span
from tools.gpu_day.operations import end_teams
from tools.gpu_day.speed import MEDIUM, TINY, clock
from tools.gpu_day.steps import Figure, NotHere, Step, require

SPIN_CYCLES = 800_000_000  # of a kernel that does nothing: 0.4 s at 2 GHz
GIGABYTE = 2**30
CONNECTIONS = ("8", "1")  # CUDA_DEVICE_MAX_CONNECTIONS: CUDA's own number, and Megatron's


def steps(mode: str) -> list[Step]:
    real = mode == "gpu"
    everywhere = [Step("pipeline, first step", "1F1B over NCCL in ranks that have run no kernel, receives posted ahead",
                       partial(first_step, backends.count_gpus(), MEDIUM if real else TINY))]
    return everywhere + ([
        *(Step(f"spin, {loading}", "host's ms in a call while a kernel spins elsewhere", partial(spinning, loading))
          for loading in ("LAZY", "EAGER")),
        Step("copies", "1 GiB between the host and the card; beside backward", copies),
        *(Step(f"connections, {number}", "a sum on a second stream beside products, asked for before and after them",
               partial(connections, number)) for number in CONNECTIONS),
        Step("bars", "the timeline's bars against torch.profiler's kernels", bars)] if real else [])


# While a kernel spins

def spinning(loading: str) -> Figure:
    """A receive of NCCL is such a kernel: what waits for it waits for the sender."""
    found = launch(host_ms, world_size=1, backend="nccl", env={"CUDA_MODULE_LOADING": loading})[0]
    return Figure(", ".join(f"{name} {ms:.1f}" for name, ms in found.items()) + " ms", found)


def host_ms() -> dict[str, float]:
    """On a rank: the host's ms in each call. A call that waits takes what is left of the kernel's 400 ms."""
    side, x = torch.cuda.Stream(), torch.ones(1000)
    big = torch.empty(GIGABYTE, dtype=torch.uint8)
    with torch.cuda.stream(side):
        torch.cuda._sleep(1000)
    x.add_(1)
    torch.cuda.synchronize()

    def during(call: Callable[[], object]) -> float:
        torch.cuda.synchronize()
        with torch.cuda.stream(side):
            torch.cuda._sleep(SPIN_CYCLES)
        began = time.perf_counter()
        kept = call()
        took = 1e3 * (time.perf_counter() - began)
        torch.cuda.synchronize()
        del kept
        return took

    def free() -> None:
        nonlocal big
        del big
        torch.cuda.empty_cache()

    matrix = torch.ones(512, 512)
    return {
        "a kernel used before": during(lambda: x.add_(1)),
        "a kernel never used": during(lambda: x.atan2(x)),
        "another never used": during(lambda: x.double().cumsum(0)),
        "the first product": during(lambda: matrix @ matrix),
        "cudaMalloc of 4 GB": during(lambda: torch.empty(4 * GIGABYTE, dtype=torch.uint8)),
        "cudaFree of 1 GB": during(free),
        "256 MB of pinned memory": during(lambda: torch.empty(GIGABYTE // 4, dtype=torch.uint8, device="cpu",
                                                              pin_memory=True)),
        "a number read": during(lambda: torch.zeros(1).item()),
        "the spinning kernel itself": during(torch.cuda.synchronize),
    }


# Copies

def copies() -> Figure:
    found = launch(time_copies, world_size=1, backend="nccl", timeout=60)[0]
    rates = ", ".join(f"{name} {rate / 1e9:.1f}" for name, rate in found["bytes_per_s"].items())
    beside = ", ".join(f"{name} {share:.0%}" for name, share in found["hidden"].items())
    return Figure(f"GB/s: {rates}; of a copy of 1 GiB hidden behind a backward pass: {beside}", found)


def time_copies() -> dict[str, object]:
    on_card = torch.empty(GIGABYTE, dtype=torch.uint8)
    other = torch.empty_like(on_card)
    pinned = torch.empty(GIGABYTE, dtype=torch.uint8, device="cpu", pin_memory=True)
    pageable = torch.zeros(GIGABYTE, dtype=torch.uint8, device="cpu")
    calls = {"pinned to card": partial(on_card.copy_, pinned, non_blocking=True),
             "card to pinned": partial(pinned.copy_, on_card, non_blocking=True),
             "pageable to card": partial(on_card.copy_, pageable), "card to pageable": partial(pageable.copy_, on_card)}
    rates = {name: GIGABYTE / clock(call, 3) for name, call in calls.items()}
    model = GPT(MEDIUM).to(device(), torch.bfloat16)
    tokens = torch.randint(MEDIUM.vocab_size, (4, MEDIUM.sequence_length))
    side = torch.cuda.Stream()

    def backward() -> None:
        model(tokens, tokens)[1].backward()
        model.zero_grad()

    def beside(call: Callable[[], object]) -> None:
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            call()
        backward()
        torch.cuda.current_stream().wait_stream(side)

    def copy_often() -> None:
        for _ in range(50):
            other.copy_(on_card)

    calls["50 times card to card"] = copy_often
    clock(backward, 20)
    hidden = {}
    for name in ("pinned to card", "card to pinned", "50 times card to card"):
        alone, copy_s, both = clock(backward, 9), clock(calls[name], 3), clock(partial(beside, calls[name]), 9)
        hidden[name] = (alone + copy_s - both) / min(alone, copy_s)
    return {"bytes_per_s": rates, "hidden": hidden, "backward_s": alone}


# Streams

def connections(number: str) -> Figure:
    found = launch(time_beside, world_size=1, backend="nccl", env={"CUDA_DEVICE_MAX_CONNECTIONS": number})[0]
    return Figure(f"products {1e3 * found['products_s']:.2f} ms, sums {1e3 * found['sums_s']:.2f} ms; of the shorter, "
                  f"hidden {found['hidden_before']:.0%} asked for before, {found['hidden_after']:.0%} after", found)


def time_beside() -> dict[str, float]:
    """On a rank. A sum needs SMs, as an all-reduce does: asked for after products that fill the card, it may wait for
    them, unless the card is handed both in the order in which they were asked for.
    """
    matrix = torch.randn(8192, 8192).to(device(), torch.bfloat16)
    values, other = torch.ones(2**28, dtype=torch.bfloat16), torch.ones(2**28, dtype=torch.bfloat16)
    product, side = torch.empty_like(matrix), torch.cuda.Stream()

    def multiply() -> None:
        for _ in range(4):
            torch.mm(matrix, matrix, out=product)

    def add() -> None:
        for _ in range(4):
            values.add_(other)

    def both(first: Callable[[], None], second: Callable[[], None]) -> None:
        here = torch.cuda.current_stream()
        side.wait_stream(here)
        for call in (first, second):
            with torch.cuda.stream(side if call is add else here):
                call()
        here.wait_stream(side)

    alone, sums = clock(multiply, 9), clock(add, 9)

    def hidden(*calls: Callable[[], None]) -> float:
        return (alone + sums - clock(partial(both, *calls), 9)) / min(alone, sums)

    return {"products_s": alone, "sums_s": sums, "hidden_before": hidden(add, multiply),
            "hidden_after": hidden(multiply, add)}


# A pipeline

def first_step(num_gpus: int, config: object) -> Figure:
    """New ranks, so that no kernel is loaded yet: a launch that hangs here is what was feared."""
    if num_gpus < 2:
        raise NotHere("waits for two GPUs: a receive over gloo is no kernel, and nothing waits for it")
    end_teams()
    stages = min(num_gpus, 4)
    found = launch(time_first_steps, config, world_size=stages, backend="nccl", timeout=20)
    first, second = (max(times) for times in zip(*found))
    return Figure(f"{stages} stages: the first step {first:.2f} s, the second {second:.2f} s",
                  {"stages": stages, "first_s": first, "second_s": second})


def time_first_steps(config: object) -> tuple[float, float]:
    p, rank = dist.get_world_size(), dist.get_rank()
    with torch.device("cpu"):
        torch.manual_seed(0)
        stage = partition(GPT(config), p)[rank].to(device())
        tokens = torch.randint(config.vocab_size, (2 * p, config.sequence_length))
    line = PipelineParallel([stage], one_f_one_b(p, 2 * p), None, cross_entropy)
    times = []
    for _ in range(2):
        dist.barrier()
        began = time.perf_counter()
        line.step(tokens.to(device()), tokens.to(device())).item()
        times.append(time.perf_counter() - began)
    return tuple(times)


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


# The timeline

def bars() -> Figure:
    found = launch(compare_bars, world_size=1, backend="nccl")[0]
    off = max(abs(ours / theirs - 1) for ours, theirs in found["spans"])
    said = "; ".join(f"{1e3 * ours:.2f} ms, the profiler {1e3 * theirs:.2f}" for ours, theirs in found["spans"])
    return require(off < 0.1, said, **found)


def compare_bars() -> dict[str, list[tuple[float, float]]]:
    """On a rank: seconds of a span of products by our timeline, and of its kernels by torch.profiler."""
    matrix, spans = torch.randn(4096, 4096), []

    def multiply(times: int) -> None:
        for _ in range(times):
            matrix @ matrix

    for times in (4, 16):
        multiply(times)
        with record_timeline() as log, span("products"):
            multiply(times)
        (bar,) = [event.duration_s for event in log.events if event.name == "products"]
        with torch.profiler.profile() as seen:
            multiply(times)
            torch.cuda.synchronize()
        kernels = sum(event.device_time_total for event in seen.key_averages()
                      if event.device_type == torch.autograd.DeviceType.CUDA) / 1e6
        spans.append((bar, kernels))
    return {"spans": spans}
