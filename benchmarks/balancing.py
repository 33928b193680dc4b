"""Two ways to keep experts busy, on several seeds: how well a GPT learns, and how even its experts are. No times.

    python -m benchmarks.balancing [SEEDS] [STEPS]      12 seeds, 250 steps: some minutes

Everything but the way is the same for equal seeds: weights, experts, batches, a start in which expert 0 is everybody's
favourite, as in chapter 8's notebook. So differences are taken seed by seed, and their standard error is that of a mean
of pairs. Held-out loss is the mean of three evaluations on 32,768 tokens in the last 50 steps.
"""

import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from course_lib.expert_parallel import SINGLE, BiasBalancer, MoEGPT, moe_gpt
from course_lib.reference import GPT, GPTConfig, batches, held_out_rows

CONFIG = GPTConfig(num_layers=2, hidden_size=32, num_heads=4, sequence_length=32)
E, ROWS, HELD_OUT_ROWS = 8, 32, 1024
LATE, WINDOW = 50, 10  # steps that count in the end, and over how many of them a load is added up
WAYS = {"auxiliary loss, softmax": ("softmax", 0.01, 0.0), "auxiliary loss, sigmoid": ("sigmoid", 0.01, 0.0),
        "bias, softmax": ("softmax", 0.0, 0.01), "bias, sigmoid": ("sigmoid", 0.0, 0.01)}  # scores, loss, rate


@dataclass(frozen=True)
class Run:
    """held_out: nats a token. busiest: its tokens over the mean, in WINDOW steps, in the layer where that is worse;
    busiest_once: the same in single steps."""

    held_out: float
    busiest: float
    busiest_once: float


def start(way: str, seed: int) -> MoEGPT:
    """Tokens of every block point to where expert 0's scores are high."""
    scoring, balance, _ = WAYS[way]
    torch.manual_seed(seed)
    model = moe_gpt(GPT(CONFIG), E, k=1, balance=balance, group=SINGLE, tokens_group=SINGLE, scoring=scoring)
    torch.manual_seed(1000 + seed)
    for block in model.blocks:
        liked = F.normalize(torch.randn(CONFIG.hidden_size), dim=0)
        block.mlp_norm.bias.data.copy_(3 * liked)
        block.mlp.router.weight.data[0] += liked
    return model


def run(way: str, seed: int, steps: int) -> Run:
    model, rate, T = start(way, seed), WAYS[way][2], CONFIG.sequence_length
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.95))
    balancer, held_out, loads = BiasBalancer(model, rate, SINGLE), [], []
    for step in range(steps):
        loss = model(*batches(step, batch_size=ROWS, sequence_length=T, seed=seed))[1]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        balancer.step()  # at a rate of 0 it counts, and moves nothing
        loads.append(balancer.tokens_per_expert)
        if steps - step - 1 in (0, 20, 40):
            with torch.no_grad():
                held_out.append(model.eval()(*held_out_rows(HELD_OUT_ROWS, T))[1].item())
            model.train()
    late = torch.stack(loads[-LATE:]).float()  # (LATE, layers, E)
    return Run(statistics.mean(held_out), busiest_over_mean(late, WINDOW), busiest_over_mean(late, 1))


def busiest_over_mean(loads: torch.Tensor, window: int) -> float:
    """loads (steps, layers, E), `window` steps added up at a time; the mean over these, of the worst layer."""
    added = loads.unflatten(0, (-1, window)).sum(1)  # (windows, layers, E)
    return (added.amax(-1) / added.mean(-1)).mean(0).max().item()


def paired(ours: Sequence[float], theirs: Sequence[float]) -> tuple[float, float]:
    """Mean difference of pairs, and its standard error."""
    differences = [a - b for a, b in zip(ours, theirs, strict=True)]
    return statistics.mean(differences), statistics.stdev(differences) / len(differences)**0.5


def main(seeds: int = 12, steps: int = 250) -> None:
    if seeds < 2 or steps < LATE:
        raise ValueError(f"{seeds} seeds, {steps} steps: expected 2 at least, for a standard error, and {LATE}")
    torch.set_num_threads(1)
    runs: dict[str, list[Run]] = {way: [] for way in WAYS}
    for seed in range(seeds):
        for way in WAYS:
            runs[way].append(run(way, seed, steps))
            print(f"seed {seed}, {way}: {runs[way][-1]}", file=sys.stderr, flush=True)
    held_out = {way: [one.held_out for one in of_way] for way, of_way in runs.items()}
    print(f"{seeds} seeds, {steps} steps{'':13}held-out  busiest over the mean: {WINDOW} steps  worst seed  1 step")
    for way, of_way in runs.items():
        busiest = [one.busiest for one in of_way]
        print(f"{way:34}{statistics.mean(held_out[way]):8.4f}{statistics.mean(busiest):33.2f}{max(busiest):12.2f}"
              f"{statistics.mean(one.busiest_once for one in of_way):8.2f}")
    for ours in ("bias, softmax", "bias, sigmoid"):
        for theirs in ("auxiliary loss, softmax", "auxiliary loss, sigmoid"):
            mean, error = paired(held_out[ours], held_out[theirs])
            fewer = sum(a < b for a, b in zip(held_out[ours], held_out[theirs]))
            print(f"{ours} - {theirs}: {mean:+.4f} ± {error:.4f} nats, lower on {fewer} of {seeds} seeds")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
