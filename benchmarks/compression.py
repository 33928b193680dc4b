"""What compressed gradients cost, on two texts and several seeds: held-out losses beside float32's. No times.

    python -m benchmarks.compression [SEEDS] [STEPS]      3 seeds, 120 steps: some minutes

Weights, batches and their order are the same for equal seeds, so losses are compared run by run. Every way is held
against float32 at the same learning rate.
"""

import statistics
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from course_lib.data_parallel import HOOKS, DistributedDataParallel, top_k_hook
from course_lib.data_parallel.averaging import Bucket
from course_lib.data_parallel.hooks import TENTH
from course_lib.reference import GPT, GPTConfig, batches, evaluate, load_text
from course_lib.runtime import launch
from tools import other_text

WARM_UP = 20  # steps that send everything
MOMENTUM, RATE = 0.9, 1e-3


class MomentumCorrectedTopK(top_k_hook):
    """Top-k of each rank's own momentum in place of its gradient, which restarts where it was sent.

    Source: Lin et al. 2018, sections 3.1 and 3.2, for SGD. With AdamW the momentum here takes the place of its first
    moment, so that nothing is averaged twice: use betas=(0, ...).
    """

    def __init__(self, fraction: float, warm_up: int) -> None:
        super().__init__(fraction, warm_up)
        self.momentum: dict[Bucket, Tensor] = {}  # (N,) each

    def __call__(self, bucket: Bucket) -> Callable[[], Tensor]:
        before = self.momentum.get(bucket, torch.zeros_like(bucket.gradient))
        now = self.momentum[bucket] = MOMENTUM * before + (1 - MOMENTUM) * bucket.gradient
        bucket.gradient.copy_(now)
        finish = super().__call__(bucket)
        if bucket in self.error:  # what is not left was sent
            now[self.error[bucket] == 0] = 0
        return finish


@dataclass(frozen=True)
class Way:
    """hook() makes the hook of one run, None sends float32; beta1 is AdamW's first."""

    name: str
    hook: Callable[[], object]
    rate: float = RATE
    beta1: float = MOMENTUM


later_top_k = partial(HOOKS["top-k"].make, warm_up=WARM_UP)
EXACT = {rate: Way(f"float32, rate {rate:g}", lambda: None, rate) for rate in (RATE, 2 * RATE)}
COMPRESSED = [
    *(Way(name, published.make) for name, published in HOOKS.items() if name != "float32"),
    Way(f"top-k after {WARM_UP} exact steps", later_top_k),
    Way("the same, twice the rate", later_top_k, rate=2 * RATE),
    Way("the same, momentum corrected", lambda: MomentumCorrectedTopK(TENTH, WARM_UP), beta1=0.0),
]


def held_out_loss(way: Way, tokens: Tensor, seed: int, steps: int) -> float:
    """On a rank: nats a token after `steps` steps of 8 rows in all."""
    torch.manual_seed(seed)
    model = DistributedDataParallel(GPT(GPTConfig()), hook=way.hook())
    optimizer = torch.optim.AdamW(model.parameters(), lr=way.rate, betas=(way.beta1, 0.95))
    for step in range(steps):
        rows = batches(step, dist.get_rank(), dist.get_world_size(), batch_size=8, seed=seed, tokens=tokens)
        optimizer.zero_grad()
        model(*rows)[1].backward()
        optimizer.step()
    return evaluate(model, tokens=tokens)


def main(seeds: int = 3, steps: int = 120) -> None:
    if seeds < 1 or steps <= WARM_UP:
        raise ValueError(f"{seeds} seeds, {steps} steps: expected one seed at least, and more than {WARM_UP} steps")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "docstrings.txt")
        file.write_text(other_text.text(), encoding="utf-8")
        texts = {"help topics": load_text(), "docstrings": load_text(file)}
    behind: dict[str, list[float]] = {way.name: [] for way in COMPRESSED}
    for text, tokens in texts.items():
        for seed in range(seeds):
            ways = [*EXACT.values(), *COMPRESSED]
            losses = {way.name: launch(held_out_loss, way, tokens, seed, steps, world_size=2, timeout=600)[0]
                      for way in ways}
            for way in COMPRESSED:
                behind[way.name].append(100 * (losses[way.name] / losses[EXACT[way.rate].name] - 1))
            print(f"{text}, seed {seed}:", ", ".join(f"{name} {loss:.3f}" for name, loss in losses.items()),
                  file=sys.stderr, flush=True)
    print(f"{2 * seeds} runs of {steps} steps: held-out loss above float32's at the same rate, in %\n"
          f"{'':32}{'mean':>7}{'least':>7}{'most':>7}")
    for name, of_way in behind.items():
        print(f"{name:32}{statistics.mean(of_way):7.1f}{min(of_way):7.1f}{max(of_way):7.1f}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
