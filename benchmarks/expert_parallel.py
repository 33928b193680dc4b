"""An MoE layer on 4 ranks, forward and backward: against one process, padded all-to-alls, DeepSpeed, and chunks.

`python -m benchmarks.expert_parallel` prints all of them, and how unevenly the tokens fall on the experts.
"""

import importlib
import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.harness import Both, Goal, Seconds, Work, benchmark
from benchmarks.ranks import alternate, over_ranks, side_by_side
from course_lib.collectives import all_to_all_along
from course_lib.expert_parallel import SINGLE, MoELayer, load_balancing_loss, sum_over_group, tokens_per_expert
from course_lib.runtime import device, launch, sleep
from course_lib.zero.deepspeed import import_quietly, replace_attribute

WORLD_SIZE, ROUNDS = 4, 9
N, D, FFN, E, K = 512, 256, 512, 8, 2  # tokens of a rank; 1,024 rows travel from each
SKEW = 0.45  # the busiest expert has about 1.6 times the mean, as in a run whose balancing has just begun
WIDE, PAUSE_S = 2048, 3e-5  # rows of 8 kB, and what an expert takes for one, forward
Step = Callable[[int], object]


def tokens_of(rank: int) -> Tensor:
    generator = torch.Generator().manual_seed(rank)
    tokens = torch.randn(N, D, generator=generator, device="cpu")
    tokens[:, 0] = 1
    return tokens.to(device())


def layer(group: object = None, **options: object) -> MoELayer:
    made = MoELayer(D, FFN, E, K, group=group, seed=0, **options)
    weight = torch.randn(E, D, generator=torch.Generator().manual_seed(0), device="cpu") / D**0.5
    weight[:, 0] = torch.linspace(SKEW, -SKEW, E, device="cpu")
    with torch.no_grad():
        made.router.weight.copy_(weight)
    return made


def step(compute: Callable[[Tensor], tuple[Tensor, Tensor]], module: nn.Module, tokens: Tensor, number: int) -> None:
    """Forward and backward, with the auxiliary loss."""
    module.zero_grad()
    out, auxiliary = compute(tokens)
    (out.square().mean() + 0.01 * auxiliary).backward()


def with_loss(module: MoELayer, tokens: Tensor) -> tuple[Tensor, Tensor]:
    out = module(tokens)
    return out, load_balancing_loss(module.routing.scores, module.routing.experts)


def ours(**options: object) -> Step:
    module = layer(**options)
    return partial(step, partial(with_loss, module), module, tokens_of(dist.get_rank()).requires_grad_())


def one_process() -> Step:
    """All tokens and all experts in one rank."""
    module, tokens = layer(SINGLE), torch.cat([tokens_of(rank) for rank in range(WORLD_SIZE)]).requires_grad_()
    return partial(step, partial(with_loss, module), module, tokens)


def padded(module: MoELayer, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """The same with equal pieces, as GShard has them: as many places for every expert as the busiest one needs."""
    routing, w = module.router(tokens), module.experts
    flat = routing.experts.flatten()
    largest = tokens_per_expert(routing.experts, E).max()
    dist.all_reduce(largest, dist.ReduceOp.MAX)
    C = int(largest)
    order = flat.argsort(stable=True)
    lengths = torch.bincount(flat, minlength=E)
    place = torch.arange(len(flat), device=flat.device) - (lengths.cumsum(0) - lengths)[flat[order]]
    places = flat[order] * C + place
    sent = tokens.new_zeros(E * C, D).index_copy(0, places, tokens.index_select(0, order // K))  # (E C, D)
    came = all_to_all_along(sent.view(E, C, D), 0, 1)  # (E/R, R C, D)
    wide = F.gelu(torch.baddbmm(w.b1.unsqueeze(1), came, w.w1), approximate="tanh")
    back = all_to_all_along(torch.baddbmm(w.b2.unsqueeze(1), wide, w.w2), 1, 0).reshape(E * C, D)
    weighted = back.index_select(0, places) * routing.weights.flatten()[order].unsqueeze(-1)
    out = torch.zeros_like(tokens).index_add(0, order // K, weighted)
    return out, load_balancing_loss(routing.scores, routing.experts)


def padded_step() -> Step:
    module = layer()
    tokens = tokens_of(dist.get_rank()).requires_grad_()
    assert torch.allclose(padded(module, tokens)[0], module(tokens), atol=1e-5), "padding has changed the result"
    return partial(step, partial(padded, module), module, tokens)


def deepspeed_step() -> Step:
    """DeepSpeed's MoE with the same router and sizes, dropless, its experts plain MLPs as ours are."""
    deepspeed = import_quietly()
    comm = importlib.import_module("deepspeed.comm.torch")
    with replace_attribute(comm, "build_shm_op", lambda: None):
        deepspeed.init_distributed(verbose=False)
    moe = importlib.import_module("deepspeed.moe.layer")
    expert = nn.Sequential(nn.Linear(D, FFN), nn.GELU(approximate="tanh"), nn.Linear(FFN, D))
    module = moe.MoE(D, expert, E, ep_size=WORLD_SIZE, k=K, drop_tokens=False, use_rts=False, min_capacity=0,
                     top2_2nd_expert_sampling=False)
    module.set_deepspeed_parallelism()
    with torch.no_grad():
        module.deepspeed_moe.gate.wg.weight.copy_(layer().router.weight)
    return partial(step, lambda tokens: module(tokens)[:2], module, tokens_of(dist.get_rank()).requires_grad_())


def seconds_of(make: Callable[[], Step], world_size: int) -> Seconds:
    """In a launch of its own, whose ranks share all cores."""
    threads = max(1, (os.cpu_count() or 1) // world_size)
    return over_ranks(launch(alternate, ROUNDS, make, world_size=world_size, threads=threads, timeout=300))[0]


@benchmark(runs=3)
def moe_layer_4_ranks_against_one_process() -> tuple[Work, Work]:
    """Experts dealt out over 4 ranks against all of them, and all tokens, in one process that has all cores."""
    return partial(seconds_of, ours, WORLD_SIZE), partial(seconds_of, one_process, 1)


@benchmark(runs=3)
def moe_layer_4_ranks_against_padded() -> Both:
    """Uneven all-to-alls and products against equal ones, padded to the busiest expert."""
    return side_by_side(ours, padded_step, rounds=ROUNDS)


@benchmark(runs=3, goal=Goal(0.6))
def moe_layer_4_ranks_against_deepspeed() -> Both:
    """An MoE layer against DeepSpeed's MoE, dropless."""
    return side_by_side(ours, deepspeed_step, rounds=ROUNDS)


@benchmark(runs=3)
def moe_layer_4_ranks_in_chunks() -> Both:
    """Four chunks, each travelling while experts are busy with another, against one. Experts pause as long as it takes
    to send: ranks that share cores could hide nothing behind products, for sending takes cores, too."""
    return side_by_side(partial(pausing, 4), partial(pausing, 1), rounds=ROUNDS)


class Pause(torch.autograd.Function):
    """What experts on a device of its own are to the host: a while, and twice as long backward."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor) -> Tensor:
        sleep(PAUSE_S * len(rows))
        return rows.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        sleep(2 * PAUSE_S * len(gradient))
        return gradient.clone()


def pausing(num_chunks: int) -> Step:
    module = MoELayer(WIDE, 1, E, K, seed=0, num_chunks=num_chunks).requires_grad_(False)
    module.experts.forward = lambda rows, counts: Pause.apply(rows)
    tokens = torch.randn(N, WIDE, device=device(), requires_grad=True)
    return partial(step, partial(with_loss, module), module, tokens)


def imbalance() -> float:
    """Rows of the busiest expert against the mean."""
    module = layer()
    module(tokens_of(dist.get_rank()))
    counts: Sequence[int] = sum_over_group(module.tokens_per_expert()).tolist()
    return max(counts) * E / sum(counts)


def main() -> None:
    print(f"busiest expert: {launch(imbalance, world_size=WORLD_SIZE)[0]:.2f} times the mean")
    ways = {"ours": ours, "in 2 chunks": partial(ours, num_chunks=2), "in 4 chunks": partial(ours, num_chunks=4),
            "padded": padded_step, "DeepSpeed": deepspeed_step}
    ways |= {f"pausing, in {chunks}": partial(pausing, chunks) for chunks in (1, 2, 4)}
    took = over_ranks(launch(alternate, ROUNDS, *ways.values(), world_size=WORLD_SIZE, timeout=300))
    for name, seconds in zip([*ways, "one process"], [*took, seconds_of(one_process, 1)]):
        print(f"{name:16}{1e3 * seconds.clock:8.1f} ms{1e3 * seconds.cpu:8.1f} ms of CPU")


if __name__ == "__main__":
    main()
