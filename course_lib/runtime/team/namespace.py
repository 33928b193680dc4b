"""In a rank that stays: the names that it holds. Cells run among them, and the notebook reads and writes them.

Most functions here are calls like a reader's own: the team runs them in its ranks. What names hold is said in bytes of
tensors by kind, counted by storage, so that views and tied weights count once.
"""

import builtins
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from course_lib.runtime.ranks import showing
from course_lib.runtime.team.rank_cell import RankCell, list_global_names, remember_text
from course_lib.runtime.tensors import storages_of, tensors_in

KINDS = ("parameters", "gradients", "optimizer_state", "other")  # as record_memory's; nothing here is an activation
MOST_LETTERS = 4000  # of a value that a cell ends in
RICH = ("_repr_mimebundle_", "_repr_html_", "_repr_png_", "_repr_svg_")
MOST_NAMES = 12
ROWS, COLUMNS = 8, 12  # of a tensor that are shown

_lent: dict[str, Any] = {}  # names that are the notebook's, with the value it had when it lent them


def all_names() -> dict[str, Any]:
    """Everything that a cell sees: __main__, so that a cell's classes can be found by their names."""
    return vars(sys.modules["__main__"])


def own_names() -> dict[str, Any]:
    """What the rank holds: without modules, what the notebook has lent it, and names that begin with an underscore."""
    return {name: value for name, value in all_names().items()
            if not name.startswith("_") and not _is_notebooks(name) and not isinstance(value, ModuleType)}


def _is_notebooks(name: str) -> bool:
    return name in _lent and all_names().get(name) is _lent[name]


def borrow(code: dict[str, Any], data: dict[str, Any]) -> None:
    """What a rank does not have under these names is the notebook's: code as it is now; data, which the rank keeps."""
    names = all_names()
    for name, value in (code | data).items():
        if name not in names or _is_notebooks(name):
            names[name] = value
            if name in code:
                _lent[name] = value


def run_cell(cell: RankCell, code: dict[str, Any], data: dict[str, Any]) -> str | None:
    """Run the cell among the rank's names; the text of its last expression's value, None where it has none.

    Figures that the cell leaves open are shown below it, and closed, as in any cell of a notebook.
    """
    borrow(code, data)
    remember_text(cell.file, cell.text)
    statements, expression = cell.compile()
    try:
        exec(statements, all_names())
        value = None if expression is None else eval(expression, all_names())
        return None if value is None else _show(value)
    finally:
        showing.show_open_figures()


def _show(value: Any) -> str | None:
    """The text of a value; a value that draws itself is shown under the cell, and has none."""
    figures = sys.modules.get("matplotlib.figure")
    is_figure = figures is not None and isinstance(value, figures.Figure)
    if is_figure or any(hasattr(type(value), name) for name in RICH):
        showing.display(value)
        if is_figure and (pyplot := sys.modules.get("matplotlib.pyplot")) is not None:
            pyplot.close(value)  # or it would be shown once more, as one that was left open
        return None
    text = repr(value)
    return text if len(text) <= MOST_LETTERS else f"{text[:MOST_LETTERS]} ... ({len(text):,} letters)"


def evaluate(expression: str, file: str) -> Any:
    """The value of an expression of the rank's names."""
    remember_text(file, expression)
    return eval(compile(expression, file, "eval"), all_names())


def read_name(name: str) -> tuple[bool, Any]:
    """(whether there is such a name, its value; the names that there are where it is missing)."""
    names = own_names()
    return (True, all_names()[name]) if name in all_names() else (False, sorted(names))


def write_names(values: dict[str, Any]) -> None:
    """Give names values, which are the rank's own from now on."""
    all_names().update(values)
    for name in values:
        _lent.pop(name, None)


def do_nothing() -> None:
    """A call that only joins the process group."""


def call_function(fn: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """What team.run runs in every rank. Names that the notebook did not have, and this rank does, are the rank's."""
    scope = getattr(fn, "__globals__", None)
    if scope is not None and scope is not all_names():
        for name in list_global_names(fn.__code__):
            if name not in scope and not hasattr(builtins, name) and name in all_names():
                scope[name] = all_names()[name]
    return fn(*args, **kwargs)


@dataclass(frozen=True)
class NameHolding:
    """One name: what its value is, in words, and how many bytes of tensors it holds."""

    name: str
    what: str  # "float32[4, 8]", "Linear", "list"
    num_bytes: int


@dataclass(frozen=True)
class RankHoldings:
    """All names of one rank. `by_kind` counts each storage once, as the strongest kind that applies."""

    names: tuple[NameHolding, ...]
    by_kind: dict[str, int]


def find_holdings(names: dict[str, Any]) -> RankHoldings:
    """What these names hold, biggest first."""
    kinds: dict[int, tuple[int, int]] = {}  # storage -> (index into KINDS, bytes)
    found = []
    for name, value in names.items():
        own: dict[int, int] = {}
        for kind, tensor in tensors_by_kind(value):
            for storage in _storages(tensor):
                index = KINDS.index(kind)
                known = kinds.get(storage._cdata, (index, 0))[0]
                kinds[storage._cdata] = min(known, index), storage.nbytes()
                own[storage._cdata] = storage.nbytes()
        found.append(NameHolding(name, describe_value(value), sum(own.values())))
    by_kind = {kind: sum(size for index, size in kinds.values() if KINDS[index] == kind) for kind in KINDS}
    return RankHoldings(tuple(sorted(found, key=lambda each: (-each.num_bytes, each.name))), by_kind)


def tensors_by_kind(value: Any) -> Iterator[tuple[str, Tensor]]:
    """(kind, tensor) for all that can be seen in a value: modules, optimisers, lists and dicts, and objects' parts."""
    if isinstance(value, nn.Module):
        for parameter in value.parameters():
            yield from _with_gradient("parameters", parameter)
        yield from (("other", buffer) for buffer in value.buffers())
    elif isinstance(value, Optimizer):
        for group in value.param_groups:
            for parameter in group["params"]:
                yield from _with_gradient("parameters", parameter)
        yield from (("optimizer_state", tensor) for tensor in tensors_in(list(value.state.values())))
    elif isinstance(value, (list, tuple, dict)):
        for part in value.values() if isinstance(value, dict) else value:
            yield from tensors_by_kind(part)
    else:
        for tensor in tensors_in(value):
            yield from _with_gradient("parameters" if isinstance(tensor, nn.Parameter) else "other", tensor)
        for part in getattr(value, "__dict__", {}).values() if not isinstance(value, (type, Tensor)) else ():
            if isinstance(part, (nn.Module, Optimizer, Tensor)):
                yield from tensors_by_kind(part)


def _with_gradient(kind: str, tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
    yield kind, tensor
    if tensor.is_leaf and tensor.grad is not None:
        yield "gradients", tensor.grad


def _storages(tensor: Tensor) -> list[torch.UntypedStorage]:
    try:
        return list(storages_of(tensor))
    except (RuntimeError, NotImplementedError):  # a tensor without memory
        return []


def describe_value(value: Any) -> str:
    """`float32[4, 8]` for a tensor, otherwise the class."""
    if isinstance(value, Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    if isinstance(value, (int, float, str, bool)) and len(repr(value)) <= 20:
        return repr(value)
    return type(value).__name__


def describe_names() -> RankHoldings:
    return find_holdings(own_names())


def take_snapshot() -> dict[str, Any]:
    """In a rank: its bytes by kind, and its names, biggest first, tensors with their first values. Plain JSON."""
    names = own_names()
    held = find_holdings(names)
    return {"by_kind": held.by_kind, "more": max(0, len(held.names) - MOST_NAMES),
            "names": [asdict(each) | {"values": first_values(names[each.name])} for each in held.names[:MOST_NAMES]]}


def first_values(value: Any) -> list[list[float]]:
    """The first rows and columns of a tensor, with all dimensions but the first in one; [] for anything else."""
    plain = type(value) in (Tensor, nn.Parameter) and value.layout is torch.strided and value.numel() > 0
    if not plain or value.is_complex() or value.device.type == "meta" or not value.untyped_storage().nbytes():
        return []
    rows = value.detach().reshape(value.shape[0] if value.dim() > 1 else 1, -1)
    return rows[:ROWS, :COLUMNS].double().cpu().tolist()
