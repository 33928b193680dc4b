"""`progress()` adds up the best verdicts that `check` has kept; nothing that is kept can break a check."""

import os

import pytest

from course_lib.grading import check, progress, recorded
from course_lib.grading import report as points
from course_lib.grading.report import Report, Verdict
from tests.grading.toy_exercises import my_ring_all_gather

OTHERS = ("NBGRADER_EXECUTION", "PYTEST_CURRENT_TEST", "COURSE_LIB_STABLE_OUTPUT")  # than a reader, who has none


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv(points.ASKED, str(tmp_path / "kept"))
    monkeypatch.delenv("NBGRADER_EXECUTION", raising=False)
    return tmp_path / "kept"


def report(number: str, verdict: Verdict) -> Report:
    function, out_of = recorded.of_exercise(number, "exercises")
    return Report(number, function, verdict, out_of, "budget")


def test_points_are_added_up_by_chapter_and_what_is_open_is_named(folder):
    for number in ("2.1", "2.2", "2.3", "2.5", "2.7", "2.8"):
        points.keep(report(number, Verdict.CORRECT))
    points.keep(report("2.4", Verdict.COSTLY))
    words = repr(progress())
    assert words.startswith("chapter 2: 21 of 27 points, open: 2.4, 2.6; in all 21 of ")
    assert "trouble" not in words and "chapter 3" not in words


def test_the_best_verdict_stays_and_other_chapters_are_folded(folder):
    for verdict in (Verdict.WRONG, Verdict.CORRECT, Verdict.COSTLY):
        points.keep(report("2.1", verdict))
    line = next(each for each in progress().lines if each.number == "2.1")
    assert not line.is_open and line.words() == "4 of 4 points"
    html = progress().html()
    assert "<details><summary>chapter 1: 0 of " in html and "<details open><summary>chapter 2: 4 of " in html


@pytest.mark.parametrize("text", ["", "{", "[]", '{"best": 7}', '{"best": "x"}', '{"last": 0}'])
def test_a_damaged_file_begins_anew_and_an_exercise_that_is_gone_is_not_counted(folder, text):
    folder.mkdir()
    (folder / "2.1.json").write_text(text)
    (folder / "2.99.json").write_text('{"best": 1}')
    assert repr(progress()).startswith("in all 0 of ")
    points.keep(report("2.1", Verdict.CORRECT))
    assert repr(progress()).startswith("chapter 2: 4 of ")


def test_check_keeps_its_verdict_and_a_folder_that_cannot_be_written_is_no_error(folder, monkeypatch):
    check("2.2", my_ring_all_gather)
    assert os.listdir(folder) == ["2.2.json"]
    monkeypatch.setenv(points.ASKED, str(folder / "2.2.json" / "kept"))
    points.keep(report("2.1", Verdict.CORRECT))
    assert repr(progress()).startswith("in all 0 of ")


@pytest.mark.parametrize("name", OTHERS)
def test_nothing_is_kept_where_others_run_the_check(tmp_path, monkeypatch, name):
    for other in (points.ASKED, *OTHERS):
        monkeypatch.delenv(other, raising=False)
    monkeypatch.setenv(name, "1")
    monkeypatch.setattr(points, "progress_folder", lambda: tmp_path)
    points.keep(report("2.1", Verdict.CORRECT))
    assert not list(tmp_path.iterdir())


def test_it_lies_in_the_readers_copies_and_links_from_there(tmp_path, monkeypatch):
    here = tmp_path / "workspace" / "exercises" / "02_collectives"
    for part in (here, tmp_path / "workspace" / "notebooks", tmp_path / "workspace/exercises/03_data_parallel"):
        part.mkdir(parents=True)
    (tmp_path / "workspace" / ".given.json").write_text("{}")
    (tmp_path / "workspace/exercises/03_data_parallel/03_data_parallel.ipynb").write_text("")
    monkeypatch.delenv(points.ASKED, raising=False)
    monkeypatch.chdir(here)
    assert points.progress_folder() == tmp_path / "workspace" / ".progress"
    assert 'href="../03_data_parallel/03_data_parallel.ipynb"' in progress().html()
