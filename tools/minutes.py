"""How long a notebook takes to read, by a rule instead of a guess; README's table says it.

    python -m tools.minutes            words, code lines, pictures, predictions, widgets and minutes of each notebook
    python -m tools.minutes --write    the same, and README's table is made to say it

The rule: 180 words, 12 lines of code or one picture per minute, a minute for a prediction, five for a widget. Nobody
was timed. What stands under a heading that ends in "(further)" is counted apart: a first reader may leave it out. A
heading that begins with "Second sitting" divides a chapter into two.
"""

import re
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from tools.workspace import is_for_colab

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
NOTEBOOKS = sorted(ROOT.glob("notebooks/*.ipynb"))
WORDS_PER_MINUTE, LINES_PER_MINUTE, MINUTES_OF_WIDGET = 180, 12, 5
WIDGETS = ("ActivationMemory", "BucketOverlap", "CollectiveExplorer", "ExpertLoad", "FitsOrNot", "LayoutPlanner",
           "MatrixCut", "MeshExplorer", "PipelineSchedule", "RingAllReduce", "RingAttentionSteps", "Stragglers",
           "TokenDispatch", "WhichWire", "ZeroMemory")
HEADING = re.compile(r"^(#+) (.*)$", re.MULTILINE)


@dataclass
class Reading:
    """What there is to read in a notebook, or in a part of one."""

    words: int = 0
    lines: int = 0
    pictures: int = 0
    predictions: int = 0
    widgets: int = 0

    @property
    def minutes(self) -> float:
        """By the rule above."""
        return (self.words / WORDS_PER_MINUTE + self.lines / LINES_PER_MINUTE + self.pictures + self.predictions
                + MINUTES_OF_WIDGET * self.widgets)

    def add_code(self, cell: NotebookNode) -> None:
        """Count a code cell: its lines, its pictures, and whether it asks for a prediction or shows a widget."""
        self.lines += sum(bool(line.strip()) for line in cell.source.splitlines())
        self.predictions += "predict(" in cell.source
        self.widgets += any(re.search(rf"^(\w+ = |\w+\.)?{name}\(", cell.source, re.MULTILINE) for name in WIDGETS)
        answers = ".against(" in cell.source  # its picture is counted with the prediction
        self.pictures += not answers and any("image/png" in output.get("data", {}) for output in cell.outputs)


def read(notebook: NotebookNode) -> tuple[list[Reading], Reading]:
    """(what everybody reads, sitting by sitting; what stands under headings that end in "(further)")."""
    sittings, further = [Reading()], Reading()
    depth = 0  # of the heading that began a part to leave out; 0 outside of one
    for cell in notebook.cells:
        if is_for_colab(cell):
            continue  # nobody reads it
        if cell.cell_type == "code":
            (further if depth else sittings[-1]).add_code(cell)
            continue
        text = re.sub(r"```.*?```", "", cell.source, flags=re.DOTALL)
        begin = 0
        for match in [*HEADING.finditer(text), None]:
            end = match.start() if match else len(text)
            (further if depth else sittings[-1]).words += len(text[begin:end].split())
            if match is None:
                continue
            begin, level, title = end, len(match[1]), match[2]
            if title.startswith("Second sitting"):
                sittings.append(Reading())
            if depth and level <= depth:
                depth = 0
            if not depth and title.endswith(("(further)", "(further reading)")):
                depth = level
    return sittings, further


def minutes_of(notebook: NotebookNode) -> str:
    """As README says it, to five minutes: "60", "55 (+15)" with what may be left out, "50 + 45" in two sittings."""
    sittings, further = read(notebook)
    core = " + ".join(str(round_to_five(sitting.minutes)) for sitting in sittings)
    extra = round_to_five(further.minutes)
    return f"{core} (+{extra})" if extra else core


def round_to_five(minutes: float) -> int:
    """Five minutes at least, where there is anything."""
    return 5 * max(round(minutes / 5), minutes > 1)


def main() -> None:
    readme = README.read_text(encoding="utf-8")
    for path in NOTEBOOKS:
        notebook = nbformat.read(path, as_version=4)
        sittings, further = read(notebook)
        total = sum((Counter(vars(part)) for part in (*sittings, further)), Counter())
        print(f"{path.stem:24}{minutes_of(notebook):>16} minutes: ",
              *(f"{count:,} {name}" for name, count in total.items()))
        row = rf"^(\| \[{path.stem}\]\(.*?\| )[^|]*( \| [^|]* \|)$"
        readme = re.sub(row, rf"\g<1>{minutes_of(notebook)}\g<2>", readme, flags=re.MULTILINE)
    if "--write" in sys.argv[1:]:
        README.write_text(readme, encoding="utf-8")


if __name__ == "__main__":
    main()
