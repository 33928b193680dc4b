"""Exercise 8.4: a load-balancing loss for ranks: what should be even is their work, and not that of every expert.

    R  ranks with N tokens and E/R of the experts each    k  experts of a token    p (N, E)  softmax of the logits
    f_d  share of the k N R choices that fall on rank d's experts, of all ranks: a count, without a gradient
    P_d  mean over this rank's tokens of the sum of p over rank d's experts
    loss of a rank = R sum_d f_d P_d        the mean over the ranks, which data parallelism takes, is that of all tokens

Sources: DeepSeek-AI 2024, DeepSeek-V2, section 2.2.3 (device-level balance loss); Fedus et al. 2021, Switch
Transformers, equations 4 to 6; Qiu et al. 2025, Demons in the Detail: On Implementing Load Balancing Loss.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from course_lib.grading.calls import count_calls, num_calls
from course_lib.grading.chapters.split import NO_WAY_BACK, PartsExercise, all_reduce_bytes, normal
from course_lib.grading.compare import plain
from course_lib.grading.exercise import Trial, ranks_of
from course_lib.grading.spent import Spent

Inputs = list[dict[str, Any]]
Answers = list[dict[str, Any]]


class BalanceLoss(PartsExercise):
    number = "8.4"
    function = "my_balance_loss"
    points = 3
    parts = {"loss": "the loss", "logits": "the gradient of the logits"}
    right = "loss and gradient are right"
    budget = "one all-reduce of R numbers: 2(R-1)/R * 8 R bytes sent by each rank, forward and backward together"
    hints = (
        "Of the two factors only one has a gradient. Which of them has to know all ranks' tokens, and which one is "
        "made right by the mean that is taken of the ranks' losses anyway?",
        "experts // (E/R) are the ranks that this rank's k N choices fall on: count them with bincount. All-reduce the "
        "counts and divide them by their sum: that is f. P is the mean of the softmax over this rank's tokens, summed "
        "over each rank's experts. R times the sum of their products.",
        "p = logits.softmax(-1)\n"
        "ranks = logits.topk(k).indices // ...\n"
        "counts = ranks.flatten().bincount(minlength=R).double()\n"
        "dist.all_reduce(...)\n"
        "f = ...  # adds up to 1\n"
        "P = p.mean(0).view(...).sum(1)\n"
        "return R * (f * P).sum()",
    )

    def trials(self, seed: int) -> list[Trial]:
        generator = torch.Generator().manual_seed(seed)
        made = []
        for R, N, E, k in ((3, 5, 12, 2), (2, 4, 6, 1), (1, 6, 3, 2), (4, 32, 64, 4)):
            ranks = [{"logits": normal(generator, N, E, scale=1.5) + normal(generator, E), "k": k, "c": 1.5}
                     for _ in range(R)]
            made.append(Trial(ranks, f"{ranks_of(R)} with {N} tokens each, {E} experts, k = {k}"))
        return made

    @staticmethod
    def run(function: Callable, inputs: dict[str, Any]) -> dict[str, Any]:
        logits = inputs["logits"].clone().requires_grad_()

        def both_ways() -> Any:
            loss = function(logits, inputs["k"])
            if isinstance(loss, Tensor) and loss.requires_grad and loss.numel() == 1:
                (inputs["c"] * loss.sum()).backward()
            return loss

        loss, calls = count_calls(both_ways)
        return {"loss": plain(loss), "logits": plain(logits.grad), "calls": calls}

    def expected(self, inputs: Inputs) -> Answers:
        return losses(inputs)

    def mistakes(self, inputs: Inputs) -> Iterable[tuple[str, Answers]]:
        right, R, E = losses(inputs), len(inputs), inputs[0]["logits"].shape[1]

        def times(scale: float) -> Answers:
            return [{name: tensor * scale for name, tensor in answer.items()} for answer in right]

        yield NO_WAY_BACK, [{**answer, "logits": None} for answer in right]
        if R > 1:
            yield ("this is the loss that balances experts, E sum f_i P_i over each of them: add f and P up over the "
                   "experts of a rank first", losses(inputs, parts=E))
            yield ("these are the experts' f and P, times R: add both up over the experts of a rank first",
                   losses(inputs, parts=E, factor=R))
            yield ("f is this rank's: a few tokens of its own need not be balanced, all ranks' together should be, so "
                   "add the counts up over the ranks", losses(inputs, local=True))
            yield ("P is the mean over all ranks' tokens: all_reduce cuts the way back. This rank's own tokens make P, "
                   "and the ranks' losses are averaged afterwards",
                   [{"loss": sum(answer["loss"] for answer in right) / R, "logits": None}] * R)
            yield ("expert e is taken to live on rank e % R: rank r has those from r E/R on",
                   losses(inputs, dealt=True))
            yield (f"{R} times too much: f adds up to 1 over the ranks, so divide by the choices of all ranks, k N R, "
                   "and multiply by R once", times(R))
            yield ("R is left out: with it the loss is 1 when all ranks have equally much", times(1 / R))
            yield ("P_d is a mean over the experts of rank d: it is their sum, and adds up to 1", times(R / E))
        if inputs[0]["k"] > 1:
            yield ("f counts the best expert of a token only: all k choices bring work, so count them all",
                   losses(inputs, slots=1))
            yield (f"{inputs[0]['k']} times too much: f is a share of all k N R choices and adds up to 1",
                   times(inputs[0]["k"]))
        yield ("f is used twice and P not at all: counts have no gradient, so there is nothing to learn from",
               losses(inputs, squared="f"))
        yield ("P is used twice and f not at all: that balances scores, and not how often a rank is chosen",
               losses(inputs, squared="P"))
        yield "P is made of the logits: it is the mean of their softmax", losses(inputs, score=lambda z: z)
        yield ("P is made of sigmoids: it is the mean of the softmax over the experts", losses(inputs, torch.sigmoid))

    def kept(self, trial: Trial, answers: Answers) -> list[Spent]:
        return [num_calls(answers, 1, "how often each rank was chosen is all that has to be known of others")]

    def bound(self, trial: Trial) -> int:
        return all_reduce_bytes(trial, trial.world_size)

    def waste(self, answers: Answers) -> str:
        return "R counts of each rank are enough: add up those of a rank's experts before they travel"


def losses(inputs: Inputs, score: Callable[[Tensor], Tensor] = lambda z: z.softmax(-1), parts: int | None = None,
           factor: int | None = None, local: bool = False, dealt: bool = False, slots: int | None = None,
           squared: str = "") -> Answers:
    """Each rank's loss and its gradient times c; arguments but the first are mistakes. parts: what is balanced."""
    zs, R = [rank["logits"].clone().requires_grad_() for rank in inputs], len(inputs)
    E, n = zs[0].shape[1], parts or R
    part_of = torch.arange(E) % n if dealt else torch.arange(E) // (E // n)
    counts = [part_of[z.topk(slots or inputs[0]["k"]).indices].flatten().bincount(minlength=n).double() for z in zs]
    answers = []
    for z, own, rank in zip(zs, counts, inputs):
        number = own if local else sum(counts)
        f = number / number.sum()
        P = torch.zeros(n, dtype=z.dtype).index_add(0, part_of, score(z).mean(0))
        loss = (factor or n) * ((P if squared == "P" else f) * (f if squared == "f" else P)).sum()
        if loss.requires_grad:
            (rank["c"] * loss).backward()
        answers.append({"loss": plain(loss), "logits": plain(z.grad)})
    return answers
