"""What more devices give, and why it is less: Amdahl and Gustafson, the bubble of a pipeline, one slow rank.

    n  devices     P  the share of the work that can be done in parallel     S  speed-up     T1  time on one device
    p  ranks of a pipeline    m  micro-batches    v  chunks a rank     F, I, W  time of a rank's layers for one
                                               micro-batch: forward, backward for the input, backward for the weights

A bubble has two conventions. Of the total: idle over all time of all ranks, which is what you pay for and get nothing.
Of the ideal: idle over computing time, which is how much longer the step takes than it had to.

A slow rank is simulated among n that train together. There are three ways of staying together, each with its `slack`:
how many steps a rank may be ahead of the slowest.

    synchronous    all ranks average after each step: no slack
    local          slack + 1 steps alone, then all average their weights (local SGD with H = slack + 1)
    asynchronous   each rank hands in its gradient and fetches new weights when it likes, but does not begin a step
                   while it is more than `slack` steps ahead of the slowest (None: no bound)

    times in ordinary steps: a rank that is not slow computes for 1, a slow one for `slowdown`
    sync_s   what averaging, or handing in and fetching, takes

Sources: Amdahl 1967; Gustafson 1988; Hockney 1994 (alpha + beta M); Stich 2019 (local SGD); Ho et al. 2013 (bounded
staleness).
"""

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from course_lib.costs.links import Link, dot
from course_lib.costs.network import Network, all_reduce_s
from course_lib.facts.fact import above_zero, at_least, fraction

SCHEMES = ("synchronous", "local", "asynchronous")
WHO = ("always rank 1", "a random rank each step")
SLOW_RANK = 1
COMPUTES, SLOWLY, COMMUNICATES, WAITS = "computes", "computes slowly", "communicates", "waits"
Span = tuple[str, float, float]  # what a rank does, from when, until when


def amdahl(parallel_share: float, num_devices: int) -> float:
    """S = 1 / ((1 - P) + P/n): the work is fixed. However large n, it stays below 1 / (1 - P).

    >>> [round(amdahl(0.95, n), 1) for n in (8, 64, 10**9)]
    [5.9, 15.4, 20.0]
    """
    P, n = fraction(parallel_share, "parallel_share"), at_least(num_devices, 1, "num_devices")
    return 1 / ((1 - P) + P / n)


def gustafson(parallel_share: float, num_devices: int) -> float:
    """S = (1 - P) + P n: the time is fixed, and more devices do more work. P is measured on the parallel run."""
    P, n = fraction(parallel_share, "parallel_share"), at_least(num_devices, 1, "num_devices")
    return (1 - P) + P * n


def fit_amdahl(num_devices: Sequence[int], speed_ups: Sequence[float]) -> float:
    """The P that comes closest, by least squares of 1/S = 1 - P (1 - 1/n), kept within 0 and 1.

    ValueError for lists of unequal length, or without a run on two devices or more.
    """
    n, S = [*map(float, num_devices)], [*map(float, speed_ups)]
    if len(n) != len(S):
        raise ValueError(f"{len(n)} device counts and {len(S)} speed-ups: expected two lists of the same length")
    if min(n, default=0) < 1 or max(n) <= 1 or not all(math.isfinite(each) and each > 0 for each in S):
        raise ValueError(f"num_devices={n}, speed_ups={S}: expected devices from 1, one count above 1, and speed-ups "
                         "above 0")
    gained, missing = [1 - 1 / each for each in n], [1 - 1 / each for each in S]
    return min(max(dot(gained, missing) / dot(gained, gained), 0.0), 1.0)


def data_parallel_step(single_s: float, num_devices: int, gradient_bytes: float, wires: Link | Network) -> float:
    """Seconds of a step with what it really sends: T1/n and an all-reduce of the gradients, not overlapped.

    wires: one link between any two devices, all alike, around a ring; or those of a cluster.
    """
    n = at_least(num_devices, 1, "num_devices")
    return above_zero(single_s, "single_s") / n + all_reduce_s(wires, gradient_bytes, n)


def strong_efficiency(single_s: float, parallel_s: float, num_devices: int) -> float:
    """T1 / (n Tn): the same work on n devices.

    >>> strong_efficiency(single_s=8.0, parallel_s=1.25, num_devices=8)
    0.8
    """
    return above_zero(single_s, "single_s") / (at_least(num_devices, 1, "num_devices") * above_zero(parallel_s,
                                                                                                    "parallel_s"))


def weak_efficiency(single_s: float, parallel_s: float) -> float:
    """T1 / Tn: n times the work on n devices."""
    return above_zero(single_s, "single_s") / above_zero(parallel_s, "parallel_s")


def bubble_of_total(p: int, m: int, v: int = 1) -> float:
    """GPipe, 1F1B (v = 1) and interleaved 1F1B, m a multiple of p there. Narayanan et al. 2021, section 2.2.

    >>> [f"{bubble_of_total(p=4, m=m):.0%}" for m in (1, 4, 8, 32)]
    ['75%', '43%', '27%', '9%']
    >>> f"{bubble_of_total(p=4, m=8, v=2):.0%}"
    '16%'
    """
    return (p - 1) / (v * m + p - 1)


def bubble_of_ideal(p: int, m: int, v: int = 1) -> float:
    """The same bubble, over the ideal time; this is the (p - 1)/m of the papers.

    >>> bubble_of_ideal(p=4, m=8)  # 27% of the total: the other convention
    0.375
    """
    return (p - 1) / (v * m)


def naive_bubble(p: int) -> float:
    """The bubble, of the total, where one rank works and the others wait: (p - 1)/p."""
    return (p - 1) / p


def zb_h1_bubble(p: int, m: int, F: float = 1, I: float = 1, W: float = 1) -> float:  # noqa: E741
    """The bubble of ZB-H1, of the total; m >= p and W <= F, I. Qi et al. 2023, table 1: idle are (p - 1)(F + I - W)."""
    idle = (p - 1) * (F + I - W)
    return float(idle / (m * (F + I + W) + idle))


def peak_gpipe(p: int, m: int, r: int) -> int:
    """Micro-batches in flight on rank r of GPipe: all m."""
    return m


def peak_1f1b(p: int, m: int, r: int) -> int:
    """Micro-batches in flight on rank r of 1F1B: as many as there are ranks from r to the end, however large m is."""
    return min(p - r, m)


def peak_interleaved(p: int, m: int, v: int, r: int) -> int:
    """Chunks in flight on rank r of interleaved 1F1B, each 1/v of a rank's layers: on rank 0 p v + p - 1 of them, 1 +
    (p - 1)/(p v) times as much as in 1F1B.

    Korthikanti et al. 2022, section 4.2.3.
    """
    return min(2 * (p - 1 - r) + (v - 1) * p + 1, v * m)


def balanced_layers(num_layers: int, p: int, head_in_layers: float) -> tuple[float, float]:
    """Layers on each ordinary stage, and on the last one, which has the read-out too, when all take equally long.

    Not rounded: who trains takes a layer off the ends where the read-out is heavy (Llama 3: 126 layers on 16 stages of
    8, "one off each end"; zero bubble: 22 for 24). Where the read-out is more than a stage, it alone is the last one.
    """
    if p == 1:
        return float(num_layers), float(num_layers)
    even = (num_layers + head_in_layers) / p
    if head_in_layers > even:
        return num_layers / (p - 1), 0.0
    return even, even - head_in_layers


def first_past_the_share(num_layers: int, p: int, head_in_layers: float) -> tuple[int, int]:
    """(layers on the first stage, on the last), as nanotron deals them out: a stage takes layers until it and those
    before it have more than their share of the work, so the first one, which goes furthest past it, is the largest.

    nanotron@e24d2483, src/nanotron/models/base.py, build_model.
    """
    share = (num_layers + head_in_layers) / p
    ends = [min(num_layers, int(share * stage) + 1) for stage in range(1, p)]  # the layer that passes the share
    return (ends[0], num_layers - ends[-1]) if p > 1 else (num_layers, num_layers)


# A slow rank

@dataclass(frozen=True)
class StragglerRun:
    """`spans[r]`: all that rank r did, without gaps. `steps[r]`: (end, staleness) of each of its steps."""

    spans: tuple[tuple[Span, ...], ...]
    steps: tuple[tuple[tuple[float, int], ...], ...]

    def end(self) -> float:
        """When the slowest rank has made its last step."""
        return max(done[-1][0] for done in self.steps)

    def throughput(self) -> float:
        """Steps of all ranks together in one unit of time, counted over the second half, when the start is forgotten.

        Every rank of a synchronous run counts: 4 ranks that make a step a second are 4 steps a second.
        """
        end = self.end()
        rounding = 1e-9 * end
        counted = [sum(end / 2 < at - rounding <= end for at, _ in done) for done in self.steps]
        return sum(counted) / (end / 2)

    def waiting(self, rank: int) -> float:
        """The share of its time that `rank` waits."""
        until = self.end()
        waits = sum(min(end, until) - start for what, start, end in self.spans[rank] if what == WAITS and start < until)
        return waits / until

    def staleness(self) -> tuple[float, int]:
        """(mean, maximum) staleness over all steps of all ranks."""
        all_steps = [stale for done in self.steps for _, stale in done]
        return sum(all_steps) / len(all_steps), max(all_steps)


def slowness(who: str, num_ranks: int, slowdown: float, seed: int = 0) -> Callable[[int, int], float]:
    """duration(rank, step): `slowdown` for the slow rank, 1 for the others. The same for every scheme."""
    if who == WHO[0]:
        return lambda rank, step: slowdown if rank == SLOW_RANK else 1.0
    # Drawn before and not on the way, so that every scheme meets the same slow ranks in the same steps.
    draw = random.Random(seed)
    slow = [draw.randrange(num_ranks) for _ in range(10_000)]
    return lambda rank, step: slowdown if slow[step % len(slow)] == rank else 1.0


@lru_cache(maxsize=32)
def simulate_stragglers(scheme: str, slack: int | None, slowdown: float, who: str = WHO[0], num_ranks: int = 4,
             sync_s: float = 0.25, num_steps: int = 400, seed: int = 0) -> StragglerRun:
    """The first `num_steps` steps of the rank that makes fewest. ValueError for an unknown scheme, or numbers that
    count nothing.
    """
    if scheme not in SCHEMES:
        raise ValueError(f"scheme={scheme!r}: expected one of {', '.join(SCHEMES)}")
    if who not in WHO:
        raise ValueError(f"who={who!r}: expected one of {', '.join(WHO)}")
    if slack is None and scheme == "local":
        raise ValueError("local SGD without a bound never averages: expected a slack of 0 or more")
    if slack is not None and slack < 0:
        raise ValueError(f"slack={slack}: expected 0 or more, or None")
    if slowdown < 1 or sync_s < 0 or num_ranks < 2 or num_steps < 1:
        raise ValueError(f"slowdown={slowdown}, sync_s={sync_s}, num_ranks={num_ranks}, num_steps={num_steps}: "
                         "expected at least 1, 0, 2 and 1")
    duration = slowness(who, num_ranks, slowdown, seed)
    if scheme == "asynchronous":
        return simulate_asynchronous(slack, duration, num_ranks, sync_s, num_steps)
    return simulate_rounds(slack + 1 if scheme == "local" else 1, duration, num_ranks, sync_s, num_steps)


def simulate_rounds(per_round: int, duration: Callable[[int, int], float], num_ranks: int, sync_s: float,
             num_steps: int) -> StragglerRun:
    """Rounds of `per_round` steps, after each of which all ranks meet. A gradient misses the round's earlier steps."""
    spans: list[list[Span]] = [[] for _ in range(num_ranks)]
    steps: list[list[tuple[float, int]]] = [[] for _ in range(num_ranks)]
    begin, step, rounds = 0.0, 0, 0
    while step < num_steps or rounds % 2:  # an even number, so that the second half is whole rounds
        arrivals = []
        for rank in range(num_ranks):
            now = begin
            for alone in range(per_round):
                takes = duration(rank, step + alone)
                spans[rank].append((COMPUTES if takes == 1 else SLOWLY, now, now + takes))
                now += takes
                steps[rank].append((now, alone))
            arrivals.append(now)
        meet = max(arrivals)
        for rank, arrival in enumerate(arrivals):
            if arrival < meet:
                spans[rank].append((WAITS, arrival, meet))
            if sync_s:
                spans[rank].append((COMMUNICATES, meet, meet + sync_s))
            steps[rank][-1] = (meet + sync_s, per_round - 1)  # the round's last step counts when all have it
        begin, step, rounds = meet + sync_s, step + per_round, rounds + 1
    return StragglerRun(tuple(map(tuple, spans)), tuple(map(tuple, steps)))


def simulate_asynchronous(slack: int | None, duration: Callable[[int, int], float], num_ranks: int, sync_s: float,
                 num_steps: int) -> StragglerRun:
    """Event by event: the rank that is next to finish a step finishes it, and those that waited for it go on.

    The staleness of a gradient: by how many steps the furthest rank is ahead of it when it is handed in.
    """
    spans: list[list[Span]] = [[] for _ in range(num_ranks)]
    steps: list[list[tuple[float, int]]] = [[] for _ in range(num_ranks)]
    done = [0] * num_ranks
    idle_since: dict[int, float] = dict.fromkeys(range(num_ranks), 0.0)
    finishes: dict[int, float] = {}
    now = 0.0
    while min(done) < num_steps:
        for rank, since in list(idle_since.items()):
            if slack is None or done[rank] - min(done) <= slack:
                if since < now:
                    spans[rank].append((WAITS, since, now))
                takes = duration(rank, done[rank])
                spans[rank].append((COMPUTES if takes == 1 else SLOWLY, now, now + takes))
                if sync_s:
                    spans[rank].append((COMMUNICATES, now + takes, now + takes + sync_s))
                finishes[rank] = now + takes + sync_s
                del idle_since[rank]
        now = min(finishes.values())
        together_now = [rank for rank, at in finishes.items() if at <= now + 1e-9]
        for rank in together_now:
            done[rank] += 1
            del finishes[rank]
            idle_since[rank] = now
        for rank in together_now:
            steps[rank].append((now, max(done) - done[rank]))
    return StragglerRun(tuple(map(tuple, spans)), tuple(map(tuple, steps)))
