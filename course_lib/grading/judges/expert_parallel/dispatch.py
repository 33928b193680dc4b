"""Exercises 8.3 and 8.8: tokens to the ranks of their experts and home again, and how wide an expert has to be for it.

    R  ranks, r this one    E  experts, rank r has those from r E/R on    N  tokens of a rank, of D numbers
    n_out tokens for other ranks, n_in from them, once for each rank and not for each expert
    bytes that a rank sends: how many it will send, 8 (R-1); tokens, 8 D n_out; for which of the experts there,
    E/R n_out; and others' results home, 8 D n_in

    k  experts of a token, s shared ones    m  nodes that it goes to, of G    F  width of an expert
    C  FLOP/s that a device does    W  bytes/s of its card, as all ranks of a node send rows of their own at once
    w  bytes of a number on its way, out and home
    computing of N tokens  N (k + s) 6 D F / C        sending  N m (G-1)/G D (w_out + w_home) / W        forward

Sources: DeepSeek-AI 2024, DeepSeek-V3, sections 2.1.2 (at most 4 nodes), 3.2.1 (computing to sending about 1 : 1),
3.2.2 (once to each node that has experts for it) and 3.3.2 (fp8 out, bf16 home); Jiang et al. 2024, Mixtral of Experts.
"""

import random
from typing import Any

import torch

from course_lib.costs.mixture import combine_bytes, dispatch_bytes
from course_lib.costs.network import network_of
from course_lib.grading.exercise import SentBytes, Trial, ranks_of
from course_lib.grading.judges.calls import num_calls, sent_by
from course_lib.grading.judges.models import doubles
from course_lib.grading.judges.numbers import NumberExercise
from course_lib.grading.judges.split import PartsExercise, normal
from course_lib.grading.on_rank import expert_parallel as on_rank
from course_lib.grading.spent import Spent, highest
from course_lib.pictures.units import human_bytes

NODES = network_of("H100")  # of eight
H100, B200 = 600e12, 1350e12  # 0.6 of their peaks in bf16
NVLINK = float(round(NODES.group(8).bytes_per_s("all_to_all")))
NDR = float(round(NODES.group(64).bytes_per_s("send")))  # what leaves its node in an all-to-all has its own card, too


class Dispatch(PartsExercise):
    number = "8.3"
    parts = {"received": "received", "theirs": "theirs", "home": "back(y)"}
    right = "tokens arrive and results come home"
    budget = ("four collectives: how many, tokens, choices, and results home; to the byte what others have to have, "
              "8 (R-1), 8 D + E/R for each token sent, 8 D for each result")
    run = staticmethod(on_rank.dispatch)
    sizes = (3, 2, 2, 4, 2), (2, 3, 1, 5, 3), (3, 2, 2, 3, 2, 1), (1, 3, 2, 4, 2), (4, 4, 64, 48, 4)

    def draw_trial(self, generator: torch.Generator, R: int, each: int, D: int, N: int, k: int, hot: int | None = None
                   ) -> Trial:
        ranks, E = [], R * each
        for r in range(R):
            likes = torch.rand(N + r, E, generator=generator)
            if hot is not None:  # everything is for this rank's experts: the others receive nothing
                likes[:, hot * each:(hot + 1) * each] += 1.0
            choices = torch.zeros(N + r, E, dtype=torch.uint8).scatter_(1, likes.topk(k).indices, 1)
            ranks.append({"tokens": normal(generator, N + r, D), "choices": choices})
        return Trial(ranks, f"{ranks_of(R)}, {E} experts, k = {k}, tokens of {human_bytes(8 * D)}"
                            + f", all for rank {hot}" * (hot is not None))

    def example_trial(self) -> Trial:
        ranks = [{"tokens": doubles([token]), "choices": torch.tensor([own], dtype=torch.uint8)}
                 for token, own in (([1, 2], [0, 1, 1, 1]), ([5, 7], [1, 0, 0, 0]))]
        return Trial(ranks, "the example, 2 ranks, 4 experts")

    def solve(self, inputs: list[dict[str, Any]]) -> list[dict[str, Any]]:
        choices = [rank["choices"].chunk(len(inputs), 1) for rank in inputs]  # of each rank, on each: (N, E/R)
        answers = []
        for r, own in enumerate(inputs):
            goes = [chosen[r].bool().any(1) for chosen in choices]
            answers.append({
                "received": torch.cat([rank["tokens"][here] for rank, here in zip(inputs, goes)]),
                "theirs": torch.cat([chosen[r][here] for chosen, here in zip(choices, goes)]),
                "home": sum(on_rank.results_of_experts(own["tokens"], chosen) for chosen in choices[r])})
        return answers

    def sent_bytes(self, trial: Trial) -> list[int]:
        """What each rank has to send, to the byte."""
        R, (num_tokens, E) = trial.world_size, trial.inputs[0]["choices"].shape
        goes = [rank["choices"].unflatten(1, (R, -1)).any(-1).sum(0).tolist() for rank in trial.inputs]  # [from][to]
        token = trial.inputs[0]["tokens"].nbytes // num_tokens
        return [8 * (R - 1) + out + home
                for out, home in zip(dispatch_bytes(goes, token + E // R, 1), combine_bytes(goes, token, 1))]

    def bound(self, trial: Trial) -> int:
        return max(self.sent_bytes(trial))

    def least(self, trial: Trial) -> int:
        """A token to each other rank that has experts for it, and a result back from there."""
        (num_tokens, E), R = trial.inputs[0]["choices"].shape, trial.world_size
        token = trial.inputs[0]["tokens"].nbytes // num_tokens
        pairs = (sum(self.sent_bytes(trial)) - 8 * R * (R - 1)) // (2 * token + E // R)
        return pairs * 2 * token

    def local_usage(self, trial: Trial, answers: list[Any]) -> list[Spent]:
        return [num_calls(answers, 4)]

    def usage(self, trial: Trial, answers: list[Any], traffic: SentBytes) -> list[Spent]:
        calls, _, *outside = super().usage(trial, answers, traffic)
        each = [sent_by(rank, answers, traffic) for rank in range(trial.world_size)]
        return [calls, highest("sent", each, self.sent_bytes(trial), claimed=True), *outside]


class SmallestExpert(NumberExercise):
    number = "8.8"
    budget = "the formula's F, which need not be a whole number"
    cases = (("the example, k = 6, one shared, m = 2 of 4", (6, 1, 2, 4, 3, 2, 112, 5)),
             ("DeepSeek-V3 over 8 nodes of B200, fp8 out and home", (8, 1, 4, 8, 1, 1, B200, NDR)),
             ("DeepSeek-V3 over 8 nodes of H100, fp8 out, bf16 home", (8, 1, 4, 8, 1, 2, H100, NDR)),
             ("the same, each row sent by itself", (8, 1, 8, 8, 1, 2, H100, NDR)),
             ("Mixtral over 8 nodes, bf16", (2, 0, 2, 8, 2, 2, H100, NDR)),
             ("DeepSeek-V3 over the 8 GPUs of one node", (8, 1, 8, 8, 1, 2, H100, NVLINK)))

    def solve(self, k: int, shared: int, m: int, G: int, out_bytes: int, home_bytes: int, flops_per_s: float,
              bytes_per_s: float) -> float:
        return m * (G - 1) / G * (out_bytes + home_bytes) * flops_per_s / (6 * (k + shared) * bytes_per_s)

    def draw(self, source: random.Random) -> tuple[str, tuple[Any, ...]]:
        m, shared, G, F, W = (source.randint(*bounds) for bounds in ((2, 4), (1, 3), (5, 16), (100, 900), (20, 400)))
        k, out = m + source.randint(1, 4), source.choice((1, 2))
        return (f"k = {k}, {shared} shared, m = {m} of {G}, {out} and 4 bytes, {F} TFLOP/s, {W} GB/s",
                (k, shared, m, G, out, 4, F * 1e12, W * 1e9))
