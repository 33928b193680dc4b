"""What a published number needs to be believed: unit, source and date; what a number in a formula has to be."""

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any


@dataclass(frozen=True)
class Fact:
    """One number. `date` is the year, or year and month, of the source. ValueError where something is missing.

    unverified: written down from memory, or from somebody who quotes the source: nobody here has the source open.

    >>> print(Fact(80, "GB", "NVIDIA, H100 data sheet", "2023"))
    80 GB (NVIDIA, H100 data sheet, 2023)
    >>> Fact(80, "GB", "", "2023")
    Traceback (most recent call last):
    ValueError: unit='GB', source='': expected both, a number alone is no fact
    """

    value: float
    unit: str
    source: str
    date: str
    unverified: bool = False

    def __post_init__(self) -> None:
        if not math.isfinite(self.value):
            raise ValueError(f"value={self.value!r}: expected a finite number")
        if not self.unit or not self.source:
            raise ValueError(f"unit={self.unit!r}, source={self.source!r}: expected both, a number alone is no fact")
        if not re.fullmatch(r"\d{4}(-\d{2})?", self.date):
            raise ValueError(f"date={self.date!r}: expected a year such as 2022, or 2022-05")

    def __str__(self) -> str:
        doubt = ", unverified" if self.unverified else ""
        return f"{self.value:g} {self.unit} ({self.source}, {self.date}{doubt})"

    @property
    def doubt(self) -> str:
        """What a table prints behind the number: "?" where it is unverified."""
        return "?" if self.unverified else ""


def find(kind: str, name: str, known: Sequence[Any]) -> Any:
    """The one of `known` with this `name`. ValueError, with all names, the nearest first, where there is none."""
    for each in known:
        if each.name == name:
            return each
    raise ValueError(f"no {kind} is called {name!r}: expected one of "
                     f"{', '.join(nearest_first(name, (each.name for each in known)))}")


def nearest_first(name: str, names: Iterable[str]) -> list[str]:
    """`names` by likeness to `name`: by how many letters they have in common, in the same order.

    >>> nearest_first("Lama 3 8B", ["GPT-3", "Llama 3 8B"])
    ['Llama 3 8B', 'GPT-3']
    """
    given = str(name).lower()
    return sorted(names, key=lambda each: -SequenceMatcher(None, given, each.lower()).ratio())


def above_zero(value: float, name: str) -> float:
    """`value`, if it is finite and above 0. ValueError otherwise, with `name`."""
    if not 0 < value < float("inf"):
        raise ValueError(f"{name}={value!r}: expected a finite number above 0")
    return value


def at_least(value: int, lowest: int, name: str) -> int:
    """`value` as an int, if it is a whole number of `lowest` or more. ValueError otherwise, with `name`."""
    if isinstance(value, bool) or value != int(value) or value < lowest:
        raise ValueError(f"{name}={value!r}: expected a whole number of {lowest} or more")
    return int(value)


def positive_share(value: float, name: str) -> float:
    """`value`, if it is above 0 and at most 1. ValueError otherwise, with `name`."""
    if not 0 < value <= 1:
        hint = ": is it a percentage?" if value > 1 else ""
        raise ValueError(f"{name}={value!r}: expected a share above 0 and at most 1{hint}")
    return value


def fraction(value: float, name: str) -> float:
    """`value`, if it is from 0 to 1. ValueError otherwise, with `name`."""
    if not 0 <= value <= 1:
        hint = ": is it a percentage?" if value > 1 else ""
        raise ValueError(f"{name}={value!r}: expected a share from 0 to 1{hint}")
    return value
