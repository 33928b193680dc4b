"""Exercise 5.5: cross-entropy, with PaLM's z-loss, of logits of which each rank has a part of the vocabulary.

    t  ranks, r this one    V  vocabulary    z  logits of one token, V/t on each rank    y  its target
    Z = sum_v exp(z_v)      loss = mean over the tokens of  log Z - z_y + c (log Z)^2
    gradient of z:          ((1 + 2 c log Z) softmax(z) - 1_y) / (B T)

Sources: Shoeybi et al. 2019, section 3; Chowdhery et al. 2022, PaLM, section 5 (c = 1e-4).
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from course_lib.grading.calls import CollectiveExercise, count_calls, num_calls
from course_lib.grading.chapters.models import ROUNDING
from course_lib.grading.chapters.split import all_reduce_bytes, normal
from course_lib.grading.compare import alike, describe, part, plain
from course_lib.grading.exercise import Trial, ranks_of
from course_lib.grading.spent import Spent

Inputs = list[dict[str, Any]]
Answers = list[dict[str, Any]]
TOO_LARGE = ("the answer is not a number: exp of a large logit overflows. Subtract the maximum over all ranks before "
             "exp, and add it to the logarithm again")


class VocabLoss(CollectiveExercise):
    number = "5.5"
    function = "my_vocab_loss"
    points = 4
    tolerance = ROUNDING
    right = "loss and gradient are right"
    budget = "three numbers a token: at most 3 all-reduces and 3 * 2(t-1)/t * 8 B T bytes sent by each rank"
    hints = (
        "Three numbers of each token are needed from all ranks, and one of them before the others. Which? For the "
        "gradient nothing more has to travel.",
        "The maximum first, with dist.ReduceOp.MAX. Then the sum of exp(z - max) and the target's logit, which is 0 on "
        "the ranks that do not have it; both are sums, so they fit in one message. This rank has the ids from r V/t "
        "on: compare torch.arange of them with the targets, and you have 1_y, of this rank's part.",
        "highest = logits.amax(-1)\n"
        "dist.all_reduce(highest, dist.ReduceOp.MAX)\n"
        "exponentials = (logits - highest.unsqueeze(-1)).exp()\n"
        "is_target = torch.arange(...) == targets.unsqueeze(-1)  # (B, T, V/t)\n"
        "sums = torch.stack([exponentials.sum(-1), ...])\n"
        "dist.all_reduce(sums)\n"
        "log_Z = highest + sums[0].log()\n"
        "...  # loss, and ((1 + 2 c log Z) softmax - is_target) / number of tokens",
    )

    def trials(self, seed: int) -> list[Trial]:
        generator = torch.Generator().manual_seed(seed)
        made = []
        for t, (B, T, own), shift, c in ((3, (2, 3, 4), 0, 0.05), (2, (1, 4, 3), 900, 0.001), (1, (1, 3, 5), 0, 0.01),
                                         (4, (4, 256, 96), 2, 0.0001)):
            targets = torch.randint(t * own, (B, T), generator=generator)
            parts = [normal(generator, B, T, own, scale=2.0) + shift for _ in range(t)]
            label = f"{ranks_of(t)}, {B * T:,} tokens, V = {t * own}, logits about {shift}"
            made.append(Trial([{"logits": logits, "targets": targets, "c": c} for logits in parts], label))
        return made

    @staticmethod
    def run(function: Callable, inputs: dict[str, Any]) -> dict[str, Any]:
        returned, calls = count_calls(function, inputs["logits"].clone(), inputs["targets"].clone(), inputs["c"])
        if not isinstance(returned, tuple | list) or len(returned) != 2:
            return {"loss": f"not two things but {describe(plain(returned))}", "gradient": None, "calls": calls}
        loss, gradient = returned
        loss = loss.item() if isinstance(loss, Tensor) and loss.numel() == 1 else loss
        known = isinstance(loss, int | float) and not isinstance(loss, bool)
        return {"loss": float(loss) if known else plain(loss), "gradient": plain(gradient), "calls": calls}

    def given(self, answers: list[Any]) -> list[Any]:
        return [{name: part(answer, name) for name in ("loss", "gradient")} for answer in answers]

    def expected(self, inputs: Inputs) -> Answers:
        return by_parts(inputs)

    def mistakes(self, inputs: Inputs) -> Iterable[tuple[str, Answers]]:
        t, right = len(inputs), self.expected(inputs)
        own, B_T = inputs[0]["logits"].shape[-1], inputs[0]["targets"].numel()
        yield ("each rank has the loss of its own part of the vocabulary: the sum of the exponentials and the target's "
               "logit are sums over the ranks", by_parts(inputs, local=True))
        yield ("each rank subtracts its own maximum, so the sums do not fit together: take the maximum over the ranks",
               by_parts(inputs, own_maximum=True))
        yield ("every rank takes targets % (V/t) for its own, so that t logits and not one are subtracted: the target "
               "is on one rank, whose ids begin at r V/t", by_parts(inputs, everywhere=True))
        yield ("the maximum was not added to the logarithm again: log Z is larger by it",
               by_parts(inputs, forget_maximum=True))
        yield "the z-loss is missing, in loss and gradient", by_parts([{**rank, "c": 0.0} for rank in inputs])
        without = by_parts([{**rank, "c": 0.0} for rank in inputs])
        yield ("the z-loss is missing in the gradient: the derivative of c (log Z)^2 is 2 c log Z softmax(z)",
               [{**answer, "gradient": less["gradient"]} for answer, less in zip(right, without)])
        yield "the z-loss is missing in the loss, and there in the gradient", [
            {**answer, "loss": less["loss"]} for answer, less in zip(right, without)]
        yield ("the gradient of c (log Z)^2 is halved: its derivative has a factor of 2", [
            {**answer, "gradient": (answer["gradient"] + less["gradient"]) / 2}
            for answer, less in zip(right, without)])
        yield ("the gradient is that of a sum over the tokens: the loss is their mean, so divide by B T",
               [{**answer, "gradient": answer["gradient"] * B_T} for answer in right])
        yield ("the loss is a sum over the tokens: their mean is asked",
               [{**answer, "loss": answer["loss"] * B_T} for answer in right])
        ones = torch.nn.functional.one_hot(inputs[0]["targets"], t * own).double() / B_T
        yield ("nothing is subtracted at the target: the gradient is softmax(z) - 1_y", [
            {**answer, "gradient": answer["gradient"] + one} for answer, one in zip(right, ones.chunk(t, -1))])

    def wrong(self, trial: Trial, answers: list[Any]) -> str | None:
        said = super().wrong(trial, answers)
        loss = part(answers[0], "loss")
        return TOO_LARGE if said and type(loss) is float and not abs(loss) < float("inf") else said

    def difference(self, given: list[Any], expected: Answers) -> str:
        for rank, (own, right) in enumerate(zip(given, expected)):
            if not alike(own["loss"], right["loss"], self.tolerance):
                return (f"rank {rank} returned {describe(own['loss'])} as its loss: expected "
                        f"{describe(right['loss'])}, and the gradient behind it")
        rank = next(rank for rank, (own, right) in enumerate(zip(given, expected))
                    if not alike(own["gradient"], right["gradient"], self.tolerance))
        return (f"the loss is right; rank {rank}'s gradient is {describe(given[rank]['gradient'])}: expected "
                f"{describe(expected[rank]['gradient'])}")

    def kept(self, trial: Trial, answers: list[Any]) -> list[Spent]:
        return [num_calls(answers, 3, "one for the maximum and at most one for each of the two sums")]

    def bound(self, trial: Trial) -> int:
        return 3 * all_reduce_bytes(trial, trial.inputs[0]["targets"].numel())

    def waste(self, answers: list[Any]) -> str:
        return "the logits stay where they are: three numbers of each token are enough"


def by_parts(inputs: Inputs, local: bool = False, own_maximum: bool = False, everywhere: bool = False,
             forget_maximum: bool = False) -> Answers:
    """What each rank returns; arguments are mistakes. `local`: nobody sends anything."""
    t, targets, c = len(inputs), inputs[0]["targets"], inputs[0]["c"]
    parts = [rank["logits"] for rank in inputs]
    own, tokens = parts[0].shape[-1], targets.numel()
    m = [part.amax(-1, keepdim=True) for part in parts]  # (B, T, 1) each
    if not (own_maximum or local):
        m = [torch.stack(m).amax(0)] * t
    e = [(part - highest).exp() for part, highest in zip(parts, m)]
    asked = (targets % own if everywhere else targets).unsqueeze(-1)
    ones = [(torch.arange(own) + (0 if everywhere else r * own) == asked).double() for r in range(t)]  # (B, T, V/t)
    total, z_y = [each.sum(-1, keepdim=True) for each in e], [(z * one).sum(-1) for z, one in zip(parts, ones)]
    if not local:
        total, z_y = [sum(total)] * t, [sum(z_y)] * t
    answers = []
    for r in range(t):
        log_Z = (total[r].log() + (0 if forget_maximum else m[r])).squeeze(-1)
        gradient = ((1 + 2 * c * log_Z)[..., None] * e[r] / total[r] - ones[r]) / tokens
        answers.append({"loss": (log_Z - z_y[r] + c * log_Z**2).mean().item(), "gradient": gradient})
    return answers
