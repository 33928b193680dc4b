"""Exercise 6.4: a layer's weights are whole while the layer is at work, and at no other time."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
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
    gradients_of,
    model_of,
    own_gradients,
    trial_of,
)
from course_lib.grading.chapters.zero.shards import ShardExercise, settled
from course_lib.grading.compare import alike, describe, part, plain
from course_lib.grading.exercise import Trial
from course_lib.grading.spent import Spent

EMPTY = ("A weight was used while its storage was empty: gather it before the layer's forward, and again before its "
         "backward.")
CHANGED = ("Autograd counts changes of a parameter, and takes the refill for one: copy into parameter.data, whose "
           "changes are not counted. What comes back is the same, after all.")


class GatheredOnUse(ShardExercise):
    number = "6.4"
    function = "my_gathered_on_use"
    points = 4
    tolerance = ROUNDING
    right = "the numbers are right"
    budget = ("M/n bytes of weights held between the layers; each weight gathered twice, 2(n-1)/n M bytes sent by each "
              "rank")
    hints = (
        "Autograd has saved a view of the weight. It keeps the storage, so the storage itself has to be emptied after "
        "forward, and filled with the same numbers before backward. A layer has four hooks for that.",
        "To gather: all pieces into a new flat tensor, the storage back to the weight's bytes, and the numbers, "
        "without the zeros at the end, into .data. To free: the storage to 0 bytes. Gather before forward and before "
        "backward, free after each, and once at the beginning.",
        "def gather(*_):\n"
        "    for parameter, piece in pieces.items():\n"
        "        whole = piece.new_empty(n * len(piece))\n"
        "        dist.all_gather(list(whole.chunk(n)), piece)\n"
        "        ...  # storage, then parameter.data.copy_(...)\n"
        "def free(*_): ...\n"
        "free()\n"
        "layer.register_forward_pre_hook(gather)\n"
        "...  # three more: register_forward_hook, register_full_backward_pre_hook, register_full_backward_hook",
    )

    def trials(self, seed: int) -> list[Trial]:
        generator = torch.Generator().manual_seed(seed)
        return [trial_of(generator, n, widths, num_ranks=n) for n, widths in ((3, UNEVEN), (1, UNEVEN), (4, LARGE))]

    @staticmethod
    def run(function: Callable, inputs: dict[str, Any]) -> dict[str, Any]:
        plain_model, model = model_of(inputs), model_of(inputs)
        usual = watched(plain_model, inputs["batches"][0], lambda layer: None)
        M, n = sum(parameter.nbytes for parameter in plain_model.parameters()), inputs["num_ranks"]
        allowed = sum(8 * -(-parameter.numel() // n) for parameter in plain_model.parameters())
        with explained():
            mine, calls = record_calls(watched, model, inputs["batches"][0], function,
                                       [held - M + allowed for held in usual["held"]])
        return {"output": mine["output"], "gradients": mine["gradients"], "calls": calls,
                "owners": mine["owners"],  # bytes in the parameters' own storages, at each point
                "held": [now - before + M for now, before in zip(mine["held"], usual["held"], strict=True)],
                "points": mine["points"]}

    def given(self, answers: list[Any]) -> list[Any]:
        return [(part(answer, "output"), part(answer, "gradients")) for answer in answers]

    def expected(self, inputs: Inputs) -> list[Any]:
        return [(model_of(rank)(rank["batches"][0][0]).detach(), own_gradients(rank)) for rank in inputs]

    def difference(self, given: list[Any], expected: list[Any]) -> str:
        for rank, ((output, gradients), (right, right_gradients)) in enumerate(zip(given, expected)):
            if not alike(output, right, self.tolerance):
                return (f"rank {rank}: the forward pass gives {describe(output)}: expected {describe(right)}. Are the "
                        "pieces in the order of the ranks, and the zeros at the end left out?")
            if not alike(gradients, right_gradients, self.tolerance):
                return (f"rank {rank}: the forward pass is right, the gradients are not: backward has to find the same "
                        "numbers in the weight that forward did")
        raise AssertionError("nothing differs")

    def kept(self, trial: Trial, answers: list[Any]) -> list[Spent]:
        return [most_held(answers, self.pieces_bytes(trial))]

    @staticmethod
    def pieces_bytes(trial: Trial) -> int:
        return sum(8 * -(-weight.numel() // trial.world_size) for weight in trial.inputs[0]["weights"].values())

    def bound(self, trial: Trial) -> int:
        return 2 * (trial.world_size - 1) * self.pieces_bytes(trial)

    def waste(self, answers: list[Any]) -> str:
        return "gather before forward and before backward, each weight once"


@contextmanager
def explained() -> Iterator[None]:
    """What autograd says of weights that are not as it left them, in our words as well."""
    try:
        yield
    except RuntimeError as error:
        if "storage" in str(error):
            error.add_note(EMPTY)
        if "inplace operation" in str(error):
            error.add_note(CHANGED)
        raise


def most_held(answers: list[Any], allowed: int) -> Spent:
    """The bytes of weights at the first point where more than `allowed` is held, else where most is; and by whom."""
    looks = [(rank, *look) for rank, answer in enumerate(answers)
             for look in zip(answer["points"], answer["held"], answer["owners"], strict=True)]
    over = next((look for look in looks if look[2] > allowed), None)
    rank, point, held, own = over or max(looks, key=lambda look: look[2])
    half = "forward" if "forward" in point else "backward"
    why = f"what was gathered for {half} outlives its use; free it in the layer's {half} hook"
    if point.startswith("before"):
        why = "the whole weights are still there; only the pieces should be"
    if not own:
        why = ("no parameter points to them any more, but what autograd saved does: a view keeps a storage alive, "
               "whatever parameter.data is; empty the storage itself, parameter.untyped_storage().resize_(0)")
    return Spent("holds", held, allowed, on=" of weights between the layers" if not over else f" of weights {point}",
                 rank=rank, why=why, claimed=True)


def watched(model: nn.Sequential, batch: list[Tensor], function: Callable[[nn.Module], Any],
            allowed: list[int] | None = None) -> dict[str, Any]:
    """One step of `model` after `function` has seen each linear layer: results, and the bytes held at several points.

    `held`: all bytes; `owners`: those in the storages of the parameters. `allowed`: what is worth waiting for at each
    point, up to the first that holds more.
    """
    from course_lib.runtime import record_memory

    parameters, points, held, owners = list(model.parameters()), [], [], []
    with record_memory(parameters=parameters) as log:

        def look(point: str) -> None:
            waits = allowed is not None and all(now <= most for now, most in zip(held, allowed))
            held.append(settled(lambda: log.current, allowed[len(held)] if waits else log.current))
            points.append(point)
            owners.append(sum(each.untyped_storage().nbytes() for each in parameters))

        def look_around(index: int, layer: nn.Module) -> None:
            layer.register_forward_hook(lambda *_: look(f"in the forward pass, after layer {index - 1}"))
            layer.register_full_backward_pre_hook(lambda *_: look(f"in the backward pass, after layer {index + 1}"))

        for index, layer in enumerate(model):
            function(layer) if isinstance(layer, nn.Linear) else look_around(index, layer)
        look("before the first forward pass")
        x, y = (each.clone() for each in batch)
        output = model(x.requires_grad_())  # as in the middle of a model
        look("after the forward pass")
        result = plain(output)
        nn.functional.mse_loss(output, y).backward()
        del x, y, output
        look("after the backward pass")
    gradients: Gradients = gradients_of(model)
    return {"output": result, "gradients": gradients, "held": held, "owners": owners, "points": points}
