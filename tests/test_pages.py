"""What the pages in Markdown name is there: links, files, names of functions and classes."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = ["README.md", "CONTRIBUTING.md", "TEACHING.md", "CHANGELOG.md", "ERRATA.md", "SECURITY.md",
         *(str(path.relative_to(ROOT)) for path in sorted((ROOT / "docs").rglob("*.md")))]
FILE = r"`((?:\.ci|benchmarks|course_lib|docs|exercises|notebooks|solutions|tests|tools)/[\w./-]+)`"
WORDS = "docs/contributing/words.md"


def text_of(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


@pytest.mark.parametrize("page", PAGES)
def test_every_file_that_a_page_links_or_names_exists(page):
    links = re.findall(r"\]\(([^)#:]+)\)", text_of(page))
    assert [link for link in links if not (ROOT / page).parent.joinpath(link).exists()] == []
    named = {path for path in re.findall(FILE, text_of(page)) if not re.search("NAME|PACKAGE", path)}
    assert {path for path in named if not (ROOT / path).exists()} == set()


def test_every_page_below_docs_for_contributors_is_linked_from_contributing_or_from_the_index_of_decisions():
    linked = {f"docs/{link}" for link in re.findall(r"\]\(docs/([^)#]+)\)", text_of("CONTRIBUTING.md"))}
    linked |= {f"docs/decisions/{link}" for link in re.findall(r"\]\((\w+\.md)\)", text_of("docs/decisions/README.md"))}
    assert {page for page in PAGES if page.startswith(("docs/contributing/", "docs/decisions/"))} == linked


def named_in_words() -> list[tuple[str, str]]:
    """(file, name) of each row of the table of words."""
    rows = [re.findall(r"`([^`]+)`", line) for line in text_of(WORDS).splitlines() if line.startswith("| ")]
    return [(row[0], name) for row in rows if row for name in row[1:]]


def test_each_name_in_the_table_of_words_is_defined_where_it_says():
    named = named_in_words()
    assert named and [(file, name) for file, name in named
            if not re.search(rf"^ *(class|def) {name}\b", text_of(file), flags=re.MULTILINE)] == []


def test_the_readme_lists_every_notebook_and_links_it():
    rows = re.findall(r"^\| (\[?)(\d\d_[a-z_]+)", text_of("README.md"), flags=re.MULTILINE)
    assert [name for bracket, name in rows if bracket] == sorted(path.stem for path in ROOT.glob("notebooks/*.ipynb"))
