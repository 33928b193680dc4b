"""A learning platform's archive becomes students' folders, by nbgrader's own zip_collect and our names of files."""

import zipfile

import pytest
from nbgrader.apps import ZipCollectApp

from course_lib.grading.marks.collect import owner_of
from course_lib.grading.marks.handed_in import take_in
from tests.grading.courses import ROOT, run_here
from tests.grading.submissions import NAME

STUB = (ROOT / "exercises" / NAME / f"{NAME}.ipynb").read_text(encoding="utf-8")


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
    (tmp_path / "exercises" / NAME).mkdir(parents=True)
    (tmp_path / "exercises" / NAME / f"{NAME}.ipynb").write_text(STUB, encoding="utf-8")
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
