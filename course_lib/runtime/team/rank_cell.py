"""A cell of %%ranks as data: its text, where it stands in the notebook, and what its last line gives in each rank."""

import ast
import dis
import linecache
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from types import CodeType

from course_lib.runtime.ranks.places import with_cells

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
        return with_cells(self.file)

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
