"""What a reader does in the first notebooks, in kernels of the clone's own environment; run there by __main__.py.

Prints a line of JSON: seconds from the start of the first kernel until four ranks had answered, and from the start of
the second until an exercise was checked, with its verdict. A solution stands in for the reader, whose reading, thinking
and typing are in no figure.
"""

import json
import time
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode

LIMIT_S = 600


def run_cells(path: Path, cells: list[NotebookNode]) -> float:
    """Seconds that the cells took in a fresh kernel, its start included."""
    notebook = nbformat.read(path, as_version=4)
    start = time.monotonic()
    client = NotebookClient(notebook, timeout=LIMIT_S, resources={"metadata": {"path": str(path.parent)}})
    with client.setup_kernel():
        for index, cell in enumerate(cells):
            client.execute_cell(cell, index)
        return time.monotonic() - start


def to_first_ranks(path: Path) -> float:
    """Run the notebook up to the first cell that starts ranks."""
    cells = [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
    last = next(index for index, cell in enumerate(cells) if "launch(" in cell.source)
    return run_cells(path, cells[:last + 1])


def to_first_check(path: Path, solved: Path) -> tuple[float, str]:
    """Write the first exercise as it is solved, and check it: seconds, and what `check` said."""
    right = {cell.metadata["nbgrader"]["grade_id"]: cell.source for cell in nbformat.read(solved, as_version=4).cells
             if "nbgrader" in cell.metadata}
    cells = [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
    check = next(index for index, cell in enumerate(cells) if cell.source.startswith("check("))
    for cell in cells[:check]:
        cell.source = right.get(cell.metadata.get("nbgrader", {}).get("grade_id"), cell.source)
    seconds = run_cells(path, cells[:check + 1])
    texts = [output["data"]["text/plain"] for output in cells[check].outputs if "data" in output]
    return seconds, texts[-1].splitlines()[0]


if __name__ == "__main__":
    name = "01_why_distribute"
    ranks_s = to_first_ranks(Path("workspace/notebooks/00_start_here.ipynb"))
    check_s, verdict = to_first_check(Path(f"workspace/exercises/{name}/{name}.ipynb"),
                                      Path(f"solutions/{name}/{name}.ipynb"))
    print(json.dumps({"ranks_s": ranks_s, "check_s": check_s, "verdict": verdict}))
