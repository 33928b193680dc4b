"""Exercises 5.1 to 5.4 and 5.7: f and g, a gated layer by columns, a layer by rows, heads, and a whole block.

    t  ranks, r this one      x (B, T, D)      dy  the gradient that comes back      W (F, D), as in torch
    5.1: h = w (f(x) + x)    s = g(h)    loss = sum(c s)      x, c the same on all ranks, w each rank's own
    5.2, 5.3: W is whole on all ranks; its r-th piece of rows, or of columns, belongs to rank r, which computes a t-th.
         Whoever gathers what the others have, in place of a sum, sends less where that is narrow, and computes all
    5.4: H heads of q, K of k and of v, d rows each; head h of q reads head h // (H/K) of k and v
    5.7, open-ended: rank r has slices of the weights, so that nobody can compute everything alone, d numbers a head;
         norms, output.bias and down.bias are the same on all. However it is written, the bytes count: par is four
         all-reduces of B T D numbers
"""

from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from course_lib.grading.compare import describe
from course_lib.grading.exercise import Exercise, SentBytes, Trial, ranks_of
from course_lib.grading.gradients import (
    Inputs,
    Leaves,
    PartsExercise,
    SplitExercise,
    all_reduce_bytes,
    doubles,
    f,
    g,
    least_for_a_sum,
    normal,
    play_ranks,
)
from course_lib.grading.kinds import num_calls
from course_lib.grading.on_rank import plain
from course_lib.grading.spent import Spent, highest
from course_lib.pictures.units import human_bytes

from . import on_rank

Answers = list[dict[str, Any]]
SIZES = ((3, 2, 4, 5, 2), (1, 1, 2, 2, 3), (4, 2, 32, 64, 8))  # t, and B, T, D, F/t, behind the example
ROW_BIASES = ("output.bias", "down.bias")


class FAndG(PartsExercise):
    number = "5.1"
    parts = {"f": "f(x)", "g": "g(h)", "w": "the gradient of w", "x": "the gradient of x", "h": "after g(h), h"}
    budget = "one all-reduce each: f's in backward, g's in forward; 2(t-1)/t M bytes sent by each rank for each"
    run = staticmethod(on_rank.f_and_g)
    sizes = (3, 2, 3), (1, 3), (4, 1 << 7, 1 << 6)

    def example_trial(self) -> Trial:
        ranks = [{"x": numbers(2), "w": numbers(w), "c": numbers(1)} for w in (3, 5)]
        return Trial(ranks, "the example, 2 ranks")

    def draw_trial(self, generator: torch.Generator, t: int, *shape: int) -> Trial:
        x, c = normal(generator, *shape), normal(generator, *shape)
        return Trial([{"x": x, "w": normal(generator, *shape), "c": c} for _ in range(t)],
                     f"{ranks_of(t)}, {human_bytes(x.nbytes)} of x")

    def solve(self, inputs: Inputs) -> Answers:
        xs, ws = ([rank[name].clone().requires_grad_() for rank in inputs] for name in ("x", "w"))
        copies = f(xs)
        hs = [w * (copy + x) for w, copy, x in zip(ws, copies, xs)]
        sums = g(hs)
        torch.autograd.backward(sums, [rank["c"] for rank in inputs])
        return [{"f": plain(copy), "g": plain(s), "h": plain(h), "w": plain(w.grad), "x": plain(x.grad)}
                for copy, s, h, w, x in zip(copies, sums, hs, ws, xs)]

    def difference(self, given: list[Any], expected: Answers) -> str:
        if not isinstance(given[0]["f"], Tensor):  # f was not called: what the reader's function returned is here
            return f"it returned {describe(given[0]['f'])}: expected two functions, f and g"
        return super().difference(given, expected)

    def local_usage(self, trial: Trial, answers: list[Any]) -> list[Spent]:
        return [num_calls(answers, 2)]

    def bound(self, trial: Trial) -> int:
        return 2 * all_reduce_bytes(trial, trial.inputs[0]["x"].numel())

    def least(self, trial: Trial) -> int:
        return 2 * least_for_a_sum(trial, trial.inputs[0]["x"].numel())


class GatedColumns(SplitExercise):
    number = "5.2"
    budget = ("nothing sent in forward; one all-reduce of B T D numbers in backward, for both matrices together; each "
              "rank computes a t-th of the products")
    run = staticmethod(on_rank.layer)
    sizes = SIZES

    def example_trial(self) -> Trial:
        gate, up = numbers([1, 0], [0, 1], [-1, 0], [1, 1]), numbers([1, 0], [0, 1], [1, 1], [2, 1]) / 100
        inputs = {"given": {"x": token(100, 200), "gate": gate, "up": up}, "dy": token(1, 1)}
        return Trial([inputs] * 2, "the example, 2 ranks, one token")

    def draw_trial(self, generator: torch.Generator, t: int, B: int, T: int, D: int, part: int) -> Trial:
        given = {"x": normal(generator, B, T, D),
                 **{name: normal(generator, t * part, D, scale=D**-0.5) for name in ("gate", "up")}}
        ranks = [{"given": given, "dy": normal(generator, B, T, part)} for _ in range(t)]
        return Trial(ranks, f"{ranks_of(t)}, {human_bytes(8 * B * T * D)} of x")

    def solve(self, inputs: Inputs) -> Answers:
        def features(ranks: list[Leaves]) -> list[Tensor]:  # silu(x G^T) * (x U^T)
            own = [[rank[name].chunk(len(ranks))[r] for name in ("gate", "up")] for r, rank in enumerate(ranks)]
            return [F.silu(x @ gate.T) * (x @ up.T) for x, (gate, up) in zip(f([rank["x"] for rank in ranks]), own)]

        return play_ranks(inputs, features)

    def local_usage(self, trial: Trial, answers: list[Any]) -> list[Spent]:
        x, dy = trial.inputs[0]["given"]["x"], trial.inputs[0]["dy"]
        return [num_calls(answers, 1), arithmetic(answers, 2 * x.numel() * dy.shape[-1])]

    def bound(self, trial: Trial) -> int:
        return all_reduce_bytes(trial, trial.inputs[0]["given"]["x"].numel())

    def least(self, trial: Trial) -> int:
        return least_for_a_sum_or_all(trial, trial.inputs[0]["given"]["x"].numel(), trial.inputs[0]["dy"].numel())


class RowWithResidual(SplitExercise):
    number = "5.3"
    budget = ("one all-reduce of B T F numbers in forward, nothing in backward; each rank computes a t-th of the "
              "product")
    run = staticmethod(on_rank.layer)
    sizes = SIZES

    def example_trial(self) -> Trial:
        shared = {"weight": numbers([10, 100], [20, 300]), "bias": numbers(5, 6), "residual": token(7, 8)}
        ranks = [{"given": {"x": token(x), **shared}, "dy": token(1, 1)} for x in (1, 2)]
        return Trial(ranks, "the example, 2 ranks, one token")

    def draw_trial(self, generator: torch.Generator, t: int, B: int, T: int, out: int, part: int) -> Trial:
        shared = {"weight": normal(generator, out, t * part, scale=part**-0.5), "bias": normal(generator, out),
                  "residual": normal(generator, B, T, out)}
        dy = normal(generator, B, T, out)
        ranks = [{"given": {"x": normal(generator, B, T, part), **shared}, "dy": dy} for _ in range(t)]
        return Trial(ranks, f"{ranks_of(t)}, {human_bytes(dy.nbytes)} of results")

    def solve(self, inputs: Inputs) -> Answers:
        def results(ranks: list[Leaves]) -> list[Tensor]:
            sums = g([rank["x"] @ rank["weight"].chunk(len(ranks), 1)[r].T for r, rank in enumerate(ranks)])
            return [rank["residual"] + product + rank["bias"] for product, rank in zip(sums, ranks)]

        return play_ranks(inputs, results)

    def local_usage(self, trial: Trial, answers: list[Any]) -> list[Spent]:
        x, dy = trial.inputs[0]["given"]["x"], trial.inputs[0]["dy"]
        return [num_calls(answers, 1), arithmetic(answers, x.numel() * dy.shape[-1])]

    def bound(self, trial: Trial) -> int:
        return all_reduce_bytes(trial, trial.inputs[0]["dy"].numel())

    def least(self, trial: Trial) -> int:
        return least_for_a_sum_or_all(trial, trial.inputs[0]["dy"].numel(), trial.inputs[0]["given"]["x"].numel())


class QKVRows(Exercise):
    number = "5.4"
    compared = "returned"
    budget = "H/t heads of q and as many of k and v as these read, on each rank; nothing sent"
    run = staticmethod(on_rank.qkv_rows)
    sizes = ((3, 12, 6, 2, 3), (4, 8, 2, 2, 2), (3, 6, 1, 2, 2), (1, 2, 1, 2, 2), (2, 4, 4, 2, 2), (4, 16, 2, 16, 64))

    def example_trial(self) -> Trial:
        weight = numbers(10, 11, 12, 13, 20, 21, 30, 31)[:, None]
        return Trial([{"weight": weight, "heads": [4, 2]}] * 2, "the example, 2 ranks")

    def draw_trial(self, generator: torch.Generator, t: int, H: int, K: int, d: int, D: int) -> Trial:
        weight = normal(generator, (H + 2 * K) * d, D)
        return Trial([{"weight": weight, "heads": [H, K]}] * t, f"{ranks_of(t)}, {H} heads of q, {K} of k and v")

    def solve(self, inputs: Inputs) -> list[Tensor]:
        t, (H, K) = len(inputs), inputs[0]["heads"]
        heads = inputs[0]["weight"].unflatten(0, (H + 2 * K, -1))  # (H + 2 K, d, D)
        pieces = []
        for r in range(t):
            q = range(r * H // t, (r + 1) * H // t)
            kv = sorted({h // (H // K) for h in q})
            pieces.append(heads[[*q, *(start + head for start in (H, H + K) for head in kv)]].flatten(0, 1))
        return pieces

    def usage(self, trial: Trial, answers: list[Any], traffic: SentBytes) -> list[Spent]:
        held, needed = [answer["held"] for answer in answers], self.solve(trial.inputs)[0].nbytes
        sent = [traffic.sent_by(rank) for rank in range(trial.world_size)]
        return [highest("holds", held, needed, on=" of rows", claimed=True),
                highest("sent", sent, 0, slack=traffic.slack(0), claimed=True)]


class SplitBlock(SplitExercise):
    number = "5.7"
    budget = "par: what four all-reduces of B T D numbers send, 4 * 2(t-1)/t * 8 B T D bytes by each rank"
    run = staticmethod(on_rank.block)
    sizes = (3, 2, 3, 2, 3), (1, 1, 3, 2, 2), (4, 1, 32, 2, 8)

    def draw_trial(self, generator: torch.Generator, t: int, B: int, T: int, heads: int, d: int) -> Trial:
        D = t * heads * d
        x, dy = normal(generator, B, T, D), normal(generator, B, T, D)
        shared = {f"norm_{i}.{name}": normal(generator, D, scale=0.2) + (name == "weight")
                  for i in (1, 2) for name in ("weight", "bias")}
        shared |= {name: normal(generator, D) for name in ROW_BIASES}
        slices = {"qkv.weight": (3 * D // t, D), "qkv.bias": (3 * D // t,), "output.weight": (D, D // t),
                  "up.weight": (4 * D // t, D), "up.bias": (4 * D // t,), "down.weight": (D, 4 * D // t)}
        ranks = [{"given": {"x": x, **shared, **{name: normal(generator, *shape, scale=shape[-1] ** -0.5)
                                                 for name, shape in slices.items()}}, "dy": dy, "head_dim": d}
                 for _ in range(t)]
        return Trial(ranks, f"{ranks_of(t)}, {t * heads} heads, x of {human_bytes(x.nbytes)}")

    def solve(self, inputs: Inputs) -> Answers:
        d = inputs[0]["head_dim"]

        def results(ranks: list[Leaves]) -> list[Tensor]:
            xs = [own["x"] for own in ranks]
            for norm, column, row in (("norm_1", "qkv", "output"), ("norm_2", "up", "down")):
                copies = f([F.layer_norm(x, x.shape[-1:], own[f"{norm}.weight"], own[f"{norm}.bias"])
                            for x, own in zip(xs, ranks)])
                hidden = [F.linear(x, own[f"{column}.weight"], own[f"{column}.bias"]) for x, own in zip(copies, ranks)]
                hidden = [attention(h, d) if column == "qkv" else F.gelu(h) for h in hidden]
                sums = g([F.linear(h, own[f"{row}.weight"]) for h, own in zip(hidden, ranks)])
                xs = [x + y + own[f"{row}.bias"] for x, y, own in zip(xs, sums, ranks)]
            return xs

        return play_ranks(inputs, results)

    def example_trial(self) -> Trial:
        """Norms make [1, -1] of what they get, and gelu leaves 10 and 20 as they are."""
        norms = {f"norm_{i}.{kind}": numbers(number, number) for i in (1, 2)
                 for kind, number in (("weight", 1), ("bias", 0))}
        shared = {"x": token(100, -100), **norms, "output.bias": numbers(2, 1), "down.bias": numbers(0, 7)}
        ranks = [{"given": {**shared, "qkv.weight": numbers([0, 0], [0, 0], v), "qkv.bias": numbers(0, 0, 0),
                            "output.weight": numbers(*output)[:, None], "up.weight": numbers(up, up, up, up),
                            "up.bias": numbers(0, 0, 0, 0), "down.weight": numbers([0.5] * 4, [0.5] * 4)},
                  "dy": token(1, 1), "head_dim": 1}
                 for v, output, up in (([3, 0], (1, 2), [10, 0]), ([0, 5], (4, 0), [0, -20]))]
        return Trial(ranks, "the example, 2 ranks, one token")

    def bound(self, trial: Trial) -> int:
        return 4 * all_reduce_bytes(trial, trial.inputs[0]["dy"].numel())

    def least(self, trial: Trial) -> int:
        """Half of par: instead of a sum somebody may gather a slice of weights, as long as it is small."""
        return 2 * least_for_a_sum(trial, trial.inputs[0]["dy"].numel())

    def usage(self, trial: Trial, answers: list[Any], traffic: SentBytes) -> list[Spent]:
        return [replace(each, limit="par {}") for each in super().usage(trial, answers, traffic)]


def attention(qkv: Tensor, d: int) -> Tensor:
    """Of this rank's heads: (B, T, 3 D/t) -> (B, T, D/t)."""
    q, k, v = (part.unflatten(-1, (-1, d)).transpose(1, 2) for part in qkv.chunk(3, dim=-1))  # (B, H/t, T, d)
    return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)


def least_for_a_sum_or_all(trial: Trial, summed: int, own: int) -> int:
    """Bytes that all ranks together have to send: for a sum of `summed` numbers, or for all that each of them has."""
    t = trial.world_size
    return min(least_for_a_sum(trial, summed), 8 * t * (t - 1) * own)


def arithmetic(answers: list[Any], multiplications: int) -> Spent:
    """The FLOPs of the rank that computed most, beside two for each multiplication, and twice that in backward."""
    return highest("computes", [answer["flops"] for answer in answers], 6 * multiplications, "FLOP",
                   on=" in its products", claimed=True)


def numbers(*values: Any) -> Tensor:
    """These, or rows of them, as float64."""
    return doubles(values)


def token(*values: float) -> Tensor:
    """One with these features: (1, 1, D)."""
    return numbers(*values)[None, None]
