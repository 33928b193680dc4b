"""What a new run of a notebook leaves as it was stored: texts that differ in a measured time alone."""

import pytest
from nbformat.v4 import new_code_cell, new_notebook, new_output

from tools.notebooks import keep_equal_text


def run_of(text: str, picture: str):
    data = {"text/plain": text} | ({"image/png": picture} if picture else {})
    cell = new_code_cell("measure()", outputs=[new_output("display_data", data)])
    cell.id = "measure"
    return new_notebook(cells=[cell])


@pytest.mark.parametrize(("text", "picture", "kept"), [
    ("it took 3 ms", "", True), ("it took 3 ms", "one", True), ("it took 3 ms", "another", False),
    ("it sent 3 bytes", "one", False)])
def test_a_measured_time_stays_as_stored_unless_its_picture_is_new(text, picture, kept):
    stored, now = run_of("it took 8 ms", "one" if picture else ""), run_of(text, picture)
    keep_equal_text(now, stored)
    assert now.cells[0].outputs[0].data["text/plain"] == ("it took 8 ms" if kept else text)
