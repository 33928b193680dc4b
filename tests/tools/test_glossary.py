"""docs/glossary.md and the notebooks: no word is used before it is explained or linked, and none explains nothing."""

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from tools import glossary
from tools.glossary import NOTEBOOKS, Term, terms, unexplained, unused


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_no_word_of_the_glossary_is_used_before_it_is_explained_or_linked(path):
    assert unexplained(path) == []


def test_each_word_stands_once_on_the_page_and_in_the_chapter_that_explains_it():
    names = [name for term in terms() for name in (*term.names, *term.others)]
    assert names and len(set(names)) == len(names)
    assert [term.names[0] for term in terms() if unused(term)] == []


@pytest.mark.parametrize("text, word", [
    *((text, None) for text in (
        "This is a **bubble**. Bubbles are idle.", "A [bubble](04.ipynb) is idle.", "# A bubble\n\nNothing of it.",
        "> bubble = 1\n\nNothing.", "`bubble` is a name.", "```\nbubble\n```", "**Sources.** Bubble et al.",
        "Stages are everyday English before chapter 4.", "A bubblegum.")),
    ("Bubbles are idle. This is a **bubble**.", "bubble"), ("Latencies are short.", "latency"),
    ("The delay is short.", "delay"), ("Two *latencies*,\nand all.", "latency")])
def test_a_word_is_explained_in_bold_linked_or_no_word_of_the_prose_or_it_is_found(
        text, word, tmp_path, monkeypatch):
    words = (Term(("bubble",), (), 1, "By chapter"), Term(("latency",), ("delay",), 2, "Speed"),
             Term(("stage",), (), 4, "By chapter"))
    monkeypatch.setattr(glossary, "terms", lambda: iter(words))
    path = tmp_path / "01_made_up.ipynb"
    nbformat.write(new_notebook(cells=[new_code_cell("bubble = 1"), new_markdown_cell(text)]), path)
    assert [each.partition("](")[0] for each in unexplained(path)] == ([f"[{word}"] if word else [])
