"""Launches and what makes the host wait; sums in 16 bits; where an optimizer's state lies; experts."""

import gc
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from functools import partial

import torch
import torch.distributed as dist
from torch import _dynamo, nn

from course_lib.data_parallel import DistributedDataParallel
from course_lib.expert_parallel import moe_gpt
from course_lib.expert_parallel.experts import GroupedLinear
from course_lib.hybrid_parallel import HybridTrainer, ParallelLayout
from course_lib.reference import GPT, GPTConfig, batches
from course_lib.runtime import backends, device, launch
from course_lib.zero import FullyShardedDataParallel, ZeroOptimizer
from tools.gpu_day.operations import end_teams
from tools.gpu_day.speed import COMPILE_HERE, COMPILES_WITHIN_S, SMALL, TINY, clock, count_allocated
from tools.gpu_day.steps import Figure, Step

SHARDS = 8  # of a batch, whose gradients are summed


def steps(mode: str) -> list[Step]:
    real = mode == "gpu"
    return [
        *([Step("graph", "a small GPT's step, eager and as one CUDA graph", graph),
           Step("waiting hosts", "calls in a step that make the host wait for the card", waits),
           Step("torch.compile", "breaks of a GPT's graph with a rank's default device and without", breaks,
                COMPILES_WITHIN_S),
           Step("launches", "seconds of a launch that does nothing; bytes on the card that no tensor holds", launches)]
          if real else []),
        Step("bf16 sums", f"the gradient of {SHARDS} shards, summed in bf16 and in fp32, and 100 steps", sums),
        Step("offload", "a step of ZeroOptimizer, state on the card and on the host",
             partial(offload, SMALL if real else TINY)),
        Step("experts", "a layer of 32 experts, one product after the other and grouped", experts),
    ]


def graph() -> Figure:
    found = launch(time_graph, world_size=1, backend="nccl", timeout=60)[0]
    eager, replayed, kernels = found["eager_s"], found["graph_s"], found["kernels"]
    return Figure(f"eager {1e3 * eager:.2f} ms, replayed {1e3 * replayed:.2f} ms, {kernels} kernels: "
                  f"{1e6 * eager / kernels:.1f} and {1e6 * replayed / kernels:.1f} us each", found)


def time_graph() -> dict[str, float]:
    config = GPTConfig(num_layers=4, hidden_size=256, num_heads=4, sequence_length=128)
    model = GPT(config)
    tokens = torch.randint(config.vocab_size, (8, config.sequence_length))

    def work() -> None:
        model(tokens, tokens)[1].backward()

    eager = clock(work, 20)
    with torch.profiler.profile() as seen:
        work()
        torch.cuda.synchronize()
    kernels = sum(event.count for event in seen.key_averages() if event.device_type == torch.autograd.DeviceType.CUDA)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            work()
    torch.cuda.current_stream().wait_stream(side)
    model.zero_grad(set_to_none=True)
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        work()
    return {"eager_s": eager, "graph_s": clock(captured.replay, 20), "kernels": max(kernels, 1)}


def waits() -> Figure:
    found = launch(count_waits, world_size=1, backend="nccl", timeout=60)[0]
    return Figure(", ".join(f"{name} {count}" for name, (count, _) in found.items()), found)


def count_waits() -> dict[str, tuple[int, list[str]]]:
    """On a rank: waits in the third step of each, and the lines that they come from."""
    def adam(model: nn.Module) -> tuple[nn.Module, torch.optim.Optimizer]:
        return model, torch.optim.AdamW(model.parameters())

    def zero(stage: int) -> tuple[nn.Module, torch.optim.Optimizer]:
        model = GPT(TINY)
        return model, ZeroOptimizer(model.parameters(), torch.optim.AdamW, stage=stage)

    makers = {"plain": lambda: adam(GPT(TINY)), "DDP": lambda: adam(DistributedDataParallel(GPT(TINY))),
              "ZeRO-1": lambda: zero(1), "ZeRO-2": lambda: zero(2),
              "FSDP": lambda: adam(FullyShardedDataParallel(GPT(TINY))), "MoE": lambda: adam(moe_gpt(GPT(TINY), 4))}
    found = {}
    inputs, targets = (part.to(device()) for part in batches(0))

    def count(step: Callable[[], object]) -> tuple[int, list[str]]:
        for _ in range(2):
            step()
        torch.cuda.synchronize()
        lines = list[str]()

        def hear(message: Warning, *_: object) -> None:
            if "synchroniz" in str(message):
                calls = [call for call in traceback.extract_stack()[:-1] if "_device.py" not in call.filename]
                lines.append(f"{'/'.join(calls[-1].filename.split('/')[-2:])}:{calls[-1].lineno}")

        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.showwarning = hear
            torch.cuda.set_sync_debug_mode("warn")
            step()
            torch.cuda.set_sync_debug_mode("default")
        return len(lines), sorted(f"{line} {times} times" for line, times in Counter(lines).items())

    def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        optimizer.zero_grad()
        model(inputs, targets)[1].backward()
        optimizer.step()

    found |= {name: count(partial(step, *make())) for name, make in makers.items()}
    trainer = HybridTrainer(TINY, ParallelLayout())
    trainer.step()
    found["HybridTrainer"] = count(trainer.step)
    return found


def breaks() -> Figure:
    found = launch(explain, world_size=1, backend="nccl", env=COMPILE_HERE, timeout=60)[0]
    return Figure(", ".join(f"{name}: {graphs} graphs, {count} breaks"
                            for name, (graphs, count) in found.items()), found)


def explain() -> dict[str, tuple[int, int]]:
    found = {}
    for name in ("with", "without"):
        if name == "without":
            backends.unset_default_device()
        _dynamo.reset()
        tokens = torch.zeros(2, 8, dtype=torch.long, device=device())
        seen = _dynamo.explain(GPT(GPTConfig(num_layers=1)).to(device()))(tokens, tokens)
        found[name] = (seen.graph_count, seen.graph_break_count)
    return found


def launches() -> Figure:
    end_teams()
    found = {}
    for backend, n in (("gloo", 4), ("nccl", 1), ("gloo-cuda", 4)):
        took, used = [], 0
        for _ in range(4):
            began = time.perf_counter()
            used = max(launch(used_bytes, world_size=n, backend=backend))
            took.append(time.perf_counter() - began)
        found[f"{backend} {n}"] = {"seconds": min(took), "used_bytes": used}
    return Figure(", ".join(f"{name}: {one['seconds']:.2f} s, {one['used_bytes'] / 1e6:,.0f} MB"
                            for name, one in found.items()), found)


def used_bytes() -> int:
    """On a rank, when all have a context: of the whole card, but for this rank's tensors."""
    if device().type == "cpu":
        return 0
    x = torch.ones(512, 512) @ torch.ones(512, 512)
    dist.barrier()
    free, total = torch.cuda.mem_get_info()
    used = total - free - torch.cuda.memory_reserved()
    dist.barrier()
    del x
    return used


# Numbers and state

def sums() -> Figure:
    found = launch(sum_gradients, world_size=1, backend="nccl", timeout=60)[0]
    return Figure(f"the gradient is off by {found['bf16_off']:.2e} of its norm summed in bf16, {found['fp32_off']:.2e} "
                  f"in fp32; after 100 steps the loss is {found['bf16_loss']:.4f} and {found['fp32_loss']:.4f}", found)


def sum_gradients() -> dict[str, float]:
    """On a rank: a batch in SHARDS shards, whose gradients are sent in bf16 and added one after another."""
    with torch.device("cpu"):
        torch.manual_seed(0)
        start = GPT(GPTConfig(num_layers=2)).state_dict()

    def gradients(model: nn.Module, number: int) -> list[list[torch.Tensor]]:
        found = []
        for shard in range(SHARDS):
            inputs, targets = (part.to(device()) for part in batches(number, shard, SHARDS, batch_size=2 * SHARDS))
            model.zero_grad()
            model(inputs, targets)[1].backward()
            found.append([p.grad.to(torch.bfloat16) for p in model.parameters()])
        return found

    def average(found: list[list[torch.Tensor]], dtype: torch.dtype) -> list[torch.Tensor]:
        means = []
        for parts in zip(*found):
            total = torch.zeros_like(parts[0], dtype=dtype)
            for part in parts:
                total += part.to(dtype) / SHARDS  # each sum is rounded to the dtype
            means.append(total)
        return means

    def model_of() -> GPT:
        model = GPT(GPTConfig(num_layers=2)).to(device())
        model.load_state_dict(start)
        return model

    model = model_of()
    found = gradients(model, 0)
    exact = torch.cat([g.flatten() for g in average(found, torch.float64)])
    result = {}
    for name, dtype in (("bf16", torch.bfloat16), ("fp32", torch.float32)):
        flat = torch.cat([g.flatten() for g in average(found, dtype)]).double()
        result[f"{name}_off"] = ((flat - exact).norm() / exact.norm()).item()
        model = model_of()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        for number in range(100):
            mean = average(gradients(model, number), dtype)
            for parameter, gradient in zip(model.parameters(), mean):
                parameter.grad = gradient.to(parameter.dtype)
            optimizer.step()
        inputs, targets = (part.to(device()) for part in batches(1000, batch_size=64))
        result[f"{name}_loss"] = model(inputs, targets)[1].item()
    return result


def offload(config: GPTConfig) -> Figure:
    found = launch(time_offload, config, world_size=1, backend="nccl", threads=8, timeout=60)[0]
    return Figure(", ".join(f"{name}: {1e3 * took:.0f} ms, {held / 1e9:.2f} GB on the card"
                            for name, (took, held) in found.items()), found)


def time_offload(config: GPTConfig) -> dict[str, tuple[float, int]]:
    tokens = torch.randint(config.vocab_size, (4, config.sequence_length))

    def time_one(on_host: bool) -> tuple[float, int]:
        gc.collect()
        before = count_allocated()
        model = GPT(config).to(device(), torch.bfloat16)
        optimizer = ZeroOptimizer(model.parameters(), torch.optim.AdamW, stage=2, offload=on_host)

        def step() -> None:
            optimizer.zero_grad()
            model(tokens, tokens)[1].backward()
            optimizer.step()

        return clock(step, 3), count_allocated() - before

    return {"on the card": time_one(False), "on the host": time_one(True)}


def experts() -> Figure:
    found = launch(time_experts, world_size=1, backend="nccl")[0]
    return Figure(", ".join(f"{name} {1e3 * took:.2f} ms" for name, took in found.items()), found)


def time_experts() -> dict[str, float]:
    """On a rank: 8,192 rows among 32 experts of 1,024 x 2,048, forward and backward of one product, in bf16."""
    rows, E, D, F = 8192, 32, 1024, 2048
    x = torch.randn(rows, D).to(device(), torch.bfloat16).requires_grad_()
    w = torch.randn(E, D, F).to(device(), torch.bfloat16).requires_grad_()
    counts = [rows // E] * E
    ends = torch.arange(1, E + 1, dtype=torch.int32, device=device()) * (rows // E)
    dy = torch.ones(rows, F, dtype=x.dtype, device=x.device)
    found = {"our loop": clock(lambda: GroupedLinear.apply(x, w, None, counts).backward(dy))}
    grouped = getattr(torch.nn.functional, "grouped_mm", None) or getattr(torch, "_grouped_mm", None)
    if grouped is not None and device().type == "cuda":
        found["grouped_mm"] = clock(lambda: grouped(x, w, offs=ends).backward(dy))
    found["one product of all rows"] = clock(lambda: (x @ w[0]).backward(dy))
    return found
