"""The words of docs/glossary.md in the notebooks: none is used before it is explained, or linked to the page.

    python -m tools.glossary --write    links first uses that are neither to the glossary

A word is explained where it stands in bold. What counts is its first use in the prose of each notebook up to the
chapter that the glossary names; headings, quotations, code and lists of sources are no prose. Words of everyday
English, in EVERYDAY, are looked for in their own chapter alone.
"""

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import nbformat

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "glossary.md"
NOTEBOOKS = sorted(ROOT.glob("notebooks/*.ipynb"))
EVERYDAY = {"asynchronous", "batch", "capacity", "chunk", "device", "expert", "f", "flush", "g", "gate", "gather",
            "layout", "mesh", "prior", "profile", "reduce", "root", "row", "scatter", "schedule", "sequence", "shard",
            "stage", "tie", "trace", "tree", "virtual stage"}
NO_PROSE = re.compile(r"(?s:```.*?```)|`[^`\n]*`|^(?:#+|>) .*$|(?s:\*\*Sources\.\*\*.*)", re.MULTILINE)
BOLD, LINK = re.compile(r"\*\*.+?\*\*", re.DOTALL), re.compile(r"\[[^\[\]]*\]\([^()]*(\([^()]*\)[^()]*)?\)")


@dataclass(frozen=True)
class Term:
    """`names`: how the course writes the word; `others`: how papers do; `chapter`: the one that explains it;
    `section`: its heading on the page.
    """

    names: tuple[str, ...]
    others: tuple[str, ...]
    chapter: int
    section: str

    @property
    def link(self) -> str:
        """From a notebook to the section of the page."""
        return f"../docs/glossary.md#{self.section.replace(' ', '-')}"

    def names_in(self, chapter: int) -> Iterator[str]:
        """What has to be explained or linked in a notebook of this chapter. Its own chapter says how papers call it."""
        if chapter == self.chapter:
            yield from self.names
        elif chapter < self.chapter:
            yield from (name for name in (*self.names, *self.others) if name not in EVERYDAY)


@dataclass(frozen=True)
class Use:
    """The first use of a word in a notebook: a range of the text of one of its cells."""

    term: Term
    cell: int
    begin: int
    end: int


def terms() -> Iterator[Term]:
    """Those of the page, in its order."""
    section = ""
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        section = line[3:] if line.startswith("## ") else section
        row = re.fullmatch(r"\| ([^|(]+)(?: \((.+)\))? \| .+ \| \[(\d+)\]\(.*\) \|", line)
        if row:
            names, others = (tuple((words or "").strip().split(", ")) for words in (row[1], row[2]))
            yield Term(names, tuple(filter(None, others)), int(row[3]), section)


def pattern(name: str) -> re.Pattern[str]:
    """The name as a word of its own, or in the plural; in lower case also at the beginning of a sentence."""
    words = re.escape(name).replace(r"\ ", r"[\s-]+")
    words = f"{words[:-1]}(?:y|ies)" if name.endswith("y") else f"{words}(?:e?s)?"
    return re.compile(rf"(?<![\w/-]){words}(?![\w/-])", re.IGNORECASE if name.islower() else re.NOFLAG)


def prose_of(cell: nbformat.NotebookNode) -> str:
    """The text of a markdown cell, with blanks in place of what is no prose."""
    return NO_PROSE.sub(lambda part: " " * len(part[0]), cell.source)


def first_use(notebook: nbformat.NotebookNode, term: Term, name: str) -> Use | None:
    """Where a reader first meets the name, if it is neither bold nor linked there; None elsewhere."""
    for number, cell in enumerate(notebook.cells):
        if cell.cell_type != "markdown":
            continue
        prose = prose_of(cell)
        found = pattern(name).search(prose)
        if found:
            known = any(part.start() <= found.start() < part.end()
                        for kind in (BOLD, LINK) for part in kind.finditer(prose))
            return None if known else Use(term, number, *found.span())
    return None


def unexplained(path: Path) -> list[Use]:
    """First uses in a notebook that are neither explained nor linked, in order."""
    notebook, chapter = nbformat.read(path, as_version=4), int(path.name[:2])
    uses = [first_use(notebook, term, name) for term in terms() for name in term.names_in(chapter)]
    return sorted((use for use in uses if use), key=lambda use: (use.cell, use.begin))


def unused(term: Term) -> bool:
    """Whether the chapter that the page names does not have the word, in code either."""
    path = next(each for each in NOTEBOOKS if int(each.name[:2]) == term.chapter)
    text = "\n".join(cell.source for cell in nbformat.read(path, as_version=4).cells)
    return not any(pattern(name).search(text) for name in term.names)


def add_links(path: Path) -> int:
    """Link what is unexplained; returns how many words."""
    uses, notebook = unexplained(path), nbformat.read(path, as_version=4)
    for use in reversed(uses):
        source = notebook.cells[use.cell].source
        notebook.cells[use.cell].source = (
            f"{source[:use.begin]}[{source[use.begin:use.end]}]({use.term.link}){source[use.end:]}")
    if uses:
        path.write_text(nbformat.writes(notebook) + "\n", encoding="utf-8")
    return len(uses)


if __name__ == "__main__" and sys.argv[1:] == ["--write"]:
    for notebook in NOTEBOOKS:
        print(f"{notebook.stem}: {add_links(notebook)} links")
