"""What the trials of chapters 5 and 7 share: t ranks play_ranks in one process.

    t  ranks, r this one      xs  a list with each rank's tensor      B T  tokens, of D numbers each

A list of tensors stands for what the ranks hold; `f` and `g` take and return such lists, and autograd goes through them
as through the ranks' messages. Everything is float64, as in models.py.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from course_lib.grading.compare import alike, describe
from course_lib.grading.exercise import Trial
from course_lib.grading.judges.calls import CollectiveExercise
from course_lib.grading.judges.models import ROUNDING
from course_lib.grading.on_rank.plain import plain, ring_bytes
from course_lib.grading.on_rank.split import Leaves, gradients_of, leaves_of

Tensors = list[Tensor]
OUT_IN = ("The weight of a linear layer is (out, in) in torch: its rows are the columns of the matrix that x is "
          "multiplied with.")
NO_WAY_BACK = ("the forward pass is right, but nothing has a gradient: what is returned does not lead back to the "
               "arguments. torch.no_grad, .detach() and .data cut the way")


def f(xs: Tensors) -> Tensors:
    """Each rank's tensor as it is; backward gives all of them the sum of the gradients."""
    total = sum(xs)
    return [x.detach() + (total - total.detach()) for x in xs]


def g(xs: Tensors) -> Tensors:
    """The sum of all ranks' tensors, on each; backward gives each rank its own gradient."""
    total = sum(xs).detach()
    return [total + (x - x.detach()) for x in xs]


def play_ranks(inputs: list[dict[str, Any]], compute: Callable[[list[Leaves]], Tensors]) -> list[dict[str, Any]]:
    """What each rank answers if together they compute `compute`, of all ranks' leaves."""
    leaves = [leaves_of(rank) for rank in inputs]
    ys = compute(leaves)
    torch.autograd.backward(ys, [rank["dy"] for rank in inputs])
    return [{"y": plain(y), "gradients": gradients_of(own)} for y, own in zip(ys, leaves)]


class SplitExercise(CollectiveExercise):
    """Forward and backward of something that is cut. A rank answers `y`, `gradients` by name, and `calls`."""

    tolerance = ROUNDING
    gloo_over_ring = 2.5  # its reduce-scatter, which may be used, is an all-reduce
    parts = ("y", "gradients")
    errors = (("shapes cannot be multiplied", OUT_IN), ("size mismatch", OUT_IN), *CollectiveExercise.errors)

    def difference(self, given: list[Any], expected: list[dict[str, Any]]) -> str:
        for rank, (own, right) in enumerate(zip(given, expected)):
            if not alike(own["y"], right["y"], self.tolerance):
                return f"rank {rank} returned {describe(own['y'])}: expected {describe(right['y'])}"
        every = [own["gradients"] if isinstance(own["gradients"], dict) else {} for own in given]
        if all(gradient is None for gradients in every for gradient in gradients.values()):
            return NO_WAY_BACK
        for rank, (gradients, right) in enumerate(zip(every, expected)):
            for name, gradient in right["gradients"].items():
                if not alike(gradients.get(name), gradient, self.tolerance):
                    return (f"the forward pass is right; on rank {rank} the gradient of {name} is "
                            f"{describe(gradients.get(name))}: expected {describe(gradient)}")
        raise AssertionError("nothing differs")


class PartsExercise(CollectiveExercise):
    """Functions that go both ways: a rank answers the results and gradients of `parts`, each with what it is called."""

    tolerance = ROUNDING
    parts: dict[str, str]

    def difference(self, given: list[Any], expected: list[dict[str, Any]]) -> str:
        for name, words in self.parts.items():
            for rank, (own, right) in enumerate(zip(given, expected)):
                if not alike(own[name], right[name], self.tolerance):
                    return f"on rank {rank} {words} is {describe(own[name])}: expected {describe(right[name])}"
        raise AssertionError("nothing differs")


def least_for_a_sum(trial: Trial, numbers: int) -> int:
    """Bytes that all ranks together have to send, whatever they do, so that each has the sum of so many numbers."""
    return 2 * (trial.world_size - 1) * 8 * numbers


def all_reduce_bytes(trial: Trial, numbers: int) -> int:
    """What a rank sends in one all-reduce of so many numbers, by the ring convention."""
    return ring_bytes(8 * numbers, trial.world_size)


def normal(generator: torch.Generator, *shape: int, scale: float = 1.0) -> Tensor:
    return scale * torch.randn(shape, generator=generator, dtype=torch.float64)
