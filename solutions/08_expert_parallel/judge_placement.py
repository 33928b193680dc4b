"""Exercises 8.6, open-ended, and 8.7: which experts live on which rank, which of them twice, and their gradients.

    E  experts on R ranks of S slots    l (B, E)  rows for each expert in each of B batches    c_e  copies of e
    a rank has sum of l_e / c_e to do in a batch, of the experts it holds; everybody waits for the busiest
    score: mean over the batches of the busiest rank's rows, over the mean rank's; 1 is the least

    rank s has N_s tokens, and L_s is the sum of their losses      what is trained: L = sum L_s / sum N_s
    ep  ranks among which the E experts are dealt; the ranks r, r + ep, r + 2 ep ... hold the same ones: `same`
    backward brings a rank the gradients of all tokens that came to its experts: sum of dL_s/dW over its ep ranks s

Sources: DeepSeek-AI 2024, DeepSeek-V3, section 3.4 (redundant experts); DeepSeek-AI 2025, EPLB, which looks at the sums
over all batches only; Rajbhandari et al. 2022, DeepSpeed-MoE (gradients).
"""

import random
from collections.abc import Sequence
from typing import Any

import torch

from course_lib.expert_parallel.placement import Ranks, rank_loads
from course_lib.grading.compare import describe, is_list_of
from course_lib.grading.exercise import Exercise, SentBytes, Trial, ranks_of
from course_lib.grading.gradients import PartsExercise, doubles, normal
from course_lib.grading.spent import Spent
from course_lib.pictures.units import human_bytes

from . import on_rank

Loads = list[list[float]]  # of each batch, by expert
PAR = 1.15


class PlaceExperts(Exercise):
    number = "8.6"
    right = "every expert has a place"
    budget = "par: over the batches, the busiest rank has on average 1.15 times the rows of the mean rank"
    run = staticmethod(on_rank.placement)

    def trials(self, seed: int) -> list[Trial]:
        source, made = random.Random(seed), []
        for R, S, loads in (
            (2, 2, [[4, 4, 1, 1], [1, 1, 4, 4]]),
            (4, 7, solvable_loads(source, 4, 7, 6, [range(4)], 0.25)),
            (4, 2, lone_expert_loads(source, 4)),
            (5, 7, solvable_loads(source, 5, 7, 4, [(0, 1), (2, 3)], 0.6)),
            (3, 4, crowded_loads(source, 3)),
            (2, 2, tempting_loads(source, 2)),
            # careless swaps put two copies on a rank
            (4, 7, solvable_loads(random.Random(4), 4, 7, 6, [range(4)], 0.25))):
            label = f"{len(loads[0])} experts on {R} ranks of {S} slots, {len(loads)} batches"
            made.append(Trial([{"loads": loads, "slots": [R, S]}], label if made else f"the example, {label}"))
        return made

    def wrong(self, trial: Trial, answers: list[Any]) -> str | None:
        (R, S), E, (given,) = trial.inputs[0]["slots"], len(trial.inputs[0]["loads"][0]), answers
        if not is_list_of(given, list, length=R):
            has = f"{len(given)} parts" if type(given) is list else describe(given)
            return f"it returned {has}: expected for each of the {R} ranks a list of its experts"
        for rank, own in enumerate(given):
            if len(own) > S:
                return f"rank {rank} has {len(own)} experts, and {S} slots"
            stranger = next((e for e in own if type(e) is not int or not 0 <= e < E), None)
            if stranger is not None:
                return f"rank {rank} holds expert {describe(stranger)}: they are called 0 to {E - 1}"
            if len(set(own)) < len(own):
                return f"rank {rank} holds an expert twice: a second copy helps on another rank only"
        homeless = set(range(E)).difference(*map(set, given))
        return f"expert {min(homeless)} is on no rank: each needs a place at least once" if homeless else None

    def usage(self, trial: Trial, answers: list[Any], traffic: SentBytes) -> list[Spent]:
        loads, given = trial.inputs[0]["loads"], answers[0]
        return [Spent("busiest rank has, of the mean rank's rows,", score(loads, given), PAR, "share", who="the",
                      limit="par {}", slack=1e-9, why=reason(loads, given, trial.inputs[0]["slots"]))]


def score(loads: Loads, placement: Ranks) -> float:
    """Mean over the batches of the busiest rank's rows over the mean rank's."""
    return sum(max(rank_loads(placement, load)) * len(placement) / sum(load) for load in loads) / len(loads)


def reason(loads: Loads, placement: Ranks, slots: list[int]) -> str:
    """What probably makes the busiest rank so busy, as a sentence for the reader."""
    (R, S), held = slots, sum(placement, [])
    if R * S > len(loads[0]) == len(held):
        return "a slot is free and the hottest expert has no copy: its rows would be shared out between both"
    together = [sum(each) for each in zip(*loads)]
    if score([together], placement) < PAR - 0.05:
        return ("over all batches together the ranks have equally much, but experts that are hot in the same batch "
                "live on one rank. Everybody waits in every batch, so look at each")
    rows = rank_loads(placement, together)
    rank = rows.index(max(rows))
    hottest = max(placement[rank], key=lambda e: together[e] / held.count(e))
    return (f"over all batches rank {rank} has {rows[rank] * R / sum(rows):.3g} times the mean, most of it for expert "
            f"{hottest}: place those with most rows first, always where least is to do")


def solvable_loads(source: random.Random, R: int, S: int, B: int, hot: Sequence[Sequence[int]], share: float) -> Loads:
    """Loads for which one placement has score 1: each cold expert has its slot, each hot one a slot on all of `hot`.

    hot: of each hot expert, the ranks that it is on; share: about how much of a rank's rows is its.
    """
    batches = []
    for _ in range(B):
        shares = [share * source.uniform(0.9, 1.1) for _ in hot]
        rows = [len(ranks) * own for ranks, own in zip(hot, shares)]
        for r in range(R):
            here = [own for ranks, own in zip(hot, shares) if r in ranks]
            cold = [source.expovariate(1.0) for _ in range(S - len(here))]
            rows += [(1 - sum(here)) * each / sum(cold) for each in cold]
        batches.append(rows)
    return shuffle_experts(source, batches)


def lone_expert_loads(source: random.Random, B: int) -> Loads:
    """Of 7 experts on 4 ranks of 2 slots: whoever forgets the slots, or that copies share the rows, is over par.

    One expert fills a rank, and its neighbour has no rows at all; one is hot and on two ranks, with a cold one on each;
    and two are on the last rank. The score is 1.02 or less in the mean.
    """
    batches = []
    for _ in range(B):
        hot, more, large = source.uniform(0.53, 0.58), source.uniform(-0.03, 0.03), source.uniform(0.8, 0.9)
        batches.append([1.02, 0.0, 2 * hot, 1 - hot + more, 1 - hot - more, large, 1 - large])
    return shuffle_experts(source, batches)


def crowded_loads(source: random.Random, B: int) -> Loads:
    """Of 5 experts on 3 ranks of 4 slots two are on all ranks and three on two each, and the score is 1."""
    batches = []
    for _ in range(B):
        first, second = source.uniform(0.4, 0.46), source.uniform(0.4, 0.46)
        batches.append([3 * first, 3 * second, *[1 - first - second] * 3])
    return shuffle_experts(source, batches)


def tempting_loads(source: random.Random, B: int) -> Loads:
    """Of 3 experts on 2 ranks of 2 slots both copies of the hot one, on one rank, would have the score 1.

    That is not allowed; with one on each rank it is 1.02 or less.
    """
    more = [source.uniform(0.01, 0.02) for _ in range(B)]
    return shuffle_experts(source, [[1.0, 0.5 + each, 0.5 - each] for each in more])


def shuffle_experts(source: random.Random, batches: Loads) -> Loads:
    """The experts in any order, the same in all batches, and rows by the thousand for each rank."""
    order = source.sample(range(len(batches[0])), len(batches[0]))
    return [[1000 * rows[expert] for expert in order] for rows in batches]


class ExpertGradients(PartsExercise):
    number = "8.7"
    parts = {"experts": "the gradients of the experts", "router": "the gradient of the router"}
    words = "holds"
    budget = "(len(same) - 1) times the bytes of its experts' gradients, and R - 1 times the router's and a number"
    run = staticmethod(on_rank.expert_gradients)
    difference = Exercise.difference  # of which expert
    sizes = (6, 2, 2, 2, 2), (4, 4, 1, 2, 3), (2, 1, 3, 2, 3), (1, 1, 2, 2, 3), (4, 2, 2, 64, 16)

    def draw_trial(self, generator: torch.Generator, R: int, ep: int, each: int, D: int, N: int) -> Trial:
        E, ranks = ep * each, []
        for r in range(R):
            # No token comes to the last expert, nor to rank 0's first, but that not in the first two trials, of which
            # this is the larger one: whoever leaves out experts without tokens has an answer there, and hangs later on.
            idle = [E - 1] + [0] * (r == 0 and R < 6)
            own = range(r % ep * each, (r % ep + 1) * each)
            gradients = [normal(generator, D, D) * (e not in idle) for e in own]
            ranks.append({"gradients": gradients, "router": normal(generator, E, D), "num_tokens": N + r,
                          "same": list(range(r % ep, R, ep))})
        return Trial(ranks, f"{ranks_of(R)}, {E} experts over {ep}, {human_bytes(8 * each * D * D)} of their gradients")

    def example_trial(self) -> Trial:
        ranks = [{"gradients": [doubles([[expert]])], "router": doubles(router), "num_tokens": num_tokens, "same": [r]}
                 for r, (expert, router, num_tokens) in enumerate([(8, [[1], [9]], 3), (4, [[3], [11]], 1)])]
        return Trial(ranks, "the example, 2 ranks with an expert each")

    def solve(self, inputs: list[dict[str, Any]]) -> list[dict[str, Any]]:
        num_tokens = sum(rank["num_tokens"] for rank in inputs)
        router = sum(rank["router"] for rank in inputs) / num_tokens
        same = [zip(*(inputs[s]["gradients"] for s in rank["same"])) for rank in inputs]  # each expert's, of its ranks
        return [{"experts": [sum(each) / num_tokens for each in own], "router": router} for own in same]

    def bound(self, trial: Trial) -> int:
        rank, R = trial.inputs[0], trial.world_size
        own = sum(gradient.nbytes for gradient in rank["gradients"])
        return (len(rank["same"]) - 1) * own + (R - 1) * (rank["router"].nbytes + 8)

    def least(self, trial: Trial) -> int:
        """Each sum is made somewhere, of what the others have, and goes from there to all who hold it.

        Of an expert without tokens a rank has nothing to send, and nobody needs a sum of nothing.
        """
        total = 2 * (trial.world_size - 1) * trial.inputs[0]["router"].nbytes
        for same in {tuple(rank["same"]) for rank in trial.inputs}:
            for of_expert in zip(*(trial.inputs[r]["gradients"] for r in same)):
                num_with_tokens = sum(bool(gradient.any()) for gradient in of_expert)
                total += (num_with_tokens - 1 + len(same) - 1) * of_expert[0].nbytes * bool(num_with_tokens)
        return total
