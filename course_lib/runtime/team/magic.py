"""%%ranks: a cell that runs in the ranks of the newest open team, among the names of each.

    %%ranks                 in all ranks
    %%ranks 0,2             in these; also 1-3

What they print, show and raise comes as from launch. The value of the last expression is the cell's, by rank.
"""

import itertools
import re
import sys
from types import FrameType
from typing import Any

from course_lib.runtime.team.rank_cell import RankCell, RankTexts
from course_lib.runtime.team.team import newest_team

NO_TEAM = ("%%ranks runs its cell in ranks that stay, and there are none. Start them in a cell of their own: "
           "team = start_ranks(world_size=4)")
_others = itertools.count(1)  # cells that no notebook numbers: those of a script
_RANKS = re.compile(r"\d+(-\d+)?")


class RanksUsageError(ValueError):
    """The reader's slip: told in a line, without the stack of the magic."""

    def _render_traceback_(self) -> list[str]:
        return [f"{type(self).__name__}: {self}"]


def register_in(shell: Any) -> None:
    """Give `shell` the magic. A second call changes nothing."""
    shell.register_magic_function(lambda line, cell: run_magic(shell, line, cell), "cell", "ranks")


def run_magic(shell: Any, line: str, body: str) -> RankTexts | None:
    """What `%%ranks` does in a cell of `shell`."""
    team = newest_team()
    if team is None:
        raise RanksUsageError(NO_TEAM)
    return team.run_cell(this_cell(shell, line, body), parse_ranks(line), shell.user_ns)


def parse_ranks(line: str) -> list[int] | None:
    """The ranks that `0,2` or `1-3` names; None for all. ValueError for anything else.

    >>> parse_ranks("0, 2"), parse_ranks("1-3"), parse_ranks(" ")
    ([0, 2], [1, 2, 3], None)
    """
    parts = line.replace(",", " ").split()
    if not all(map(_RANKS.fullmatch, parts)):
        raise RanksUsageError(f"%%ranks expects ranks, such as %%ranks 0,2 or %%ranks 1-3, got {line.strip()!r}")
    bounds = [[int(bound) for bound in part.split("-")] for part in parts]
    if any(bound[0] > bound[-1] for bound in bounds):
        raise RanksUsageError(f"%%ranks expects the lower rank first, such as %%ranks 1-3, got {line.strip()!r}")
    return [rank for first, *last in bounds for rank in range(first, (last or [first])[0] + 1)] or None


def this_cell(shell: Any, line: str, body: str) -> RankCell:
    """The cell that runs now, under the file name that the notebook has given it, its lines numbered as it shows them.

    IPython knows the text of a cell as what its magics become; errors are to show what the reader wrote.
    """
    text = f"%%ranks{line and ' '}{line}\n{body}"
    raw = getattr(shell.history_manager, "input_hist_raw", [""])[-1]
    if "%%ranks" in raw and body.rstrip("\n") in raw:  # not where code calls the magic, as an exported notebook does
        text = raw
    file = _file_of_cell(shell, sys._getframe())
    return RankCell(text, file, skip_lines=text[: text.find("%%ranks")].count("\n") + 1)


def _file_of_cell(shell: Any, frame: FrameType | None) -> str:
    known = getattr(shell.compile, "_filename_map", {})
    while frame is not None and frame.f_code.co_filename not in known:
        frame = frame.f_back
    return f"<cell {next(_others)} of %%ranks>" if frame is None else frame.f_code.co_filename
