"""docs/decisions/measured.md has a row for each cell that says "measured", and each of its rows names such a cell.

A cell says so in its text, in what it printed, or by a number that a prediction's widget shows without another source.
"""

import ast
import json
import re
from collections.abc import Collection
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
WORDS = re.compile(r"\bmeasured\b|\bto the byte\b", re.IGNORECASE)
ROW = re.compile(r"^\| (\d\d) \| ((?:`[^`]+`(?:, )?)+) \|", re.MULTILINE)
NOTEBOOKS = {path.name[:2]: json.loads(path.read_text(encoding="utf-8"))["cells"]
             for path in sorted((ROOT / "notebooks").glob("*.ipynb"))}
ROWS = [(number, name) for number, names in ROW.findall((ROOT / "docs/decisions/measured.md").read_text("utf-8"))
        for name in re.findall(r"`([^`]+)`", names)]


def source_of(cell: dict) -> str:
    return "".join(cell["source"])


def answers_in(cell: dict) -> list[ast.Call]:
    """The calls `guess.against(...)` of a cell."""
    nodes = ast.walk(ast.parse(source_of(cell))) if ".against(" in source_of(cell) else ()
    return [node for node in nodes if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "against"]


def chosen_from(cells: list[dict]) -> set[str]:
    """The predictions of a notebook that are a choice between texts: their widgets say only which one is right."""
    asked = re.compile(r"^(\w+) = predict\((?:[^\n]|\n )*options=", re.MULTILINE)
    return {name for cell in cells for name in asked.findall(source_of(cell))}


def says_measured(cell: dict, chosen: Collection[str] = ()) -> bool:
    printed = ["".join(output.get("text", "")) + "".join(output.get("data", {}).get("text/plain", ""))
               for output in cell.get("outputs", ())]
    return bool(WORDS.search("\n".join([source_of(cell), *printed]))) or any(
        {"source"}.isdisjoint(keyword.arg for keyword in call.keywords) and ast.unparse(call.func.value) not in chosen
        for call in answers_in(cell))


@pytest.mark.parametrize("number", NOTEBOOKS)
def test_a_cell_that_says_measured_has_a_row_and_a_row_has_such_a_cell(number):
    chosen = chosen_from(NOTEBOOKS[number])
    saying = [source_of(cell) for cell in NOTEBOOKS[number] if says_measured(cell, chosen)]
    names = [name for notebook, name in ROWS if notebook == number]
    assert [name for name in names if not any(name in source for source in saying)] == [], "rows without a cell"
    assert [source[:200] for source in saying if not any(name in source for name in names)] == [], "cells without a row"


def test_a_word_in_a_text_a_printed_word_and_an_answer_without_a_source_say_measured():
    def code(source: str, printed: str = "") -> dict:
        return {"source": [source], "outputs": [{"text": [printed]}]}

    asked = code("guess = predict('which?', unit='', options=[1, 2])\nguess.against(2)")
    assert all(map(says_measured, [code("# Measured, to a percent."), code("x", "measured 3"), code("x.against(4)")]))
    assert not any(map(says_measured, [code("measured_config = 3"), code("guess.against(4, source='counted')")]))
    assert not says_measured(asked, chosen_from([asked]))
