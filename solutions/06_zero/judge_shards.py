"""Exercises 6.1, 6.2, 6.5, 6.6 and 6.8: bytes by stage; AdamW on one's own piece, some of which decays; 16-bit weights
that do not forget small updates, for a piece of 32 bits lies beneath; one norm over all pieces; how far it goes.

    n  ranks or devices, r this one      N  weights, of which rank r steps the r-th N/n      M  bytes of all weights
    6.1  every parameter is cut on its own, N elements into n pieces of ceil(N/n)
    6.5  gradient = weights, that of half the sum of squares; master -= lr gradient; weights = bf16(master)
    6.6  norm = sqrt(sum of all ranks' squares); above max_norm every element is multiplied by max_norm / norm
    6.8  B  tokens of a batch    F  FLOP/s that a device does    G  devices in a node, which all belong to it
         w, g  bytes of a weight and of a gradient while they travel; (n - 1)/n is taken for 1
"""

import random
from math import ceil, floor
from typing import Any

import torch
from torch import Tensor, nn

from course_lib.costs.flops import UTILISATION
from course_lib.facts import accelerator, interconnect
from course_lib.grading.compare import alike, contrast
from course_lib.grading.exercise import SentBytes, Trial, ranks_of
from course_lib.grading.gradients import ROUNDING, Inputs, doubles, normal
from course_lib.grading.kinds import CollectiveExercise, NumberExercise, network_of_rates, num_calls
from course_lib.grading.spent import Spent, highest
from course_lib.pictures.units import human_bytes

from . import on_rank
from .on_rank import LR, SETTINGS

SCALARS = 64  # bytes: AdamW's count of steps
ADAMW_STEPS, MASTER_STEPS = 3, 60
MASTER_NEAR = (2e-4, 0.0)  # a gradient may be rounded the other way; one at weights of another step is 25 times as far
TINY = ([1000, 9, 7, 5], 4)  # elements of each parameter, ranks: none of them a multiple
GPT2_BLOCK = [768 * 2304, 2304, 768 * 768, 768, 768 * 3072, 3072, 3072 * 768, 768, 768, 768, 768, 768]
H100 = UTILISATION * accelerator("H100").peaks["bf16"].value * 1e12
NDR, NVLINK, PCIE = (1e9 * interconnect(name).one_way.value
                     for name in ("InfiniBand NDR", "NVLink 4 (H100)", "PCIe 4.0 x16"))


class ShardExercise(CollectiveExercise):
    """Each rank holds its pieces of the weights, M/n bytes, and sends them, or gradients, to each other rank."""

    tolerance = ROUNDING
    gloo_over_ring = 2.5  # its reduce-scatter is an all-reduce, with headers above that
    times = 1  # that a rank sends its pieces, or as much of gradients, to each other rank

    def bound(self, trial: Trial) -> int:
        return self.times * (trial.world_size - 1) * pieces_bytes(trial)


def pieces_bytes(trial: Trial) -> int:
    """M/n: bytes of one rank's pieces of all weights that learn, each ceil(N/n) numbers."""
    inputs, n = trial.inputs[0], trial.world_size
    weights = inputs["weights"] if isinstance(inputs["weights"], dict) else {"all": inputs["weights"]}
    return sum(weight.itemsize * ceil(weight.numel() / n) for name, weight in weights.items()
               if name not in inputs.get("frozen", ()))


class BytesPerRank(NumberExercise):
    number = "6.1"
    budget = "to the byte, the zeros that fill up the last piece included"
    unit = "exact bytes"
    cases = (("the example, [10, 3] elements in bf16 with AdamW, stage 1 on 4 ranks", ([10, 3], 4, 1, 2, 2, 12)),
             ("[1000, 9, 7, 5] elements in bf16 with gradients in fp32, stage 2 on 4 ranks", (*TINY, 2, 2, 4, 12)),
             ("the same at stage 1", (*TINY, 1, 2, 4, 12)), ("the same at stage 3", (*TINY, 3, 2, 4, 12)),
             ("the same at stage 0", (*TINY, 0, 2, 4, 12)),
             ("[1000, 9, 7, 5] in fp32 with SGD and momentum, stage 1 on 4 ranks", (*TINY, 1, 4, 4, 4)),
             ("a block of GPT-2 in fp32 with AdamW, stage 3 on 64 ranks", (GPT2_BLOCK, 64, 3, 4, 4, 8)))

    def solve(self, sizes: list[int], n: int, stage: int, weight: int, gradient: int, optimizer: int) -> int:
        whole, piece = sum(sizes), sum(ceil(size / n) for size in sizes)
        first_cut_at = ((weight, 3), (gradient, 2), (optimizer, 1))
        return sum(size * (piece if stage >= first else whole) for size, first in first_cut_at)

    def draw(self, source: random.Random) -> tuple[str, tuple[Any, ...]]:
        sizes, n = [source.randint(1, 999) for _ in range(5)], source.randint(3, 40)
        return f"{sizes} elements in bf16 with gradients in fp32, stage 2 on {n} ranks", (sizes, n, 2, 2, 4, 12)


def memory_usage(answers: list[Any], allowed: int, what: str, slack: int = 0, name: str = "held",
                 usual: str = "while a gradient is computed") -> Spent:
    """The bytes at the first point where more than `allowed` is held beside activations, else where most is."""
    looks = [(held, rank, point) for rank, answer in enumerate(answers) for point, held in answer[name]]
    held, rank, point = next((look for look in looks if look[0] > allowed + slack), max(looks, default=(0, 0, "")))
    where = point if held > allowed + slack else usual
    return Spent("holds", held, allowed, on=f" of {what} {where}", rank=rank, slack=slack, claimed=True)


class ShardedAdamW(ShardExercise):
    number = "6.2"
    compared = "weights"
    words = "has the weights"
    budget = "state for N/n weights on each rank; (n-1)/n M bytes sent by each rank a step, M being all weights"
    imports = ("torch._dynamo",)  # an optimiser's constructor does
    run = staticmethod(on_rank.sharded_adamw)

    def trials(self, seed: int) -> list[Trial]:
        generator = torch.Generator().manual_seed(seed)
        example = {"weights": doubles([1, 1, 1, 1]), "gradient": 0.9, "num_steps": 1, "num_decayed": 3}
        made = [(2, "the example, ", example)]
        for n, N, cut in ((3, 24, 5), (1, 4, 3), (4, 16_384, 10_000)):
            weights, target, curvature = torch.randn(3, N, generator=generator, dtype=torch.float64)
            made.append((n, "", {"weights": weights, "target": target, "curvature": curvature.abs() + 0.5,
                                 "num_steps": ADAMW_STEPS, "num_decayed": cut}))
        # While a gradient is computed, the one before may still be there, and all weights, as a list of what was
        # gathered and as one tensor; then the piece, its gradient, and two moments of it.
        return [Trial([{**inputs, "awaited": inputs["weights"].nbytes * (3 * n + 4) // n + SCALARS}] * n,
                      f"{which}{ranks_of(n)}, {len(inputs['weights']):,} weights of which {inputs['num_decayed']:,} "
                      f"decay, {inputs['num_steps']} step{'s' * (inputs['num_steps'] > 1)}")
                for n, which, inputs in made]

    def bound(self, trial: Trial) -> int:
        return trial.inputs[0]["num_steps"] * super().bound(trial)

    def solve(self, inputs: Inputs) -> list[Tensor]:
        """Of torch's AdamW on all weights, in two groups."""
        weights, cut = inputs[0]["weights"].clone(), inputs[0]["num_decayed"]
        decayed, others = nn.Parameter(weights[:cut]), nn.Parameter(weights[cut:])  # on the memory of `weights`
        optimizer = torch.optim.AdamW([{"params": [decayed]}, {"params": [others], "weight_decay": 0.0}], **SETTINGS)
        for _ in range(inputs[0]["num_steps"]):
            gradient = on_rank.coupled_gradient(inputs[0], weights)
            decayed.grad, others.grad = gradient[:cut], gradient[cut:]
            optimizer.step()
        return [weights] * len(inputs)

    def flaw(self, trial: Trial, answers: list[Any], traffic: SentBytes) -> str | None:
        if too_little := super().flaw(trial, answers, traffic):
            return too_little
        least, needed = min(answers, key=lambda answer: answer["state"]), 2 * pieces_bytes(trial)
        return None if least["state"] >= needed else (
            f"it returned a {least['kind']} that holds {human_bytes(least['state'])} of state, where two moments "
            f"of a piece are {human_bytes(needed)}: return the optimiser that took the steps")

    def local_usage(self, trial: Trial, answers: list[Any]) -> list[Spent]:
        allowed = 2 * pieces_bytes(trial)
        return [highest("holds", [answer["of_all"] for answer in answers], allowed, on=" of state", slack=SCALARS,
                        limit=f"{{}} allowed, {human_bytes(trial.world_size * allowed)} without sharding",
                        claimed=True),
                memory_usage(answers, trial.inputs[0]["awaited"], "gradients, state and weights beside `weights`")]


class MasterSteps(ShardExercise):
    number = "6.5"
    parts = ("weights", "master")  # the master weights tell why the others are where they were
    words = "has the weights"
    tolerance = MASTER_NEAR
    budget = "4 N/n bytes of master weights on each rank; (n-1)/n 2N bytes sent by each rank a step: two for a weight"
    run = staticmethod(on_rank.master_steps)
    sizes = (3, 12), (2, 8), (1, 4), (4, 16_384)

    def example_trial(self) -> Trial:
        inputs = {"weights": torch.tensor([1.5], dtype=torch.bfloat16), "gradient": 1.0, "num_steps": 10, "awaited": 70}
        return Trial([inputs], "the example, 1 rank, 10 steps")

    def draw_trial(self, generator: torch.Generator, n: int, N: int) -> Trial:
        inputs = {"weights": (1 + torch.rand(N, generator=generator)).bfloat16(), "num_steps": MASTER_STEPS,
                  # before the first step: the piece in fp32 and in bf16, and room for all that will be gathered
                  "awaited": 6 * N // n + 2 * N + SCALARS}
        return Trial([inputs] * n, f"{ranks_of(n)}, {N:,} weights in bf16, {MASTER_STEPS} steps")

    def bound(self, trial: Trial) -> int:
        return trial.inputs[0]["num_steps"] * super().bound(trial)

    def solve(self, inputs: Inputs) -> list[Tensor]:
        """The master weights of each rank, (N/n,) fp32."""
        master = inputs[0]["weights"].float()
        for _ in range(inputs[0]["num_steps"]):
            master -= LR * on_rank.far_gradient(inputs[0], master.bfloat16()).float()
        return list(master.chunk(len(inputs)))

    def wrong(self, trial: Trial, answers: list[Any]) -> str | None:
        """The masters are near the right ones, and the weights are the rounding of the masters that were returned."""
        given, expected = self.select_parts(answers), self.solve(trial.inputs)
        every = torch.cat(expected)
        for rank, (own, right) in enumerate(zip(given, expected)):
            if not any(alike(own["master"], fine, self.tolerance) for fine in (right, every)):
                return f"rank {rank}'s master weights are {contrast(own['master'], right, self.tolerance)}"
        whole = given[0]["master"].shape == every.shape
        rounded = (given[0]["master"] if whole else torch.cat([own["master"] for own in given])).bfloat16()
        for rank, own in enumerate(given):
            if not alike(own["weights"], rounded):
                return (
                    f"rank {rank} has the weights {contrast(own['weights'], rounded)}, what the master weights of all "
                    "ranks are when they are rounded")
        return None

    def local_usage(self, trial: Trial, answers: list[Any]) -> list[Spent]:
        held = [getattr(answer["master"], "nbytes", 0) for answer in answers]
        return [highest("returned", held, 2 * pieces_bytes(trial), on=" of master weights"),
                memory_usage(answers, 2 * pieces_bytes(trial), "master weights",
                             trial.inputs[0]["awaited"] - 2 * pieces_bytes(trial))]


class ClipOverShards(ShardExercise):
    number = "6.6"
    parts = ("norm", "pieces")
    words = "is"
    tolerance = (1e-5, 0.0)  # torch adds 1e-6 to the norm before it divides: either is right
    budget = "one all-reduce of one number"
    errors = (("ZeroDivisionError", "A norm of 0 is not above max_norm: divide only where it is, and all else stays as "
               "it is."),)
    run = staticmethod(on_rank.clip_over_shards)

    sizes = ((3, 1.0, "larger than 1"), (2, 100.0, "smaller than 100"), (1, 1.0, "larger than 1"),
             (4, 2.0, "larger than 2"), (2, 0.0, "of 0, which is not above 0"))

    def example_trial(self) -> Trial:
        return Trial([{"pieces": [doubles([part])], "max_norm": 1.0} for part in (3.0, 4.0)],
                     "the example, 2 ranks, a norm of 5")

    def draw_trial(self, generator: torch.Generator, n: int, max_norm: float, norm: str) -> Trial:
        ranks = [{"pieces": [normal(generator, size) * (r + 1) * (max_norm > 0) for size in (5, 2, 7)],
                  "max_norm": max_norm} for r in range(n)]
        return Trial(ranks, f"{ranks_of(n)}, a norm {norm}")

    def solve(self, inputs: Inputs) -> list[dict[str, Any]]:
        """The norm that each rank returns, and its pieces afterwards."""
        norm = sum(piece.square().sum().item() for rank in inputs for piece in rank["pieces"]) ** 0.5
        limit = inputs[0]["max_norm"]
        factor = limit / norm if norm > limit else 1.0
        return [{"norm": norm, "pieces": [piece * factor for piece in rank["pieces"]]} for rank in inputs]

    def local_usage(self, trial: Trial, answers: list[Any]) -> list[Spent]:
        return [num_calls(answers, 1)]

    def bound(self, trial: Trial) -> int:
        return 16

    def least(self, trial: Trial) -> int:
        """A number of four bytes from each rank to one that adds up, and the sum back."""
        return 2 * 4 * (trial.world_size - 1)


class MostShardingDevices(NumberExercise):
    number = "6.8"
    unit = "device"
    budget = "the number itself, as it comes or rounded down"
    cases = (("the example, 1,000 tokens, 2 devices in a node", (1000, 6, 2, 9, 2, 1, 4)),
             ("3 million tokens, nodes of 8 H100, bf16 weights, fp32 gradients", (3e6, H100, 8, NVLINK, NDR, 2, 4)),
             ("the same with fp32 weights and bf16 gradients", (3e6, H100, 8, NVLINK, NDR, 4, 2)),
             ("the same with both in bf16", (3e6, H100, 8, NVLINK, NDR, 2, 2)),
             ("16 million tokens, nodes of 4 with PCIe 4.0 inside, bf16", (16e6, H100, 4, PCIE, NDR, 2, 2)))

    def solve(self, B: float, F: float, G: int, nvlink: float, card: float, w: int, g: int) -> float:
        ring = network_of_rates(G, nvlink, card).group(2 * G).ring_s_per_byte
        tokens = max(F * w * ring / 2, F * (w + g) * ring / 4)  # of a device, forward and backward
        return B / tokens

    def wrong(self, trial: Trial, answers: list[Any]) -> str | None:
        """Rounded down is right as well: so many devices there are."""
        whole = floor(self.solve(*self.arguments(trial)))
        return None if alike(self.select_parts(answers), whole) else super().wrong(trial, answers)

    def draw(self, source: random.Random) -> tuple[str, tuple[Any, ...]]:
        B, F, G, inside, card, w, g = (source.randint(*bounds) for bounds in (
            (5, 40), (100, 900), (2, 8), (200, 900), (10, 90), (1, 4), (1, 4)))
        return (f"{B} million tokens, {F} TFLOP/s, {G} devices in a node, {inside} GB/s inside, {card} GB/s a card, "
                f"{w} bytes a weight, {g} a gradient", (B * 1e6, F * 1e12, G, inside * 1e9, card * 1e9, w, g))
