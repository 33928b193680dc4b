"""Exercise 3.6: every sample once an epoch, on one rank, in an order that changes."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch

from course_lib.grading.compare import describe, part
from course_lib.grading.exercise import Exercise, Traffic, Trial, ranks_of
from course_lib.grading.spent import Spent, most

EPOCHS = [0, 1, 2]
MANY = 1000  # samples: so many do not fall into the same order, or on the same ranks, by chance
Shards = list[list[int]]  # for each rank


class Shard(Exercise):
    number = "3.6"
    function = "my_shard"
    points = 3
    right = "the indices are right"
    budget = "N samples an epoch for all ranks together, at most ceil(N/n) for one"
    hints = (
        "All ranks have to shuffle in the same way, without asking each other, and in another way in each epoch. What "
        "do they have in common, and what changes?",
        "The epoch is known to all: seed a torch.Generator of your own with it, and shuffle all samples with that. "
        "Then deal: of one order that is the same everywhere, each rank takes its part.",
        "generator = torch.Generator().manual_seed(epoch); order = torch.randperm(num_samples, generator=generator). "
        "What is left is one slice of order.tolist(), with a start and a step.",
    )

    def trials(self, seed: int) -> list[Trial]:
        return [Trial([{"num_samples": N, "world_size": n, "rank": r} for r in range(n)],
                      f"{N:,} samples on {ranks_of(n)}") for N, n in ((11, 3), (8, 4), (2, 3), (2001, 2))]

    @staticmethod
    def run(function: Callable, inputs: dict[str, Any]) -> dict[str, Any]:
        def shard(epoch: int) -> Any:
            return as_indices(function(inputs["num_samples"], epoch, inputs["rank"], inputs["world_size"]))

        before = torch.get_rng_state()
        shards = [shard(epoch) for epoch in EPOCHS]
        moved = not torch.equal(torch.get_rng_state(), before)
        torch.rand(1)  # whatever else happens in a training between two calls
        return {"shards": shards, "again": [shard(epoch) for epoch in EPOCHS], "moved": moved}

    def wrong(self, trial: Trial, answers: list[Any]) -> str | None:
        N = trial.inputs[0]["num_samples"]
        given = [part(answer, "shards") for answer in answers]
        strange = [shards for shards in given if type(shards) is not list or len(shards) != len(EPOCHS)]
        strange += [shard for shards in given if shards not in strange for shard in shards if type(shard) is not list]
        if strange:
            return f"my_shard returned {describe(strange[0])}: expected a list of indices, each an int"
        epochs, again = ([list(shards) for shards in zip(*(answer[name] for answer in answers), strict=True)]
                         for name in ("shards", "again"))
        if epochs != again:
            return ("the same call gives other indices the second time: rank and epoch alone may decide, so seed a "
                    "torch.Generator with the epoch")
        return next((f"epoch {epoch}: {wrong}" for epoch, shards in zip(EPOCHS, epochs, strict=True)
                     if (wrong := not_a_partition(shards, N))), None) or not_shuffled(epochs, N)

    def flaw(self, trial: Trial, answers: list[Any], traffic: Traffic) -> str | None:
        if any(answer["moved"] for answer in answers):
            return ("torch's global generator has moved, and with it everybody's dropout and initial weights: use a "
                    "torch.Generator of your own")
        return None

    def spent(self, trial: Trial, answers: list[Any], traffic: Traffic) -> list[Spent]:
        each = [max(map(len, answer["shards"])) for answer in answers]
        return [Spent("has", max(each), -(-trial.inputs[0]["num_samples"] // trial.world_size), "sample",
                      on=" an epoch", rank=most(each))]


def not_a_partition(shards: Shards, N: int) -> str | None:
    """Why the shards of one epoch are not the N samples, each once; None where they are."""
    n, times = len(shards), Counter(index for shard in shards for index in shard)
    strange = [index for index in times if not 0 <= index < N]
    missing, repeated = N - len(times.keys() & set(range(N))), sum(times.values()) - len(times)
    if strange:
        return f"there is an index {strange[0]}: expected 0 to {N - 1}"
    if n > 1 and all(shard == shards[0] for shard in shards) and N:
        return "all ranks have the same samples: each takes its own part of the order, every n-th from its rank on"
    if missing and repeated:
        return (f"{missing} samples are on no rank and {repeated} on more than one: the ranks divide different orders, "
                "so the seed must not depend on the rank")
    if missing:
        tail = f", the {N % n} beyond {n} equal parts" if missing == N % n else ""
        return f"{missing} samples are on no rank{tail}: some ranks take one more than others"
    if repeated:
        return (f"{repeated} samples are learned twice: the parts are filled up to the same length; let some ranks "
                "have one less")
    if max(map(len, shards)) - min(map(len, shards)) > 1:
        return f"the ranks have {[len(shard) for shard in shards]} samples: they should differ by one at most"
    return None


def not_shuffled(epochs: list[Shards], N: int) -> str | None:
    """Why the orders of several epochs are not as good as random; None where they are, or N is too small to say."""
    if N >= 8 and all(shards == epochs[0] for shards in epochs[1:]):
        straight = all(shard == sorted(shard) for shard in epochs[0])
        return ("nothing is shuffled" if straight else
                "every epoch has the same order: the seed has to change with the epoch, as set_epoch makes it do")
    if N >= MANY and len(epochs[0]) > 1:
        if all(set(shard) == set(first) for shards in epochs[1:] for shard, first in zip(shards, epochs[0])):
            return ("each rank has the same samples in every epoch, only in another order: shuffle all of them first, "
                    "then divide")
        if any(shard == sorted(shard) for shards in epochs for shard in shards):
            return "the samples of a rank are in increasing order: the order has to be shuffled, too"
    return None


def as_indices(returned: Any) -> Any:
    """A list of int, also of a tensor or a range; words for anything else."""
    if isinstance(returned, torch.Tensor) and returned.dim() == 1 and returned.dtype == torch.int64:
        return returned.tolist()
    if isinstance(returned, list | tuple | range) and all(type(index) is int for index in returned):
        return list(returned)
    return "nothing (None)" if returned is None else f"a {type(returned).__name__} that holds something else than int" \
        if isinstance(returned, list | tuple) else f"a {type(returned).__name__}"
