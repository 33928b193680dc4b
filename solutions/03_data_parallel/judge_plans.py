"""Exercises 3.2 and 3.6: which gradients travel together, and who learns from what (of 3.6 many answers are right).

Exercises 3.8 and 3.9: when data parallelism is bound by its wires, as a formula and as a decision.

    N  parameters    n  ranks    F  FLOP/s that a device really gets    b  its tokens a step    g  bytes of a gradient
    backward: 4 N b / F      the all-reduces of B buckets: 2(n-1) alpha B + 2(n-1)/n g N beta

Source: Austin et al. 2025, How to Scale Your Model, chapter Training; Li et al. 2020 for buckets.
"""

import math
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import astuple
from itertools import chain, combinations, pairwise
from typing import Any

import torch

from course_lib.costs.links import hardware_link
from course_lib.costs.network import network_of
from course_lib.costs.overlap import data_parallel_tokens
from course_lib.costs.sharding import cut_buckets
from course_lib.facts import accelerator, interconnect
from course_lib.grading.compare import describe, is_list_of, part
from course_lib.grading.exercise import Exercise, SentBytes, Trial, ranks_of
from course_lib.grading.kinds import NumberExercise
from course_lib.grading.spent import Spent, most

from . import on_rank
from .on_rank import EPOCHS

MANY = 1000  # samples: so many do not fall into the same order, or on the same ranks, by chance
MOVED = ("the indices are right, but the global generator of {} has moved, and with it everybody's dropout and initial "
         "weights: use a torch.Generator of your own")
ALIKE = 0.05  # of the neighbours in a shuffled order, at most: by chance it is well below 1 %
Plan = list[list[int]]
Shards = Sequence[list[int]]  # for each rank


def fill(sizes: Sequence[int], cap: int) -> Plan:
    """Buckets as lists of indices into `sizes`, filled from the last gradient on, of at most `cap` bytes each.

    A gradient that is larger than `cap` has a bucket of its own.
    """
    last = len(sizes) - 1
    return [[last - index for index in bucket] for bucket in cut_buckets(sizes[::-1], cap)]


class Buckets(Exercise):
    number = "3.2"
    budget = "as few buckets as one pass from the last gradient to the first gives, each at most cap_bytes"
    run = staticmethod(on_rank.buckets)

    def trials(self, seed: int) -> list[Trial]:
        generator = torch.Generator().manual_seed(seed)
        # pairs that are a byte too large; exact fits, one larger than the cap in the middle, one at the end, and small
        # ones that would fit further ahead
        fixed = [[70.001, 30, 40, 60.001], [10, 60, 40, 300, 30, 70], [40, 10, 100, 90, 20, 80, 250], [100],
                 [20, 20, 20]]
        drawn = torch.randint(1, 60, (200,), generator=generator)
        drawn[::9] += 70  # some are larger than the cap, some as large
        examples = [Trial([[sizes, 100]], f"example {number}, {len(sizes)} gradients, at most 100 bytes")
                    for number, sizes in enumerate(([10, 60, 40], [20, 300, 70, 50]), 1)]
        return examples + [Trial([[[round(1000 * size) for size in sizes], 100_000]],
                                 f"{len(sizes)} gradient{'s' * (len(sizes) > 1)}, at most 100 kB")
                           for sizes in (*fixed, drawn.tolist())]

    def solve(self, inputs: list[Any]) -> list[Plan]:
        return [fill(*inputs[0])]

    def difference(self, given: list[Any], expected: list[Plan]) -> str:
        return f"it returned {str(given[0])[:150]}: expected {str(expected[0])[:150]}"

    def usage(self, trial: Trial, answers: list[Any], traffic: SentBytes) -> list[Spent]:
        return [Spent("made", len(answers[0]), len(fill(*trial.inputs[0])), "bucket")]


class Shard(Exercise):
    number = "3.6"
    budget = "N samples an epoch for all ranks together, at most ceil(N/n) for one"
    run = staticmethod(on_rank.shard)

    def trials(self, seed: int) -> list[Trial]:
        return [Trial([{"num_samples": N, "world_size": n, "rank": r} for r in range(n)],
                      f"{'the example, ' * (N == 5)}{N:,} samples on {ranks_of(n)}")
                for N, n in ((5, 2), (11, 3), (9, 4), (8, 4), (2, 3), (2001, 2))]

    def wrong(self, trial: Trial, answers: list[Any]) -> str | None:
        both = ([shards_of(part(answer, name)) for answer in answers] for name in ("shards", "again"))
        epochs, again = (list(zip(*ranks)) for ranks in both)
        strange = [shard for shards in epochs + again for shard in shards if type(shard) is str]
        if strange:
            return f"my_shard returned {strange[0]}: expected a list of indices, each an int"
        if epochs != again:
            return ("the same call gives other indices the second time: rank and epoch alone may decide, so seed a "
                    "torch.Generator with the epoch")
        moved = [part(answer, "moved") for answer in answers]
        whose = sorted({str(name) for names in moved for name in (names if type(names) is list else ["some"])})
        return next(faults(epochs, trial.inputs[0]["num_samples"]), None) or (
            MOVED.format(" and ".join(whose)) if whose else None)

    def usage(self, trial: Trial, answers: list[Any], traffic: SentBytes) -> list[Spent]:
        each = [max(map(len, answer["shards"])) for answer in answers]
        return [Spent("has", max(each), -(-trial.inputs[0]["num_samples"] // trial.world_size), "sample",
                      on=" an epoch", rank=most(each))]


def shards_of(answer: Any) -> list[Any]:
    """A rank's indices in each epoch, words for anything else."""
    if type(answer) is not list or len(answer) != len(EPOCHS):
        return [describe(answer)] * len(EPOCHS)
    return [shard if is_list_of(shard, int) else describe(shard) for shard in answer]


def faults(epochs: Sequence[Shards], N: int) -> Iterator[str]:
    """What is wrong with the shards of several epochs. The N samples are shared out, each once, and shuffled."""
    for epoch, shards in zip(EPOCHS, epochs):
        times, lengths = Counter(chain(*shards)), [len(shard) for shard in shards]
        missing, repeated = N - len(times), sum(lengths) - len(times)
        if times and not 0 <= min(times) <= max(times) < N:
            yield f"epoch {epoch}: there are indices from {min(times)} to {max(times)}: expected 0 to {N - 1}"
        if len(shards) > 1 and all(shard == shards[0] for shard in shards):
            yield (f"epoch {epoch}: all ranks have the same samples: each takes its own part of the order, every n-th "
                   "from its rank on")
        if missing or repeated:
            why = ("some ranks take one more than others" if not repeated else "the ranks divide different orders, so "
                   "the seed must not depend on the rank" if missing else "the parts are filled up to the same length; "
                   "let some ranks have one less")
            if missing and repeated:
                why += ", and be the same in every process: Python's hash() of a text is not"
            yield f"epoch {epoch}: {missing} of {N} samples are on no rank, {repeated} come twice: {why}"
        if max(lengths) - min(lengths) > 1:
            yield f"epoch {epoch}: the ranks have {lengths} samples: they should differ by one at most"
    first = epochs[0]
    if N >= 8 and all(shards == first for shards in epochs):
        yield ("nothing is shuffled" if all(shard == sorted(shard) for shard in first) else
               "every epoch has the same order: the seed has to change with the epoch, as set_epoch makes it do")
    if N >= MANY and len(first) > 1 and all(set(a) == set(b) for shards in epochs for a, b in zip(shards, first)):
        yield ("each rank has the same samples in every epoch, only in another order: shuffle all of them first, then "
               "divide")
    if N >= MANY and len(first) > 1 and any(shard == sorted(shard) for shards in epochs for shard in shards):
        yield "the samples of a rank are in increasing order: the order has to be shuffled, too"
    share = max((step_share(shard, N) for shards in epochs for shard in shards), default=0.0)
    if N >= MANY and share > ALIKE:
        yield (f"{100 * share:.0f} % of the neighbours in a hand are equally far apart: the order is counted through "
               "from another place or in steps, and not shuffled")
    for (a, before), (b, after) in combinations(zip(EPOCHS, map(neighbours, epochs)), 2):
        if N >= MANY and len(before & after) > ALIKE * N:
            yield (f"in epoch {b} {100 * len(before & after) / max(1, len(after)):.0f} % of a rank's neighbours are "
                   f"those of epoch {a}: every epoch has an order of its own, whatever rank it is dealt to and "
                   "wherever it begins, so shuffle anew with a seed that no other epoch has")


def neighbours(shards: Shards) -> set[frozenset[int]]:
    """Pairs of samples that follow one another on a rank."""
    return {frozenset(pair) for shard in shards for pair in pairwise(shard)}


def step_share(shard: list[int], N: int) -> float:
    """The share of the neighbours in `shard` that have the commonest distance, around the end of N samples."""
    steps = Counter((b - a) % N for a, b in zip(shard, shard[1:]))
    return max(steps.values()) / len(shard) if len(shard) > 2 else 0.0


GRADIENT_BYTES = 4  # float32
UTILISATION = 0.4  # of the peak
CASES = (  # device, link, N, B, n, tokens of a sequence
    ("V100", "InfiniBand EDR", 3.8e6, 4, 8, 64), ("A100", "InfiniBand HDR", 1.3e9, 50, 64, 2048),
    ("A100", "NVLink 3 (A100)", 124e6, 20, 8, 1024), ("A100", "Ethernet 10G", 124e6, 20, 16, 1024),
    ("A100", "Ethernet 100G", 1.6e9, 240, 32, 1024), ("H100", "InfiniBand NDR", 8.03e9, 200, 256, 8192),
    ("H100", "NVLink 4 (H100)", 350e6, 50, 8, 2048))


def case(device: str, link: str, N: float, B: int, n: int, s: int) -> tuple[str, tuple[Any, ...]]:
    """What is asked about, and my_smallest_batch's arguments. One ring, whose wires are all alike: of one node, or of
    nodes that have one GPU."""
    dtype = "fp16" if device == "V100" else "bf16"
    flops_per_s = UTILISATION * accelerator(device).peak_flops_per_s(dtype)
    size = f"{N / 1e9:.3g}B" if N >= 1e9 else f"{N / 1e6:.3g}M"
    where = "one node" if inside_a_node(link) else "one GPU in a node"
    return (f"{size} in {B} buckets on {n} {device}, {where}, {link}",
            (N, B, n, flops_per_s, *astuple(hardware_link(link)), s))


def inside_a_node(link: str) -> bool:
    return interconnect(link).kind == "inside a node"


class SmallestBatch(NumberExercise):
    number = "3.8"
    unit = "sequence"
    tolerance = (0.0, 0.0)
    budget = "the fewest whole sequences with which backward takes at least as long as all all-reduces together"
    # Powers of two, so that both times are equal in whatever order they are computed.
    cases = (("the example", (1e9, 10, 2, 1e14, 1e-3, 1e-9, 1000)), *(case(*each) for each in CASES),
             ("messages as long as whole sequences", (2.0**30, 4, 2, 2.0**47, 2.0**-3, 2.0**-30, 1024)))

    def solve(self, N: float, B: int, n: int, flops_per_s: float, alpha_s: float, beta: float, s: int) -> int:
        communication_s = B * 2 * (n - 1) * alpha_s + 2 * (n - 1) / n * GRADIENT_BYTES * N * beta
        return max(1, math.ceil(communication_s * flops_per_s / (4 * N) / s))

    def draw(self, source: random.Random) -> tuple[str, tuple[Any, ...]]:
        device, link, *_ = source.choice(CASES)
        most = 8 if inside_a_node(link) else 500
        return case(device, link, source.randint(2, 90) * 1e8, source.randint(10, 400), source.randint(3, most), 1024)


class MostDataParallelDevices(NumberExercise):
    number = "3.9"
    unit = "device"
    tolerance = (0.1, 0.0)  # who takes W as it was measured, and not from data sheets, is within it
    budget = "a number of devices, to 10 %"
    cases = ()  # one question, one answer

    def draw(self, source: random.Random) -> tuple[str, tuple[Any, ...]]:
        return "3.2M tokens a step, nodes of four A100, each with an HDR card", ()

    def solve(self) -> float:
        """Each of n devices has B/n tokens, and needs (n-1)/n of what it would need among very many."""
        flops_per_s = UTILISATION * accelerator("A100").peak_flops_per_s("bf16")
        nodes = network_of("A100", 4).group(64)
        of_many = data_parallel_tokens(nodes, flops_per_s, GRADIENT_BYTES) * nodes.n / (nodes.n - 1)
        return 1 + 3.2e6 / of_many
