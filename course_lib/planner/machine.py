"""This machine, measured, and a step of chapter 9's trainer on it, predicted.

What is measured needs no layout: products of several sizes, and steps of GPTs of several sizes by one process each,
which give the time of a pass over memory, of launching a layer's operations, and of what every step costs; and messages
of several sizes between ranks, alone and behind products. From these every layout's step follows.

Ranks may share processor cores. Then one that waits in the bubble leaves its share to the others: a step takes what its
longest path takes with as many ranks at work as there are cores, or what all ranks' work takes with all of them at it,
whichever is more. And a rank is not always at work when a message needs it: each call waits until all are there. So
times are means over many turns of the scheduler; a single short call may find the core free by luck.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from statistics import mean, median
from time import perf_counter

import torch
import torch.distributed as dist

from course_lib.costs.flops import activation_bytes_per_layer
from course_lib.costs.links import Link, fit_link
from course_lib.costs.network import Network
from course_lib.facts import accelerator
from course_lib.hybrid_parallel.layout import ParallelLayout
from course_lib.planner.cluster import Cluster, Rates
from course_lib.planner.constants import Software
from course_lib.planner.estimate import Estimate, estimate
from course_lib.reference import GPT, GPTConfig
from course_lib.runtime import device, launch, seconds
from course_lib.why_distribute import shape_of

TRAINER = Software("this course", overlaps_gradients=False, overlaps_stages=False, message_bytes=inf,
                   shards_layers=True)
PRODUCTS = ((64, 128, 128), (256, 128, 512), (512, 512, 128), (512, 256, 256), (512, 512, 512))
MESSAGES = (4 << 10, 512 << 10, 4 << 20)
FASTEST = 1e11  # bytes/s between ranks: where noise hides what bytes cost
WINDOW_S = 0.03  # many turns of the scheduler, a few ms each
ROUNDS = 4
CALLS = 6
BYTES = 4  # fp32
TINY = GPTConfig(num_layers=1, hidden_size=8, num_heads=2, vocab_size=16, sequence_length=8)
BLOCK = GPTConfig(num_layers=1, hidden_size=128, num_heads=4, vocab_size=16, sequence_length=64)
GPTS = (TINY, replace(TINY, num_layers=5), BLOCK, replace(BLOCK, num_layers=3))
ROWS = 4
Call = Callable[[], object]


@dataclass(frozen=True)
class MeasuredRank:
    """What was measured on one rank while `num_busy` compute. flops_per_s: of a large product; bytes_per_s: of the
    products' operands.

    launch_s: a pass of one layer so small that it computes nothing; step_s: what is left of a step of such a model.
    pass_s_per_byte: of a layer's kept activations, forward. `link`: of a ring of these ranks. call_s: what a message
    takes longer behind computing than alone, since its ranks do not arrive together.
    """

    num_busy: int
    flops_per_s: float
    bytes_per_s: float
    pass_s_per_byte: float
    launch_s: float
    step_s: float
    link: Link
    call_s: float

    def rates(self) -> Rates:
        """What was measured, in the form in which the planner takes a cluster's data sheet."""
        one_host = max(self.num_busy, 2)
        network = Network(one_host, self.link, self.link, one_host)
        P = self.flops_per_s
        return Rates(flops_per_s=P, head_flops_per_s=P, flash_flops_per_s=P, operand_bytes_per_s=self.bytes_per_s,
                     memory_bytes_per_s=1 / self.pass_s_per_byte, passes=1.0, network=network, launch_s=self.launch_s,
                     step_s=self.step_s, call_s=self.call_s, num_ranks=self.num_busy, number_bytes=BYTES,
                     launch_adds=True)


@dataclass(frozen=True)
class Machine:
    """`crowded`: with all ranks computing; `free`: with no more of them than cores."""

    num_ranks: int
    num_cores: int
    free: MeasuredRank
    crowded: MeasuredRank

    def estimate(self, config: GPTConfig, layout: ParallelLayout, batch_size: int, num_microbatches: int = 1, *,
                 sequence_parallel: bool = False) -> Estimate:
        """A step of HybridTrainer(config, layout, batch_size=..., num_microbatches=...): 32-bit, nothing recomputed."""
        shape = shape_of(config)
        here = Cluster(accelerator("A100"), layout.world_size, layout.world_size)  # whose speed nobody asks for
        micro_batch = batch_size // (layout.dp * num_microbatches)
        free, crowded = (estimate(
            shape, here, layout, batch_size, micro_batch, sequence_parallel=sequence_parallel, flash=False,
            gradient_bytes=BYTES, software=TRAINER, rates=measured.rates())
            for measured in (self.free, self.crowded))
        if layout.world_size <= self.num_cores:
            return free
        work = replace(crowded, seconds=crowded.seconds | {"bubble": 0.0})
        return max(free, work, key=lambda each: each.step_s)


def measure(num_ranks: int = 4, num_cores: int = 0) -> Machine:
    """Measure this machine as `num_ranks` ranks with one thread each meet it: some seconds, nothing else running."""
    cores = num_cores or os.cpu_count() or 1
    crowded = pick_middle(launch(measure_rank, world_size=num_ranks))
    free = crowded if num_ranks <= cores else pick_middle(launch(measure_rank, world_size=cores))
    return Machine(num_ranks, cores, free, crowded)


def pick_middle(of_ranks: Sequence[MeasuredRank]) -> MeasuredRank:
    """The rank in the middle by speed, so that neither a disturbed one nor a lucky one speaks for all."""
    return sorted(of_ranks, key=lambda each: each.launch_s + 1e9 / each.flops_per_s)[len(of_ranks) // 2]


def measure_rank() -> MeasuredRank:
    """This rank's Measured, to be called while all others do the same."""
    taken = time_calls([*(product(*size) for size in PRODUCTS), *(gpt_step(config) for config in GPTS)], mean_alone_s)
    P, W = product_rates(taken[:len(PRODUCTS)])
    one, five, block, blocks = taken[len(PRODUCTS):]
    of_layer = layer_seconds(one, five, 4)  # three passes, backward being two
    launch_s, step_s = of_layer / 2, max(one - of_layer, 0.0)
    link, call_s = measure_messages()
    passes = pass_seconds_per_byte(layer_seconds(block, blocks, 2), P, W, launch_s)
    return MeasuredRank(num_busy=dist.get_world_size(), flops_per_s=P, bytes_per_s=W, pass_s_per_byte=passes,
                        launch_s=launch_s, step_s=step_s, link=link, call_s=call_s)


def time_calls(functions: Sequence[Call], mean_s: Callable[[Call], float]) -> list[float]:
    """Seconds of a call of each, while all ranks make calls: the middle one of some rounds through all functions, since
    what else runs on the machine now and then slows down a mean or two.
    """
    rounds = []
    for _ in range(1 + ROUNDS):
        dist.barrier()
        rounds.append([mean_s(function) for function in functions])
    return [median(means) for means in zip(*rounds[1:])]


def mean_alone_s(function: Call) -> float:
    """The mean over a while: for calls that need no other rank."""
    taken, end = [seconds(function)], perf_counter() + WINDOW_S
    while perf_counter() < end:
        taken.append(seconds(function))
    return mean(taken)


def product(m: int, k: int, n: int) -> Call:
    """A call that multiplies (m, k) by (k, n), for a clock to run."""
    a, b = torch.ones(m, k, device=device()), torch.ones(k, n, device=device())
    return lambda: torch.mm(a, b)


def product_rates(taken: Sequence[float]) -> tuple[float, float]:
    """(P, W) of seconds = call + 2 mkn / P + 4 (mk + kn + mn) / W, the call being among what launching takes. Least
    squares of relative errors, by their normal equations.
    """
    flops = [2 * m * k * n for m, k, n in PRODUCTS]
    operands = [BYTES * (m * k + k * n + m * n) for m, k, n in PRODUCTS]
    columns = [[one / s for one, s in zip(column, taken)] for column in (flops, operands, [1] * len(taken))]
    scale = [max(column) for column in columns]
    columns = [[one / most for one in column] for column, most in zip(columns, scale)]
    normal = [[sum(a * b for a, b in zip(left, right)) for right in columns] for left in columns]
    per_flop, per_byte, _ = (x / most for x, most in zip(solve(normal, [sum(column) for column in columns]), scale))
    per_flop = max(per_flop, 0.5 * min(s / one for s, one in zip(taken, flops)))
    return 1 / per_flop, 1 / max(per_byte, per_flop / 10)


def solve(matrix: Sequence[Sequence[float]], right: Sequence[float]) -> list[float]:
    """x of matrix x = right, for a symmetric matrix whose x' matrix x is above 0: Gauss, without pivots."""
    rows = [[*row, value] for row, value in zip(matrix, right)]
    for k, pivot in enumerate(rows):
        for row in rows[k + 1:]:
            share = row[k] / pivot[k]
            row[k:] = [value - share * above for value, above in zip(row[k:], pivot[k:])]
    x = [0.0] * len(rows)
    for k in reversed(range(len(rows))):
        x[k] = (rows[k][-1] - sum(a * b for a, b in zip(rows[k][k + 1:-1], x[k + 1:]))) / rows[k][k]
    return x


def layer_seconds(few_s: float, many_s: float, more: int) -> float:
    """Of each of the layers that the second model has more; on a disturbed machine it may have taken less time than the
    first, and then a tenth of its own is taken for them.
    """
    return max(many_s - few_s, 0.1 * many_s) / more


def pass_seconds_per_byte(layer_s: float, P: float, W: float, launch_s: float) -> float:
    """What a layer of BLOCK takes beyond its products and launches, for each byte that it keeps; three passes."""
    h, s, n = BLOCK.hidden_size, BLOCK.sequence_length, ROWS * BLOCK.sequence_length
    flops = 3 * (2 * n * 12 * h * h + 4 * n * s * h)
    operands = 3 * BYTES * (n * (9 + 5) * h + 12 * h * h + 2 * ROWS * 4 * (s * s + 2 * s * h // 4))
    kept = activation_bytes_per_layer(shape_of(BLOCK), ROWS, s, bytes_per_number=BYTES)
    return max(layer_s - 2 * launch_s - flops / P - operands / W, 0.1 * layer_s) / (3 * kept)


def gpt_step(config: GPTConfig) -> Call:
    """Plain training: forward, backward, clipping, AdamW."""
    torch.manual_seed(0)
    model = GPT(config).to(device())
    optimizer = torch.optim.AdamW(model.parameters())
    tokens = torch.randint(config.vocab_size, (ROWS, config.sequence_length), device=device())

    def step() -> None:
        model(tokens, tokens)[1].backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return step


def measure_messages() -> tuple[Link, float]:
    """(the link, call_s) of all-reduces by all ranks: one behind the other, and each behind a product and a GELU."""
    n = dist.get_world_size()
    if n == 1:
        return Link.of_rate(FASTEST), 0.0
    a = torch.ones(512, 512, device=device())
    tensors = [torch.ones(num_bytes // BYTES, device=device()) for num_bytes in MESSAGES]

    def compute() -> None:
        torch.nn.functional.gelu(torch.mm(a, a))

    def behind(tensor: torch.Tensor) -> None:
        compute()
        dist.all_reduce(tensor)

    taken = time_calls([compute, *(partial(dist.all_reduce, tensor) for tensor in tensors),
                    *(partial(behind, tensor) for tensor in tensors)], mean_together_s)
    computing, alone, both = taken[0], taken[1:1 + len(tensors)], taken[1 + len(tensors):]
    link = fit_link([2 * (n - 1) / n * num_bytes for num_bytes in MESSAGES], alone)
    later = median(each - computing - message for each, message in zip(both, alone))
    slowest = max(link.beta_s_per_byte, Link.of_rate(FASTEST).beta_s_per_byte)
    return Link(link.alpha_s / (2 * (n - 1)), slowest), max(0.0, later)


def mean_together_s(function: Call) -> float:
    """The mean of calls that all ranks make as often: what one waits for another is part of it."""
    def calls() -> None:
        for _ in range(CALLS):
            function()

    return seconds(calls) / CALLS
