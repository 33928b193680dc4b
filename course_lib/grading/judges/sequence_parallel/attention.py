"""Exercises 7.2, 7.4 and 7.7: attention over keys that lie on all ranks.

    R  ranks, r this one      q, k, v, out (B, H, c, d), lse (B, H, c)  of this rank's c = T/R tokens
    7.2: out, lse of the same queries on all ranks, each over its own keys (lse = -inf: it has none), are merged:
         lse_all = log sum_r exp(lse_r)      out_all = sum_r exp(lse_r - lse_all) out_r
    7.4: in step i rank r uses the block of rank r - i, of M bytes
    7.7, open-ended: causal attention and its gradients. However it is written, bytes and memory count: M = 2 P goes
         around once forward, and backward again with its gradients; P = 8 B H c d  bytes of q
"""

from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from course_lib.grading.compare import readable
from course_lib.grading.exercise import SentBytes, Trial, ranks_of
from course_lib.grading.judges.calls import CollectiveExercise, num_calls
from course_lib.grading.judges.models import ROUNDING, Inputs, doubles
from course_lib.grading.judges.split import Leaves, PartsExercise, SplitExercise, all_reduce_bytes, normal, play_ranks
from course_lib.grading.on_rank import sequence_parallel as on_rank
from course_lib.grading.spent import Spent, highest
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
    sizes = (3, 1, 2, 4, 4), (2, 2, 1, 4, 4), (1, 1, 1, 4, 4), (4, 1, 2, 64, 16)

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
