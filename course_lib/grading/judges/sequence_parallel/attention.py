"""Exercises 7.2, 7.4 and 7.7: attention over keys that lie on all ranks.

    R  ranks, r this one      q, k, v, out (B, H, c, d), lse (B, H, c)  of this rank's c = T/R tokens
    7.2: out, lse of the same queries on all ranks, each over its own keys (lse = -inf: it has none), are merged:
         lse_all = log sum_r exp(lse_r)      out_all = sum_r exp(lse_r - lse_all) out_r
    7.4: in step i rank r uses the block of rank r - i, of M bytes
    7.7, open-ended: causal attention and its gradients. However it is written, bytes and memory count: M = 2 P goes
         around once forward, and backward again with its gradients; P = 8 B H c d  bytes of q

Exercises 7.1 and 7.5: sequence parallelism's two doors, and a function that runs again in backward.

    t  ranks      x (B, T/t, D)  this rank's tokens      w, h (B, T, D)  of each rank      c  the gradient that comes in
    7.1: h = exp(w gather(x))    s = scatter(h)    loss = sum(c s)
    7.5: function(x) = dropout(gelu(x W1)) W2      x (T, D), W1 (D, F), W2 (F, D), F = 8 D
"""

from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from course_lib.grading.compare import alike, describe, part, readable
from course_lib.grading.exercise import Exercise, Traffic, Trial, ranks_of
from course_lib.grading.judges.calls import CollectiveExercise, num_calls
from course_lib.grading.judges.models import ROUNDING, Inputs
from course_lib.grading.judges.split import Leaves, PartsExercise, SplitExercise, all_reduce_bytes, normal, played
from course_lib.grading.on_rank import sequence_parallel as on_rank
from course_lib.grading.on_rank.plain import plain
from course_lib.grading.spent import Spent, most
from course_lib.pictures.units import human_bytes

NOT_A_NUMBER = ("the answer is not a number: exp of a large lse overflows, and a difference of two infinite ones is "
                "nan. Subtract the largest lse over all ranks, which is finite, before exp")
HELD = 4  # blocks beside the rank's own: one used, one arriving, and what gloo's thread has not let go of yet
PARTS, SCORES = 20, 5  # of P, and of a block's scores: what a rank may hold, with its arguments and their gradients


class MergedAttention(PartsExercise):
    number = "7.2"
    parts = {"out": "`out` of all keys", "lse": "lse of all keys"}
    budget = "two all-reduces of B H T (d + 2) numbers together: 2(t-1)/t * 8 B H T (d+2) bytes sent by each rank"
    run = staticmethod(on_rank.merged_attention)

    def trials(self, seed: int) -> list[Trial]:
        generator = torch.Generator().manual_seed(seed)
        made = []
        for R, (B, H, c, d), shift in ((3, (1, 2, 3, 4), 0), (2, (2, 1, 3, 2), 900), (1, (1, 1, 2, 2), -900),
                                       (4, (2, 4, 64, 16), 5)):
            ranks = [{"out": normal(generator, B, H, c, d), "lse": normal(generator, B, H, c, scale=2.0) + shift}
                     for _ in range(R)]
            for other in ranks[1:]:  # the first query reads keys of rank 0 only
                other["out"][:, :, 0], other["lse"][:, :, 0] = 0.0, float("-inf")
            made.append(Trial(ranks, f"{ranks_of(R)}, {B * H * c} queries, lse about {shift}"))
        return made

    def expected(self, inputs: Inputs) -> list[dict[str, Any]]:
        outs, lses = (torch.stack([rank[name] for rank in inputs]) for name in ("out", "lse"))
        return [{"out": (lses.softmax(0)[..., None] * outs).sum(0), "lse": lses.logsumexp(0)}] * len(inputs)

    def difference(self, given: list[Any], expected: list[dict[str, Any]]) -> str:
        nan = any(readable(x) and x.is_floating_point() and x.isnan().any() for own in given for x in own.values())
        return NOT_A_NUMBER if nan else super().difference(given, expected)

    def kept(self, trial: Trial, answers: list[Any]) -> list[Spent]:
        return [num_calls(answers, 2)]

    def bound(self, trial: Trial) -> int:
        own = trial.inputs[0]
        return all_reduce_bytes(trial, own["out"].numel() + 2 * own["lse"].numel())


class PassAround(CollectiveExercise):
    number = "7.4"
    tolerance = ROUNDING
    compared = "used"
    words = "used"
    right = "every block was used, in the right order"
    budget = "(R-1) M bytes sent by each rank; at most 4 blocks held beside its own, however many ranks there are"
    run = staticmethod(on_rank.pass_around)

    def trials(self, seed: int) -> list[Trial]:
        generator = torch.Generator().manual_seed(seed)
        return [Trial([{"block": normal(generator, 2, *shape)} for _ in range(R)],
                      f"{ranks_of(R)}, blocks of {human_bytes(16 * shape[0] * shape[1])}")
                for R, shape in ((3, (2, 3)), (2, (3, 1)), (1, (2, 2)), (6, (64, 64)))]

    def expected(self, inputs: Inputs) -> list[Any]:
        R = len(inputs)
        prints = [on_rank.fingerprint(rank["block"]) for rank in inputs]
        return [[[(r - i) % R, prints[(r - i) % R]] for i in range(R)] for r in range(R)]

    def kept(self, trial: Trial, answers: list[Any]) -> list[Spent]:
        held, block = [answer["held"] for answer in answers], trial.inputs[0]["block"].nbytes
        return [Spent("holds", max(held), HELD * block, on=" of others' blocks", rank=most(held), slack=block // 4,
                      claimed=True)]

    def bound(self, trial: Trial) -> int:
        return (trial.world_size - 1) * trial.inputs[0]["block"].nbytes


class WholeRing(SplitExercise):
    number = "7.7"
    budget = ("par: 3(R-1) M sent by each rank, M its keys and values; 20 times q and 5 times one block's scores held, "
              "arguments and gradients included")
    run = staticmethod(on_rank.whole_ring)

    def trials(self, seed: int) -> list[Trial]:
        generator = torch.Generator().manual_seed(seed)
        made = []
        for R, shape in ((3, (1, 2, 4, 2)), (2, (2, 1, 4, 3)), (1, (1, 1, 4, 2)), (4, (1, 2, 64, 16))):
            pieces = torch.arange(R * shape[2]).chunk(2 * R)
            positions = [torch.cat([pieces[r], pieces[2 * R - 1 - r]]) for r in range(R)]
            ranks = [{"given": {name: normal(generator, *shape) for name in "qkv"}, "positions": positions,
                      "dy": normal(generator, *shape)} for _ in range(R)]
            made.append(Trial(ranks, f"{ranks_of(R)}, {R * shape[2]} tokens, keys and values of "
                                     f"{human_bytes(2 * ranks[0]['dy'].nbytes)} on each"))
        return made

    def expected(self, inputs: Inputs) -> list[dict[str, Any]]:
        positions = inputs[0]["positions"]

        def attend(ranks: list[Leaves]) -> list[Tensor]:
            k, v = (torch.cat([rank[name] for rank in ranks], 2) for name in "kv")
            return [F.scaled_dot_product_attention(rank["q"], k, v, attn_mask=own[:, None] >= torch.cat(positions))
                    for rank, own in zip(ranks, positions)]

        return played(inputs, attend)

    def bound(self, trial: Trial) -> int:
        return 3 * (trial.world_size - 1) * 2 * trial.inputs[0]["dy"].nbytes

    def kept(self, trial: Trial, answers: list[Any]) -> list[Spent]:
        held, dy = [answer["held"] for answer in answers], trial.inputs[0]["dy"]
        B, H, c, _ = dy.shape
        return [Spent("holds", max(held), PARTS * dy.nbytes + SCORES * 8 * B * H * c * c, rank=most(held),
                      slack=4096 + dy.nbytes, claimed=True)]

    def spent(self, trial: Trial, answers: list[Any], traffic: Traffic) -> list[Spent]:
        return [replace(each, limit="par {}") for each in super().spent(trial, answers, traffic)]


RNG_BYTES = 16 * 1024  # for the state of the generator, 5,056 bytes, where it is counted, and what else is small


class GatherAndScatter(PartsExercise):
    number = "7.1"
    parts = {"gathered": "gather(x)", "scattered": "scatter(h)", "w": "the gradient of w", "x": "the gradient of x"}
    gloo_over_ring = 2.5  # its reduce-scatter is an all-reduce
    budget = "one collective each way, four in all; 4(t-1) M bytes sent by each rank, M those of its own tokens"
    run = staticmethod(on_rank.gather_and_scatter)

    def trials(self, seed: int) -> list[Trial]:
        generator = torch.Generator().manual_seed(seed)
        made = []
        for t, (B, c, D) in ((3, (2, 2, 2)), (2, (1, 3, 2)), (1, (2, 2, 1)), (4, (2, 16, 64))):
            ranks = [{"x": normal(generator, B, c, D, scale=0.5), "w": normal(generator, B, t * c, D, scale=0.5),
                      "c": normal(generator, B, c, D)} for _ in range(t)]
            made.append(Trial(ranks, f"{ranks_of(t)}, {human_bytes(8 * B * c * D)} of tokens on each"))
        return made

    def expected(self, inputs: Inputs) -> list[dict[str, Any]]:
        xs, ws = ([rank[name].clone().requires_grad_() for rank in inputs] for name in ("x", "w"))
        whole = torch.cat(xs, 1)
        pieces = sum(torch.exp(w * whole) for w in ws).chunk(len(xs), 1)
        torch.autograd.backward(pieces, [rank["c"] for rank in inputs])
        return [{"gathered": plain(whole), "scattered": plain(piece), "w": plain(w.grad), "x": plain(x.grad)}
                for piece, w, x in zip(pieces, ws, xs)]

    def kept(self, trial: Trial, answers: list[Any]) -> list[Spent]:
        return [num_calls(answers, 4)]

    def bound(self, trial: Trial) -> int:
        return 4 * (trial.world_size - 1) * trial.inputs[0]["x"].nbytes


class Recomputed(Exercise):
    number = "7.5"
    tolerance = ROUNDING
    budget = "kept between forward and backward: no more than x again; `function` runs twice"
    parts = {"y": "the result", "x": "the gradient of x", "W1": "the gradient of W1", "W2": "the gradient of W2",
             "after": "the random number that is drawn after backward"}
    run = staticmethod(on_rank.recomputed)

    def trials(self, seed: int) -> list[Trial]:
        generator = torch.Generator().manual_seed(seed)
        made = []
        for T, D, p in ((3, 4, 0.5), (4, 2, 0.0), (64, 64, 0.1)):
            tensors = {"x": normal(generator, T, D), "W1": normal(generator, D, 8 * D, scale=D**-0.5),
                       "W2": normal(generator, 8 * D, D, scale=D**-0.5)}
            made.append(Trial([{"given": tensors, "dy": normal(generator, T, D), "p": p, "seed": seed % 10_000}],
                              f"x of {T} tokens with {D} numbers, dropout {p}"))
        return made

    def given(self, answers: list[Any]) -> list[Any]:
        return [{name: part(answer, name) for name in self.parts} for answer in answers]

    def expected(self, inputs: Inputs) -> list[Any]:
        return self.given([on_rank.recomputed(lambda function, x: function(x), inputs[0])])

    def difference(self, given: list[Any], expected: list[Any]) -> str:
        name = next(name for name in self.parts if not alike(given[0][name], expected[0][name], self.tolerance))
        return f"{self.parts[name]} is {describe(given[0][name])}: expected {describe(expected[0][name])}"

    def flaw(self, trial: Trial, answers: list[Any], traffic: Traffic) -> str | None:
        by_torch = answers[0]["by_torch"]
        return "it uses torch.utils.checkpoint: that is what you are asked to write" if by_torch else None

    def spent(self, trial: Trial, answers: list[Any], traffic: Traffic) -> list[Spent]:
        answer, x = answers[0], trial.inputs[0]["given"]["x"]
        return [Spent("keeps", answer["kept"], x.nbytes, on=" until backward", slack=RNG_BYTES, claimed=True),
                Spent("ran the function", answer["runs"], 2, "time", claimed=True)]
