"""What strict nbval calls the same: its comparison as a library, and the patterns of tests/nbval_sanitize.cfg."""

import copy
import re
from collections.abc import Sequence
from difflib import unified_diff
from pathlib import Path
from types import SimpleNamespace

from nbformat import NotebookNode
from nbval.plugin import IPyNbCell, coalesce_streams, get_sanitize_patterns, nocolors

SANITIZE = Path(__file__).resolve().parents[2] / "tests" / "nbval_sanitize.cfg"
PATTERNS = dict(get_sanitize_patterns(SANITIZE.read_text(encoding="utf-8")))
# As nbval's own list: pictures say in words what they show, and ids of widgets are random.
NOT_COMPARED = ("metadata", "traceback", "prompt_number", "output_type", "name", "execution_count", "image/png",
                "image/jpeg", "application/vnd.jupyter.widget-view+json")


class _Cell:
    """As much of nbval's test of a cell as its comparison asks for."""

    colors = nocolors
    parent = SimpleNamespace(sanitize_patterns=PATTERNS, skip_compare=NOT_COMPARED)
    compare_outputs = IPyNbCell.compare_outputs
    sanitize = IPyNbCell.sanitize

    def format_output_compare(self, key: str, stored: object, now: object) -> None:
        """The lines that differ: nbval asks pytest here, which shows the beginning of long ones."""
        lines = [str(each).splitlines() for each in (stored, now)]
        self.comparison_traceback += [f"{key}:", *unified_diff(*lines, "stored", "now", n=1, lineterm="")]


def sanitized(text: str) -> str:
    """`text` without what is not compared, such as measured times."""
    for pattern, replacement in PATTERNS.items():
        text = re.sub(pattern, replacement, text)
    return text


def difference(now: Sequence[NotebookNode], stored: Sequence[NotebookNode]) -> str:
    """Between two runs' outputs of a cell, in words; empty where strict nbval passes."""
    cell = _Cell()
    same = cell.compare_outputs(joined(now), joined(stored))
    return "" if same else "\n".join(cell.comparison_traceback)


def joined(outputs: Sequence[NotebookNode]) -> list[NotebookNode]:
    """A copy with the pieces of each stream in one output."""
    return coalesce_streams(copy.deepcopy(list(outputs)))


def said(output: NotebookNode) -> str:
    """The text of a value that was shown."""
    return output.get("data", {}).get("text/plain", "")


def error_of(outputs: Sequence[NotebookNode]) -> NotebookNode | None:
    return next((output for output in outputs if output.output_type == "error"), None)
