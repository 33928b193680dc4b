"""Trials and judges that chapters share: gradients of a small model, forward and backward of something that is cut.

Right answers are computed here, in one process: a list of tensors stands for what the ranks hold; `f` and `g` take and
return such lists, and autograd goes through them as through the ranks' messages. Everything is float64, so that a sum
in another order differs by less than ROUNDING, and a mistake by far more.

    n, t  ranks, r this one      xs  a list with each rank's tensor      D  widths of the layers
    B  rows of one rank's batch      M  bytes of all gradients
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from course_lib.grading.compare import alike, contrast
from course_lib.grading.exercise import Trial, ranks_of
from course_lib.grading.kinds import CollectiveExercise
from course_lib.grading.on_rank import (
    Gradients,
    Leaves,
    batch_loss,
    gradients_of,
    leaf_gradients,
    leaves_of,
    model_of,
    network,
    plain,
    ring_bytes,
)
from course_lib.pictures.units import human_bytes

ROUNDING = (1e-9, 1e-9)
SMALL, LARGE = [3, 4, 4, 2], [64, 128, 128, 8]  # widths
EQUAL = [4, 4, 4, 4]  # all layers have the same size
ALIKE = [40] * 6  # five layers, of which two are more than one and the pieces of all
UNEVEN = [3, 4, 2]  # 12 + 4 + 8 + 2 elements are not multiples of 3
Inputs = list[dict[str, Any]]


def doubles(values: Any) -> Tensor:
    """A number, or lists of numbers, as a tensor in float64."""
    return torch.tensor(values, dtype=torch.float64)


def trial_of(generator: torch.Generator, n: int, widths: Sequence[int], frozen: Sequence[str] = (),
             num_batches: int = 1, rows: Sequence[Sequence[int]] = (), **more: Any) -> Trial:
    """The same weights on all ranks, and `num_batches` batches of three rows for each rank.

    rows: the rows of each batch of each rank, where they differ; more: what each rank gets besides.
    """
    shapes = {name: value.shape for name, value in network(widths).state_dict().items()}
    weights = {name: torch.randn(shape, generator=generator, dtype=torch.float64) / shape[-1] ** 0.5
               for name, shape in shapes.items()}
    ranks = []
    for each in rows or [[3] * num_batches] * n:
        batches = [[torch.randn(B, width, generator=generator, dtype=torch.float64)
                    for width in (widths[0], widths[-1])] for B in each]
        ranks.append({"widths": list(widths), "frozen": list(frozen), "weights": weights, "batches": batches, **more})
    return Trial(ranks, f"{ranks_of(n)}, {human_bytes(gradient_bytes(ranks[0]))} of gradients")


def own_gradients(inputs: dict[str, Any]) -> Gradients:
    """One rank's gradients of its first batch."""
    model = model_of(inputs)
    batch_loss(model, inputs["batches"][0]).backward()
    return gradients_of(model)


def weighted_sum(each: Sequence[Gradients], scale: float) -> Gradients:
    """The sum of several gradients, times `scale`."""
    return {name: None if first is None else scale * sum(gradients[name] for gradients in each)
            for name, first in each[0].items()}


def gradient_bytes(inputs: dict[str, Any]) -> int:
    """M: bytes of the gradients of one rank, the frozen parameters left out."""
    return sum(gradient_sizes(inputs))


def gradient_sizes(inputs: dict[str, Any]) -> list[int]:
    """Bytes of each gradient, in the order of the parameters."""
    return [value.nbytes for name, value in inputs["weights"].items() if name not in inputs["frozen"]]


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
    return [{"y": plain(y), "gradients": leaf_gradients(own)} for y, own in zip(ys, leaves)]


class SplitExercise(CollectiveExercise):
    """Forward and backward of something that is cut. A rank answers `y`, `gradients` by name, and `calls`."""

    tolerance = ROUNDING
    gloo_over_ring = 2.5  # its reduce-scatter, which may be used, is an all-reduce
    parts = ("y", "gradients")
    errors = (("shapes cannot be multiplied", OUT_IN), ("size mismatch", OUT_IN), *CollectiveExercise.errors)

    def difference(self, given: list[Any], expected: list[dict[str, Any]]) -> str:
        for rank, (own, right) in enumerate(zip(given, expected)):
            if not alike(own["y"], right["y"], self.tolerance):
                return f"rank {rank} returned {contrast(own['y'], right['y'], self.tolerance)}"
        every = [own["gradients"] if isinstance(own["gradients"], dict) else {} for own in given]
        if all(gradient is None for gradients in every for gradient in gradients.values()):
            return NO_WAY_BACK
        for rank, (gradients, right) in enumerate(zip(every, expected)):
            for name, gradient in right["gradients"].items():
                if not alike(gradients.get(name), gradient, self.tolerance):
                    return (f"the forward pass is right; on rank {rank} the gradient of {name} is "
                            f"{contrast(gradients.get(name), gradient, self.tolerance)}")
        raise AssertionError("nothing differs")


class PartsExercise(CollectiveExercise):
    """Functions that go both ways: a rank answers the results and gradients of `parts`, each with what it is called."""

    tolerance = ROUNDING
    parts: dict[str, str]

    def difference(self, given: list[Any], expected: list[dict[str, Any]]) -> str:
        for name, words in self.parts.items():
            for rank, (own, right) in enumerate(zip(given, expected)):
                if not alike(own[name], right[name], self.tolerance):
                    return f"on rank {rank} {words} is {contrast(own[name], right[name], self.tolerance)}"
        raise AssertionError("nothing differs")


def least_for_a_sum(trial: Trial, numbers: int) -> int:
    """Bytes that all ranks together have to send, whatever they do, so that each has the sum of so many numbers."""
    return 2 * (trial.world_size - 1) * 8 * numbers


def all_reduce_bytes(trial: Trial, numbers: int) -> int:
    """What a rank sends in one all-reduce of so many numbers, by the ring convention."""
    return ring_bytes(8 * numbers, trial.world_size)


def normal(generator: torch.Generator, *shape: int, scale: float = 1.0) -> Tensor:
    return scale * torch.randn(shape, generator=generator, dtype=torch.float64)
