"""A reader's picture has its sentence as alt text; a recorded one is a PNG beside its sentence."""

import base64
import re
from html import unescape

import pytest

from course_lib.pictures.drawn import Drawn, with_alt_text
from course_lib.pictures.painter import new_figure, words_of

PNG = b"\x89PNG of nothing"


class Picture(Drawn):
    def finding(self):
        return 'rank 0 says "5 < 6" & waits'

    def png(self):
        return PNG


class Table(Drawn):
    def finding(self):
        return "a table"

    def html(self):
        return "<table></table>"


class Both(Table, Picture):
    def alternative(self):
        return "more than the finding"


@pytest.fixture
def read_by_a_reader(monkeypatch):
    """bundle(value): what a reader's front end is given; pytest sets its own variable anew for each phase of a test."""

    def bundle(value):
        with pytest.MonkeyPatch.context() as patch:
            for name in ("PYTEST_CURRENT_TEST", "COURSE_LIB_STABLE_OUTPUT"):
                patch.delenv(name, raising=False)
            return value._repr_mimebundle_()

    return bundle


def images(html):
    return [(unescape(words), base64.b64decode(data))
            for words, data in re.findall(r'<img alt="([^"]*)" src="data:image/png;base64,([^"]*)"', html)]


def test_a_readers_picture_is_an_image_that_has_the_sentence_as_its_alt_text(read_by_a_reader):
    bundle = read_by_a_reader(Picture())
    assert bundle.keys() == {"text/plain", "text/html"} and bundle["text/plain"] == Picture().finding()
    assert images(bundle["text/html"]) == [(Picture().finding(), PNG)]


def test_a_table_stays_as_it_is_and_stands_above_a_picture_of_the_same_value(read_by_a_reader):
    assert read_by_a_reader(Table()) == {"text/plain": "a table", "text/html": "<table></table>"}
    html = read_by_a_reader(Both())["text/html"]
    assert html.startswith("<table></table><img ") and images(html) == [("more than the finding", PNG)]


@pytest.mark.parametrize("other", ["PYTEST_CURRENT_TEST", "COURSE_LIB_STABLE_OUTPUT"])
def test_where_output_is_recorded_or_compared_the_picture_stays_a_png_beside_its_sentence(other, monkeypatch):
    monkeypatch.delenv(other)
    bundle = Picture()._repr_mimebundle_()
    assert bundle == {"text/plain": Picture().finding(), "image/png": PNG}


def test_a_png_that_is_text_already_is_taken_as_it_is():
    text = base64.b64encode(PNG).decode()
    assert images(with_alt_text({"image/png": text + "\n"}, "words")["text/html"]) == [("words", PNG)]


def test_a_figure_says_its_titles_and_axes():
    figure = new_figure(2.0, "a headline", "")
    assert words_of(figure) == "a figure: it has no title"
    figure.suptitle("above all")
    left, right = figure.subplots(1, 2)
    left.set(title="left", xlabel="step", ylabel="loss")
    right.set_title("right", loc="left")
    assert words_of(figure) == "a figure: above all; left; loss over step; right"
