"""Exercise 3.5: each rank sends the k largest numbers of its gradient, and keeps the rest for later."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from course_lib.grading.calls import CollectiveExercise, record_calls
from course_lib.grading.chapters.models import (
    LARGE,
    ROUNDING,
    SMALL,
    Inputs,
    batch_loss,
    gradient_bytes,
    model_of,
    trial_of,
)
from course_lib.grading.compare import plain
from course_lib.grading.exercise import Trial, ranks_of

LEARNING_RATE = 0.1
Steps = dict[str, Any]  # of one rank: what it returned in each step, and its residual afterwards, (N,) each
Send = Callable[[Tensor, Tensor, int], tuple[Tensor, Tensor]]  # gradient, residual, k -> what is sent, next residual


def kept(values: Tensor, k: int, by: Tensor | None = None) -> Tensor:
    """`values` where `by` (else their amount) is among the k largest, zero elsewhere."""
    indices = (values.abs() if by is None else by).topk(k).indices
    return torch.zeros_like(values).index_copy(0, indices, values[indices])


def right(gradient: Tensor, residual: Tensor, k: int) -> tuple[Tensor, Tensor]:
    total = gradient + residual
    sent = kept(total, k)
    return sent, total - sent


def without_memory(gradient: Tensor, residual: Tensor, k: int) -> tuple[Tensor, Tensor]:
    return kept(gradient, k), residual


def memory_not_used(gradient: Tensor, residual: Tensor, k: int) -> tuple[Tensor, Tensor]:
    sent = kept(gradient, k)
    return sent, gradient - sent


def memory_piled_up(gradient: Tensor, residual: Tensor, k: int) -> tuple[Tensor, Tensor]:
    sent = kept(gradient, k)
    return sent, residual + gradient - sent


def memory_not_cleared(gradient: Tensor, residual: Tensor, k: int) -> tuple[Tensor, Tensor]:
    return kept(gradient + residual, k), gradient + residual


def memory_of_what_was_sent(gradient: Tensor, residual: Tensor, k: int) -> tuple[Tensor, Tensor]:
    sent = kept(gradient + residual, k)
    return sent, sent


def memory_of_the_gradient_alone(gradient: Tensor, residual: Tensor, k: int) -> tuple[Tensor, Tensor]:
    sent = kept(gradient + residual, k)
    return sent, torch.where(sent != 0, 0, gradient)


def largest_with_sign(gradient: Tensor, residual: Tensor, k: int) -> tuple[Tensor, Tensor]:
    total = gradient + residual
    sent = kept(total, k, by=total)
    return sent, total - sent


def chosen_by_the_gradient(gradient: Tensor, residual: Tensor, k: int) -> tuple[Tensor, Tensor]:
    total = gradient + residual
    sent = kept(total, k, by=gradient.abs())
    return sent, total - sent


def mean(sent: Sequence[Tensor]) -> Tensor:
    return sum(sent) / len(sent)


def last_one_wins(sent: Sequence[Tensor]) -> Tensor:
    result = torch.zeros_like(sent[0])
    for each in sent:
        result = torch.where(each != 0, each, result)
    return result / len(sent)


def simulated(inputs: Inputs, send: Send = right, join: Callable = mean) -> list[Steps]:
    """What each rank has after each step of a training that uses `send` and `join`."""
    models = [model_of(rank) for rank in inputs]
    residuals = [torch.zeros(gradient_bytes(inputs[0]) // 8, dtype=torch.float64) for _ in inputs]
    steps: list[Steps] = [{} for _ in inputs]
    for number in range(len(inputs[0]["batches"])):
        sent = []
        for r, model in enumerate(models):
            gradient = flat_gradient(model, inputs[r]["batches"][number])
            share, residuals[r] = send(gradient, residuals[r], inputs[r]["k"])
            sent.append(share)
        joined = join(sent)
        for of_rank, residual in zip(steps, residuals):
            of_rank |= named(number, joined, residual)
        for model in models:
            descend(model, joined)
    return steps


def named(step: int, returned: Any, residual: Tensor) -> Steps:
    return {f"the result of step {step}": returned, f"the residual after step {step}": residual}


def flat_gradient(model: torch.nn.Module, batch: Sequence[Tensor]) -> Tensor:
    """All gradients of one batch, one after the other, (N,)."""
    model.zero_grad()
    batch_loss(model, batch).backward()
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters()])


@torch.no_grad()
def descend(model: torch.nn.Module, flat: Tensor) -> None:
    """One step of gradient descent along `flat`, (N,)."""
    sizes = [parameter.numel() for parameter in model.parameters()]
    for parameter, piece in zip(model.parameters(), flat.split(sizes)):
        parameter -= LEARNING_RATE * piece.view_as(parameter)


class TopKAverage(CollectiveExercise):
    number = "3.5"
    function = "my_top_k_average"
    points = 4
    compared = "steps"
    words = "is"
    tolerance = ROUNDING
    budget = "each rank sends k numbers of 8 bytes and their k places of 8 bytes to all: (n-1) 16k bytes a step"
    hints = (
        "What competes for the k places is not the gradient but the gradient plus what is still owed. What was sent is "
        "no longer owed. Two ranks may well choose the same place: their numbers add up.",
        "residual += gradient is the total, and stays in place. Its k largest amounts have places; take the numbers "
        "there, signs and all, then set them to zero. Numbers and places of all ranks are two all-gathers of k each.",
        "places = residual.abs().topk(k).indices; numbers = residual[places]; residual[places] = 0. dist.all_gather "
        "needs a list of n empty tensors like yours. What adds numbers up at their places is Tensor.index_add_.",
    )

    def trials(self, seed: int) -> list[Trial]:
        generator = torch.Generator().manual_seed(seed)
        trials = []
        for n, widths, k in ((3, SMALL, 9), (1, SMALL, 5), (4, LARGE, 258)):
            trial = trial_of(generator, n, widths, num_batches=3, k=k)
            N = gradient_bytes(trial.inputs[0]) // 8
            trials.append(Trial(trial.inputs, f"{ranks_of(n)}, 3 steps, {k} of {N:,} numbers"))
        return trials

    @staticmethod
    def run(function: Callable, inputs: dict[str, Any]) -> dict[str, Any]:
        model = model_of(inputs)
        residual = torch.zeros(gradient_bytes(inputs) // 8, dtype=torch.float64)
        steps: Steps = {}
        calls = []
        for number, batch in enumerate(inputs["batches"]):
            returned, called = record_calls(function, flat_gradient(model, batch), residual, inputs["k"])
            returned = plain(returned)
            calls += called
            steps |= named(number, returned, residual.clone())
            if not isinstance(returned, Tensor) or returned.shape != residual.shape:
                break
            descend(model, returned)
        return {"steps": steps, "calls": calls}

    def expected(self, inputs: Inputs) -> list[Steps]:
        return simulated(inputs)

    def mistakes(self, inputs: Inputs) -> Iterable[tuple[str, list[Steps]]]:
        yield ("the residual stays zero, so all that was not sent is lost: keep it, in place, as residual.copy_ does",
               simulated(inputs, without_memory))
        for send in (memory_not_used, memory_piled_up):
            yield ("the residual is written, but never used: add it to the gradient before you choose",
                   simulated(inputs, send))
        yield ("what has been sent stays in the residual and is sent again: it has to be zero at those places",
               simulated(inputs, memory_not_cleared))
        yield ("the residual holds what was sent: it should hold the rest", simulated(inputs, memory_of_what_was_sent))
        yield ("the residual forgets what was owed before: the rest of gradient + residual stays, not that of the "
               "gradient", simulated(inputs, memory_of_the_gradient_alone))
        yield ("the k largest are chosen with their sign, and large negative ones stay behind: choose by total.abs()",
               simulated(inputs, largest_with_sign))
        yield ("the places are chosen by the gradient alone: a small gradient that adds up over many steps would never "
               "be sent, so choose by gradient + residual", simulated(inputs, chosen_by_the_gradient))
        yield ("where two ranks send the same place, one number overwrites the other: add them, as index_add_ does",
               simulated(inputs, join=last_one_wins))
        yield "the sum is returned: the mean is asked, so divide by n", simulated(inputs, join=sum)

    def bound(self, trial: Trial) -> int:
        inputs = trial.inputs[0]
        return (trial.world_size - 1) * 16 * inputs["k"] * len(inputs["batches"])

    def waste(self, answers: list[Any]) -> str:
        dense = any(op == "all_reduce" for answer in answers for op, *_ in answer["calls"])
        return "a tensor with N - k zeros in it costs as much as the gradient; send places and numbers" if dense else ""
