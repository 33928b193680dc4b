"""The pages for teachers repeat what notebooks, exercises and wrong answers say, and are written from there."""

import re
import tomllib

import pytest

from course_lib.grading.registry import every_exercise
from tools import teaching
from tools.solutions import SOLUTIONS

RUBRICS = (teaching.FOLDER / "rubrics.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", teaching.PAGES)
def test_a_page_is_what_the_tool_writes(name):
    text = teaching.PAGES[name]().rstrip() + "\n"
    same = (teaching.FOLDER / name).read_text(encoding="utf-8") == text
    assert same, "run python -m tools.teaching --write"


def test_each_plan_asks_only_predictions_and_exercises_that_there_are():
    plans = tomllib.loads((teaching.FOLDER / "plans.toml").read_text(encoding="utf-8"))["plan"]
    assert [plan["title"] for plan in plans] == ["One day", "Five days", "Fourteen weeks"]
    known = {each.number for each in every_exercise()}
    for plan in plans:
        for session in plan["session"]:
            assert set(session.get("exercises", [])) <= known
            for name in session.get("ask", []):
                assert teaching.find_poll(name).question


def test_the_long_plan_has_fourteen_meetings_and_every_notebook_and_one_day_fits_into_a_day():
    day, _, weeks = tomllib.loads((teaching.FOLDER / "plans.toml").read_text(encoding="utf-8"))["plan"]
    assert len(weeks["session"]) == 14
    parts = {part for session in weeks["session"] for part in session.get("read", [])}
    assert {part.partition(":")[0] for part in parts} == {path.stem[:2] for path in teaching.NOTEBOOKS}
    assert sum(session["minutes"] for session in day["session"]) <= 7 * 60


def design_questions():
    """Exercises whose text or heading calls itself a question of design."""
    found = set()
    for path in SOLUTIONS.values():
        text = path.read_text(encoding="utf-8")
        for part in re.split(r'"## (?=\d+\.\d+ )', text)[1:]:
            if re.search(r"question of design|^[\d.]+ Design:", part):
                found.add(part.split()[0])
    return found


def test_each_design_question_has_a_rubric_with_three_sample_answers():
    parts = re.split(r"^## (\d+\.\d+) .*$", RUBRICS, flags=re.MULTILINE)
    rubrics = dict(zip(parts[1::2], parts[2::2]))
    assert rubrics.keys() == design_questions() and len(rubrics) == 9
    for number, text in rubrics.items():
        assert re.findall(r"^- \*\*(\d)\*\* ", text, flags=re.MULTILINE) == ["4", "2", "0"], number


def test_every_prediction_of_the_course_is_a_poll():
    found = [poll for path in teaching.NOTEBOOKS for poll in teaching.polls_in(path)]
    calls = sum(len(re.findall(r"= predict\(", path.read_text(encoding="utf-8"))) for path in teaching.NOTEBOOKS)
    assert len(found) == calls > 50
    assert all(poll.question for poll in found) and sum(bool(poll.unit or poll.options) for poll in found) > 50


def test_the_page_of_struggles_names_each_exercise_and_its_mistakes():
    page = teaching.struggles_page()
    for exercise in every_exercise():
        part = page.partition(f"**{exercise.number} {exercise.function}**\n")[2].partition("\n**")[0]
        assert len(re.findall(r"^- ", part, flags=re.MULTILINE)) >= 2, exercise.number


def test_the_readme_says_the_hours_and_the_exercises_that_there_are():
    text = teaching.README.read_text(encoding="utf-8")
    assert "hours to read and run, and" in text and "exercises plan 20 hours" in text
    assert teaching.with_hours(text) == text, "run python -m tools.teaching --write"


def test_the_page_for_teachers_is_four_pages_long():
    assert len((teaching.ROOT / "TEACHING.md").read_text(encoding="utf-8").splitlines()) <= 4 * 50
