"""Which rank holds which experts, when some are busier than others: busy ones get replicas, which share their tokens.

    E experts     R ranks     S replicas in all, S/R on each rank     c_e replicas of expert e, each with load_e / c_e

The busiest rank decides how long the layer takes, so its load has to be small. First a good placement:

    replicas   one each, and every further one for the expert whose replicas are busiest
    ranks      the busiest replica first, to the rank that has least so far and room left (LPT)
    swaps      of two replicas, one of them on the busiest rank, as long as that helps

Then, where there are few experts, a search through all others with branches cut off that cannot be better. It is exact
unless it ends after STEPS; the first part alone places DeepSeek-V3's 256 experts.
Sources: Graham 1969 (LPT); DeepSeek-AI 2024, "DeepSeek-V3", section 3.4 (redundant experts), and its EPLB.
"""

import math
from collections.abc import Iterator, Sequence

from course_lib.facts.fact import at_least

STEPS = 100_000
Ranks = list[list[int]]


def place_experts(load: Sequence[float], num_ranks: int, num_replicas: int) -> Ranks:
    """For each rank the experts that it holds, so that the busiest rank does least. `load`: tokens of each expert.

    S = num_replicas in all, every expert at least once and equally many on each rank; ValueError where that cannot be.

    >>> load = [9, 1, 1, 1]
    >>> rank_loads(place_experts(load, num_ranks=2, num_replicas=4), load)  # expert 0 on one rank alone
    [10.0, 2.0]
    >>> rank_loads(place_experts(load, num_ranks=2, num_replicas=6), load)  # on both
    [6.0, 6.0]
    """
    load, R, S = [float(tokens) for tokens in load], at_least(num_ranks, 1, "num_ranks"), num_replicas
    if not load or min(load) < 0 or not all(map(math.isfinite, load)):
        raise ValueError(f"load={load}: expected a number of 0 or more for each expert")
    if S < len(load) or S % R:
        raise ValueError(f"num_replicas={S} of {len(load)} experts on {R} ranks: expected a multiple of {R}, and one "
                         "for each expert at least")
    best = swap_replicas(pack_replicas(sort_replicas(load, count_replicas(load, S)), R, S // R))
    if math.comb(S - 1, len(load) - 1) <= STEPS // 10:
        best = search_placements(load, R, S, best)
    return [sorted(expert for _, expert in rank) for rank in best]


def rank_loads(placement: Ranks, load: Sequence[float]) -> list[float]:
    """Tokens of each rank, those of an expert being shared evenly by its replicas.

    >>> rank_loads([[0, 1], [0, 2]], load=[8, 1, 3])  # expert 0 is on both
    [5.0, 7.0]
    """
    held = [expert for rank in placement for expert in rank]
    return [sum(load[expert] / held.count(expert) for expert in rank) for rank in placement]


Replica = tuple[float, int]  # what one replica does, and of which expert it is


def count_replicas(load: Sequence[float], S: int) -> list[int]:
    """How many replicas each expert has, S together: each one more goes to the expert whose replicas are busiest."""
    counts = [1] * len(load)
    for _ in range(S - len(load)):
        busiest = max(range(len(load)), key=lambda expert: load[expert] / counts[expert])
        counts[busiest] += 1
    return counts


def sort_replicas(load: Sequence[float], counts: Sequence[int]) -> list[Replica]:
    """(load, expert) of every replica, the busiest first."""
    return sorted(((load[expert] / count, expert) for expert, count in enumerate(counts) for _ in range(count)),
                  reverse=True)


def total(rank: Sequence[Replica]) -> float:
    """What a rank has to do: tokens of all replicas that lie on it."""
    return sum(work for work, _ in rank)


def pack_replicas(replicas: Sequence[Replica], R: int, per_rank: int) -> list[list[Replica]]:
    """The replicas dealt out to R ranks, `per_rank` each, in their order: each to the rank that has least to do, of
    those with room (LPT).
    """
    ranks: list[list[Replica]] = [[] for _ in range(R)]
    for replica in replicas:
        free = [rank for rank in ranks if len(rank) < per_rank]
        # A second replica of an expert on one rank would help nobody: better somewhere else, where that can be.
        min(free, key=lambda rank: (replica in rank, total(rank))).append(replica)
    return ranks


def swap_replicas(ranks: list[list[Replica]]) -> list[list[Replica]]:
    """Swap two replicas, one of the busiest rank, as long as the busier one of the two ranks then does less."""
    while True:
        busiest = max(ranks, key=total)
        work, best = total(busiest), None
        for other in ranks:
            gap, of_other = work - total(other), total(other)
            for i, mine in enumerate(busiest):
                for j, theirs in enumerate(other):
                    less = mine[0] - theirs[0]
                    if 0 < less < gap and (best is None or max(work - less, of_other + less) < best[0]):
                        best = max(work - less, of_other + less), other, i, j
        # A gain by rounding alone is none: the loop would not end.
        if best is None or best[0] >= work * (1 - 1e-12):
            return ranks
        _, other, i, j = best
        busiest[i], other[j] = other[j], busiest[i]


def search_placements(load: Sequence[float], R: int, S: int, best: list[list[Replica]]) -> list[list[Replica]]:
    """The best placement that a search of STEPS finds, beginning with `best`."""
    least, steps = total(max(best, key=total)), 0
    enough = sum(load) / R * (1 + 1e-12)  # nobody can be better than the mean

    def try_all(left: list[Replica], ranks: list[list[Replica]], works: list[float]) -> None:
        nonlocal best, least, steps
        steps += 1
        if not left:
            best, least = [list(rank) for rank in ranks], max(works)
        tried = set()
        for r in range(R) if left and steps < STEPS and least > enough else ():
            state = works[r], len(ranks[r])
            if state in tried or len(ranks[r]) == S // R or works[r] + left[0][0] >= least * (1 - 1e-12):
                continue  # another rank is just like this one, or it is full, or too busy
            tried.add(state)
            ranks[r].append(left[0])
            works[r] += left[0][0]
            try_all(left[1:], ranks, works)
            works[r] -= ranks[r].pop()[0]

    for counts in all_counts(len(load), S):
        replicas = sort_replicas(load, counts)
        if replicas[0][0] < least:
            try_all(replicas, [[] for _ in range(R)], [0.0] * R)
    return best


def all_counts(E: int, S: int) -> Iterator[tuple[int, ...]]:
    """All ways to have S replicas of E experts, each at least once."""
    if E == 1:
        yield (S,)
        return
    for first in range(1, S - E + 2):
        yield from ((first, *rest) for rest in all_counts(E - 1, S - first))
