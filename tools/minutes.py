"""How long a notebook takes to read, by a rule instead of a guess; README's table says it (tools/pages.py).

180 words, 12 lines of code or one picture per minute, a minute for a prediction, five for a widget. Nobody was timed.
What stands under a heading that ends in "(further)" is counted apart: a first reader may leave it out. A heading that
begins with "Second sitting" divides a chapter into two.
"""

import re
from collections import Counter
from pathlib import Path

from nbformat import NotebookNode

from course_lib import widgets
from tools.workspace import is_for_colab

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOKS = sorted(ROOT.glob("notebooks/*.ipynb"))
PER_MINUTE = {"words": 180, "lines": 12, "pictures": 1, "predictions": 1, "widgets": 1 / 5}
HEADING = re.compile(r"^(#+) (.*)$", re.MULTILINE)


def minutes(part: Counter[str]) -> float:
    """Of what there is to read in a notebook, or in a part of one: by the rule above."""
    return sum(number / PER_MINUTE[what] for what, number in part.items())


def count_code(cell: NotebookNode) -> Counter[str]:
    """A picture that answers a prediction is counted with it."""
    data = [output.get("data", {}) for output in cell.outputs]
    names = [each.get("text/plain", "").partition(",")[0] for each in data]
    return Counter(lines=sum(bool(line.strip()) for line in cell.source.splitlines()),
                   predictions="predict(" in cell.source, widgets=any(name in widgets.__all__ for name in names),
                   pictures=".against(" not in cell.source and any("image/png" in each for each in data))


def read(notebook: NotebookNode) -> tuple[list[Counter[str]], Counter[str]]:
    """(what everybody reads, sitting by sitting; what stands under headings that end in "(further)")."""
    sittings, further = [Counter()], Counter()
    depth = 0  # of the heading that began a part to leave out; 0 outside of one
    for cell in notebook.cells:
        if cell.cell_type == "code":
            if not is_for_colab(cell):  # which nobody reads
                (further if depth else sittings[-1]).update(count_code(cell))
            continue
        prose = re.sub(r"```.*?```", "", cell.source, flags=re.DOTALL)
        for piece in re.split(r"^(?=#+ )", prose, flags=re.MULTILINE):
            if heading := HEADING.match(piece):
                level, title = len(heading[1]), heading[2]
                if title.startswith("Second sitting"):
                    sittings.append(Counter())
                depth = 0 if level <= depth else depth
                if not depth and title.endswith(("(further)", "(further reading)")):
                    depth = level
            (further if depth else sittings[-1])["words"] += len(piece.split())
    return sittings, further


def minutes_of(notebook: NotebookNode) -> str:
    """As README says it, to five minutes: "60", "55 (+15)" with what may be left out, "50 + 45" in two sittings."""
    sittings, further = read(notebook)
    core = " + ".join(str(round_to_five(sitting)) for sitting in sittings)
    extra = round_to_five(further)
    return f"{core} (+{extra})" if extra else core


def round_to_five(part: Counter[str]) -> int:
    """Five minutes at least, where there is anything."""
    return 5 * max(round(minutes(part) / 5), minutes(part) > 1)
