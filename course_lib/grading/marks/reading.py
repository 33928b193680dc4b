"""A notebook that was handed in, read so that it costs no more than it may, whatever stands in it.

The file is read in a child with limits: JSON of a few MB can take gigabytes, and nbformat believes what it finds. What
comes back is what grading needs, of the types that nbformat wants: cells with their text, nbgrader's id where it is
one, pictures in Markdown. Outputs, widgets and all other metadata stay where they are; grading drops them anyway.
"""

import json
import warnings
from pathlib import Path
from typing import Any

import nbformat
from nbformat import NotebookNode

from course_lib.runtime.ranks.processes import compute_in_child

LONGEST_FILE = 100 << 20  # bytes, with outputs
LONGEST_TEXT = 4 << 20  # characters of all cells together
READING_BYTES, READING_S = 1 << 30, 20
CELL_TYPES = ("code", "markdown", "raw")


def read_notebook(path: Path) -> NotebookNode:
    """The notebook at `path`, in nbformat 4.4. ValueError with what is wrong where it is none, or costs too much."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python 3.12: of forking beside threads
        read = compute_in_child(lambda: clean(path), READING_BYTES, READING_S)
    if read is None:
        raise ValueError(f"reading it takes more than {READING_S} s or {READING_BYTES >> 20} MiB")
    notebook = json.loads(read)
    if "problem" in notebook:
        raise ValueError(notebook["problem"])
    return nbformat.from_dict(notebook)


def clean(path: Path) -> bytes:
    """JSON of the notebook, or of {"problem": what is wrong}."""
    warnings.simplefilter("ignore")  # of nbformat, about old files
    try:
        if path.stat().st_size > LONGEST_FILE:
            raise ValueError(f"it holds more than {LONGEST_FILE >> 20} MiB")
        text = path.read_bytes().decode("utf-8-sig")
        data = json.loads(text)
        if not isinstance(data, dict) or not {"cells", "worksheets"} & data.keys():
            raise ValueError("it has no cells")
        if data.get("nbformat") != 4 or "cells" not in data:  # of another time
            data = nbformat.reads(text, as_version=4)
        cells = [clean_cell(number, cell) for number, cell in enumerate(data["cells"], 1)]
        if sum(len(cell["source"]) for cell in cells) > LONGEST_TEXT:
            raise ValueError(f"its cells hold more than {LONGEST_TEXT:,} characters")
        found = {"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 4}
    except MemoryError:
        raise
    except Exception as error:  # whatever Python, json and nbformat stumble over
        found = {"problem": (str(error).strip().splitlines() or [type(error).__name__])[0][:200]}
    # A half of a character, which JSON may hold, is none that can be written to a file.
    return json.dumps(found, ensure_ascii=False).encode(errors="replace")


def clean_cell(number: int, cell: Any) -> dict[str, Any]:
    """The cell as nbformat has it; ValueError where it has no text."""
    source = cell.get("source") if isinstance(cell, dict) else None
    lines = [source] if isinstance(source, str) else source
    if not isinstance(lines, list) or not all(isinstance(line, str) for line in lines):
        raise ValueError(f"cell {number} has no text")
    kind = cell["cell_type"] if cell.get("cell_type") in CELL_TYPES else "raw"
    metadata = cell.get("metadata")
    marks = metadata.get("nbgrader") if isinstance(metadata, dict) else None
    grade_id = marks.get("grade_id") if isinstance(marks, dict) else None
    kept = {"cell_type": kind, "source": "".join(lines),
            "metadata": {"nbgrader": {"grade_id": grade_id[:200]}} if isinstance(grade_id, str) else {}}
    if kind == "code":
        return kept | {"outputs": [], "execution_count": None}
    pictures = cell.get("attachments")
    if kind == "markdown" and isinstance(pictures, dict):
        kept["attachments"] = {name: {mime: data for mime, data in each.items() if isinstance(data, str)}
                               for name, each in pictures.items() if isinstance(each, dict)}
    return kept
