"""What the trials of this chapter share: equal pieces of a tensor, and a count of what was sent for them.

    n  ranks, r this one      N  elements of a tensor      S  elements of a piece, ceil(N/n)
"""

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from course_lib.grading.chapters.models import HEADERS, close
from course_lib.grading.exercise import Traffic, Trial
from course_lib.grading.tensors import amount

# What gloo really sends for a byte of the ring's count: its reduce-scatter is an all-reduce, with headers above that.
GLOO_OVER_RING = 2.5
PATIENCE_S = 1.0


def padded(tensor: Tensor, n: int) -> Tensor:
    """The elements of `tensor`, then zeros until n divides their number: (n S,)."""
    flat = tensor.flatten()
    return torch.cat([flat, flat.new_zeros(-flat.numel() % n)])


def pieces(tensor: Tensor, n: int) -> list[Tensor]:
    """The n equal pieces, (S,) each, of which rank r has the one with index r."""
    return [piece.clone() for piece in padded(tensor, n).chunk(n)]


def all_close(given: Sequence[Any], expected: Sequence[Any]) -> bool:
    return len(given) == len(expected) and all(map(close, given, expected))


def first_wrong(given: Sequence[Any], expected: Sequence[Any]) -> int:
    """The first rank that differs."""
    return next(rank for rank, (has, right) in enumerate(zip(given, expected)) if not close(has, right))


def settled(held: Callable[[], int], allowed: int) -> int:
    """held(), as soon as it is at most `allowed`: gloo's thread lets go of a message a moment after it has arrived."""
    deadline = time.monotonic() + PATIENCE_S
    while (now := held()) > allowed and time.monotonic() < deadline:
        time.sleep(0.001)
    return now


def sent_too_much(trial: Trial, answers: Sequence[dict[str, Any]], traffic: Traffic, bound: int,
                  why: str) -> str | None:
    """What is wrong with the bytes that the ranks of a right answer sent by the ring's count; None where nothing is."""
    told = [round(sum(sent for _, _, sent in answer["calls"])) for answer in answers]
    for rank, sent in enumerate(told):
        outside = 0 if traffic.exact else traffic.sent_by(rank)
        if outside > GLOO_OVER_RING * sent + HEADERS + traffic.slack(sent):
            sent = outside  # it kept silent about some of its calls
        if sent > bound:
            return (f"{trial.label}: the result is right, but over budget: rank {rank} sent {amount(sent)}, where "
                    f"{amount(bound)} will do: {why}")
    return None
