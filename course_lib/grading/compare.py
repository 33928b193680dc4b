"""The one comparison of answers, words for what was given, and sketches, by which an answer is known again.

All of them take anything: it comes from readers' processes. What gives the same sketch gave the same answer, however
long it is. So the answer of a mistake can be recorded in a line (recorded.py), and found again on another machine,
where sums are rounded in another way.
"""

import hashlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import torch
from torch import Tensor

READABLE = {torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.uint8,
            torch.bool}
Tolerance = tuple[float, float]  # relative, absolute; zero for both: bit by bit
EXACT: Tolerance = (0.0, 0.0)
LARGEST = 2**1000  # of whole numbers: a larger one has no float
NUMBERS = 8  # of a sketch
FREQUENCIES = (0.0, 1.1, 2.3, 0.7, 1.7, 2.9, 0.3, 2.0)  # of the weights in each mean; the first is the plain one
ROUNDING: Tolerance = (1e-6, 1e-9)  # of what a sketch is made of


def alike(given: Any, expected: Any, tolerance: Tolerance = EXACT) -> bool:
    """Whether both have the same form, and numbers that differ by no more than `tolerance`.

    expected: a tensor, a number, a string, None, or lists and dicts of them; a tensor's dtype and shape count.
    """
    if isinstance(expected, Tensor):
        if not readable(given) or (given.shape, given.dtype) != (expected.shape, expected.dtype):
            return False
        relative, absolute = tolerance
        return torch.equal(given, expected) if tolerance == EXACT else torch.allclose(
            given.double(), expected.double(), rtol=relative, atol=absolute)
    if isinstance(expected, dict):
        return type(given) is dict and given.keys() == expected.keys() and all(
            alike(given[key], part, tolerance) for key, part in expected.items())
    if isinstance(expected, list | tuple):
        return isinstance(given, list | tuple) and len(given) == len(expected) and all(
            alike(a, b, tolerance) for a, b in zip(given, expected))
    if type(expected) in (int, float):
        relative, absolute = tolerance
        if type(given) is int and abs(given) >= LARGEST:
            return given == expected
        return type(given) in (int, float) and math.isclose(given, expected, rel_tol=relative, abs_tol=absolute)
    return type(given) is type(expected) and given == expected


def differences(given: Any, expected: Any, tolerance: Tolerance, *place: Any) -> Iterator[tuple[Any, Any, Any]]:
    """(where, what is there, what should be) for every part that differs; where: the keys and places leading to it."""
    if isinstance(expected, dict) and type(given) is dict:
        for key in [*expected, *(key for key in given if key not in expected)]:
            if key in given and key in expected:
                yield from differences(given[key], expected[key], tolerance, *place, key)
            else:
                yield (*place, key), given.get(key, "missing"), expected.get(key, "nothing there")
    elif isinstance(expected, list | tuple) and isinstance(given, list | tuple) and len(given) == len(expected):
        for index, (a, b) in enumerate(zip(given, expected)):
            yield from differences(a, b, tolerance, *place, index)
    elif not alike(given, expected, tolerance):
        yield place, given, expected


def contrast(given: Any, expected: Any, tolerance: Tolerance = EXACT) -> str:
    """`float32[1] = [3]: expected float32[1] = [4]`; where both would look the same, what shows that they are not."""
    has, should = describe(given), describe(expected)
    if has == should and not alike(given, expected, tolerance):
        if isinstance(expected, Tensor):
            return contrast_elements(given, expected, tolerance)
        has, should = unlike(given, expected)
    return f"{has}: expected {should}"


def contrast_elements(given: Tensor, expected: Tensor, tolerance: Tolerance) -> str:
    """The first element that differs of two tensors of one form, `float64[46] with 3 at [7]: expected 4; ...`."""
    relative, absolute = tolerance
    a, b = given.double(), expected.double()
    differ = given != expected if tolerance == EXACT else ~torch.isclose(a, b, rtol=relative, atol=absolute)
    first = tuple(differ.nonzero()[0].tolist())
    has, should = unlike(*(each[first].item() if given.dtype is not torch.bool else int(each[first])
                           for each in (given, expected)))
    where = f"{describe(given).partition(' = ')[0]} with {has}" + f" at {list(first)}" * bool(first)
    size, largest = "", (a - b).abs().max().item()
    if math.isfinite(largest):
        rounded = torch.equal(a, a.float().double()) and not torch.equal(b, b.float().double())
        size = f"; the largest difference is {largest:.2g}{', as after a way through float32' * rounded}"
    return f"{where}: expected {should}{size}"


def unlike(given: Any, expected: Any) -> tuple[str, str]:
    """Both in words, numbers with as many digits as it takes to see that they differ."""
    pairs = [(describe(given), describe(expected))]
    if is_number(given) and is_number(expected):
        pairs += [(number(given, digits), number(expected, digits)) for digits in range(6, 18)]
        pairs.append((str(given), str(expected)))
    return next((pair for pair in pairs if pair[0] != pair[1]), pairs[0])


def readable(value: Any) -> bool:
    """Whether this is a tensor whose elements can be looked at."""
    return isinstance(value, Tensor) and value.layout is torch.strided and value.device.type == "cpu"


def part(answer: Any, name: str) -> Any:
    """The part `name` of a rank's answer, all of it where it has no parts; words for a tensor that cannot be read."""
    found = answer.get(name) if type(answer) is dict else answer
    return describe(found) if isinstance(found, Tensor) and not readable(found) else found


def is_number(value: Any) -> bool:
    """Whether this is an int or a float that can be computed with: no bool, and no whole number beyond all floats."""
    return type(value) is float or type(value) is int and abs(value) < LARGEST


def is_list_of(value: Any, *kinds: type, length: int | None = None) -> bool:
    """Whether this is a list, of `length` where one is given, in which everything is of one of these types."""
    return type(value) is list and length in (None, len(value)) and all(type(each) in kinds for each in value)


def number(value: float, digits: int = 6) -> str:
    """The one notation of numbers in sentences: 20,125,000,000 and 0.125; powers of ten only where nobody counts."""
    whole = 10 ** digits <= abs(value) < 1e15
    return f"{value:,.0f}" if whole else f"{value:,.{digits}g}"


def describe(value: Any) -> str:
    """`float32[3] = [1, 2, 3]`, of a long tensor the first elements."""
    if value is None or type(value) is str:
        return (value or "nothing (None)")[:80]
    if type(value) is int and abs(value) >= LARGEST:
        return "a huge number"
    if type(value) in (int, float):
        return number(value)
    if not isinstance(value, Tensor):
        return f"a {type(value).__name__}"
    if not readable(value):
        return f"a {value.layout} tensor on {value.device}"
    form = f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    if value.dtype not in READABLE:
        return form
    elements = ", ".join(f"{element:g}" for element in value.flatten()[:6].tolist())
    return f"{form} = [{elements}{', ...' if value.numel() > 6 else ''}]"


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
    parts: list[Tensor | float] = []
    add(answer, form, parts)
    joint = [torch.tensor(list(run), dtype=torch.float64) if kind is float else torch.cat(list(run))
             for kind, run in groupby(parts, key=type)]  # a tensor for each number would take 15 us
    numbers = torch.cat([torch.zeros(0, dtype=torch.float64), *joint])
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


def add(value: Any, form: list[str], numbers: list[Tensor | float]) -> None:
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
        numbers.append(float(value))
    else:
        form.append(value if type(value) is str else describe(value))


def round_digits(number: float) -> float:
    """Nine significant digits: enough to tell mistakes apart, few enough to be read."""
    return float(f"{number:.9g}")
