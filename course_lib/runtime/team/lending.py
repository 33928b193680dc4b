"""Which of the notebook's names go along with a cell: those that it mentions and that its ranks do not have.

Code and constants (modules, functions, classes, numbers, texts) go along each time, as the notebook has them now.
Anything else goes once and is the rank's own from then on: a model that ranks have trained must not be replaced by the
notebook's, which nobody has trained. A function brings along what it uses as globals: let it take a model as argument.
"""

import dataclasses
import io
from collections.abc import Iterable, Mapping
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

import cloudpickle
import torch

CODE = (ModuleType, FunctionType, BuiltinFunctionType, type)
CONSTANTS = (int, float, complex, str, bytes, type(None), torch.dtype, torch.device)


class Lender:
    """What the notebook has lent to which rank."""

    def __init__(self) -> None:
        self._data: dict[str, set[int]] = {}  # name -> the ranks that have it

    def choose(self, mentioned: Iterable[str], scope: Mapping[str, Any], ranks: Iterable[int]
               ) -> tuple[dict[str, Any], dict[str, Any]]:
        """(code, data) to go along with a cell that mentions these names. What cannot be pickled stays here."""
        there = {name: scope[name] for name in sorted(mentioned) if name in scope and not name.startswith("_")}
        code = {name: value for name, value in there.items() if is_code(value)}
        data = {name: value for name, value in there.items()
                if name not in code and not self._data.get(name, set()) >= set(ranks)}
        return keep_picklable(code), keep_picklable(data)

    def note(self, names: Iterable[str], ranks: Iterable[int]) -> None:
        """These names have arrived."""
        for name in names:
            self._data.setdefault(name, set()).update(ranks)


def is_code(value: Any) -> bool:
    """Whether nothing that a rank does changes it."""
    if isinstance(value, tuple):
        return all(map(is_code, value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        parts = (getattr(value, each.name, None) for each in dataclasses.fields(value))
        return value.__dataclass_params__.frozen and all(map(is_code, parts))  # what it holds may change: a model does
    return isinstance(value, (*CODE, *CONSTANTS))


def keep_picklable(values: dict[str, Any]) -> dict[str, Any]:
    """Those that can be sent: nearly always all of them."""
    if _pickles(values):
        return values
    return {name: value for name, value in values.items() if _pickles(value)}


def _pickles(value: Any) -> bool:
    try:
        cloudpickle.Pickler(io.BytesIO()).dump(value)
    except Exception:
        return False
    return True
