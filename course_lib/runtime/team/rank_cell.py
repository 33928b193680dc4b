"""A cell of %%ranks as data: its text, where it stands in the notebook, and what its last line gives in each rank.

The names of the notebook that it mentions and that its ranks do not have go along with it. Code and constants (modules,
functions, classes, numbers, texts) go along each time, as the notebook has them now. Anything else goes once and is the
rank's own from then on: a model that ranks have trained must not be replaced by the notebook's, which nobody has
trained. A function brings along what it uses as globals: let it take a model as argument.
"""

import ast
import dataclasses
import dis
import io
import linecache
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any

import torch

from course_lib.runtime.ranks.frames import name_cells
from course_lib.runtime.ranks.parcels import CallPickler

READS = ("LOAD_NAME", "LOAD_GLOBAL", "LOAD_FROM_DICT_OR_GLOBALS")


@dataclass(frozen=True)
class RankCell:
    """`text` is that of the whole cell, `file` the name under which the notebook knows it; the part that ranks run
    begins below `skip_lines` lines.
    """

    text: str
    file: str
    skip_lines: int = 0

    @property
    def source(self) -> str:
        """What ranks run, with empty lines for what they do not: a line keeps its number."""
        lines = self.text.splitlines(keepends=True)
        return "\n" * self.skip_lines + "".join(lines[self.skip_lines:])

    def short_name(self) -> str:
        """`In[7]`, where the notebook knows the cell."""
        return name_cells(self.file)

    def compile(self) -> tuple[CodeType, CodeType | None]:
        """(statements, the expression at the end: None where there is none or a semicolon ends it). SyntaxError."""
        tree = ast.parse(self.source, self.file)
        last = tree.body[-1] if tree.body else None
        expression = None
        if isinstance(last, ast.Expr) and not self.source.rstrip().endswith(";"):
            tree.body.pop()
            expression = compile(ast.Expression(last.value), self.file, "eval")
        return compile(tree, self.file, "exec"), expression

    def list_names(self) -> set[str]:
        """The global names that the cell reads, also in functions that it defines."""
        return set(list_global_names(compile(self.source, self.file, "exec")))


class RankTexts(dict[int, str]):
    """The value of a cell's last expression, as text, by rank. Ranks with the same one are told together."""

    def __repr__(self) -> str:
        ranks_of: dict[str, list[int]] = {}
        for rank, text in self.items():
            ranks_of.setdefault(text, []).append(rank)
        heads = {text: f"{name_ranks(ranks)}: " for text, ranks in ranks_of.items()}
        width = max(map(len, heads.values()), default=0)
        return "\n".join(head.ljust(width) + text.replace("\n", "\n" + " " * width) for text, head in heads.items())


def remember_text(file: str, text: str) -> None:
    """What error messages, inspect.getsource, warnings and the debugger find under a cell's file name."""
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)


def list_global_names(code: CodeType) -> Iterator[str]:
    """The global names that the code reads, also inside functions that it defines."""
    for instruction in dis.get_instructions(code):
        if instruction.opname in READS:
            yield instruction.argval
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from list_global_names(constant)


def name_ranks(ranks: Iterable[int]) -> str:
    """`rank 2`, `ranks 0 to 3`, `ranks 0, 2`.

    >>> name_ranks([2]), name_ranks([0, 1, 2]), name_ranks([0, 2])
    ('rank 2', 'ranks 0 to 2', 'ranks 0, 2')
    """
    ranks = sorted(ranks)
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    in_a_row = len(ranks) > 2 and ranks == list(range(ranks[0], ranks[-1] + 1))
    return f"ranks {ranks[0]} to {ranks[-1]}" if in_a_row else f"ranks {', '.join(map(str, ranks))}"


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
        CallPickler(io.BytesIO()).dump(value)
    except Exception:
        return False
    return True
