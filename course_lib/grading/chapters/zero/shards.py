"""What the trials of this chapter share: equal pieces of a tensor, and what gloo makes of its collectives.

    n  ranks, r this one      N  elements of a tensor      S  elements of a piece, ceil(N/n)
"""

import time
from collections.abc import Callable

import torch
from torch import Tensor

from course_lib.grading.calls import CollectiveExercise
from course_lib.grading.chapters.models import Gradients

PATIENCE_S = 1.0


class ShardExercise(CollectiveExercise):
    """Everybody holds a part."""

    gloo_over_ring = 2.5  # its reduce-scatter is an all-reduce, with headers above that


def padded(tensor: Tensor, n: int) -> Tensor:
    """The elements of `tensor`, then zeros until n divides their number: (n S,)."""
    flat = tensor.flatten()
    return torch.cat([flat, flat.new_zeros(-flat.numel() % n)])


def pieces(tensor: Tensor, n: int) -> list[Tensor]:
    """The n equal pieces, (S,) each, of which rank r has the one with index r."""
    return [piece.clone() for piece in padded(tensor, n).chunk(n)]


def pieces_by_rank(gradients: Gradients, n: int) -> list[Gradients]:
    """Each rank's pieces; parameters without a gradient left out."""
    there = {name: pieces(gradient, n) for name, gradient in gradients.items() if gradient is not None}
    return [{name: each[r] for name, each in there.items()} for r in range(n)]


def settled(held: Callable[[], int], allowed: int) -> int:
    """held(), as soon as it is at most `allowed`: gloo's thread lets go of a message a moment after it has arrived."""
    deadline = time.monotonic() + PATIENCE_S
    while (now := held()) > allowed and time.monotonic() < deadline:
        time.sleep(0.001)
    return now
