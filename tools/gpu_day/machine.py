"""What is here, and the first thing that can go wrong: a fork, and then a GPU in the rank."""

import shutil
import subprocess

import torch
import torch.distributed as dist

from course_lib.runtime import backends, context, device, launch
from tools.gpu_day.steps import Step, require

DEADLINE_S = 90.0  # the first use of a driver


def steps(mode: str) -> list[Step]:
    return [
        Step("versions", "torch, CUDA, NCCL", versions),
        Step("GPUs", "nvidia-smi: names, memory, driver", gpus),
        Step("fork, then a GPU", "a + b in a forked rank, twice", fork_then_gpu),
        Step("fork, then no GPU", "whether a rank on the CPU sees a GPU", no_gpu_on_the_cpu),
        Step("default device", "where a rank's tensors are made and arrive", where_tensors_are),
    ]


def versions() -> str:
    nccl = ".".join(map(str, torch.cuda.nccl.version())) if dist.is_nccl_available() and torch.version.cuda else "none"
    return f"torch {torch.__version__}, CUDA {torch.version.cuda or 'none'}, NCCL {nccl}"


def gpus() -> str:
    number = f"{backends.count_gpus()} that torch can use"
    if shutil.which("nvidia-smi") is None:
        return f"{number}; no nvidia-smi here"
    asked = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
    found = subprocess.run(asked, capture_output=True, text=True, timeout=30)
    return f"{number}: " + ("; ".join(found.stdout.split("\n")).strip("; ") or found.stderr.strip())


def add() -> tuple[str, float]:
    a, b = torch.ones(1000), torch.full((1000,), 2.0)
    return (a + b).device.type, (a + b).sum().item()


def fork_then_gpu() -> str:
    """The server that forks ranks, and this process, must not have touched the driver before."""
    found = [launch(add, world_size=1, backend="nccl", timeout=60)[0] for _ in range(2)]
    return require(all(kind != "cpu" and total == 3000.0 for kind, total in found), f"{found}")


def seen() -> tuple[bool, str]:
    return torch.accelerator.is_available(), str(torch.ones(1).device)


def no_gpu_on_the_cpu() -> str:
    found = launch(seen, world_size=2, device="cpu")
    return require(set(found) == {(False, "cpu")}, f"sees a GPU: {found[0][0]}, tensors on {found[0][1]}")


def where_tensors_are() -> str:
    came_in = torch.ones(2)

    def look(argument: torch.Tensor) -> list[bool]:
        here = [tensor.device == device() for tensor in (argument, came_in, torch.empty(1))]
        return [*here, context.device().type != "cpu"]

    result = launch(look, came_in, world_size=1, backend="nccl")[0]
    return require(all(result), f"argument, closure, new, GPU: {result}")
