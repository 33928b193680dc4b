"""A small GPT on the GPU against the same one on the CPU: equal in float32, near in bfloat16."""

import torch

from course_lib.reference import GPT, GPTConfig, train
from course_lib.runtime import device, launch
from tools.gpu_day.steps import Step, require

DEADLINE_S = 90.0
STEPS = 20
FLOAT32_OFF, BFLOAT16_OFF = 1e-4, 0.1  # nats a token; numbers of bfloat16 above 4 are 0.03 apart


def steps(mode: str) -> list[Step]:
    return [
        Step("losses, float32", f"GPT, {STEPS} steps, no TF32, against the CPU", float32),
        Step("losses, bfloat16", f"GPT, {STEPS} steps, against the CPU in float32", bfloat16),
    ]


def losses(dtype: torch.dtype) -> tuple[float, ...]:
    """On a rank. The model is made on the CPU: equal seeds give other numbers on a GPU."""
    torch.set_float32_matmul_precision("highest")  # no TF32
    with torch.device("cpu"):
        torch.manual_seed(0)
        model = GPT(GPTConfig())
    return train(model.to(device(), dtype), steps=STEPS, held_out=False, progress=False).losses


def largest_difference(dtype: torch.dtype) -> tuple[float, float]:
    """(largest difference to the CPU's float32 losses in nats a token, the GPU's last loss)."""
    ours = launch(losses, dtype, world_size=1, backend="nccl")[0]
    theirs = launch(losses, torch.float32, world_size=1, device="cpu")[0]
    return max(abs(a - b) for a, b in zip(ours, theirs)), ours[-1]


def float32() -> str:
    off, last = largest_difference(torch.float32)
    return require(off <= FLOAT32_OFF, f"{off:.1e} nats off at most, {FLOAT32_OFF:g} allowed; last loss {last:.4f}")


def bfloat16() -> str:
    off, last = largest_difference(torch.bfloat16)
    return require(0 < off <= BFLOAT16_OFF,
                   f"{off:.1e} nats off at most, {BFLOAT16_OFF:g} allowed; last loss {last:.4f}")
