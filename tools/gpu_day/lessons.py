"""Notebooks as they stand, on whatever ranks this machine gives them; cells that do not come out as stored, by name."""

from functools import partial
from pathlib import Path

import nbformat

from tools import cells
from tools.gpu_day.steps import ON, Step, now_at, require

DEADLINE_S = cells.CELL_TIMEOUT_S + 10.0  # of one cell
NOTEBOOKS = ("00", "06")


def steps(mode: str) -> list[Step]:
    return [Step(f"notebook {path.name[:2]}", f"{path.name}, every cell", partial(lesson, mode, path))
            for path in cells.NOTEBOOKS if path.name.startswith(NOTEBOOKS)]


def lesson(mode: str, path: Path) -> str:
    notebook = nbformat.read(path, as_version=4)
    stored = {number: list(cell.outputs) for number, cell in enumerate(notebook.cells) if cell.cell_type == "code"}
    cells.execute(ON[mode], notebook, path.parent,
                  on_cell_start=lambda cell, cell_index: now_at(f"cell {path.name[:2]}[{cell_index}]"))
    outcomes = [cells.lesson(f"{path.name[:2]}[{number}]", notebook.cells[number].outputs, before)
                for number, before in stored.items()]
    bad = [f"{each.what} {each.error[:80]}" for each in outcomes if not each.passed]
    others = [each.what for each in outcomes if each.other_output]
    figure = f"{len(outcomes) - len(bad)} of {len(outcomes)} cells" + "".join(f"; {each}" for each in bad)
    return require(not bad, figure + (f"; other text in {', '.join(others)}" if others else ""))
