"""Slides hold every picture and every prediction of a notebook, and no answer before its question."""

import re

import nbformat
import pytest

from tools.minutes import NOTEBOOKS
from tools.slides import slides_of, write_slides
from tools.teaching import polls_in


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_every_prediction_is_a_slide_and_every_picture_too(path):
    slides = list(slides_of(path))
    assert [slide.text for slide in slides if not slide.picture] == [str(poll) for poll in polls_in(path)]
    cells = nbformat.read(path, as_version=4).cells
    pictures = sum("image/png" in output.get("data", {}) for cell in cells if cell.cell_type == "code"
                   for output in cell.outputs)
    shown = sum(bool(slide.picture) for slide in slides)
    assert shown and pictures - len(list(polls_in(path))) <= shown <= pictures
    assert all(slide.text and slide.heading for slide in slides)


def test_a_file_of_slides_stands_alone_and_its_pictures_have_words(tmp_path):
    text = write_slides(NOTEBOOKS[0], tmp_path).read_text(encoding="utf-8")
    assert not re.search(r'(src|href)="(?!data:)', text)
    assert len(re.findall("<section", text)) == len(list(slides_of(NOTEBOOKS[0]))) and 'alt=""' not in text
