"""Which file is the notebook, whatever browsers made of its name; and what is wrong with it, in words."""

import json
import os
import zipfile

import pytest
from nbgrader.apps import ZipCollectApp

from course_lib.grading.marks.collect import owner_of
from course_lib.grading.marks.handed_in import copy_number, look_at, problem_of, take_in
from course_lib.grading.marks.standing import Standing, Status
from course_lib.grading.marks.table import report
from tests.grading.courses import ROOT, run_here
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


@pytest.mark.parametrize("file, number", [
    ("02_collectives.ipynb", 0), ("02_collectives (1).ipynb", 1), ("02_collectives(12).ipynb", 12),
    ("02_collectives copy.ipynb", 1), ("02_collectives copy 2.ipynb", 2), ("02_collectives - Copy.ipynb", 1),
    ("02_collectives-Copy1.ipynb", 1), ("02_collectives-3.ipynb", 3), ("02_Collectives.IPYNB", 0),
    ("02_collectives.ipynb.txt", 0), ("02_collectives (2).ipynb.json", 2),
    ("02_collectives.pdf", None), ("03_data_parallel.ipynb", None), ("02_collectives_notes.ipynb", None)])
def test_the_names_that_browsers_and_platforms_give_are_known(file, number):
    assert copy_number(file, NAME) == number


@pytest.mark.parametrize("files, ids, taken, words", [
    ([COPY, SECOND], frozenset(), SECOND, f"taken from '{SECOND}'; not looked at: '{COPY}'"),
    ([OWN, COPY], frozenset(), OWN, f"not looked at: '{COPY}'"),  # its own name comes before copies
    (["homework.ipynb"], frozenset(), None, "there is 'homework.ipynb'"),
    (["homework.ipynb"], IDS, "homework.ipynb", ""),  # known by its cells
    (["homework.ipynb", ".ipynb_checkpoints/homework-checkpoint.ipynb"], IDS, "homework.ipynb", ""),  # JupyterLab's own
    (["homework.ipynb", "final.ipynb"], IDS, None, "2 files could be it"), ([], IDS, None, "the folder is empty"),
    (["report.pdf"], frozenset(), None, f"no {OWN} in the folder; there is 'report.pdf'"),
])
def test_the_notebook_is_found_by_its_name_or_its_cells_and_the_teacher_hears_what_else_there_is(
        tmp_path, files, ids, taken, words):
    texts = {file: STUB + "\n" * place for place, file in enumerate(files)}  # the same twice: one was made of the other
    found = look_at(put(tmp_path, **texts), NAME, ids)
    assert (found.notebook and found.notebook.name) == taken and bool(found.problem) == (taken is None)
    assert words in found.note + found.problem


def test_a_later_download_is_taken_where_the_notebook_under_its_own_name_was_made_of_an_earlier_one(tmp_path):
    put(tmp_path / "bob" / NAME, **{COPY: STUB})
    take_in(tmp_path, NAME)
    put(tmp_path / "bob" / NAME, **{SECOND: STUB.replace("2.1", "2.1 ")})
    take_in(tmp_path, NAME)
    assert "2.1 " in (tmp_path / "bob" / NAME / OWN).read_text(encoding="utf-8")


@pytest.mark.parametrize("first", [COPY, "homework.ipynb"])
def test_a_file_that_is_replaced_under_the_same_name_is_taken_anew(tmp_path, first):
    folder = put(tmp_path / "ada" / NAME, **{first: STUB})
    for text in (STUB, STUB.replace("2.1", "2.1 "), STUB + "\n"):
        put(folder, **{first: text})
        assert take_in(tmp_path, NAME, IDS)["ada"].notebook.name == first
        assert (folder / OWN).read_text(encoding="utf-8") == text
    before = (folder / OWN).stat().st_ino
    take_in(tmp_path, NAME, IDS)  # a look changes nothing where all lies right
    assert (folder / OWN).stat().st_ino == before


def test_a_later_file_beside_the_assignments_folder_is_taken_as_well(tmp_path):
    put(tmp_path / "ada", **{OWN: STUB})
    take_in(tmp_path, NAME)
    put(tmp_path / "ada", **{OWN: STUB + "\n"})
    own = tmp_path / "ada" / NAME / OWN
    os.utime(tmp_path / "ada" / OWN, (own.stat().st_mtime + 1,) * 2)
    take_in(tmp_path, NAME)
    assert own.read_text(encoding="utf-8") == STUB + "\n"


def test_one_students_file_and_one_students_name_stop_nobody_else(tmp_path):
    put(tmp_path / "ada" / NAME, **{"x.json": "[" * 100_000})
    put(tmp_path / "bob" / NAME, **{OWN: STUB})
    os.mkdir(os.fsencode(tmp_path) + b"/\xe9")
    found = take_in(tmp_path, NAME, IDS)
    assert "no 02_collectives.ipynb" in found["ada"].problem and not found["bob"].problem
    assert any("not UTF-8" in each.problem for each in found.values())
    report("02", [Standing(student, Status.NO_NOTEBOOK, each.problem) for student, each in found.items()]).encode()


@pytest.mark.parametrize("text, words", [
    ("", "empty"), (" \n", "empty"), (STUB[:3000], "ends in the middle"), ("<html></html>", "web page"),
    ('{"cells": [}, "metadata": {}}', "damaged at line 1"), ("[1, 2]", "no cells"), ('{"a": 1}', "no cells"),
    (STUB.replace('"nbformat"', '<<<<<<< HEAD\n"nbformat"', 1), "merge conflict"), ("[" * 100_000, "nested too deeply"),
    ('{"cells": 3, "nbformat": 4, "nbformat_minor": 5, "metadata": {}}', "no notebook")])
def test_a_file_that_is_no_notebook_is_called_so_in_words(tmp_path, text, words):
    put(tmp_path, **{OWN: text})
    assert words in problem_of(tmp_path / OWN)


def test_a_file_that_is_no_text_is_called_so_and_what_nbgrader_can_grade_has_no_problem(tmp_path):
    (tmp_path / "a.ipynb").write_bytes(b"PK\x03\x04\xff\xfe")
    assert "no text" in problem_of(tmp_path / "a.ipynb")
    assert problem_of(put(tmp_path, **{OWN: "\ufeff" + STUB}) / OWN) == ""


def test_a_notebook_beside_the_assignments_folder_is_taken_and_other_assignments_stay_unheard(tmp_path):
    put(tmp_path / "ada", **{COPY: STUB})
    put(tmp_path / "bob" / "03_data_parallel", **{"03_data_parallel.ipynb": STUB})
    put(tmp_path / "cy [2]" / NAME, **{OWN: STUB})
    found = take_in(tmp_path, NAME)
    assert (tmp_path / "ada" / NAME / OWN).exists() and not found["ada"].problem
    assert "bob" not in found and "rename it" in found["cy [2]"].problem


# ---- a learning platform's archive becomes students' folders

@pytest.mark.parametrize("path, student", [
    ("all/Ada Lovelace_1234567_assignsubmission_file_/02_collectives.ipynb", "Ada Lovelace_1234567"),
    ("all/Ada Lovelace_1234567_assignsubmission_file_/sub/02_collectives.ipynb", "Ada Lovelace_1234567"),
    ("all/Ada Lovelace_1234567_assignsubmission_file_02_collectives (1).ipynb", "Ada Lovelace_1234567"),
    ("all/lovelaceada_LATE_12345_678901_02_collectives-1.ipynb", "lovelaceada"),
    ("all/Chapter 2_ada_attempt_2026-01-30-15-00-00_02_collectives.ipynb", "ada"),
    ("all/ada/02_collectives.ipynb", "ada"), ("all/ada/02_collectives/02_collectives.ipynb", "ada"),
    ("ada/02_collectives.ipynb", "ada"), ("ada/solution.ipynb", None),
    ("all/ada/02_collectives.docx", "ada"),
    ("__MACOSX/all/ada/02_collectives.ipynb", None), ("all/ada/.02_collectives.ipynb", None)])
def test_each_platforms_way_to_pack_is_known(path, student):
    found = owner_of(path, NAME)
    assert (found or {}).get("student_id") == student
    assert found is None or "/" not in found["file_id"]


def test_zip_collect_unpacks_an_archive_and_second_downloads_are_recognised(tmp_path):
    (tmp_path / "nbgrader_config.py").write_text((ROOT / "nbgrader_config.py").read_text(encoding="utf-8"))
    archive = tmp_path / "downloaded" / NAME / "archive" / "all.zip"
    archive.parent.mkdir(parents=True)
    put(tmp_path / "exercises" / NAME, **{OWN: STUB})
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("Ada Lovelace_17_assignsubmission_file_/02_collectives (1).ipynb", STUB)
        file.writestr("Ada Lovelace_17_assignsubmission_file_/02_collectives (2).ipynb", STUB + "\n")
        file.writestr("Bob B_18_assignsubmission_file_/report.pdf", "%PDF")
    run_here(ZipCollectApp(), tmp_path, NAME)
    found = take_in(tmp_path / "submitted", NAME)
    assert found["Ada Lovelace_17"].notebook.name == "02_collectives (2).ipynb"
    taken = tmp_path / "submitted" / "Ada Lovelace_17" / NAME / f"{NAME}.ipynb"
    assert taken.read_text(encoding="utf-8") == STUB + "\n"
    assert found["Bob B_18"].problem == f"no {NAME}.ipynb in the folder; there is 'report.pdf'"
