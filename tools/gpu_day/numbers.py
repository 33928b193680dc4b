"""A small GPT on the GPU against the same one on the CPU: equal in float32, near in bfloat16."""

import torch

from course_lib.reference import GPT, GPTConfig, train
from course_lib.runtime import device, launch
from tools.gpu_day.steps import Step, require

DEADLINE_S = 90.0
STEPS = 20
FLOAT32_OFF, BFLOAT16_OFF = 1e-4, 5e-2  # nats a token; bfloat16 has 8 bits


def steps(mode: str) -> list[Step]:
    return [
        Step("losses, float32", f"GPT, {STEPS} steps, no TF32, against the CPU", float32),
        Step("losses, bfloat16", f"GPT, {STEPS} steps, autocast, against float32", bfloat16),
    ]


def losses(in_bfloat16: bool) -> tuple[float, ...]:
    """On a rank. The model is made on the CPU: equal seeds give other numbers on a GPU."""
    torch.set_float32_matmul_precision("highest")
    with torch.device("cpu"):
        torch.manual_seed(0)
        model = GPT(GPTConfig())
    with torch.autocast(device().type, torch.bfloat16, enabled=in_bfloat16):
        return train(model.to(device()), steps=STEPS, held_out=False, progress=False).losses


def largest_difference(in_bfloat16: bool) -> tuple[float, float]:
    """(largest difference to the CPU's float32 losses in nats a token, the GPU's last loss)."""
    ours = launch(losses, in_bfloat16, world_size=1, backend="nccl")[0]
    theirs = launch(losses, False, world_size=1, device="cpu", threads=4)[0]
    return max(abs(a - b) for a, b in zip(ours, theirs)), ours[-1]


def float32() -> str:
    off, last = largest_difference(in_bfloat16=False)
    return require(off <= FLOAT32_OFF, f"{off:.1e} nats off at most, {FLOAT32_OFF:g} allowed; last loss {last:.4f}")


def bfloat16() -> str:
    off, last = largest_difference(in_bfloat16=True)
    return require(0 < off <= BFLOAT16_OFF,
                   f"{off:.1e} nats off at most, {BFLOAT16_OFF:g} allowed; last loss {last:.4f}")
