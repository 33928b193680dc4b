"""The words of docs/glossary.md in the notebooks: none is used before it is explained, or linked to the page.

    python -m tools.glossary    prints the first uses that are neither, with the link that is missing

A word is explained where it stands in bold. What counts is its first use in the prose of each notebook up to the
chapter that the glossary names; headings, quotations, code and lists of sources are no prose. Words of everyday
English, in EVERYDAY, are looked for in their own chapter alone.
"""

import re
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


def is_known(notebook: nbformat.NotebookNode, name: str) -> bool:
    """Whether the name is bold or linked where a reader first meets it, or is not there at all."""
    for cell in notebook.cells:
        prose = NO_PROSE.sub(lambda part: " " * len(part[0]), cell.source) if cell.cell_type == "markdown" else ""
        if found := pattern(name).search(prose):
            return any(part.start() <= found.start() < part.end()
                       for kind in (BOLD, LINK) for part in kind.finditer(prose))
    return True


def unexplained(path: Path) -> list[str]:
    """First uses in a notebook that are neither explained nor linked: the word with the link that it lacks."""
    notebook, chapter = nbformat.read(path, as_version=4), int(path.name[:2])
    return [f"[{name}]({term.link})" for term in terms() for name in term.names_in(chapter)
            if not is_known(notebook, name)]


def unused(term: Term) -> bool:
    """Whether the chapter that the page names does not have the word, in code either."""
    path = next(each for each in NOTEBOOKS if int(each.name[:2]) == term.chapter)
    text = "\n".join(cell.source for cell in nbformat.read(path, as_version=4).cells)
    return not any(pattern(name).search(text) for name in term.names)


if __name__ == "__main__":
    for notebook in NOTEBOOKS:
        print(notebook.stem, *unexplained(notebook), sep="\n  ")
