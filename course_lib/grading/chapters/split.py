"""What the trials of chapters 5 and 7 share: t ranks played in one process, right ones and wrong ones.

    t  ranks, r this one      xs  a list with each rank's tensor      B T  tokens, of D numbers each

A list of tensors stands for what the ranks hold; `f`, `g` and their likely wrong forms take and return such lists, and
autograd goes through them as through the ranks' messages. Everything is float64, as in models.py.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from course_lib.grading.calls import CollectiveExercise, count_calls
from course_lib.grading.chapters.models import ROUNDING
from course_lib.grading.compare import alike, describe, part, plain
from course_lib.grading.exercise import Trial

Tensors = list[Tensor]
Leaves = dict[str, Tensor]
OUT_IN = ("The weight of a linear layer is (out, in) in torch: its rows are the columns of the matrix that x is "
          "multiplied with.")
NO_WAY_BACK = ("the forward pass is right, but nothing has a gradient: what is returned does not lead back to the "
               "arguments. torch.no_grad, .detach() and .data cut the way")


class AllRanks(torch.autograd.Function):
    """(each rank's x) -> (each rank's y): sums where `forward_adds`, and sums of gradients where `backward_adds`."""

    @staticmethod
    def forward(ctx: Any, forward_adds: bool, backward_adds: bool, *xs: Tensor) -> tuple[Tensor, ...]:
        ctx.backward_adds = backward_adds
        return each_or_sum(xs, forward_adds)

    @staticmethod
    def backward(ctx: Any, *dys: Tensor) -> tuple[Tensor | None, ...]:
        return None, None, *each_or_sum(dys, ctx.backward_adds)


def each_or_sum(tensors: Sequence[Tensor], adds: bool) -> tuple[Tensor, ...]:
    return tuple((sum(tensors) if adds else tensor).clone() for tensor in tensors)


def f(xs: Tensors) -> Tensors:
    """Copies; backward, the sum of the gradients."""
    return list(AllRanks.apply(False, True, *xs))


def g(xs: Tensors) -> Tensors:
    """The sum; backward, copies."""
    return list(AllRanks.apply(True, False, *xs))


def both_add(xs: Tensors) -> Tensors:
    """What all-reduce in both directions makes."""
    return list(AllRanks.apply(True, True, *xs))


def nothing(xs: Tensors) -> Tensors:
    """No message in either direction."""
    return list(xs)


def scaled_back(tensors: Tensors, scale: float) -> Tensors:
    """The same tensors, with gradients times `scale`."""
    for tensor in tensors:
        if tensor.requires_grad:
            tensor.register_hook(lambda gradient: gradient * scale)
    return tensors


def leaves_of(inputs: dict[str, Any]) -> Leaves:
    return {name: tensor.clone().requires_grad_() for name, tensor in inputs["given"].items()}


def played(inputs: list[dict[str, Any]], compute: Callable[[list[Leaves]], Tensors]) -> list[dict[str, Any]]:
    """What each rank would answer if together they computed `compute`, of all ranks' leaves."""
    leaves = [leaves_of(rank) for rank in inputs]
    ys = compute(leaves)
    if all(y.shape == rank["dy"].shape for y, rank in zip(ys, inputs)):
        torch.autograd.backward(ys, [rank["dy"] for rank in inputs])
    return [{"y": plain(y), "gradients": gradients_of(own)} for y, own in zip(ys, leaves)]


def gradients_of(leaves: Leaves) -> dict[str, Any]:
    return {name: plain(leaf.grad) for name, leaf in leaves.items()}


def forth_and_back(inputs: dict[str, Any], call: Callable[[Leaves], Any]) -> dict[str, Any]:
    """On a rank: what `call` returns, its gradients after backward from dy, and its messages."""
    leaves = leaves_of(inputs)

    def passes() -> Any:
        y = call(leaves)
        returned = plain(y)
        if isinstance(y, Tensor) and y.requires_grad and y.shape == inputs["dy"].shape:
            y.backward(inputs["dy"].clone())
        return returned

    try:
        returned, calls = count_calls(passes)
    except RuntimeError as error:
        if "shapes cannot be multiplied" in str(error) or "size mismatch" in str(error):
            error.add_note(OUT_IN)
        raise
    return {"y": returned, "gradients": gradients_of(leaves), "calls": calls}


class SplitExercise(CollectiveExercise):
    """Forward and backward of something that is cut. A rank answers `y`, `gradients` by name, and `calls`."""

    tolerance = ROUNDING
    right = "forward and backward are right"
    gloo_over_ring = 2.5  # its reduce-scatter, which may be used, is an all-reduce

    def given(self, answers: list[Any]) -> list[Any]:
        return [{name: part(answer, name) for name in ("y", "gradients")} for answer in answers]

    def cause(self, given: list[Any], inputs: list[dict[str, Any]]) -> str | None:
        for own, right in zip(given, self.expected(inputs)):
            gradients = own["gradients"]
            if not alike(own["y"], right["y"], self.tolerance) or not isinstance(gradients, dict) or any(
                    gradient is not None for gradient in gradients.values()):
                return super().cause(given, inputs)
        return NO_WAY_BACK

    def difference(self, given: list[Any], expected: list[dict[str, Any]]) -> str:
        for rank, (own, right) in enumerate(zip(given, expected)):
            if not alike(own["y"], right["y"], self.tolerance):
                return f"rank {rank} returned {describe(own['y'])}: expected {describe(right['y'])}"
        for rank, (own, right) in enumerate(zip(given, expected)):
            gradients = own["gradients"] if isinstance(own["gradients"], dict) else {}
            for name, gradient in right["gradients"].items():
                if not alike(gradients.get(name), gradient, self.tolerance):
                    return (f"the forward pass is right; on rank {rank} the gradient of {name} is "
                            f"{describe(gradients.get(name))}: expected {describe(gradient)}")
        raise AssertionError("nothing differs")


class PartsExercise(CollectiveExercise):
    """Functions that go both ways: a rank answers the results and gradients of `parts`, each with what it is called."""

    tolerance = ROUNDING
    parts: dict[str, str]

    def given(self, answers: list[Any]) -> list[Any]:
        return [{name: part(answer, name) for name in self.parts} for answer in answers]

    def difference(self, given: list[Any], expected: list[dict[str, Any]]) -> str:
        for name, words in self.parts.items():
            for rank, (own, right) in enumerate(zip(given, expected)):
                if not alike(own[name], right[name], self.tolerance):
                    return f"on rank {rank} {words} is {describe(own[name])}: expected {describe(right[name])}"
        raise AssertionError("nothing differs")


def all_reduce_bytes(trial: Trial, numbers: int) -> int:
    """What a rank sends in one all-reduce of so many numbers, by the ring convention."""
    t = trial.world_size
    return -(-2 * (t - 1) * 8 * numbers // t)


def normal(generator: torch.Generator, *shape: int, scale: float = 1.0) -> Tensor:
    return scale * torch.randn(shape, generator=generator, dtype=torch.float64)
