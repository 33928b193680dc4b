"""A few numbers that stand for an answer, however long it is: what gives the same sketch gave the same answer.

So the answer of a mistake can be recorded in a line (recorded.py), and found again on another machine, where sums are
round_digits in another way.
"""

import hashlib
import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from course_lib.grading.compare import LARGEST, READABLE, Tolerance, describe, readable

NUMBERS = 8
FREQUENCIES = (0.0, 1.1, 2.3, 0.7, 1.7, 2.9, 0.3, 2.0)  # of the weights in each mean; the first is the plain one
ROUNDING: Tolerance = (1e-6, 1e-9)


@dataclass(frozen=True)
class Sketch:
    """`numbers`: all of the answer's where there are at most 8 of them, else 8 weighted means; `scale`: the mean size.

    `form` stands for all else: types, shapes, keys, words, and which numbers are infinite or none.
    """

    form: str
    numbers: tuple[float, ...]
    scale: float = 0.0  # 0 where `numbers` are the answer's own

    def is_like(self, other: "Sketch", tolerance: Tolerance = ROUNDING) -> bool:
        """Whether both are of the same answer, up to `tolerance` (relative, absolute)."""
        relative, absolute = (max(pair) for pair in zip(tolerance, ROUNDING))
        return self.form == other.form and len(self.numbers) == len(other.numbers) and all(
            math.isclose(a, b, rel_tol=0.0 if self.scale else relative, abs_tol=absolute + relative * self.scale)
            for a, b in zip(self.numbers, other.numbers))


def sketch(answer: Any) -> Sketch:
    """The sketch of tensors, numbers, strings and None, in any lists and dicts; of anything else only its type."""
    form: list[str] = []
    parts: list[Tensor] = []
    add(answer, form, parts)
    numbers = torch.cat([torch.zeros(0, dtype=torch.float64), *parts])
    odd = ~torch.isfinite(numbers)
    if odd.any():
        form.append(str([(place, str(numbers[place].item())) for place in odd.nonzero().flatten()[:64].tolist()]))
        numbers = numbers.where(~odd, 0.0)
    name = hashlib.sha256("\n".join(form).encode()).hexdigest()[:12]
    if len(numbers) <= NUMBERS:
        return Sketch(name, tuple(map(round_digits, numbers.tolist())))
    places = torch.arange(1, len(numbers) + 1, dtype=torch.float64)
    means = [(numbers * torch.cos(frequency * places)).mean().item() for frequency in FREQUENCIES]
    return Sketch(name, tuple(map(round_digits, means)), round_digits(numbers.abs().mean().item()))


def add(value: Any, form: list[str], numbers: list[Tensor]) -> None:
    """Append what `value` is made of, depth first: types and shapes to `form`, numbers to `numbers`."""
    if isinstance(value, Tensor) and readable(value) and value.dtype in READABLE:
        form.append(f"{value.dtype}{list(value.shape)}")
        numbers.append(value.detach().flatten().double())
    elif isinstance(value, dict):
        form.append(f"{{{', '.join(map(str, value))}}}")
        for part in value.values():
            add(part, form, numbers)
    elif isinstance(value, list | tuple):
        form.append(f"[{len(value)}]")
        for part in value:
            add(part, form, numbers)
    elif isinstance(value, bool | float) or isinstance(value, int) and abs(value) < LARGEST:
        form.append("number")
        numbers.append(torch.tensor([float(value)], dtype=torch.float64))
    else:
        form.append(value if type(value) is str else describe(value))


def round_digits(number: float) -> float:
    """Nine significant digits: enough to tell mistakes apart, few enough to be read."""
    return float(f"{number:.9g}")
