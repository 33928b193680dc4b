"""What the trials of several chapters share: a small model whose gradients are computed here, without the reader.

Everything is float64, so that a sum in another order differs by less than ROUNDING, and a mistake by far more.

    n  ranks, r this one      D  widths of the layers      B  rows of one rank's batch      M  bytes of all gradients
"""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from course_lib.grading.exercise import Trial, ranks_of
from course_lib.grading.on_rank.models import Gradients, Turned, batch_loss, gradients_of, model_of, network
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
    bare = Turned(network(widths)) if more.get("turned") else network(widths)
    shapes = {name: value.shape for name, value in bare.state_dict().items()}
    weights = {name: torch.randn(shape, generator=generator, dtype=torch.float64) / shape[-1] ** 0.5
               for name, shape in shapes.items()}
    ranks = []
    for each in rows or [[3] * num_batches] * n:
        batches = [[torch.randn(B, width, generator=generator, dtype=torch.float64)
                    for width in (widths[0], widths[-1])] for B in each]
        ranks.append({"widths": list(widths), "frozen": list(frozen), "weights": weights, "batches": batches, **more})
    return Trial(ranks, f"{ranks_of(n)}, {human_bytes(gradient_bytes(ranks[0]))} of gradients")


def own_gradients(inputs: dict[str, Any], batches: Iterable[int] = (0,)) -> Gradients:
    """The sum of one rank's gradients of these batches."""
    model = model_of(inputs)
    for batch in batches:
        batch_loss(model, inputs["batches"][batch]).backward()
    return gradients_of(model)


def weighted_sum(each: Sequence[Gradients], scale: float = 1.0, weights: Sequence[float] = ()) -> Gradients:
    """The sum of several gradients, each times its weight where there are some, and all times `scale`."""
    weights = weights or [1.0] * len(each)
    return {name: None if first is None else scale * sum(w * gradients[name] for w, gradients in zip(weights, each))
            for name, first in each[0].items()}


def gradient_bytes(inputs: dict[str, Any]) -> int:
    """M: bytes of the gradients of one rank, the frozen parameters left out."""
    return sum(gradient_sizes(inputs))


def gradient_sizes(inputs: dict[str, Any]) -> list[int]:
    """Bytes of each gradient, in the order of the parameters."""
    return [value.nbytes for name, value in inputs["weights"].items() if name not in inputs["frozen"]]
