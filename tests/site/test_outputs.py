"""What stands on a page for a recorded output."""

import json
import re
from html import unescape

import nbformat
import pytest

from course_lib.widgets.prediction import answer_of
from tools.pages import polls_in
from tools.site import listings, sources
from tools.site.outputs import NotTheRecordedWidget, as_html, class_named, recorded_settings

pytestmark = pytest.mark.ci


def recorded_widgets():
    """(notebook, class, source, sentence) of each recorded picture of a widget."""
    for path in sources.NOTEBOOKS:
        for cell in nbformat.read(path, as_version=4).cells:
            for output in cell.get("outputs", []):
                sentence = output.get("data", {}).get("text/plain", "")
                if "image/png" in output.get("data", {}) and class_named(sentence):
                    yield path.stem, class_named(sentence), cell.source, sentence


def test_every_chapter_but_the_first_and_the_last_two_has_a_widget_whose_cell_says_all_its_settings():
    recorded = list(recorded_widgets())
    assert {name[:2] for name, *_ in recorded} == {f"{number:02}" for number in range(1, 11)}
    for _, widget, source, sentence in recorded:
        settings = recorded_settings(widget, source, sentence)
        if widget.__name__ == "TeamView":  # its data are tensors of a team: it stays a picture
            assert settings is None
        else:
            assert widget(**json.loads(json.dumps(settings))).sentence() == sentence
    _, widget, source, sentence = next(each for each in recorded if each[1].__name__ == "ZeroMemory")
    with pytest.raises(NotTheRecordedWidget, match="recorded is 'ZeroMemory"):
        recorded_settings(widget, source.replace("stage=2", "stage=3"), sentence)


def html_of(notebook):
    return "".join(data["text/html"] for cell in notebook.cells for output in cell.get("outputs", [])
                   if "text/html" in (data := output.get("data", {})))


def test_pictures_lie_in_files_with_their_sentences_and_a_listing_links_its_file_at_the_line_where_it_begins(tmp_path):
    notebook = as_html(sources.ROOT / "notebooks/06_zero.ipynb", tmp_path, "../")
    images = re.findall(r"<img [^>]*>", html_of(notebook))
    assert len(images) == 10 and all('loading="lazy"' in image and re.search(r'alt="\w', image) for image in images)
    named = {name for image in images for name in re.findall(r"pictures/(\w+\.png)", image)}
    assert named == {path.name for path in tmp_path.glob("*.png")}
    traces = re.findall(r'href="\.\./pictures/(\w+\.json)" download', html_of(notebook))
    assert traces and all(json.loads((tmp_path / name).read_text())["traceEvents"] for name in traces)
    assert "base64" not in nbformat.writes(notebook)
    links = re.findall(r'href="\.\./source/(course_lib/[\w/]+)\.html#L-(\d+)"', html_of(notebook))
    assert links
    for file, line in links:
        text = (sources.ROOT / f"{file}.py").read_text(encoding="utf-8").splitlines()[int(line) - 1]
        assert text.startswith(("def ", "class ", "    def ", "@", "    @"))


@pytest.mark.parametrize("file, begins", [
    ("pipeline_parallel/schedules.py", "@dataclass(frozen=True)\nclass Published:"),
    ("zero/optimizer.py", "    @torch.no_grad()\n    def step(")])
def test_a_decorator_that_others_have_too_is_not_taken_for_theirs(file, begins):
    text = (sources.ROOT / "course_lib" / file).read_text(encoding="utf-8")
    assert text.count(begins) == 1 and text.count(begins.partition("\n")[0]) > 1
    code = "\n".join((begins + text.partition(begins)[2]).splitlines()[:9])
    assert listings.line_of(f"course_lib/{file}", code) == text[:text.index(begins)].count("\n") + 1


@pytest.mark.parametrize("name", [path.stem for path in sources.NOTEBOOKS])
def test_each_prediction_and_each_answer_has_its_question(name, tmp_path):
    path = sources.ROOT / f"notebooks/{name}.ipynb"
    page, of = html_of(as_html(path, tmp_path, "../")), {poll.question: poll for poll in polls_in(path)}
    asked = re.findall(r'class="course-prediction" data-question="([^"]*)"', page)
    answered = re.findall(r'class="course-answer" data-question="([^"]*)" data-measured="([^"]*)"', page)
    assert len(asked) == len(list(polls_in(path))) and sorted(question for question, _ in answered) == sorted(asked)
    for question, measured in answered:
        poll = of[unescape(question)]
        answer_of(unescape(measured), poll.options, poll.unit)  # the page can say what a prediction was worth


def test_a_link_to_a_heading_in_a_notebook_is_as_myst_names_it():
    link = "[x](02_collectives.ipynb#Numbers-that-circulate-(further)), [y](#what-runs-where), [z](https://x.org/#Ab)"
    assert sources.with_slugs(link) == ("[x](02_collectives.ipynb#numbers-that-circulate-further), "
                                        "[y](#what-runs-where), [z](https://x.org/#Ab)")


def test_an_exercise_says_where_ranks_come_from_and_folds_hints_and_answers_and_no_page_has_a_solution_or_a_judge():
    below = sources.below_check("3.1")
    assert below.startswith("*Your code runs on up to 4 ranks here.") and "(../../index.md#start)" in below
    assert below.count("<details>") == below.count("</details>") == 3
    assert "Three answers in words" in sources.below_check("3.9")
    assert not [file for file in listings.source_files() if re.search("judges|trusted|solutions", file)]
    assert not any("solutions" in str(path) for path in sources.EXERCISES)


def test_docstrings_are_shown_as_plain_text():
    assert sources.as_rst(["Sum of *args, see `x`.", "", "  a   b", "1   2"]) == [
        ".. code-block:: text", "   :class: docstring", "", "   Sum of *args, see `x`.", "   ", "     a   b",
        "   1   2", ""]
    assert sources.as_rst([">>> f(1)"])[0] == ".. code-block:: pycon" and sources.as_rst([]) == []
