"""Exercise 6.7: three whole steps of ZeRO stage 3, weighed: weights, gradients and state are all in pieces.

    n  ranks, r this one      M  bytes of all weights, and of all gradients      M/n  those of one's pieces
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from course_lib.grading.calls import record_calls
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
from course_lib.grading.chapters.zero.optimizer import SCALARS, SETTINGS, AdamW, ShardedAdamW
from course_lib.grading.chapters.zero.parameters import explained
from course_lib.grading.chapters.zero.shards import ShardExercise, pieces_by_rank, settled
from course_lib.grading.compare import describe, plain
from course_lib.grading.exercise import Trial
from course_lib.grading.spent import Spent, most

STEPS = 3
OF_TORCH = ("torch's fully_shard cuts the parameters by rows and replaces them: write it with your own gathers and "
            "scatters")


class WholeStep(ShardExercise):
    number = "6.7"
    function = "my_zero_3_training"
    points = 5
    compared = "pieces"
    words = "has the pieces"
    tolerance = ROUNDING
    right = "the pieces are right"
    budget = ("4 M/n bytes held between the layers, M/n each of weights and gradients and 2 M/n of state; one whole "
              "gradient at a time; 3(n-1)/n M bytes sent by each rank a step")
    hints = (
        "Three things that you have: my_gathered_on_use takes care of the weights of a layer, and returns the pieces "
        "that it gathers. A hook on each parameter turns its gradient into a piece. What the optimiser steps has to be "
        "the memory that is gathered.",
        "nn.Parameter(piece) is a parameter on the very memory of the piece. Make one for each, the optimiser from "
        "them, and let the hook leave the piece of the mean gradient in its .grad. Then a step is forward, backward, "
        "optimizer.step().",
        "pieces = {}\n"
        "for layer in model:\n"
        "    if isinstance(layer, nn.Linear):\n"
        "        pieces |= my_gathered_on_use(layer)\n"
        "shards = {parameter: nn.Parameter(piece) for parameter, piece in pieces.items()}\n"
        "optimizer = torch.optim.AdamW(..., **settings)\n"
        "def scatter(parameter): ...  # as in 6.3, into shards[parameter].grad\n"
        "...  # hooks, then for x, y in batches: three calls",
    )

    def trials(self, seed: int) -> list[Trial]:
        generator = torch.Generator().manual_seed(seed)
        return [trial_of(generator, n, widths, num_batches=STEPS, num_ranks=n)
                for n, widths in ((3, UNEVEN), (1, UNEVEN), (4, LARGE))]

    prepare = staticmethod(ShardedAdamW.prepare)

    @staticmethod
    def run(function: Callable, inputs: dict[str, Any]) -> dict[str, Any]:
        usual = watched(model_of(inputs), inputs["batches"], plain_training)
        model = model_of(inputs)
        M = sum(parameter.nbytes for parameter in model.parameters())
        worth_waiting_for = [held - M + 4 * piece_bytes(inputs) + SCALARS for held in usual["held"]]
        with explained():
            mine, calls = record_calls(watched, model, inputs["batches"], lambda *given: function(*given, SETTINGS),
                                       worth_waiting_for)
        optimizer = mine["returned"]
        if not all(hasattr(optimizer, name) for name in ("param_groups", "state")):
            return {"pieces": plain(optimizer) or "nothing (None)", "calls": calls}
        held = [now - before + M for now, before in zip(mine["held"], usual["held"])]
        state = [tensor for of_one in optimizer.state.values() for tensor in of_one.values() if type(tensor) is Tensor]
        return {"pieces": [plain(piece) for group in optimizer.param_groups for piece in group["params"]],
                "calls": calls, "held": held, "points": mine["points"][:len(held)], "owners": mine["owners"],
                "at_once": mine["at_once"], "state_bytes": sum(tensor.nbytes for tensor in state)}

    def expected(self, inputs: Inputs) -> list[list[Tensor]]:
        return trained(inputs)

    def mistakes(self, inputs: Inputs) -> Iterable[tuple[str, list[list[Tensor]]]]:
        n = len(inputs)
        weights = inputs[0]["weights"]
        yield ("the gradients are n times too large: reduce-scatter makes the sum, so divide by n",
               trained(inputs, gradients=lambda own: pieces_by_rank(combined(own), n)))
        yield ("every rank steps with its own gradient: nobody added the others', so reduce-scatter",
               trained(inputs, gradients=lambda own: [pieces_by_rank(each, n)[r] for r, each in enumerate(own)]))
        yield ("every gradient was taken at the weights of the beginning: what the optimiser steps is a copy of what "
               "is gathered. nn.Parameter(piece) is on the memory of the piece itself", trained(inputs, follow=False))
        yield ("the gradients of earlier steps are still in .grad: a step sets it, and does not add to it",
               trained(inputs, pile_up=True))
        yield "the moments are forgotten between steps: make the optimiser once, before the loop", trained(
            inputs, forget=True)
        yield ("the pieces are as they were: the optimiser has no gradients, or takes no step",
               [list(each.values()) for each in pieces_by_rank(weights, n)])
        yield "one step was taken, after the last batch: each batch has its own", trained(inputs, only_last=True)

    def cause(self, given: list[Any], inputs: Inputs) -> str | None:
        if any(isinstance(each, list) and "a DTensor" in map(str, each) for each in given):
            return OF_TORCH
        if isinstance(given[0], str | None):
            return f"it returned {describe(given[0])}: return the optimiser, whose parameters are the pieces"
        return super().cause(given, inputs)

    def difference(self, given: list[Any], expected: list[Any]) -> str:
        for rank, (each, right) in enumerate(zip(given, expected)):
            count = len(each) if isinstance(each, list) else 0
            if count != len(right):
                return (f"rank {rank}'s optimiser has {count} parameters, where the model has {len(right)}: it steps "
                        "this rank's piece of each, in the order of model.parameters()")
        return super().difference(given, expected)

    def kept(self, trial: Trial, answers: list[Any]) -> list[Spent]:
        inputs = trial.inputs[0]
        largest = max(weight.nbytes for weight in inputs["weights"].values())
        at_once, state = [[answer[name] for answer in answers] for name in ("at_once", "state_bytes")]
        return [Spent("holds", max(state), 2 * piece_bytes(inputs), on=" of state", rank=most(state), slack=SCALARS,
                      why="make the optimiser from the pieces, not from the whole parameters", claimed=True),
                Spent("piled up", max(at_once), largest, on=" of whole gradients in backward", rank=most(at_once),
                      why="free each one in its own hook, as soon as its piece is there", claimed=True),
                most_held(answers, 4 * piece_bytes(inputs))]

    def bound(self, trial: Trial) -> int:
        return STEPS * 3 * (trial.world_size - 1) * piece_bytes(trial.inputs[0])

    def waste(self, answers: list[Any]) -> str:
        return "each weight is gathered for forward and for backward, and each gradient is reduce-scattered once"


def piece_bytes(inputs: dict[str, Any]) -> int:
    """M/n: of this rank's pieces of all weights."""
    return sum(8 * -(-weight.numel() // inputs["num_ranks"]) for weight in inputs["weights"].values())


def most_held(answers: list[Any], allowed: int) -> Spent:
    """The bytes at the first point where more than `allowed` is held beside activations, else where most is."""
    looks = [(rank, *look) for rank, answer in enumerate(answers)
             for look in zip(answer["points"], answer["held"], answer["owners"])]
    over = next((look for look in looks if look[2] > allowed + SCALARS), None)
    rank, point, held, own = over or max(looks, key=lambda look: look[2])
    why = "whole weights are still there, so free them in the layer's hooks" if own else (
        "the parameters' own storages are empty, so something else keeps what was gathered, or whole gradients")
    where = point if over else "between the layers"
    return Spent("holds", held, allowed, on=f" of weights, gradients and state {where}", rank=rank, why=why,
                 slack=SCALARS, claimed=True)


def watched(model: nn.Sequential, batches: list[list[Tensor]], train: Callable[[nn.Module, list[Any]], Any],
            allowed: list[int] | None = None) -> dict[str, Any]:
    """What `train` returns for the model and its batches, and the bytes held between the layers.

    `held`: all bytes; `owners`: those in the parameters' storages; `at_once`: the most bytes of whole gradients at the
    moments at which one is complete. `allowed`: what is worth waiting for at each point.
    """
    from course_lib.runtime import record_memory

    parameters, points, held, owners, whole = list(model.parameters()), [], [], [], []
    with record_memory(parameters=parameters) as log:

        def look(point: str) -> None:
            known = allowed is not None and len(held) < len(allowed)
            held.append(settled(lambda: log.current, allowed[len(held)] if known else log.current))
            points.append(point)
            owners.append(sum(each.untyped_storage().nbytes() for each in parameters))

        def look_around(index: int, layer: nn.Module) -> None:
            layer.register_forward_hook(lambda *_: look(f"in a forward pass, after layer {index - 1}"))
            layer.register_full_backward_pre_hook(lambda *_: look(f"in a backward pass, after layer {index + 1}"))

        for index, layer in enumerate(model):
            if not isinstance(layer, nn.Linear):
                look_around(index, layer)
        for parameter in parameters:
            parameter.register_post_accumulate_grad_hook(
                lambda _: whole.append(sum(each.grad.nbytes for each in parameters if each.grad is not None)))
        returned = train(model, [(x.clone().requires_grad_(), y.clone()) for x, y in batches])  # as inside a model
        look("after the last step")
    return {"returned": returned, "points": points, "held": held, "owners": owners, "at_once": max(whole, default=0)}


def plain_training(model: nn.Module, batches: list[Any]) -> None:
    """As much of it as makes the same activations: what else is held is the weights."""
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(lambda parameter: setattr(parameter, "grad", None))
    for batch in batches:
        batch_loss(model, batch).backward()


def trained(inputs: Inputs, gradients: Callable[[list[Gradients]], list[Gradients]] | None = None, follow: bool = True,
            pile_up: bool = False, forget: bool = False, only_last: bool = False) -> list[list[Tensor]]:
    """Each rank's pieces after all steps, in the order of the parameters; other arguments are mistakes.

    gradients: makes of the ranks' whole gradients each rank's pieces of what it steps with.
    """
    n, names, at = len(inputs), list(inputs[0]["weights"]), inputs[0]["weights"]
    gradients = gradients or (lambda own: pieces_by_rank(combined(own, 1 / n), n))
    own, before = pieces_by_rank(at, n), None
    optimizers = [{name: AdamW(len(piece)) for name, piece in each.items()} for each in own]
    for step in range(STEPS):
        now = gradients([own_gradients({**rank, "weights": at}, [step]) for rank in inputs])
        before = now = [combined([a, b]) for a, b in zip(now, before)] if pile_up and before else now
        if only_last and step < STEPS - 1:
            continue
        if forget:
            optimizers = [{name: AdamW(len(piece)) for name, piece in each.items()} for each in own]
        own = [{name: optimizers[r][name].stepped(own[r][name], now[r][name]) for name in names} for r in range(n)]
        if follow:
            at = {name: torch.cat([each[name] for each in own])[:weight.numel()].view_as(weight)
                  for name, weight in at.items()}
    return [list(each.values()) for each in own]
