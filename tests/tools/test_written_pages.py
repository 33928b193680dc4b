"""Pages that repeat notebooks, exercises, wrong answers and claims are what the tools write from there, and true."""

import re

import nbformat
import pytest

from course_lib.facts.claims import CLAIMS
from course_lib.grading.registry import every_exercise
from tools import pages
from tools.pages import FOLDER, NOTEBOOKS, errata, polls_in, section
from tools.slides import slides_of, write_slides
from tools.solutions import SOLUTIONS

PLANS, RUBRICS = ((FOLDER / name).read_text(encoding="utf-8") for name in ("plans.md", "rubrics.md"))


@pytest.mark.parametrize("path", pages.PAGES, ids=lambda path: path.name)
def test_a_page_and_readmes_times_are_what_the_tool_writes(path):
    assert path.read_text(encoding="utf-8") == pages.PAGES[path](), "run python -m tools.pages"


def test_what_is_right_instead_of_a_wrong_statement_stands_in_the_section_that_a_page_links():
    assert [claim.name for claim in CLAIMS if claim.shown not in section(claim.cell)] == []
    assert [each["where"] for each in errata() if each["shown"] not in section(each["where"])] == []
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\d", each["mended"]) for each in errata())


def test_a_section_is_found_with_and_without_what_says_that_it_may_be_left_out_and_no_other_is():
    assert section("10 Known limits") == section("10 Known limits (further)") != ""
    with pytest.raises(ValueError, match="expected one of the headings of 01_why_distribute.ipynb: .*The first wall"):
        section("01 The ninth wall")


def test_the_plans_ask_only_predictions_and_exercises_that_there_are_and_the_long_one_reads_every_notebook():
    rows = [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in PLANS.splitlines()
            if re.match(r"\| (?!when|---)", line)]
    polls = {str(poll) for path in NOTEBOOKS for poll in polls_in(path)}
    assert {asked for *_, ask in rows for asked in ask.split("<br>") if "?" in asked} <= polls
    exercises = {number for row in rows for number in re.findall(r"\d+\.\d+", row[3])}
    assert exercises and exercises <= {each.number for each in every_exercise()}
    read = set(re.findall(r"\d\d", " ".join(row[1] for row in rows[-14:])))
    assert read == {path.stem[:2] for path in NOTEBOOKS}


def test_each_design_question_has_a_rubric_with_three_sample_answers():
    questions = {part.split()[0] for path in SOLUTIONS.values()
                 for part in re.split(r'"## (?=\d+\.\d+ )', path.read_text(encoding="utf-8"))[1:]
                 if re.search(r"question of design|^[\d.]+ Design:", part)}
    parts = re.split(r"^## (\d+\.\d+) .*$", RUBRICS, flags=re.MULTILINE)
    rubrics = dict(zip(parts[1::2], parts[2::2]))
    assert rubrics.keys() == questions != set()
    for number, text in rubrics.items():
        assert re.findall(r"^- \*\*(\d)\*\* ", text, flags=re.MULTILINE) == ["4", "2", "0"], number


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_every_prediction_of_a_notebook_is_a_poll_and_a_slide_and_every_picture_too(path):
    slides, polls = list(slides_of(path)), list(polls_in(path))
    assert len(polls) == len(re.findall(r"= predict\(", path.read_text(encoding="utf-8")))
    assert [slide.text for slide in slides if not slide.picture] == [str(poll) for poll in polls]
    pictures = sum("image/png" in output.get("data", {}) for cell in nbformat.read(path, as_version=4).cells
                   for output in cell.get("outputs", []))
    shown = sum(bool(slide.picture) for slide in slides)
    assert shown and pictures - len(polls) <= shown <= pictures
    assert all(slide.text and slide.heading for slide in slides)


def test_a_file_of_slides_stands_alone_and_its_pictures_have_words(tmp_path):
    text = write_slides(NOTEBOOKS[0], tmp_path).read_text(encoding="utf-8")
    assert not re.search(r'(src|href)="(?!data:)', text)
    assert len(re.findall("<section", text)) == len(list(slides_of(NOTEBOOKS[0]))) and 'alt=""' not in text
