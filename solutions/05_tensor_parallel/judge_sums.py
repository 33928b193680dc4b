"""Exercises 5.5 and 5.6: the loss of logits that nobody has whole, and a norm in which copies count once.

    t  ranks, r this one    B T  tokens    V  vocabulary    z  logits of one token, V/t on each rank    y  its target
    5.5, cross-entropy with z-loss: mean over the tokens of  log Z - z_y + c (log Z)^2,  Z = sum_v exp(z_v);
         gradient of z: ((1 + 2 c log Z) softmax(z) - 1_y) / (B T)
    5.6, of gradients: `sliced`, of what each rank has a slice; `whole`, the same on all ranks; `partial`, of what all
         ranks have, but each has seen its own tokens only: the gradient is the sum of these

Sources: Shoeybi et al. 2019, section 3; Chowdhery et al. 2022, PaLM, section 5 (c = 1e-4).

Exercise 5.8: how wide a model has to be so that a cut over t devices pays.

    t  devices, G in a node    h  hidden size    B T  tokens    F  FLOP/s that a device does    W  bytes/s it sends, on
    the wires of its group (costs.network)    w  bytes of a number on its way
    computing of a layer  6 * 12 h^2 B T / (t F)      sending  4 * 2 (t-1)/t w B T h / W

Sources: Shoeybi et al. 2019; Austin et al. 2025, How to Scale Your Model, chapters Training and GPUs.
"""

import math
import random
from typing import Any

import torch

from course_lib.grading.exercise import Exercise, Trial, ranks_of
from course_lib.grading.gradients import Inputs, PartsExercise, all_reduce_bytes, doubles, least_for_a_sum, normal
from course_lib.grading.kinds import NumberExercise, network_of_rates, num_calls
from course_lib.grading.spent import Spent
from course_lib.pictures.units import human_bytes

from . import on_rank

TOO_LARGE = ("the answer is not a number: exp of a large logit overflows, and the sum of small ones is 0, which has no "
             "logarithm. Subtract the maximum over all ranks before exp, and add it to the logarithm again")


class VocabLoss(PartsExercise):
    number = "5.5"
    parts = {"loss": "the loss", "gradient": "the gradient"}
    budget = "three numbers a token: at most 3 calls, and 3 * 2(t-1)/t * 8 B T bytes sent by each rank"
    run = staticmethod(on_rank.vocab_loss)
    sizes = (3, 2, 3, 4, 0.05), (1, 1, 3, 5, 0.01), (4, 4, 256, 96, 0.0001), ()  # the last one: extreme logits

    def example_trial(self) -> Trial:
        inputs = {"logits": doubles([[[0, 0]]]), "targets": torch.tensor([[2]]), "c": 0.0}
        return Trial([inputs] * 2, "the example, 2 ranks, one token")

    def draw_trial(self, generator: torch.Generator, *size: Any) -> Trial:
        if not size:
            return self.extreme_trial(generator)
        t, B, T, own, c = size
        targets = torch.randint(t * own, (B, T), generator=generator)
        parts = [normal(generator, B, T, own, scale=2.0) for _ in range(t)]
        return Trial([{"logits": logits, "targets": targets, "c": c} for logits in parts],
                     f"{ranks_of(t)}, {B * T:,} tokens, V = {t * own}")

    def extreme_trial(self, generator: torch.Generator) -> Trial:
        """The largest logit of a token on one rank or the other, on both, and far below 0; targets at all edges."""
        shifts = torch.tensor([[[900, 900, -900, -900]], [[900, -900, 900, -900]]])[..., None]
        targets = torch.tensor([[0, 2, 3, 5]])[:, torch.randperm(4, generator=generator)]
        ranks = [{"logits": normal(generator, 1, 4, 3, scale=2.0) + shift, "targets": targets, "c": 0.001}
                 for shift in shifts]
        return Trial(ranks, "2 ranks, 4 tokens, V = 6, logits about 900 and -900")

    def solve(self, inputs: Inputs) -> list[dict[str, Any]]:
        z = torch.cat([rank["logits"] for rank in inputs], -1).requires_grad_()  # (B, T, V)
        log_Z, z_y = z.logsumexp(-1), z.gather(-1, inputs[0]["targets"][..., None])[..., 0]
        loss = (log_Z - z_y + inputs[0]["c"] * log_Z**2).mean()
        loss.backward()
        return [{"loss": loss.item(), "gradient": part} for part in z.grad.chunk(len(inputs), -1)]

    def difference(self, given: list[Any], expected: list[dict[str, Any]]) -> str:
        loss = given[0]["loss"]
        return TOO_LARGE if type(loss) is float and not math.isfinite(loss) else super().difference(given, expected)

    def local_usage(self, trial: Trial, answers: list[Any]) -> list[Spent]:
        return [num_calls(answers, 3)]

    def bound(self, trial: Trial) -> int:
        return 3 * all_reduce_bytes(trial, trial.inputs[0]["targets"].numel())

    def least(self, trial: Trial) -> int:
        """log Z of each token: of the targets' logits one sum will do."""
        return least_for_a_sum(trial, trial.inputs[0]["targets"].numel())


class GradientNorm(PartsExercise):
    number = "5.6"
    parts = {name: name for name in ("norm", "sliced", "whole", "partial")}
    words = "has"
    budget = "at most two all-reduces: of all `partial` gradients together, and of a single number; one is possible"
    run = staticmethod(on_rank.gradient_norm)
    difference = Exercise.difference  # which names the place of a tensor in its list
    sizes = (3, 2), (1, 2), (4, 1 << 10)

    def example_trial(self) -> Trial:
        ranks = [{kind: [doubles([number])] for kind, number in own.items()}
                 for own in ({"sliced": 3, "whole": 2, "partial": 1}, {"sliced": 4, "whole": 2, "partial": 5})]
        return Trial(ranks, "the example, 2 ranks")

    def draw_trial(self, generator: torch.Generator, t: int, size: int) -> Trial:
        whole = [normal(generator, 4), normal(generator, 2, 2)]
        ranks = [{"sliced": [normal(generator, 4, 3), normal(generator, 5)], "whole": whole,
                  "partial": [normal(generator, 2 * size), normal(generator, size, 3)]} for _ in range(t)]
        return Trial(ranks, f"{ranks_of(t)}, {human_bytes(8 * 5 * size)} of parts")

    def solve(self, inputs: Inputs) -> list[dict[str, Any]]:
        parts = [sum(each) for each in zip(*(rank["partial"] for rank in inputs))]
        slices = [gradient for rank in inputs for gradient in rank["sliced"]]
        square = sum(gradient.square().sum().item() for gradient in (*slices, *inputs[0]["whole"], *parts))
        return [{"norm": square**0.5, **rank, "partial": parts} for rank in inputs]

    def local_usage(self, trial: Trial, answers: list[Any]) -> list[Spent]:
        return [num_calls(answers, 2)]

    def bound(self, trial: Trial) -> int:
        return all_reduce_bytes(trial, self.num_addends(trial))

    def least(self, trial: Trial) -> int:
        return least_for_a_sum(trial, self.num_addends(trial))

    def num_addends(self, trial: Trial) -> int:
        """How many numbers have to be added up over the ranks: all of `partial`, and the square of the slices."""
        return 1 + sum(part.numel() for part in trial.inputs[0]["partial"])


H100, NVLINK, NDR = 600e12, 450e9, 50e9  # 0.6 of its peak in bf16; facts has all, and the A100's
A100, PCIE, HDR = 187e12, 31.5e9, 25e9


class SmallestHiddenSize(NumberExercise):
    number = "5.8"
    tolerance = (0.01, 0.0)
    budget = "within 1 %, rounded or not"
    cases = (("the example, 12 devices, 2 in a node", (12, 2, 300, 65, 5, 0.2, 3)),
             ("8 H100 of a node, NVLink 4, a quarter", (8, 8, H100, NVLINK, NDR, 0.25, 2)),
             ("16 H100 in two nodes of 8, a quarter", (16, 8, H100, NVLINK, NDR, 0.25, 2)),
             ("8 H100, each in another node, a quarter", (8, 1, H100, NVLINK, NDR, 0.25, 2)),
             ("16 A100 in two nodes of 8, PCIe 4.0 inside, fp8 on the wire, as long as computing",
              (16, 8, A100, PCIE, HDR, 1.0, 1)))

    def solve(self, t: int, devices_per_node: int, flops_per_s: float, nvlink: float, card: float, share: float,
              number_bytes: int) -> float:
        group = network_of_rates(devices_per_node, nvlink, card).group(t)
        all_reduce = group.seconds_per_byte("reduce_scatter") + group.seconds_per_byte("all_gather")
        return 4 * number_bytes * all_reduce * t * flops_per_s / (72 * share)

    def draw(self, source: random.Random) -> tuple[str, tuple[Any, ...]]:
        G, nodes, F, inside, card, share, w = (source.randint(*bounds) for bounds in (
            (2, 8), (2, 4), (100, 900), (200, 900), (10, 90), (5, 90), (1, 4)))
        return (f"{nodes * G} devices in nodes of {G}, {F} TFLOP/s, {inside} GB/s inside, {card} GB/s a card, "
                f"{share} %, {w} bytes a number", (nodes * G, G, F * 1e12, inside * 1e9, card * 1e9, share / 100, w))
