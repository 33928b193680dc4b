"""Exercise 8.5: which rows a rank drops where more come for its experts than it has time for.

    N  tokens, k experts each, with weights (N, k)    E  experts on R ranks, E/R each    C  rows that a rank takes of us
    A rank that is asked for more keeps rows of protected tokens, then those of the largest weights.

Source: DeepSeek-AI 2024, DeepSeek-V2, section 2.2.4: capacity is a device's, the lowest affinities are dropped, and
tokens of about a tenth of the sequences never are.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from course_lib.grading.chapters.split import normal
from course_lib.grading.compare import describe, plain, readable
from course_lib.grading.exercise import Exercise, Traffic, Trial
from course_lib.grading.spent import Spent

Inputs = list[dict[str, Any]]


class Kept(Exercise):
    number = "8.5"
    function = "my_kept"
    points = 3
    compared = "kept"
    right = "what is kept is right"
    budget = "no rank gets more than C rows, or its protected ones where these are more; nothing that fits is dropped"
    hints = (
        "Look at one rank's rows at a time: all slots whose expert lives there. In which order would you take them, "
        "and where do you stop?",
        "experts // (E/R) says the rank of each slot. Give protected slots a key that is larger than any weight, sort "
        "a rank's slots by the key, downwards, and keep the first C. In the end all protected ones are kept, whatever "
        "C is; they count in it.",
        "rank = (experts // (num_experts // num_ranks)).flatten()\n"
        "key = (weights + 2.0 * protected.unsqueeze(1)).flatten()  # a weight is at most 1\n"
        "kept = torch.zeros_like(rank, dtype=torch.bool)\n"
        "for r in range(num_ranks):\n"
        "    slots = (rank == r).nonzero().flatten()\n"
        "    kept[slots[...]] = True\n"
        "return ... | protected.unsqueeze(1)",
    )

    def trials(self, seed: int) -> list[Trial]:
        generator = torch.Generator().manual_seed(seed)
        made = []
        for N, k, E, R, factor, safe in ((24, 2, 6, 3, 0.5, 2), (8, 1, 4, 2, 0.5, 0), (10, 3, 4, 1, 0.5, 3),
                                         (12, 2, 4, 2, 0.5, 8), (512, 4, 32, 4, 1.0, 50)):
            hot = 0.3 * (torch.arange(E) % (E // R) == 0) + torch.linspace(0.3, 0.0, E)  # experts and ranks
            likes = torch.rand(N, E, generator=generator) + hot
            experts = likes.topk(k).indices
            protected = torch.zeros(N, dtype=torch.bool)
            protected[torch.randperm(N, generator=generator)[:safe]] = True
            weights = normal(generator, N, k).softmax(-1) if k > 1 else normal(generator, N, k).sigmoid()
            C = int(factor * k * N / R)
            inputs = {"experts": experts, "weights": weights, "protected": protected, "numbers": [E, R, C]}
            made.append(Trial([inputs], f"{N} tokens, {safe} protected, k = {k}, {E} experts on {R} "
                                        f"rank{'s' * (R > 1)}, C = {C}"))
        return made

    @staticmethod
    def run(function: Callable, inputs: dict[str, Any]) -> dict[str, Any]:
        tensors = [inputs[name].clone() for name in ("experts", "weights", "protected")]
        return {"kept": plain(function(*tensors, *inputs["numbers"]))}

    def expected(self, inputs: Inputs) -> list[Tensor]:
        return chosen(inputs)

    def mistakes(self, inputs: Inputs) -> Iterable[tuple[str, list[Tensor]]]:
        rank, = inputs
        experts, weights, protected, (E, R, C) = (rank[name] for name in ("experts", "weights", "protected", "numbers"))
        if R > 1:
            yield ("C is taken for the capacity of an expert: it is that of a rank, for all of its experts together",
                   chosen(inputs, by=experts))
            yield ("C is shared out evenly over a rank's experts: a hot one may take what its neighbours leave",
                   chosen(inputs, by=experts, C=C * R // E))
            yield ("C is taken for all ranks together: each rank takes C rows", chosen(inputs, by=experts * 0))
            yield ("expert e is taken to live on rank e % R: rank r has the experts from r E/R on",
                   chosen(inputs, by=experts % R))
        yield ("protected tokens are dropped like others: their rows are kept in any case",
               chosen(inputs, safe=protected & False))
        yield ("protected rows are not counted: they take room as others do, so that fewer of these fit",
               chosen(inputs, uncounted=True))
        yield ("rows of the smallest weights are kept: drop these", chosen(inputs, key=-weights))
        first = -torch.arange(weights.numel()).view_as(weights).double() / weights.numel()
        yield "first come, first kept: the largest weights are asked", chosen(inputs, key=first)
        yield ("first come, first kept, all tokens' best experts before the second ones: the largest weights are asked",
               chosen(inputs, key=first.view(-1).view(weights.shape[1], -1).T))
        yield "what is dropped is returned: True is for rows that are kept", [~kept for kept in chosen(inputs)]
        yield ("a token loses all of its rows where one is dropped: each of the k rows is kept or dropped by itself",
               [kept & kept.all(1, keepdim=True) for kept in chosen(inputs)])
        yield ("a rank keeps one row too few: C of them fit", chosen(inputs, C=C - 1))

    def difference(self, given: list[Any], expected: list[Tensor]) -> str:
        kept, right = given[0], expected[0]
        if not readable(kept) or kept.dtype != torch.bool or kept.shape != right.shape:
            return f"it returned {describe(kept)}: expected bool{list(right.shape)}, True for rows that are kept"
        token, slot = (kept != right).nonzero()[0].tolist()
        said, should = ("kept", "dropped") if kept[token, slot] else ("dropped", "kept")
        return (f"{int((kept != right).sum())} of {kept.numel()} rows are wrong; the first one is token {token}'s slot "
                f"{slot}, which is {said} and should be {should}")

    def spent(self, trial: Trial, answers: list[Any], traffic: Traffic) -> Sequence[Spent]:
        inputs = trial.inputs[0]
        E, R, C = inputs["numbers"]
        owner, kept = inputs["experts"] // (E // R), answers[0]["kept"]
        each = [int((kept & (owner == r)).sum()) for r in range(R)]
        safe = [int((inputs["protected"][:, None] & (owner == r)).sum()) for r in range(R)]
        allowed = [max(C, own) for own in safe]
        rank = max(range(R), key=lambda r: each[r] - allowed[r])
        dropped = 1 - sum(each) / kept.numel()
        par = 1 - self.expected(trial.inputs)[0].sum().item() / kept.numel()
        return [Spent("gives a rank", each[rank], allowed[rank], "row"), Spent("drops", dropped, par, "share",
                                                                               slack=1e-9)]


def chosen(inputs: Inputs, by: Tensor | None = None, C: int | None = None, key: Tensor | None = None,
           safe: Tensor | None = None, uncounted: bool = False) -> list[Tensor]:
    """Which rows are kept, C for each value of `by`; arguments but the first are mistakes."""
    masks = []
    for rank in inputs:
        E, R, own = rank["numbers"]
        owner = (rank["experts"] // (E // R) if by is None else by).flatten()
        key_of = rank["weights"] if key is None else key
        protected = (rank["protected"] if safe is None else safe).unsqueeze(1).expand_as(key_of)
        urgency = (key_of + (-4.0 if uncounted else 4.0) * protected).flatten()
        kept = torch.zeros_like(owner, dtype=torch.bool)
        for value in owner.unique():
            slots = (owner == value).nonzero().flatten()
            kept[slots[urgency[slots].argsort(descending=True, stable=True)[:max(own if C is None else C, 0)]]] = True
        masks.append(kept.view_as(rank["weights"]) | protected)
    return masks
