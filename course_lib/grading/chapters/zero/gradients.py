"""Exercise 6.3: in backward every gradient shrinks to one's own piece of the mean."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from course_lib.grading.calls import num_calls, record_calls
from course_lib.grading.chapters.models import (
    LARGE,
    ROUNDING,
    UNEVEN,
    Gradients,
    Inputs,
    batch_loss,
    combined,
    model_of,
    own_gradients,
    trial_of,
)
from course_lib.grading.chapters.zero.shards import ShardExercise, padded, pieces_by_rank, settled
from course_lib.grading.compare import plain
from course_lib.grading.exercise import Traffic, Trial
from course_lib.grading.spent import Spent, most


class ScatteredGradients(ShardExercise):
    number = "6.3"
    function = "my_scattered_gradients"
    points = 4
    compared = "pieces"
    words = "has the piece"
    tolerance = ROUNDING
    right = "the pieces are right"
    budget = "M/n bytes held after backward, at most one whole gradient in it; (n-1)/n M bytes sent by each rank"
    hints = (
        "parameter.register_post_accumulate_grad_hook(function) calls function(parameter) as soon as its .grad is "
        "complete, in the middle of backward. What is left to hold once the piece is there? A frozen parameter takes "
        "no hook.",
        "The hook makes the gradient a row that n divides, reduce-scatters its n pieces into a new tensor, keeps that "
        "tensor over n under the parameter's name, and lets go of .grad. The name has to be bound when the hook is "
        "made: functools.partial, or a default argument.",
        "def scatter(parameter, name):\n"
        "    flat = padded(parameter.grad)\n"
        "    piece = flat.new_empty(len(flat) // n)\n"
        "    dist.reduce_scatter(piece, ...)\n"
        "    pieces[name] = ...\n"
        "    ...  # the whole gradient goes\n"
        "for name, parameter in model.named_parameters():\n"
        "    if parameter.requires_grad:\n"
        "        parameter.register_post_accumulate_grad_hook(partial(scatter, name=name))",
    )

    def trials(self, seed: int) -> list[Trial]:
        generator = torch.Generator().manual_seed(seed)
        return [trial_of(generator, n, widths, frozen=["0.bias"])
                for n, widths in ((3, UNEVEN), (1, UNEVEN), (4, LARGE))]

    @staticmethod
    def run(function: Callable, inputs: dict[str, Any]) -> dict[str, Any]:
        model = model_of(inputs)
        whole: list[int] = []
        (given, held), calls = record_calls(backward, model, inputs["batches"][0], function, whole)
        given = given if isinstance(given, dict) else {}
        return {
            "pieces": {str(name): plain(piece) for name, piece in given.items()}, "calls": calls,
            "storage_bytes": {str(name): piece.untyped_storage().nbytes() for name, piece in given.items()
                              if isinstance(piece, Tensor)},
            "left": [name for name, parameter in model.named_parameters() if parameter.grad is not None],
            "at_once": max(whole, default=0), "held": held,
        }

    def expected(self, inputs: Inputs) -> list[Gradients]:
        n = len(inputs)
        return pieces_by_rank(combined([own_gradients(rank) for rank in inputs], 1 / n), n)

    def cause(self, given: list[Any], inputs: Inputs) -> str | None:
        if all(type(pieces) is dict and len(pieces) == 1 for pieces in given) and len(self.expected(inputs)[0]) > 1:
            (name,) = given[0]
            return ("all pieces are stored under one name: a hook that reads the loop's variable reads it when it is "
                    f"called, and the loop is at {name!r} by then; bind the name when the hook is made")
        return super().cause(given, inputs)

    def mistakes(self, inputs: Inputs) -> Iterable[tuple[str, list[Gradients]]]:
        n, own = len(inputs), [own_gradients(rank) for rank in inputs]
        total, right = combined(own), self.expected(inputs)
        yield "every piece is n times too large: reduce-scatter makes the sum, so divide by n", pieces_by_rank(total, n)
        yield ("every piece is n times too small: it is divided by n twice",
               pieces_by_rank(combined([total], 1 / n**2), n))
        yield ("every rank has its piece of its own gradient: nobody added the others', so reduce-scatter",
               [pieces_by_rank(each, n)[r] for r, each in enumerate(own)])
        yield ("every rank has its piece of its own gradient, over n: nobody added the others', so reduce-scatter",
               [pieces_by_rank(combined([each], 1 / n), n)[r] for r, each in enumerate(own)])
        yield ("every rank has rank 0's piece: rank r keeps the piece with index r", [right[0]] * n)
        mean = combined([total], 1 / n)
        whole = [{name: padded(mean[name], n) for name in right[0]}] * n
        yield "every rank holds all n pieces: keep the own one, the other ranks have the others", whole
        yield ("every rank holds whole gradients: keep the own piece, the other ranks have the others",
               [{name: mean[name] for name in right[0]}] * n)
        yield "no hook has run: the dictionary is empty after backward", [{}] * n

    def flaw(self, trial: Trial, answers: list[Any], traffic: Traffic) -> str | None:
        for rank, answer in enumerate(answers):
            if answer["left"]:
                return (f"the whole gradient of {answer['left'][0]} is still there on rank {rank}: set parameter.grad "
                        "to None when its piece is there")
            for name, num_bytes in answer["storage_bytes"].items():
                own = answer["pieces"][name].nbytes
                if num_bytes > own:
                    return (f"the piece of {name} has {own} bytes and keeps {num_bytes} alive on rank {rank}: it is a "
                            "view, and a view holds all that it is a part of; make a tensor of its own")
        return None

    def kept(self, trial: Trial, answers: list[Any]) -> list[Spent]:
        piled_up, held = [[answer[name] for answer in answers] for name in ("at_once", "held")]
        rank, allowed = most(held), self.pieces_bytes(trial)
        return [num_calls(answers, len(answers[0]["pieces"]), "one for each gradient"),
                Spent("piled up", max(piled_up), 0, on=" of whole gradients in backward", rank=most(piled_up),
                      why="free each one in its own hook", claimed=True),
                Spent("holds", allowed + held[rank], allowed, on=" after backward", rank=rank,
                      why="something keeps a whole gradient", claimed=True)]

    @staticmethod
    def pieces_bytes(trial: Trial) -> int:
        n, inputs = trial.world_size, trial.inputs[0]
        return sum(8 * -(-tensor.numel() // n) for name, tensor in inputs["weights"].items()
                   if name not in inputs["frozen"])

    def bound(self, trial: Trial) -> int:
        return (trial.world_size - 1) * self.pieces_bytes(trial)

    def waste(self, answers: list[Any]) -> str:
        return "an all-reduce is a reduce-scatter and an all-gather, and nobody asks for the second half"


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
