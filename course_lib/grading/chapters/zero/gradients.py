"""Exercise 6.3: in backward every gradient shrinks to one's own piece of the mean."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from course_lib.grading.chapters.models import (
    Gradients,
    batch_loss,
    close,
    combined,
    counted,
    model_of,
    own_gradients,
    trial_of,
)
from course_lib.grading.chapters.zero.shards import padded, pieces, sent_too_much, settled
from course_lib.grading.exercise import Exercise, Traffic, Trial
from course_lib.grading.tensors import SMALLEST_BUDGET, amount, described, plain

UNEVEN, LARGE = [3, 4, 2], [64, 128, 128, 8]  # widths: 12 + 4 + 8 + 2 elements are not multiples of 3


class ScatteredGradients(Exercise):
    number = "6.3"
    function = "my_scattered_gradients"
    points = 4
    budget = "M/n bytes held after backward, at most one whole gradient in it; (n-1)/n M bytes sent by each rank"
    hints = (
        "parameter.register_post_accumulate_grad_hook(function) calls function(parameter) as soon as its .grad is "
        "complete, in the middle of backward. What is left to hold once the piece is there? A frozen parameter takes "
        "no hook.",
        "In the hook: flat = padded(parameter.grad); piece = flat.new_empty(len(flat) // n); "
        "dist.reduce_scatter(piece, list(flat.chunk(n))); pieces[name] = piece / n; parameter.grad = None. The name "
        "has to be bound when the hook is made: functools.partial, or a default argument.",
    )

    def trials(self, seed: int) -> list[Trial]:
        generator = torch.Generator().manual_seed(seed)
        return [trial_of(generator, n, widths, frozen=["0.bias"])
                for n, widths in ((3, UNEVEN), (1, UNEVEN), (4, LARGE))]

    @staticmethod
    def run(function: Callable, inputs: dict[str, Any]) -> dict[str, Any]:
        model = model_of(inputs)
        whole: list[int] = []
        (given, held), calls = counted(backward, model, inputs["batches"][0], function, whole)
        given = given if isinstance(given, dict) else {}
        return {
            "pieces": {str(name): plain(piece) for name, piece in given.items()}, "calls": calls,
            "storage_bytes": {str(name): piece.untyped_storage().nbytes() for name, piece in given.items()
                              if isinstance(piece, Tensor)},
            "left": [name for name, parameter in model.named_parameters() if parameter.grad is not None],
            "at_once": max(whole, default=0), "held": held,
        }

    def judge(self, trial: Trial, answers: list[Any], traffic: Traffic) -> str | None:
        given, expected = [answer["pieces"] for answer in answers], self.expected(trial.inputs)
        if len(expected[0]) > 1 and all(len(pieces) == 1 for pieces in given):
            (name,) = given[0]
            return (f"{trial.label}: all pieces are stored under one name: a hook that reads the loop's variable reads "
                    f"it when it is called, and the loop is at {name!r} by then; bind the name when the hook is made")
        if not all(map(alike, given, expected)):
            cause = next((cause for cause, would in self.mistakes(trial.inputs) if all(map(alike, given, would))), None)
            return f"{trial.label}: {cause or self.first_difference(given, expected)}"
        most = len(expected[0])
        if any(len(answer["calls"]) > most for answer in answers):
            return (f"{trial.label}: the pieces are right, but it took {len(answers[0]['calls'])} calls where {most} "
                    "will do, one for each gradient")
        return self.too_much_held(trial, answers) or sent_too_much(
            trial, answers, traffic, self.bound(trial),
            "an all-reduce is a reduce-scatter and an all-gather, and nobody asks for the second half")

    @staticmethod
    def expected(inputs: list[dict[str, Any]]) -> list[Gradients]:
        n = len(inputs)
        return cut(combined([own_gradients(rank) for rank in inputs], 1 / n), n)

    def mistakes(self, inputs: list[dict[str, Any]]) -> Iterable[tuple[str, list[Gradients]]]:
        n, own = len(inputs), [own_gradients(rank) for rank in inputs]
        total, right = combined(own), self.expected(inputs)
        yield "every piece is n times too large: reduce-scatter makes the sum, so divide by n", cut(total, n)
        yield "every piece is n times too small: it is divided by n twice", cut(combined([total], 1 / n**2), n)
        yield ("every rank has its piece of its own gradient: nobody added the others', so reduce-scatter",
               [cut(each, n)[r] for r, each in enumerate(own)])
        yield ("every rank has its piece of its own gradient, over n: nobody added the others', so reduce-scatter",
               [cut(combined([each], 1 / n), n)[r] for r, each in enumerate(own)])
        yield ("every rank has rank 0's piece: rank r keeps the piece with index r", [right[0]] * n)
        mean = combined([total], 1 / n)
        whole = [{name: padded(mean[name], n) for name in right[0]}] * n
        yield "every rank holds all n pieces: keep the own one, the other ranks have the others", whole
        yield ("every rank holds whole gradients: keep the own piece, the other ranks have the others",
               [{name: mean[name] for name in right[0]}] * n)
        yield "no hook has run: the dictionary is empty after backward", [{}] * n

    @staticmethod
    def first_difference(given: list[Gradients], expected: list[Gradients]) -> str:
        for rank, (has, right) in enumerate(zip(given, expected)):
            for name, piece in right.items():
                if not close(has.get(name), piece):
                    return f"rank {rank}, piece of {name} is {described(has.get(name))}: expected {described(piece)}"
        return "there are pieces of parameters that have no gradient: leave the frozen one out"

    @staticmethod
    def too_much_held(trial: Trial, answers: list[Any]) -> str | None:
        for rank, answer in enumerate(answers):
            if answer["left"]:
                return (f"{trial.label}: the pieces are right, but the whole gradient of {answer['left'][0]} is still "
                        f"there on rank {rank}: set parameter.grad to None when its piece is there")
            for name, num_bytes in answer["storage_bytes"].items():
                own = answer["pieces"][name].nbytes
                if num_bytes > own:
                    return (f"{trial.label}: the piece of {name} has {own} bytes and keeps {num_bytes} alive on rank "
                            f"{rank}: it is a view, and a view holds all that it is a part of; make a tensor of its "
                            "own")
            if answer["at_once"]:
                return (f"{trial.label}: the pieces are right, but in backward whole gradients piled up to "
                        f"{amount(answer['at_once'])} on rank {rank}: free each one in its own hook")
            if answer["held"] > 0:
                return (f"{trial.label}: the pieces are right, but {amount(answer['held'])} more than they are still "
                        f"held on rank {rank} after backward: something keeps a whole gradient")
        return None

    @staticmethod
    def bound(trial: Trial) -> int:
        n, inputs = trial.world_size, trial.inputs[0]
        return (n - 1) * sum(8 * -(-tensor.numel() // n) for name, tensor in inputs["weights"].items()
                             if name not in inputs["frozen"])

    def figures(self, trial: Trial, traffic: Traffic) -> str:
        bound = self.bound(trial)
        if bound < SMALLEST_BUDGET:
            return ""
        held = amount(bound // (trial.world_size - 1))
        return f"{trial.label}: {held} held a rank after backward, as allowed; sent {amount(bound)} a rank, as allowed"


def backward(model: nn.Module, batch: list[Tensor], function: Callable, whole: list[int]) -> tuple[Any, int]:
    """What `function` returned for `model`, after a backward pass, and the bytes held then beside the pieces.

    Into `whole` go the bytes of all .grad together, each time that the hooks of a parameter have run.
    """
    from course_lib.runtime import record_memory

    parameters = list(model.parameters())
    with record_memory() as log:
        given = function(model)
        for parameter in parameters:
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(
                    lambda _: whole.append(sum(each.grad.nbytes for each in parameters if each.grad is not None)))
        x, y = (each.clone() for each in batch)
        batch_loss(model, (x, y)).backward()
        del x, y
        kept = {piece.untyped_storage().data_ptr(): piece.untyped_storage().nbytes()
                for piece in (given.values() if isinstance(given, dict) else ()) if isinstance(piece, Tensor)}
        held = settled(lambda: log.current - sum(kept.values()), 0)
    return given, held


def cut(gradients: Gradients, n: int) -> list[Gradients]:
    """Each rank's pieces; parameters without a gradient left out."""
    there = {name: pieces(gradient, n) for name, gradient in gradients.items() if gradient is not None}
    return [{name: each[r] for name, each in there.items()} for r in range(n)]


def alike(given: Gradients, expected: Gradients) -> bool:
    return given.keys() == expected.keys() and all(close(given[name], expected[name]) for name in expected)
