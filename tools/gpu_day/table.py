"""The table as text, a line at a time."""

import textwrap
from collections import Counter
from collections.abc import Sequence

from tools.gpu_day.steps import PASSED, Row

LINE = "{:<38} {:<42} {:<7} {:>6}  {}"
HEADER = LINE.format("step", "what was run", "result", "s", "figure")


def line(row: Row) -> str:
    return LINE.format(row.step, textwrap.shorten(row.ran, 42, placeholder=" ..."), row.result, f"{row.seconds:.1f}",
                       row.figure)


def summary(rows: Sequence[Row]) -> str:
    """How many steps came out how, and which did not pass."""
    counts = Counter(row.result for row in rows)
    said = ", ".join(f"{count} {result}" for result, count in counts.items())
    others = [row.step for row in rows if row.result != PASSED]
    return f"{len(rows)} steps: {said}" + (f"; look at {', '.join(others)}" if others else "")
