"""What the trials of this chapter share. Ranks get whole numbers, so that sums are exact in any order.

    n  ranks, r this one      N  elements, M bytes of the whole message      chunk c: the c-th of n equal pieces
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from course_lib.grading.exercise import Trial, ranks_of
from course_lib.grading.tensors import whole_numbers

Inputs = list[list[Any]]
LARGE = 1 << 16  # elements a chunk, 256 KiB: headers and padding do not show
WORLD_SIZES = (3, 4, 2, 1)  # with 3 ranks left and right differ, and nothing is a power of two


def trials_of(seed: int, length: Callable[[int, int], int], world_sizes: Sequence[int] = WORLD_SIZES,
              large: int = 4) -> list[Trial]:
    """A small trial for each world size n, of length(n, k) elements with a random k, then one of `large` ranks."""
    generator = torch.Generator().manual_seed(seed)
    small = [(n, random_number(generator, 2, 6)) for n in world_sizes]
    trials = []
    for n, k in [*small, (large, LARGE)]:
        N = length(n, k)
        inputs = [[whole_numbers(generator, N)] for _ in range(n)]
        trials.append(Trial(inputs, f"{ranks_of(n)}, {N:,} element{'s' * (N > 1)} each"))
    return trials


def random_number(generator: torch.Generator, low: int, high: int) -> int:
    """low <= number < high."""
    return int(torch.randint(low, high, (), generator=generator))


def total(inputs: Inputs) -> Tensor:
    """The sum over all ranks, (N,)."""
    return torch.stack([tensor for tensor, *_ in inputs]).sum(dim=0)


def message_bytes(trial: Trial) -> int:
    """Bytes of what one rank brings."""
    tensor = trial.inputs[0][0]
    return tensor.numel() * tensor.element_size()


def turned(pieces: Sequence[Tensor], by: int) -> list[Tensor]:
    """Rank r gets piece r + by."""
    return [pieces[(r + by) % len(pieces)] for r in range(len(pieces))]


def wrong_pieces(given: Any, expected: Tensor, n: int) -> list[int] | None:
    """Which of the n equal pieces of an answer differ from the expected ones; None where the form is another."""
    if not isinstance(given, Tensor) or (given.shape, given.dtype) != (expected.shape, expected.dtype):
        return None
    return [place for place, (a, b) in enumerate(zip(given.chunk(n), expected.chunk(n))) if not torch.equal(a, b)]


def wrong_on_all(given: Sequence[Any], expected: Sequence[Tensor], piece: Callable[[int], int]) -> bool:
    """Whether on each rank r piece(r) is wrong, and nothing else is."""
    n = len(expected)
    return all(wrong_pieces(given[r], expected[r], n) == [piece(r) % n] for r in range(n))
