"""Which file is the notebook, whatever browsers made of its name; and what is wrong with it, in words."""

import json
import os
import re
import zipfile
from contextlib import chdir

import nbformat
import pytest
from nbgrader.apps import ZipCollectApp
from nbgrader.utils import capture_log

from course_lib.grading.marks import reading
from course_lib.grading.marks.reading import read_notebook
from course_lib.grading.marks.standing import Standing, Status, look_at, problem_of, report, take_in
from tests.grading.courses import ROOT
from tests.grading.submissions import NAME

STUB = (ROOT / "exercises" / NAME / f"{NAME}.ipynb").read_text(encoding="utf-8")
IDS = frozenset(cell["metadata"]["nbgrader"]["grade_id"] for cell in json.loads(STUB)["cells"]
                if "nbgrader" in cell["metadata"])


OWN, COPY, SECOND = f"{NAME}.ipynb", f"{NAME} (1).ipynb", f"{NAME} (2).ipynb"


def put(folder, **files):
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return folder


@pytest.mark.parametrize("files, taken, words", [
    ([OWN], OWN, ""), ([COPY], COPY, f"taken from '{COPY}'"), ([OWN, "other.ipynb"], OWN, ""),
    (["homework.ipynb", "report.pdf"], "homework.ipynb", "taken from 'homework.ipynb'"),  # known by its cells
    (["sub/homework.ipynb", ".ipynb_checkpoints/homework-checkpoint.ipynb"], "homework.ipynb", "'sub/homework.ipynb'"),
    ([COPY, SECOND], None, f"2 notebooks that differ could be it: '{COPY}', '{SECOND}'"),
    ([OWN, COPY], None, f"2 notebooks that differ could be it: '{OWN}', '{COPY}'"),
    (["other.ipynb"], None, f"no {OWN} in the folder; there is 'other.ipynb'"),
    (["report.pdf"], None, f"no {OWN} in the folder; there is 'report.pdf'"), ([], None, "the folder is empty"),
])
def test_the_one_notebook_is_found_whatever_its_name_is_and_of_two_that_differ_none(tmp_path, files, taken, words):
    put(tmp_path, **{file: STUB + "\n" * place for place, file in enumerate(files) if file != "other.ipynb"})
    put(tmp_path, **{"other.ipynb": '{"cells": []}'} if "other.ipynb" in files else {})
    found = look_at(tmp_path, NAME, IDS)
    assert (found.notebook and found.notebook.name) == taken and bool(found.problem) == (taken is None)
    assert words in found.note + found.problem


def test_a_copy_under_the_right_name_stays_one_with_its_original_until_another_file_comes(tmp_path):
    folder = put(tmp_path / "ada" / NAME, **{COPY: STUB})
    for _ in range(2):
        assert take_in(tmp_path, NAME, IDS)["ada"].note == f"taken from '{COPY}'"
        assert (folder / OWN).read_text(encoding="utf-8") == STUB
    put(folder, **{SECOND: STUB + "\n"})
    assert "leave the one that counts" in take_in(tmp_path, NAME, IDS)["ada"].problem


def test_one_students_file_and_one_students_name_stop_nobody_else(tmp_path):
    put(tmp_path / "ada" / NAME, **{"x.json": "[" * 100_000})
    put(tmp_path / "bob" / NAME, **{OWN: STUB})
    put(tmp_path / "cy [2]" / NAME, **{OWN: STUB})
    put(tmp_path / "di", **{COPY: STUB})
    put(tmp_path / "eve" / "03_data_parallel", **{"03_data_parallel.ipynb": STUB})
    os.mkdir(os.fsencode(tmp_path) + b"/\xe9")
    found = take_in(tmp_path, NAME, IDS)
    assert "no 02_collectives.ipynb" in found["ada"].problem and not found["bob"].problem
    assert "rename it" in found["cy [2]"].problem and f"'{COPY}' beside a folder {NAME}" in found["di"].problem
    assert len(found) == 5 and any("not UTF-8" in each.problem for each in found.values())
    report("02", [Standing(student, Status.NO_NOTEBOOK, each.problem) for student, each in found.items()]).encode()


@pytest.mark.parametrize("text, words", [
    ("", "line 1"), (STUB[:3000], "line "), ("<html></html>", "line 1"), ('{"cells": [}, "metadata": {}}', "line 1"),
    ("[1, 2]", "no cells"), ('{"a": 1}', "no cells"), ("[" * 100_000, "recursion"),
    ('{"cells": 3, "nbformat": 4, "nbformat_minor": 5, "metadata": {}}', "")])
def test_a_file_that_is_no_notebook_is_called_so_with_the_place(tmp_path, text, words):
    problem = problem_of(put(tmp_path, **{OWN: text}) / OWN)
    assert "no notebook" in problem and words in problem


def test_a_file_that_is_no_text_is_called_so_and_what_nbgrader_can_grade_has_no_problem(tmp_path):
    (tmp_path / "a.ipynb").write_bytes(b"PK\x03\x04\xff\xfe")
    assert "can't decode" in problem_of(tmp_path / "a.ipynb")
    assert problem_of(put(tmp_path, **{OWN: "\ufeff" + STUB}) / OWN) == ""


# ---- what stands in a file costs nothing but its own marks

def with_cell(**fields) -> str:
    """The notebook that was given out, with a first cell that has these fields."""
    notebook = json.loads(STUB)
    notebook["cells"].insert(0, {"cell_type": "code", "metadata": {}, "source": "x = 1", "outputs": [],
                                 "execution_count": None, "id": "a", **fields})
    return json.dumps(notebook)


LISTS = json.loads("[" * 500 + "]" * 500)
ODD = {
    "deep metadata": with_cell(metadata={"a": LISTS}), "half a letter": with_cell(source="\ud800"),
    "no number": with_cell(metadata={"a": float("nan")}), "outputs are a number": with_cell(outputs=3),
    "no metadata": with_cell(metadata=None), "metadata is a list": with_cell(metadata=[1]),
    "another kind": with_cell(cell_type=7), "an unhashable kind": with_cell(cell_type=[]),
    "two ids": with_cell(id=json.loads(STUB)["cells"][0]["id"]), "id is a list": with_cell(id=["a"]),
    "forged marks": with_cell(metadata={"nbgrader": {"grade_id": ["x"], "points": -1, "schema_version": 99}}),
    "attachments": with_cell(cell_type="markdown", attachments={"a": 3}),
    "a huge execution count": with_cell(execution_count=10 ** 4000),
    "an output of 20 MB": with_cell(outputs=[{"output_type": "stream", "name": "stdout", "text": "x" * 20_000_000}]),
    "metadata of another program": STUB.replace('"kernelspec"', '"widgets": 3, "language_info": [], "kernelspec"'),
}
NO_NOTEBOOK = {
    "a number of 5,000 digits": with_cell().replace('"execution_count": null', f'"execution_count": {"9" * 5000}'),
    "the source is a number": with_cell(source=3), "the source is a dict": with_cell(source={"a": 1}),
    "lists without end": '{"cells": [' + "[" * 200_000, "a million lists": '{"cells": [' + "[]," * 1_000_000 + "[]]}",
    "cells is a dict": '{"cells": {"a": 1}, "nbformat": 4, "nbformat_minor": 5, "metadata": {}}',
    "a cell is a list": STUB.replace('"cells": [', '"cells": [[],', 1), "null": "null",
    "text without end": with_cell(source="x" * 5_000_000),
    "of the future": STUB.replace('"nbformat": 4', '"nbformat": 9'),
}


@pytest.mark.parametrize("name", ODD)
def test_odd_fields_of_a_notebook_are_left_where_they_are(tmp_path, name):
    notebook = read_notebook(put(tmp_path, **{OWN: ODD[name]}) / OWN)
    nbformat.validate(notebook)
    assert {cell.metadata.nbgrader.grade_id for cell in notebook.cells if "nbgrader" in cell.metadata} == IDS
    nbformat.writes(notebook).encode()


@pytest.mark.parametrize("name", NO_NOTEBOOK)
def test_what_cannot_be_read_is_said_in_a_sentence(tmp_path, name):
    problem = problem_of(put(tmp_path, **{OWN: NO_NOTEBOOK[name]}) / OWN)
    assert "no notebook" in problem and len(problem) < 300


def test_a_reader_that_ends_or_takes_too_much_is_the_files_fault(tmp_path, monkeypatch):
    path = put(tmp_path, **{OWN: '{"cells": [' + "{}," * 3_000_000 + "{}]}"}) / OWN
    monkeypatch.setattr(reading, "READING_BYTES", 300 << 20)
    with pytest.raises(ValueError, match="cut off|takes more than|MemoryError"):
        read_notebook(path)
    monkeypatch.setattr(reading, "clean", lambda path: os._exit(3))
    with pytest.raises(ValueError, match="takes more than"):
        read_notebook(path)


# ---- a learning platform's archive becomes students' folders, by nbgrader's own `zip_collect`

# Three students each: with a letter and a space that are not ASCII's, late; handed in twice; renamed by a browser. Then
# what falls through. `...` stands for the assignment's name.
ARCHIVES = {
    "MOODLE": (["Zoë Noether_17_assignsubmission_file/....ipynb", "Bob B_18_assignsubmission_file_/... (1).ipynb",
                "Cy_19_assignsubmission_file_....ipynb", "Twice_20_assignsubmission_file/....ipynb",
                "Twice_20_assignsubmission_file/... (1).ipynb"], ["Di_21_assignsubmission_onlinetext_/onlinetext.html"],
               ["Zoë Noether_17", "Bob B_18", "Cy_19", "Twice_20"]),
    "CANVAS": (["noether zoë_LATE_11_501_....ipynb", "bob_12_502_...-1.ipynb", "cy_13_503_... (1).ipynb"],
               ["....ipynb"], ["noether zoë", "bob", "cy"]),
    "BLACKBOARD": (["Chapter 2_zoë n_attempt_2026-01-30-23-59-59_....ipynb",
                    "Chapter 2_bob_attempt_2026-01-30-09-59-00_....ipynb",
                    "Chapter 2_bob_attempt_2026-01-30-09-08-45_....ipynb",
                    "Chapter 2_cy_attempt_2026-01-30-00-00-00_... (1).ipynb"],
                   ["Chapter 2_bob_attempt_2026-01-30-09-08-45.txt"], ["zoë n", "bob", "cy"]),
}


@pytest.mark.parametrize("platform", ARCHIVES)
def test_zip_collect_makes_students_folders_of_each_platforms_archive_and_names_what_falls_through(tmp_path, platform):
    files, lost, students = ARCHIVES[platform]
    config = (ROOT / "nbgrader_config.py").read_text(encoding="utf-8")
    put(tmp_path, **{"nbgrader_config.py": config.replace("PLATFORM = MOODLE", f"PLATFORM = {platform}"),
                     f"exercises/{NAME}/{OWN}": STUB, f"downloaded/{NAME}/archive/more.txt": ""})
    lost = [*lost, f"__MACOSX/._{files[0]}", "timestamp.txt".join(files[0].rsplit("....ipynb", 1))]
    with zipfile.ZipFile(tmp_path / "downloaded" / NAME / "archive" / "all.zip", "w") as archive:
        for path in (*files, *lost):
            archive.writestr(path.replace("...", NAME), STUB + "\n" * path.count("(1)") + " " * path.count("-08-"))
    app = ZipCollectApp()
    with chdir(tmp_path):
        app.initialize([NAME])
        log = capture_log(app)["log"]
    for path in (*lost, "more.txt"):
        assert re.search(f"Skipped submission with no match .*{re.escape(path.replace('...', NAME))}", log)
    found = take_in(tmp_path / "submitted", NAME, IDS)
    assert list(found) == sorted(students)
    assert [student for student in students if found[student].problem] == ["Twice_20"] * (platform == "MOODLE")
    for student in students:  # of two attempts the later one
        text = (tmp_path / "submitted" / student / NAME / OWN).read_text(encoding="utf-8")
        assert text.rstrip("\n") == STUB.rstrip("\n")
    assert f"taken from '{COPY}'" in [each.note for each in found.values()]
    if platform == "BLACKBOARD":  # nbgrader takes off for it what comes late
        assert (tmp_path / "submitted" / "zoë n" / NAME / "timestamp.txt").read_text() == "2026-01-30 23:00:00"
