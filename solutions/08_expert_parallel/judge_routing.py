"""Chapter 8, the way of a token: which experts it gets, how evenly they get it, and how it comes there and back.

Exercises 8.1 and 8.2: a gate that takes equally many experts from each rank, and rows in whole blocks for each.

    N  tokens of D numbers    E  experts in G groups, a rank's each    k  experts of a token    z (N, E)  logits
    s = sigmoid(z)        the k/G experts of each group with the largest s + bias are chosen
    weights: scale * s / (sum of the k chosen s)
    rows: sorted by expert, n_e for expert e, filled up to blocks of b rows, (sum of b ceil(n_e / b), D)
    y: what the experts made of rows        combined (N, D) = sum of weight * y

Sources: Tang et al. 2025, Pangu Pro MoE: Mixture of Grouped Experts for Efficient Sparsity (groups); DeepSeek-AI 2024,
DeepSeek-V3, section 2.1.2 (sigmoid, a bias that only chooses, scale 2.5); Gale et al. 2022, MegaBlocks: Efficient
Sparse Training with Mixture-of-Experts (blocks of 128 rows).

Exercises 8.4 and 8.5: ranks with equally much to do, by a loss that evens out, or by dropping what is too much.

    R  ranks with N tokens and E/R of the experts each    k  experts of a token    p (N, E)  softmax of the logits
    f_d  share of the k N R choices that fall on rank d's experts, of all ranks: a count, without a gradient
    P_d  mean over this rank's tokens of the sum of p over rank d's experts
    loss of a rank = R sum_d f_d P_d        the mean over the ranks, which data parallelism takes, is that of all tokens
    C  rows that a rank takes of us; of more it keeps rows of protected tokens, then those of the largest weights

Sources: DeepSeek-AI 2024, DeepSeek-V2, sections 2.2.3 (device-level balance loss) and 2.2.4 (capacity is a device's,
the lowest affinities are dropped, and tokens of about a tenth of the sequences never are); Fedus et al. 2021, Switch
Transformers, equations 4 to 6; Qiu et al. 2025, Demons in the Detail: On Implementing Load Balancing Loss.

Exercises 8.3 and 8.8: tokens to the ranks of their experts and home again, and how wide an expert has to be for it.

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
from torch import Tensor
from torch.nn.functional import pad

from course_lib.costs.network import network_of
from course_lib.costs.splitting import combine_bytes, dispatch_bytes
from course_lib.expert_parallel import capacity_mask, load_balancing_loss, permute, tokens_per_expert, unpermute
from course_lib.grading.compare import describe, readable
from course_lib.grading.exercise import Exercise, SentBytes, Trial, ranks_of
from course_lib.grading.gradients import PartsExercise, SplitExercise, all_reduce_bytes, doubles, normal, play_ranks
from course_lib.grading.kinds import NumberExercise, num_calls, sent_by
from course_lib.grading.on_rank import Leaves, leaf_gradients, leaves_of
from course_lib.grading.spent import Spent, highest, most
from course_lib.pictures.units import human_bytes

from . import on_rank

Inputs = list[dict[str, Any]]
Answers = list[dict[str, Any]]
HELD = 4  # times the bytes of rows: rows, what back gathers and weighs, and indices


class Gate(SplitExercise):
    number = "8.1"
    budget = "the busiest group gets k N/G rows, as many as the mean; nothing sent"
    run = staticmethod(on_rank.gate)
    sizes = (8, 12, 4, 2, 2.5), (16, 6, 3, 3, 1.5), (6, 5, 2, 1, 2.0), (64, 64, 8, 8, 2.5)

    def draw_trial(self, generator: torch.Generator, N: int, E: int, k: int, G: int, scale: float) -> Trial:
        inputs = {"given": {"logits": normal(generator, N, E)}, "bias": normal(generator, E, scale=0.4),
                  "numbers": [k, G, scale], "dy": normal(generator, N, E)}
        return Trial([inputs], f"{N} tokens, {E} experts in {G} group{'s' * (G > 1)}, k = {k}")

    def example_trial(self) -> Trial:
        """The bias decides in both groups; added to the logits, it would in the first one only."""
        inputs = {"given": {"logits": doubles([[0.7, 0.6, 0.3, 0.2]]).logit()}, "bias": doubles([0, 0.5, 0, 0.3]),
                  "numbers": [2, 2, 2], "dy": doubles([[1, 2, 3, 4]])}
        return Trial([inputs], "the example, 1 token, 4 experts in 2 groups, k = 2")

    def solve(self, inputs: Inputs) -> Answers:
        bias, (k, G, scale) = inputs[0]["bias"], inputs[0]["numbers"]

        def weights_of(leaves: list[Leaves]) -> list[Tensor]:
            scores = leaves[0]["logits"].sigmoid()  # (N, E)
            by = (scores + bias).unflatten(1, (G, -1))
            chosen = scores * torch.zeros_like(by).scatter(2, by.topk(k // G).indices, 1.0).flatten(1)
            return [scale * chosen / chosen.sum(1, keepdim=True)]

        return play_ranks(inputs, weights_of)

    def difference(self, given: list[Any], expected: Answers) -> str:
        return super().difference(given, expected).replace("rank 0 returned", "all experts' weights, chosen or 0, are")

    def local_usage(self, trial: Trial, answers: list[Any]) -> list[Spent]:
        k, G, _ = trial.inputs[0]["numbers"]
        rows = answers[0]["y"].ne(0).unflatten(1, (G, -1)).sum((0, 2))  # of each group
        return [Spent("gives a group", rows.max().item(), k * len(answers[0]["y"]) // G, "row")]

    def bound(self, trial: Trial) -> int:
        return 0


class BlockRows(PartsExercise):
    number = "8.2"
    parts = {"rows": "rows", "y": "back(y)", "tokens": "the gradient of the tokens",
             "weights": "the gradient of the weights"}
    budget = "at most 4 times the bytes of rows held on the way there or back: places, no matrix of tokens by rows"
    run = staticmethod(on_rank.block_rows)
    sizes = ((7, 2, 4, 2, 4, 2), (6, 3, 4, 1, 2, 0, 2), (3, 2, 2, 2, 1), (1, 1, 4, 3, 8),
             (256, 64, 16, 2, 16, 0, 6, 15))  # the last ones: experts without tokens

    def draw_trial(self, generator: torch.Generator, N: int, D: int, E: int, k: int, block: int, *idle: int) -> Trial:
        names = torch.tensor([e for e in range(E) if e not in idle])
        likes = torch.rand(N, len(names), generator=generator) + torch.linspace(0, 0.4, len(names))
        if N == 7:  # 4, 6 and 4 rows, and none: full blocks, and one that is not
            likes[torch.randperm(N, generator=generator), torch.tensor([0, 0, 0, 1, 2, 2, 2])] = -1.0
        inputs = {"given": {"tokens": normal(generator, N, D), "weights": normal(generator, N, k).sigmoid()},
                  "experts": names[likes.topk(k).indices], "numbers": [E, block], "dy": normal(generator, N, D)}
        return Trial([inputs], f"{N} token{'s' * (N > 1)} of {D}, k = {k}, {E} experts, blocks of {block}")

    def example_trial(self) -> Trial:
        inputs = {"given": {"tokens": doubles([[1, 2], [3, 4], [5, 6]]), "weights": doubles([[0.5], [0.25], [2]])},
                  "experts": torch.tensor([[1], [0], [1]]), "numbers": [2, 2], "dy": doubles([[1, 2], [3, 4], [5, 6]])}
        return Trial([inputs], "the example, 3 tokens of 2, k = 1, 2 experts, blocks of 2")

    def solve(self, inputs: Inputs) -> Answers:
        rank, = inputs
        leaves, (E, block) = leaves_of(rank), rank["numbers"]
        own_rows, order = permute(leaves["tokens"], rank["experts"])
        of_expert = own_rows.split(tokens_per_expert(rank["experts"], E).tolist())
        rows = torch.cat([pad(own, (0, 0, 0, -len(own) % block)) for own in of_expert])
        filled = torch.cat([pad(torch.ones(len(own)), (0, -len(own) % block)) for own in of_expert]).bool()
        combined = unpermute(on_rank.results_of(rows)[filled], order, leaves["weights"])
        combined.backward(rank["dy"])
        return [{"rows": rows.detach(), "y": combined.detach(), **leaf_gradients(leaves)}]

    def local_usage(self, trial: Trial, answers: list[Any]) -> list[Spent]:
        held, rows = answers[0]["held"], answers[0]["rows"]
        return [Spent("holds", held, HELD * rows.nbytes, on=" on its way", slack=4096, claimed=True)]

    def bound(self, trial: Trial) -> int:
        return 0


class BalanceLoss(SplitExercise):
    number = "8.4"
    tolerance = (1e-6, 1e-7)  # shares of the choices in float32 will do
    budget = "one all-reduce of R numbers: 2(R-1)/R * 8 R bytes sent by each rank, forward and backward together"
    run = staticmethod(on_rank.balance_loss)
    sizes = (3, 5, 12, 2), (2, 4, 6, 1), (1, 6, 3, 2), (4, 32, 64, 4)

    def draw_trial(self, generator: torch.Generator, R: int, N: int, E: int, k: int) -> Trial:
        ranks = [{"given": {"logits": normal(generator, N, E, scale=1.5) + normal(generator, E)}, "k": k,
                  "dy": doubles(1.5)} for _ in range(R)]
        return Trial(ranks, f"{ranks_of(R)} with {N} tokens each, {E} experts, k = {k}")

    def example_trial(self) -> Trial:
        """Three of the four choices fall on rank 0's experts."""
        p = doubles([[[0.5, 0.2, 0.2, 0.1], [0.1, 0.6, 0.1, 0.2]], [[0.4, 0.3, 0.2, 0.1], [0.2, 0.3, 0.4, 0.1]]])
        ranks = [{"given": {"logits": own.log()}, "k": 1, "dy": doubles(1)} for own in p]
        return Trial(ranks, "the example, 2 ranks with 2 tokens each, 4 experts, k = 1")

    def solve(self, inputs: list[Any]) -> list[dict[str, Any]]:
        R, k = len(inputs), inputs[0]["k"]

        def losses(leaves: list[Leaves]) -> list[Tensor]:
            zs = [each["logits"] for each in leaves]  # (N, E)
            ranks = [z.topk(k).indices // (z.shape[1] // R) for z in zs]
            counts = sum(tokens_per_expert(own, R) for own in ranks)  # of ranks, as if each were one expert
            return [load_balancing_loss(z.softmax(-1).unflatten(1, (R, -1)).sum(-1), own, counts)
                    for z, own in zip(zs, ranks)]

        return play_ranks(inputs, losses)

    def local_usage(self, trial: Trial, answers: list[Any]) -> list[Spent]:
        return [num_calls(answers, 1)]

    def bound(self, trial: Trial) -> int:
        return all_reduce_bytes(trial, trial.world_size)

    def least(self, trial: Trial) -> int:
        """R - 1 counts, the last one follows from them, of a byte each: to one rank, and their sums from there."""
        return 2 * (trial.world_size - 1) ** 2


class KeptWithinCapacity(Exercise):
    number = "8.5"
    compared = "returned"
    budget = "no rank gets more than C rows, or its protected ones where these are more; nothing that fits is dropped"
    run = staticmethod(on_rank.kept)
    sizes = ((24, 2, 6, 3, 0.5, 2), (8, 1, 4, 2, 0.5, 0), (10, 3, 4, 1, 0.5, 3), (12, 2, 4, 2, 0.5, 8),
             (16, 1, 8, 4, 0.25, 1), (512, 4, 32, 4, 1.0, 50))

    def draw_trial(self, generator: torch.Generator, N: int, k: int, E: int, R: int, factor: float, safe: int) -> Trial:
        hot = 0.3 * (torch.arange(E) % (E // R) == 0) + torch.linspace(0.3, 0.0, E)  # experts and ranks
        experts = (torch.rand(N, E, generator=generator) + hot).topk(k).indices
        protected = torch.randperm(N, generator=generator) < safe
        C, weights = int(factor * k * N / R), normal(generator, N, k).sigmoid()
        return Trial([[experts, weights, protected, E, R, C]],
                     f"{N} tokens, {safe} protected, k = {k}, {E} experts on {ranks_of(R)}, C = {C}")

    def example_trial(self) -> Trial:
        inputs = [torch.tensor([[0], [1], [1], [0]]), doubles([[0.5], [0.9], [0.6], [0.7]]),
                  torch.tensor([True, False, False, False]), 4, 2, 3]
        return Trial([inputs], "the example, 4 tokens, 1 protected, k = 1, 4 experts on 2 ranks, C = 3")

    def solve(self, inputs: list[Any]) -> list[Tensor]:
        experts, weights, protected, E, R, C = inputs[0]
        urgency = weights + 2.0 * protected.unsqueeze(1)  # a weight is at most 1
        return [capacity_mask(experts // (E // R), R, C, urgency) | protected.unsqueeze(1)]

    def difference(self, given: list[Any], expected: list[Tensor]) -> str:
        kept, right = given[0], expected[0]
        if not readable(kept) or kept.dtype != torch.bool or kept.shape != right.shape:
            return f"it returned {describe(kept)}: expected bool{list(right.shape)}, True for rows that are kept"
        token, slot = (kept != right).nonzero()[0].tolist()
        return (f"{int((kept != right).sum())} of {kept.numel()} rows are wrong; the first one, token {token}'s slot "
                f"{slot}, should be {'kept' if right[token, slot] else 'dropped'}")

    def usage(self, trial: Trial, answers: list[Any], traffic: SentBytes) -> list[Spent]:
        experts, _, protected, E, R, C = trial.inputs[0]
        owner, kept = experts // (E // R), answers[0]["returned"]
        each = tokens_per_expert(owner, R, kept).tolist()
        allowed = [max(C, safe) for safe in tokens_per_expert(owner[protected], R).tolist()]
        rank = most(each, allowed)  # of the layout that is asked about: it is none of the trial's own ranks
        return [Spent("gives a rank", each[rank], allowed[rank], "row")]


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
