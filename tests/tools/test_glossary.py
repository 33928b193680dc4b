"""docs/glossary.md and the notebooks: no word is used before it is explained or linked, and none explains nothing."""

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from tools import glossary
from tools.glossary import NOTEBOOKS, Term, add_links, terms, unexplained, unused


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_no_word_of_the_glossary_is_used_before_it_is_explained_or_linked(path):
    assert [use.term.names[0] for use in unexplained(path)] == [], "python -m tools.glossary --write"


def test_each_word_stands_once_on_the_page_and_in_the_chapter_that_explains_it():
    names = [name for term in terms() for name in (*term.names, *term.others)]
    assert len(names) > 120 and len(set(names)) == len(names)
    assert [term.names[0] for term in terms() if unused(term)] == []


@pytest.fixture
def notebook(tmp_path, monkeypatch):
    """A notebook of chapter 1 with the given markdown, in a course with three words."""
    words = (Term(("bubble",), (), 1, "By chapter"), Term(("latency",), ("delay",), 2, "Speed"),
             Term(("stage",), (), 4, "By chapter"))
    monkeypatch.setattr(glossary, "terms", lambda: iter(words))

    def written(*texts):
        path = tmp_path / "01_made_up.ipynb"
        nbformat.write(new_notebook(cells=[new_code_cell("bubble = 1"), *map(new_markdown_cell, texts)]), path)
        return path

    return written


@pytest.mark.parametrize("text", [
    "This is a **bubble**. Bubbles are idle.", "A [bubble](04.ipynb) is idle.", "# A bubble\n\nNothing of it.",
    "> bubble = 1\n\nNothing.", "`bubble` is a name.", "```\nbubble\n```", "**Sources.** Bubble et al.",
    "Stages are everyday English before chapter 4.", "A bubblegum."])
def test_a_word_is_explained_in_bold_or_linked_or_no_word_of_the_prose(notebook, text):
    assert unexplained(notebook(text)) == []


@pytest.mark.parametrize(("text", "word"), [
    ("Bubbles are idle. This is a **bubble**.", "bubble"), ("Latencies are short.", "latency"),
    ("The delay is short.", "latency")])
def test_a_first_use_before_the_explanation_is_found(notebook, text, word):
    assert [use.term.names[0] for use in unexplained(notebook(text))] == [word]


def test_links_are_written_once_and_change_no_other_word(notebook):
    path = notebook("Two *latencies*,\nand a bubble.", "Another bubble, another latency.")
    assert (add_links(path), add_links(path)) == (2, 0)
    assert [cell.source for cell in nbformat.read(path, as_version=4).cells[1:]] == [
        "Two *[latencies](../docs/glossary.md#Speed)*,\nand a [bubble](../docs/glossary.md#By-chapter).",
        "Another bubble, another latency."]
