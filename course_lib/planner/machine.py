"""This machine, measured, and a step of chapter 9's trainer on it, predicted.

What is measured needs no layout: products of several sizes, and steps of GPTs of several sizes by one process each,
which give the time of a pass over memory, of launching a layer's operations, and of what every step costs; and messages
of several sizes between ranks. From these every layout's step follows.

Ranks may share processor cores. Then one that waits in the bubble leaves its share to the others: a step takes what its
longest path takes with as many ranks at work as there are cores, or what all ranks' work takes with all of them at it,
whichever is more.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
import torch.distributed as dist

from course_lib.costs.activations import activation_bytes_per_layer
from course_lib.costs.flops import count_parameters
from course_lib.costs.links import Link, fit_link
from course_lib.costs.nodes import Wires
from course_lib.facts import Shape, accelerator
from course_lib.hybrid_parallel.layout import ParallelLayout
from course_lib.planner.cluster import Cluster
from course_lib.planner.estimate import Estimate, estimate
from course_lib.planner.rates import Rates
from course_lib.planner.software import Software
from course_lib.reference import GPT, GPTConfig
from course_lib.runtime import device, launch, seconds
from course_lib.why_distribute import shape_of

TRAINER = Software("this course", overlaps_gradients=False, overlaps_stages=False, message_bytes=1e15,
                   shards_layers=True)
PRODUCTS = ((64, 128, 128), (256, 128, 512), (512, 512, 128), (512, 256, 256), (512, 512, 512))
MESSAGES = (4 << 10, 64 << 10, 512 << 10, 2 << 20, 8 << 20)
FASTEST = 1e11  # bytes/s between ranks: where noise hides what bytes cost
REPEATS = 9
BYTES = 4  # fp32
TINY = GPTConfig(num_layers=1, hidden_size=8, num_heads=2, vocab_size=16, sequence_length=8)
ROWS = 4


@dataclass(frozen=True)
class Measured:
    """Of one rank while `num_busy` compute. flops_per_s: of a large product; bytes_per_s: of the products' operands.

    launch_s: a pass of one layer so small that it computes nothing; step_s: what is left of a step of such a model.
    pass_s_per_byte: of a layer's kept activations, forward.
    """

    num_busy: int
    flops_per_s: float
    bytes_per_s: float
    pass_s_per_byte: float
    launch_s: float
    step_s: float


@dataclass(frozen=True)
class Machine:
    """`crowded`: with all ranks computing; `free`: with no more of them than cores. `link`: of a ring of all ranks."""

    num_ranks: int
    num_cores: int
    free: Measured
    crowded: Measured
    link: Link

    def rates(self, measured: Measured) -> Rates:
        bytes_per_s = 1 / self.link.beta_s_per_byte
        wires = Wires(self.link, bytes_per_s, self.link.alpha_s, bytes_per_s,
                      self.num_ranks)
        return Rates(measured.flops_per_s, measured.flops_per_s, measured.flops_per_s, measured.bytes_per_s,
                     1 / measured.pass_s_per_byte, 1.0, wires, measured.launch_s, step_s=measured.step_s,
                     number_bytes=BYTES, launch_adds=True)

    def estimate(self, config: GPTConfig, layout: ParallelLayout, batch_size: int, num_microbatches: int = 1, *,
                 sequence_parallel: bool = False) -> Estimate:
        """A step of HybridTrainer(config, layout, batch_size=..., num_microbatches=...): 32-bit, nothing recomputed."""
        shape = shape_of(config)
        here = Cluster(accelerator("A100"), layout.world_size, layout.world_size)  # whose speed nobody asks for
        micro_batch = batch_size // (layout.dp * num_microbatches)
        free, crowded = (estimate(
            shape, here, layout, batch_size, micro_batch, sequence_parallel=sequence_parallel, flash=False,
            gradient_bytes=BYTES, software=TRAINER, rates=self.rates(measured))
            for measured in (self.free, self.crowded))
        if layout.world_size <= self.num_cores:
            return free
        work = replace(crowded, seconds=crowded.seconds | {"bubble": 0.0})
        return max(free, work, key=lambda each: each.step_s)


def measure(num_ranks: int = 4, num_cores: int = 0) -> Machine:
    """Measure this machine as `num_ranks` ranks with one thread each meet it: some seconds, nothing else running."""
    cores = num_cores or os.cpu_count() or 1
    crowded = launch(measure_rank, world_size=num_ranks)
    free = crowded if num_ranks <= cores else launch(measure_rank, world_size=cores)
    link = fit_link(*zip(*((2 * (num_ranks - 1) / num_ranks * M, s) for M, s in launch(
        measure_messages, world_size=num_ranks)[0]))) if num_ranks > 1 else Link(0.0, 0.0)
    steps = max(1, 2 * (num_ranks - 1))
    return Machine(num_ranks, cores, slowest(free), slowest(crowded),
                   Link(link.alpha_s / steps, max(link.beta_s_per_byte, 1 / FASTEST)))


def slowest(of_ranks: Sequence[Measured]) -> Measured:
    """All ranks wait for the one that takes longest, whose pass of a layer it is."""
    return max(of_ranks, key=lambda each: each.launch_s + 1e9 / each.flops_per_s)


def measure_rank() -> Measured:
    """In a rank, while all others do the same."""
    num_busy = dist.get_world_size()
    products = {size: product_seconds(*size) for size in PRODUCTS}
    # seconds = call + 2 mkn / P + 4 (mk + kn + mn) / W, the call being among what launching takes
    flops = np.array([2 * m * k * n for m, k, n in products], dtype=float)
    operands = np.array([BYTES * (m * k + k * n + m * n) for m, k, n in products], dtype=float)
    taken = np.array(list(products.values()))
    columns = np.stack([flops, operands, np.ones_like(flops)], 1) / taken[:, None]
    scale = columns.max(axis=0)
    per_flop, per_byte, _ = np.linalg.lstsq(columns / scale, np.ones_like(taken), rcond=None)[0] / scale
    per_flop = max(per_flop, 0.5 * float((taken / flops).min()))
    P, W = float(1 / per_flop), float(1 / max(per_byte, per_flop / 10))
    launch_s, step_s = overheads()
    return Measured(num_busy, P, W, pass_seconds_per_byte(P, W, launch_s), launch_s, step_s)


def undisturbed(function: Callable, *args: object) -> float:
    """Seconds of a call, the lower quartile of some: what else runs on the machine makes calls slower, never faster."""
    return sorted(seconds(function, *args) for _ in range(REPEATS))[REPEATS // 4]


def product_seconds(m: int, k: int, n: int) -> float:
    a, b = torch.ones(m, k, device=device()), torch.ones(k, n, device=device())
    return undisturbed(torch.mm, a, b)


def overheads() -> tuple[float, float]:
    """(launch_s of a layer's pass, step_s): a step takes three such passes for each layer, backward two of them."""
    one, five = (gpt_seconds(replace(TINY, num_layers=layers)) for layers in (1, 5))
    of_layer = max(five - one, 0.0) / 4
    return of_layer / 2, max(one - of_layer, 0.0)


def pass_seconds_per_byte(P: float, W: float, launch_s: float) -> float:
    """What a larger GPT's layer takes beyond its products and launches, for each byte that it keeps; three passes."""
    config = GPTConfig(num_layers=1, hidden_size=128, num_heads=4, vocab_size=16, sequence_length=64)
    taken = (gpt_seconds(replace(config, num_layers=3)) - gpt_seconds(config)) / 2
    h, s, n = config.hidden_size, config.sequence_length, ROWS * config.sequence_length
    shape = Shape(1, h, 4, 4, 4 * h, 16, s, biases=True)
    flops = 3 * (2 * n * 12 * h * h + 4 * n * s * h)
    operands = 3 * BYTES * (n * (9 + 5) * h + 12 * h * h + 2 * ROWS * 4 * (s * s + 2 * s * h // 4))
    kept = activation_bytes_per_layer(shape, ROWS, s, bytes_per_number=BYTES)
    return max(taken - 2 * launch_s - flops / P - operands / W, 0.1 * taken) / (3 * kept)


def gpt_seconds(config: GPTConfig) -> float:
    """A step of plain training: forward, backward, clipping, AdamW."""
    torch.manual_seed(0)
    model = GPT(config).to(device())
    optimizer = torch.optim.AdamW(model.parameters())
    tokens = torch.randint(config.vocab_size, (ROWS, config.sequence_length), device=device())

    def step() -> None:
        model(tokens, tokens)[1].backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    step()
    return undisturbed(step)


def measure_messages() -> list[tuple[int, float]]:
    """(bytes, seconds) of all-reduces by all ranks."""
    found = []
    for num_bytes in MESSAGES:
        tensor = torch.ones(num_bytes // BYTES, device=device())
        dist.all_reduce(tensor)
        found.append((num_bytes, undisturbed(dist.all_reduce, tensor)))
    return found


def state_bytes(config: GPTConfig) -> int:
    """Parameters, gradients and AdamW's moments of the whole model in 32 bits."""
    shape = shape_of(config)
    return 4 * BYTES * count_parameters(shape)
