"""Exercise 8.1: a gate that takes equally many experts from each rank, so that no rank has more to do than another.

    N  tokens    E  experts in G groups, a rank's each    k  experts of a token    z (N, E)  logits    b (E,)  bias
    s = sigmoid(z)        the k/G experts of each group with the largest s + b are chosen
    weights: scale * s / (sum of the k chosen s)

Sources: Tang et al. 2025, Pangu Pro MoE: Mixture of Grouped Experts for Efficient Sparsity (groups); DeepSeek-AI 2024,
DeepSeek-V3, section 2.1.2 (sigmoid, a bias that only chooses, scale 2.5).
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from course_lib.grading.calls import count_calls
from course_lib.grading.chapters.split import NO_WAY_BACK, PartsExercise, normal
from course_lib.grading.compare import describe, plain
from course_lib.grading.exercise import Trial
from course_lib.grading.spent import Spent

Inputs = list[dict[str, Any]]
Answers = list[dict[str, Any]]
NAMES = {"weights": "the weights, with 0 for experts that were not chosen,", "logits": "the gradient of the logits"}


class Gate(PartsExercise):
    number = "8.1"
    function = "my_gate"
    points = 3
    parts = NAMES
    right = "the weights and their gradient are right"
    budget = "the busiest group gets k N/G rows, as many as the mean; nothing sent"
    hints = (
        "Two different numbers belong to an expert: one that chooses it and one that weighs it. Which of them has the "
        "bias in it? And over which experts does topk look here?",
        "(scores + bias).unflatten(1, (num_groups, -1)) is (N, G, E/G), and topk of it counts experts from 0 in each "
        "group: add where the group begins, and flatten. The weights are gathered from the scores without the bias, "
        "divided by their sum over all k, times scale.",
        "scores = logits.sigmoid()\n"
        "by = (scores + bias).unflatten(1, (num_groups, -1))  # (N, G, E/G)\n"
        "in_group = by.topk(...).indices  # (N, G, k/G)\n"
        "first = torch.arange(num_groups).unsqueeze(1) * ...\n"
        "experts = (in_group + first).flatten(1)\n"
        "chosen = ...  # of scores, (N, k)\n"
        "return experts, scale * chosen / ...",
    )

    def trials(self, seed: int) -> list[Trial]:
        generator = torch.Generator().manual_seed(seed)
        made = []
        for N, E, k, G, scale in ((8, 12, 4, 2, 2.5), (16, 6, 3, 3, 1.5), (6, 5, 2, 1, 2.0), (64, 64, 8, 8, 2.5)):
            inputs = {"logits": normal(generator, N, E), "bias": normal(generator, E, scale=0.4),
                      "numbers": [k, G, scale], "dy": normal(generator, N, E)}
            made.append(Trial([inputs], f"{N} tokens, {E} experts in {G} group{'s' * (G > 1)}, k = {k}"))
        return made

    @staticmethod
    def run(function: Callable, inputs: dict[str, Any]) -> dict[str, Any]:
        logits = inputs["logits"].clone().requires_grad_()
        returned, calls = count_calls(function, logits, inputs["bias"].clone(), *inputs["numbers"])
        weights = dense(returned, logits, inputs["numbers"][0])
        if isinstance(weights, Tensor) and weights.requires_grad:
            weights.backward(inputs["dy"].clone())
        return {"weights": weights if isinstance(weights, str) else plain(weights), "logits": plain(logits.grad),
                "calls": calls}

    def expected(self, inputs: Inputs) -> Answers:
        return gated(inputs)

    def mistakes(self, inputs: Inputs) -> Iterable[tuple[str, Answers]]:
        right, (_, G, scale) = gated(inputs), inputs[0]["numbers"]
        yield NO_WAY_BACK, [{**answer, "logits": None} for answer in right]
        yield ("the bias is in the weights: it chooses, and the scores without it weigh",
               gated(inputs, weigh_bias=True))
        yield "the bias is left out: an expert is chosen by score + bias", gated(inputs, bias=0.0)
        yield ("the weights are right, but the sum that they are divided by gives no gradient: do not detach it",
               gated(inputs, detached=True))
        if G > 1:
            yield ("the k best of all experts are chosen: here the k/G best of each group are", gated(inputs, apart=1))
            yield ("all of them come from the first group: topk counts from 0 in each group, so "
                   "add where the group begins", gated(inputs, from_zero=True))
            yield ("expert e is taken for one of group e % G: the first E/G experts are group 0, and so on",
                   gated(inputs, dealt=True))
            yield ("each group's weights are divided by their own sum: all k of a token add up to scale",
                   gated(inputs, sum_in_group=True))
        yield ("the scores are divided by the sum over all experts: the sum over the chosen ones is asked",
               gated(inputs, over_all=True))
        yield "the weights are not divided by their sum", gated(inputs, normalised=False)
        yield "scale is left out: a token's weights add up to scale", gated(inputs, scale=1 / scale)
        yield ("scores are a softmax over the experts: here each expert's is the sigmoid of its own logit",
               gated(inputs, score=lambda z: z.softmax(-1)))
        yield ("the weights are a softmax of the chosen logits: they are the chosen sigmoids, divided by their sum",
               gated(inputs, score=torch.exp, choose=torch.sigmoid))

    def kept(self, trial: Trial, answers: Answers) -> list[Spent]:
        k, G, _ = trial.inputs[0]["numbers"]
        rows = answers[0]["weights"].ne(0).unflatten(1, (G, -1)).sum((0, 2))  # of each group
        return [Spent("gives a group", rows.max().item(), k * len(trial.inputs[0]["logits"]) // G, "row")]

    def bound(self, trial: Trial) -> int:
        return 0

    def waste(self, answers: Answers) -> str:
        return "every rank chooses for its own tokens, so nobody has to ask"


def dense(returned: Any, logits: Tensor, k: int) -> Tensor | str | None:
    """(N, E) weights of what `my_gate` returned, whatever the order of a token's experts; words where it is no gate."""
    if returned is None:
        return None
    if not isinstance(returned, tuple | list) or len(returned) != 2:
        return f"not two things but {describe(plain(returned))}"
    experts, weights = returned
    N, E = logits.shape
    for name, tensor, dtype in (("experts", experts, torch.int64), ("weights", weights, logits.dtype)):
        if not isinstance(tensor, Tensor) or tensor.shape != (N, k) or tensor.dtype != dtype:
            return f"{name}: {describe(plain(tensor))}, where {str(dtype).removeprefix('torch.')}[{N}, {k}] is asked"
    if experts.min() < 0 or experts.max() >= E:
        return f"experts out of 0 to {E - 1}"
    return torch.zeros(N, E, dtype=logits.dtype).scatter_add(1, experts, weights)


def gated(inputs: Inputs, score: Callable = torch.sigmoid, choose: Callable | None = None, bias: float = 1.0,
          weigh_bias: bool = False, apart: int | None = None, from_zero: bool = False, dealt: bool = False,
          sum_in_group: bool = False, over_all: bool = False, normalised: bool = True, scale: float = 1.0,
          detached: bool = False) -> Answers:
    """The dense weights and the logits' gradient; arguments but the first are mistakes. apart: so many groups."""
    answers = []
    for rank in inputs:
        z, (k, G, wanted) = rank["logits"].clone().requires_grad_(), rank["numbers"]
        s, b, groups = score(z), bias * rank["bias"], apart or G
        E = z.shape[1]
        places = torch.arange(E).view(-1, groups).T if dealt else torch.arange(E).view(groups, -1)
        by = ((choose or score)(z).detach() + b)[:, places]  # (N, groups, E / groups)
        best = by.topk(k // groups).indices
        experts = best if from_zero else torch.gather(places.expand(len(z), -1, -1), 2, best)
        chosen = (s + b if weigh_bias else s).gather(1, experts.flatten(1))
        total = (s if over_all else chosen).sum(1, keepdim=True) if normalised else torch.ones(())
        if sum_in_group:
            total = chosen.unflatten(1, (groups, -1)).sum(-1, keepdim=True).expand_as(experts).flatten(1)
        weights = scale * wanted * chosen / (total.detach() if detached else total)
        y = torch.zeros_like(s).scatter_add(1, experts.flatten(1), weights)
        y.backward(rank["dy"])
        answers.append({"weights": plain(y), "logits": plain(z.grad)})
    return answers
