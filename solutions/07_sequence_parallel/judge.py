"""Chapter 7: tokens that lie on several ranks: doors, attention over all of them, what is kept and how long it takes.

Exercises 7.2, 7.4 and 7.7: attention over keys that lie on all ranks.

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

Exercises 7.6 and 7.8: what a Llama layer keeps for backward, and how long attention takes over ring and Ulysses.

    n  tokens    h  hidden size    f  of the MLP    H, K  heads of q, and of k and v    t  ranks of tensor parallelism
    u, R  ranks of a Ulysses group, and of a ring      d  head size      T  tokens in the row

Sources: Korthikanti et al. 2022, "Reducing Activation Recomputation in Large Transformer Models"; Liu et al. 2023,
"Ring Attention with Blockwise Transformers"; Jacobs et al. 2023, "DeepSpeed Ulysses"; Llama team 2024.

Exercise 7.3, open-ended: who gets which tokens of a row of documents, so that all ranks have as much to do.

    R  ranks      T  tokens in the row, of documents of the given lengths      a token reads its document up to itself
"""

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from course_lib.costs.network import network_of
from course_lib.grading.compare import alike, contrast, describe, readable
from course_lib.grading.exercise import Exercise, SentBytes, Trial, ranks_of
from course_lib.grading.gradients import (
    ROUNDING,
    Inputs,
    Leaves,
    PartsExercise,
    SplitExercise,
    all_reduce_bytes,
    doubles,
    normal,
    play_ranks,
)
from course_lib.grading.kinds import CollectiveExercise, NumberExercise, num_calls
from course_lib.grading.on_rank import plain
from course_lib.grading.spent import Spent, highest
from course_lib.pictures.units import human_bytes

from . import on_rank

NOT_A_NUMBER = ("the answer is not a number: exp of a large lse overflows, and a difference of two infinite ones is "
                "nan. Subtract the largest lse over all ranks, which is finite, before exp")
HELD = 4  # blocks beside the rank's own: one used, one arriving, and what gloo's thread has not let go of yet
PARTS, SCORES = 20, 5  # of P, and of a block's scores: what a rank may hold, with its arguments and their gradients


class MergedAttention(PartsExercise):
    number = "7.2"
    parts = {"out": "`out` of all keys", "lse": "lse of all keys"}
    budget = "two all-reduces of B H T (d + 2) numbers together: 2(t-1)/t * 8 B H T (d+2) bytes sent by each rank"
    run = staticmethod(on_rank.merged_attention)
    sizes = (3, 1, 2, 3, 4, 0), (2, 2, 1, 3, 2, 900), (1, 1, 1, 2, 2, -900), (4, 2, 4, 64, 16, 5)

    def example_trial(self) -> Trial:
        ranks = [{"out": doubles([[[[out]]]]), "lse": doubles([[[num_keys]]]).log()}
                 for out, num_keys in ((1, 3), (5, 1))]
        return Trial(ranks, "the example, 2 ranks, one query")

    def draw_trial(self, generator: torch.Generator, R: int, B: int, H: int, c: int, d: int, shift: int) -> Trial:
        ranks = [{"out": normal(generator, B, H, c, d), "lse": normal(generator, B, H, c, scale=2.0) + shift}
                 for _ in range(R)]
        for other in ranks[1:]:  # the first query reads keys of rank 0 only
            other["out"][:, :, 0], other["lse"][:, :, 0] = 0.0, float("-inf")
        return Trial(ranks, f"{ranks_of(R)}, {B * H * c} queries, lse about {shift}")

    def solve(self, inputs: Inputs) -> list[dict[str, Any]]:
        outs, lses = (torch.stack([rank[name] for rank in inputs]) for name in ("out", "lse"))
        return [{"out": (lses.softmax(0)[..., None] * outs).sum(0), "lse": lses.logsumexp(0)}] * len(inputs)

    def difference(self, given: list[Any], expected: list[dict[str, Any]]) -> str:
        nan = any(readable(x) and x.is_floating_point() and x.isnan().any() for own in given for x in own.values())
        return NOT_A_NUMBER if nan else super().difference(given, expected)

    def local_usage(self, trial: Trial, answers: list[Any]) -> list[Spent]:
        return [num_calls(answers, 2)]

    def bound(self, trial: Trial) -> int:
        own = trial.inputs[0]
        return all_reduce_bytes(trial, own["out"].numel() + 2 * own["lse"].numel())

    def least(self, trial: Trial) -> int:
        return 2 * (trial.world_size - 1) * trial.inputs[0]["out"].nbytes


class PassAround(CollectiveExercise):
    number = "7.4"
    tolerance = ROUNDING
    compared = "used"
    words = "used"
    right = "every block was used, in the right order"
    budget = "(R-1) M bytes sent by each rank; at most 4 blocks held beside its own, however many ranks there are"
    run = staticmethod(on_rank.pass_around)
    sizes = (3, 2, 3), (2, 3, 1), (1, 2, 2), (6, 64, 64)

    def example_trial(self) -> Trial:
        return Trial([{"block": torch.tensor([10.0 + rank]).double()} for rank in range(3)], "the example, 3 ranks")

    def draw_trial(self, generator: torch.Generator, R: int, c: int, d: int) -> Trial:
        return Trial([{"block": normal(generator, 2, c, d)} for _ in range(R)],
                     f"{ranks_of(R)}, blocks of {human_bytes(16 * c * d)}")

    def solve(self, inputs: Inputs) -> list[Any]:
        R = len(inputs)
        prints = [on_rank.fingerprint(rank["block"]) for rank in inputs]
        return [[[(r - i) % R, prints[(r - i) % R]] for i in range(R)] for r in range(R)]

    def local_usage(self, trial: Trial, answers: list[Any]) -> list[Spent]:
        held, block = [answer["held"] for answer in answers], trial.inputs[0]["block"].nbytes
        return [highest("holds", held, HELD * block, on=" of others' blocks", slack=block // 4, claimed=True)]

    def bound(self, trial: Trial) -> int:
        return (trial.world_size - 1) * trial.inputs[0]["block"].nbytes

    def flaw(self, trial: Trial, answers: list[Any], traffic: SentBytes) -> str | None:
        for rank, answer in enumerate(answers):
            for step, directions in enumerate(answer["under_way"][:trial.world_size - 1]):
                missing = " or to ".join(each for each in (on_rank.SEND, on_rank.RECEIVE) if each not in directions)
                if missing:
                    return (f"rank {rank} used block {step}, counted from 0, and had not begun to {missing}: the next "
                            "block travels while this one is used. Begin both, use the block, and wait then")
        return super().flaw(trial, answers, traffic)


class WholeRing(SplitExercise):
    number = "7.7"
    budget = ("par: 3(R-1) M sent by each rank, M its keys and values; 20 times q and 5 times one block's scores held, "
              "arguments and gradients included")
    run = staticmethod(on_rank.whole_ring)
    # In the last one all keys and values are 16 times q: who holds them has no room for anything else.
    sizes = (3, 1, 2, 4, 4), (2, 2, 1, 4, 4), (1, 1, 1, 4, 4), (8, 1, 2, 32, 32)

    def draw_trial(self, generator: torch.Generator, R: int, B: int, H: int, c: int, d: int) -> Trial:
        pieces = torch.arange(R * c).chunk(2 * R)
        positions = [torch.cat([pieces[r], pieces[2 * R - 1 - r]]) for r in range(R)]
        ranks = [{"given": {name: normal(generator, B, H, c, d) for name in "qkv"}, "positions": positions,
                  "dy": normal(generator, B, H, c, d)} for _ in range(R)]
        size = human_bytes(2 * ranks[0]["dy"].nbytes)
        return Trial(ranks, f"{ranks_of(R)}, {R * c} tokens, keys and values of {size} on each")

    def example_trial(self) -> Trial:
        """Without q a token gets the mean of what it reads."""
        positions = [torch.tensor([0, 3]), torch.tensor([1, 2])]
        ranks = [{"given": {"q": torch.zeros(1, 1, 2, 4, dtype=torch.float64),
                            "k": torch.ones(1, 1, 2, 4, dtype=torch.float64),
                            "v": (own + 1.0).double()[:, None].repeat(1, 4)[None, None]}, "positions": positions,
                  "dy": torch.ones(1, 1, 2, 4, dtype=torch.float64)} for own in positions]
        return Trial(ranks, "the example, 2 ranks, 4 tokens")

    def solve(self, inputs: Inputs) -> list[dict[str, Any]]:
        positions = inputs[0]["positions"]

        def attend(ranks: list[Leaves]) -> list[Tensor]:
            k, v = (torch.cat([rank[name] for rank in ranks], 2) for name in "kv")
            return [F.scaled_dot_product_attention(rank["q"], k, v, attn_mask=own[:, None] >= torch.cat(positions))
                    for rank, own in zip(ranks, positions)]

        return play_ranks(inputs, attend)

    def bound(self, trial: Trial) -> int:
        return 3 * (trial.world_size - 1) * 2 * trial.inputs[0]["dy"].nbytes

    def least(self, trial: Trial) -> int:
        """Something of every rank has to meet that of every other one, forward and in backward."""
        return 2 * trial.world_size * (trial.world_size - 1) * trial.inputs[0]["dy"].nbytes

    def local_usage(self, trial: Trial, answers: list[Any]) -> list[Spent]:
        held, dy = [answer["held"] for answer in answers], trial.inputs[0]["dy"]
        B, H, c, _ = dy.shape
        return [highest("holds", held, PARTS * dy.nbytes + SCORES * 8 * B * H * c * c, slack=4096 + dy.nbytes,
                        claimed=True)]

    def usage(self, trial: Trial, answers: list[Any], traffic: SentBytes) -> list[Spent]:
        return [replace(each, limit="par {}") for each in super().usage(trial, answers, traffic)]


RNG_BYTES = 16 * 1024  # for the state of the generator, 5,056 bytes, where it is counted, and what else is small


class GatherAndScatter(PartsExercise):
    number = "7.1"
    parts = {"gathered": "gather(x)", "scattered": "scatter(h)", "w": "the gradient of w", "x": "the gradient of x"}
    gloo_over_ring = 2.5  # its reduce-scatter is an all-reduce
    budget = "one collective each way, four in all; 4(t-1) M bytes sent by each rank, M those of its own tokens"
    run = staticmethod(on_rank.gather_and_scatter)
    sizes = (3, 2, 2, 2), (2, 1, 3, 2), (1, 2, 2, 1), (4, 2, 16, 64)

    def draw_trial(self, generator: torch.Generator, t: int, B: int, c: int, D: int) -> Trial:
        ranks = [{"x": normal(generator, B, c, D, scale=0.5), "w": normal(generator, B, t * c, D, scale=0.5),
                  "c": normal(generator, B, c, D)} for _ in range(t)]
        return Trial(ranks, f"{ranks_of(t)}, {human_bytes(8 * B * c * D)} of tokens on each")

    def example_trial(self) -> Trial:
        """x is 1 and 2, and exp(w x) is 1 and 2 on rank 0, 10 and 20 on rank 1."""
        def tokens(*values: float) -> Tensor:
            return doubles(values)[None, :, None]

        ranks = [{"x": tokens(x), "w": tokens(*h).log() / tokens(1, 2), "c": tokens(1)}
                 for x, h in ((1, (1, 2)), (2, (10, 20)))]
        return Trial(ranks, "the example, 2 ranks, a token each")

    def solve(self, inputs: Inputs) -> list[dict[str, Any]]:
        xs, ws = ([rank[name].clone().requires_grad_() for rank in inputs] for name in ("x", "w"))
        whole = torch.cat(xs, 1)
        pieces = sum(torch.exp(w * whole) for w in ws).chunk(len(xs), 1)
        torch.autograd.backward(pieces, [rank["c"] for rank in inputs])
        return [{"gathered": plain(whole), "scattered": plain(piece), "w": plain(w.grad), "x": plain(x.grad)}
                for piece, w, x in zip(pieces, ws, xs)]

    def local_usage(self, trial: Trial, answers: list[Any]) -> list[Spent]:
        return [num_calls(answers, 4)]

    def bound(self, trial: Trial) -> int:
        return 4 * (trial.world_size - 1) * trial.inputs[0]["x"].nbytes


class RecomputeFunction(Exercise):
    number = "7.5"
    tolerance = ROUNDING
    budget = "kept between forward and backward: one copy of x; `function` runs twice"
    parts = {"y": "the result", "x": "the gradient of x", "W1": "the gradient of W1", "W2": "the gradient of W2",
             "after": "the random number that is drawn after backward"}
    run = staticmethod(on_rank.recompute)

    def trials(self, seed: int) -> list[Trial]:
        made = []
        for T, D, p, layers in ((3, 4, 0.5, 1), (3, 4, 0.5, 2), (4, 2, 0.0, 1), (64, 64, 0.1, 1), (64, 64, 0.1, 2)):
            generator = torch.Generator().manual_seed(len(made) + seed * bool(made))  # the example is always the same
            tensors = {"x": normal(generator, T, D), "W1": normal(generator, D, 8 * D, scale=D**-0.5),
                       "W2": normal(generator, 8 * D, D, scale=D**-0.5)}
            made.append(Trial([{"given": tensors, "dy": normal(generator, T, D), "p": p, "layers": layers,
                                "seed": (seed * bool(made) + 17 * len(made)) % 10_000}],
                              f"{'' if made else 'the example, '}x of {T} tokens with {D} numbers, dropout {p}"
                              + ", used twice, one after the other" * (layers > 1)))
        return made

    def solve(self, inputs: Inputs) -> list[Any]:
        return self.select_parts([on_rank.recompute(lambda function, x: function(x), inputs[0])])

    def difference(self, given: list[Any], expected: list[Any]) -> str:
        name = next(name for name in self.parts if not alike(given[0][name], expected[0][name], self.tolerance))
        return f"{self.parts[name]} is {contrast(given[0][name], expected[0][name], self.tolerance)}"

    def flaw(self, trial: Trial, answers: list[Any], traffic: SentBytes) -> str | None:
        by_torch = answers[0]["by_torch"]
        return "it uses torch.utils.checkpoint: that is what you are asked to write" if by_torch else None

    def usage(self, trial: Trial, answers: list[Any], traffic: SentBytes) -> list[Spent]:
        answer, x = answers[0], trial.inputs[0]["given"]["x"]
        layers = trial.inputs[0]["layers"]
        return [Spent("keeps", answer["kept"], layers * x.nbytes, on=" until backward", slack=layers * RNG_BYTES,
                      claimed=True, decides=True),
                Spent("ran the function", answer["runs"], 2 * layers, "time", claimed=True)]


NODES = network_of("H100")  # of eight
H100 = 600e12  # 0.6 of its peak in bf16
NVLINK, NDR = (float(round(NODES.group(n).bytes_per_s("ring"))) for n in (8, 64))  # between nodes a ring has one card
LLAMA_8B, LLAMA_70B = (4096, 14336, 32, 8), (8192, 28672, 64, 8)  # h, f, H, K


class LayerBytes(NumberExercise):
    number = "7.6"
    unit = "exact bytes"
    budget = "to the byte"
    cases = (("the example, 2 tokens", (2, 4, 8, 4, 2, 2, False)),
             ("Llama 3 70B, 8,192 tokens, t = 8, without sequence parallelism", (8192, *LLAMA_70B, 8, False)),
             ("the same with sequence parallelism", (8192, *LLAMA_70B, 8, True)),
             ("Llama 3 8B, 4,096 tokens, t = 2, without", (4096, *LLAMA_8B, 2, False)),
             ("Llama 3 8B, 4,096 tokens, t = 2, with sequence parallelism", (4096, *LLAMA_8B, 2, True)),
             ("Llama 3 8B on one device", (4096, *LLAMA_8B, 1, False)))

    def solve(self, n: int, h: int, f: int, H: int, K: int, t: int, sequence_parallel: bool) -> int:
        inside = 4 * h + 4 * h * K // H + 4 * H + 8 * f
        return n * (8 * h // (t if sequence_parallel else 1) + inside // t)

    def draw(self, source: random.Random) -> tuple[str, tuple[Any, ...]]:
        K, t = 2 ** source.randint(2, 3), 2 ** source.randint(1, 2)
        H, n = K * source.randint(2, 6), 64 * source.randint(1, 100)
        h, f = 128 * H, 256 * source.randint(10, 60)
        return f"n = {n}, h = {h}, f = {f}, H = {H}, K = {K}, t = {t}, without", (n, h, f, H, K, t, False)


class AttentionSeconds(NumberExercise):
    number = "7.8"
    unit = "exact s"
    budget = "the formula's seconds"
    cases = (("the example, Ulysses of 2 in rings of 4", (24, 2, 4, 6, 2, 1, 24, 16, 1)),
             ("48 tokens, Ulysses of 2 in rings of 3, where sending decides", (48, 2, 3, 8, 4, 5, 400, 7, 1)),
             ("48 tokens, Ulysses of 2 in rings of 3, where computing decides", (48, 2, 3, 8, 4, 5, 90, 7, 300)),
             ("1M tokens, a ring of 64", (1 << 20, 1, 64, 64, 8, 128, H100, NVLINK, NDR)),
             ("1M tokens, Ulysses of 8 in rings of 8", (1 << 20, 8, 8, 64, 8, 128, H100, NVLINK, NDR)),
             ("128K tokens, a ring of 64", (1 << 17, 1, 64, 64, 8, 128, H100, NVLINK, NDR)),
             ("128K tokens, Ulysses of 8 in rings of 8", (1 << 17, 8, 8, 64, 8, 128, H100, NVLINK, NDR)),
             ("128K tokens, Ulysses of 8 alone", (1 << 17, 8, 1, 64, 8, 128, H100, NVLINK, NDR)))

    def solve(self, T: int, u: int, R: int, H: int, K: int, d: int, flops_per_s: float, fast: float, slow: float
              ) -> float:
        switching = (u - 1) / u * 2 * (2 * H + 2 * K) * d * T / (u * R) / fast  # all-to-alls
        computing = 4 * d * (T / R) ** 2 / 2 * H / u / flops_per_s  # with one block
        sending = 2 * 2 * d * K / u * T / R / slow
        return switching + (R - 1) * max(computing, sending) + computing

    def draw(self, source: random.Random) -> tuple[str, tuple[Any, ...]]:
        u, R, K = 2 ** source.randint(1, 2), 2 ** source.randint(2, 4), 4
        T, H, W = 1024 * R * source.randint(1, 3), K * source.randint(4, 10), source.randint(1, 20)
        return f"{T} tokens, u = {u}, R = {R}, H = {H}, {W} GB/s", (T, u, R, H, K, 128, H100, NVLINK, W * 1e9)


class DocumentPositions(Exercise):
    number = "7.3"
    compared = "returned"
    right = "every token is on one rank"
    budget = "par: no rank has more to do than the mean"
    run = staticmethod(on_rank.document_positions)
    sizes = (3, 3), (2, 2), (1, 2), (4, 5)

    def example_trial(self) -> Trial:
        return Trial([[[4, 8]]] * 2, "the example, 2 ranks, documents of [4, 8] tokens")

    def draw_trial(self, generator: torch.Generator, R: int, num_documents: int) -> Trial:
        lengths = [2 * R * length for length in torch.randint(2, 9, (num_documents,), generator=generator).tolist()]
        lengths[0] += 12 * R  # no two layouts are the same
        return Trial([[lengths]] * R, f"{ranks_of(R)}, documents of {lengths} tokens")

    def wrong(self, trial: Trial, answers: list[Any]) -> str | None:
        R, T, given = trial.world_size, sum(trial.inputs[0][0]), self.select_parts(answers)
        for rank, own in enumerate(given):
            if not readable(own) or own.dtype != torch.int64 or own.shape != (T // R,):
                return f"rank {rank} returned {describe(own)}: expected the positions of T/R tokens, int64[{T // R}]"
        num_ranks = Counter(torch.cat(given).tolist())
        token = next((token for token in range(T) if num_ranks[token] != 1), None)
        return None if token is None else (
            f"token {token} is on {num_ranks[token]} ranks: each of the row's {T} tokens has to be on one. "
            "Positions are counted in the row, not in the document")

    def usage(self, trial: Trial, answers: list[Any], traffic: SentBytes) -> Sequence[Spent]:
        costs = torch.cat([torch.arange(1, length + 1) for length in trial.inputs[0][0]])
        work = [costs[own].sum().item() for own in self.select_parts(answers)]
        return [highest("has more to do than the mean, by", [own * len(work) / sum(work) - 1 for own in work], 0.0,
                        "share", limit="par {}", slack=1e-9, decides=True)]
