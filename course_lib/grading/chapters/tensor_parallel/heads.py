"""Exercise 5.4: which rows of a fused q | k | v a rank needs, where several heads of q share one of k and v.

    t  ranks, r this one    H  heads of q, K of k and of v, d rows each    head h of q reads head h // (H/K) of k and v
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from course_lib.grading.chapters.split import normal
from course_lib.grading.compare import plain
from course_lib.grading.exercise import Exercise, Traffic, Trial, ranks_of
from course_lib.grading.spent import Spent, most

Heads = Callable[[int], Iterable[int]]  # of a rank


class QKVRows(Exercise):
    number = "5.4"
    function = "my_qkv_rows"
    points = 3
    compared = "returned"
    right = "the rows are right"
    budget = "H/t heads of q and as many of k and v as these read, on each rank; nothing sent"
    hints = (
        "q, k and v are three matrices that lie on top of one another. Cut each on its own: which heads of q has rank "
        "r, and which head of k does each of them read?",
        "The first of rank r's H/t heads of q is r H/t, the last one is r H/t + H/t - 1. Divide both by H/K, without "
        "the remainder: these are its first and its last head of k and v. Where t is larger than K that is one head, "
        "which other ranks hold too.",
        "d = len(weight) // (num_heads + 2 * num_kv_heads)\n"
        "q, k, v = weight.split([...])  # rows of each\n"
        "first, last = r * num_heads // t, (r + 1) * num_heads // t - 1\n"
        "kv_first, kv_last = ...\n"
        "return torch.cat([q[first * d:(last + 1) * d], ..., ...])",
    )

    def trials(self, seed: int) -> list[Trial]:
        generator = torch.Generator().manual_seed(seed)
        made = []
        for t, H, K, d, D in ((3, 12, 6, 2, 3), (4, 8, 2, 2, 2), (2, 4, 2, 1, 2), (3, 6, 1, 2, 2), (1, 2, 1, 2, 2),
                              (2, 4, 4, 2, 2), (4, 16, 2, 16, 64)):
            weight = normal(generator, (H + 2 * K) * d, D)
            label = f"{ranks_of(t)}, {H} heads of q, {K} of k and v"
            made.append(Trial([{"weight": weight, "heads": [H, K]} for _ in range(t)], label))
        return made

    @staticmethod
    def run(function: Callable, inputs: dict[str, Any]) -> dict[str, Any]:
        returned = function(inputs["weight"].clone(), *inputs["heads"])
        held = returned.untyped_storage().nbytes() if type(returned) is Tensor else 0
        return {"returned": plain(returned), "held": held}

    def expected(self, inputs: list[dict[str, Any]]) -> list[Tensor]:
        H, K, t = *inputs[0]["heads"], len(inputs)
        return rows(inputs, own_heads(H, t), lambda r: read_by(own_heads(H, t)(r), H, K))

    def mistakes(self, inputs: list[dict[str, Any]]) -> Iterable[tuple[str, list[Tensor]]]:
        H, K, t = *inputs[0]["heads"], len(inputs)
        weight, own = inputs[0]["weight"], own_heads(H, t)
        if len(weight) % t == 0:
            yield ("the fused matrix is cut as one, so that rank 0 has heads of q and hardly a key: cut q, k and v "
                   "each on its own", list(weight.chunk(t)))
        yield ("every rank holds all heads of k and v: it needs those that its heads of q read, and no others",
               rows(inputs, own, lambda r: range(K)))
        if K % t:
            d = len(weight) // (H + 2 * K)
            cut = [part.chunk(t) for part in weight.split([H * d, K * d, K * d])]
            if all(len(pieces) == t for pieces in cut):
                yield ("t is larger than K, and the heads of k and v are cut through: a rank needs the whole head, "
                       "which others hold as well", [torch.cat([pieces[r] for pieces in cut]) for r in range(t)])
        yield ("the heads of k and v are dealt one by one, r, r + t and so on: heads of q that follow one another "
               "share one", rows(inputs, own, lambda r: [r % K] if t > K else range(r, K, t)))
        yield ("the heads of q are dealt one by one, r, r + t and so on: the ones that share a key follow one another, "
               "so take them in a row",
               rows(inputs, lambda r: range(r, H, t), lambda r: read_by(range(r, H, t), H, K)))
        yield ("head h of q is taken to read head h % K of k and v: it reads h // (H/K)",
               rows(inputs, own, lambda r: sorted({h % K for h in own(r)})))
        yield ("each head of q has its own copy of a head of k and v: those that share one need it once",
               rows(inputs, own, lambda r: [h * K // H for h in own(r)]))
        yield "k and v are missing: the rows of all three are asked, q, then k, then v", rows(inputs, own, lambda r: [])
        yield ("every rank has rank 0's rows: take those of rank r", [self.expected(inputs)[0]] * t)

    def spent(self, trial: Trial, answers: list[Any], traffic: Traffic) -> Sequence[Spent]:
        held, needed = [answer["held"] for answer in answers], self.expected(trial.inputs)[0].nbytes
        sent = [traffic.sent_by(rank) for rank in range(trial.world_size)]
        return [Spent("holds", max(held), needed, on=" of rows", rank=most(held), claimed=True,
                      why="what is returned is a view, which keeps the whole matrix alive: make a tensor of its own"),
                Spent("sent", max(sent), 0, rank=most(sent), slack=traffic.slack(0), claimed=True,
                      why="every rank has the whole matrix, so nobody has to ask")]


def own_heads(num_heads: int, t: int) -> Heads:
    return lambda r: range(r * num_heads // t, (r + 1) * num_heads // t)


def read_by(heads: Iterable[int], num_heads: int, num_kv_heads: int) -> list[int]:
    """The heads of k and v that these heads of q read."""
    return sorted({head * num_kv_heads // num_heads for head in heads})


def rows(inputs: list[dict[str, Any]], q_heads: Heads, kv_heads: Heads) -> list[Tensor]:
    """Of each rank: the rows of these heads, of q, of k and of v."""
    weight, (H, K) = inputs[0]["weight"], inputs[0]["heads"]
    heads = weight.unflatten(0, (H + 2 * K, -1))  # (H + 2 K, d, D)
    taken = [[*q_heads(r), *(start + head for start in (H, H + K) for head in kv_heads(r))] for r in range(len(inputs))]
    return [heads[own].flatten(0, 1) for own in taken]
