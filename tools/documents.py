"""docs/documents.md, where the course teaches what the five documents name, and ERRATA.md, what is said and is wrong.

    python -m tools.documents      writes both: from docs/documents.toml, docs/errata.toml, course_lib/facts/claims.py
"""

import json
import re
import tomllib
from collections.abc import Iterator
from functools import cache
from itertools import dropwhile, takewhile
from pathlib import Path
from typing import Any

from course_lib.facts.claims import CLAIMS

ROOT = Path(__file__).parents[1]
DOCUMENTS = """\
# The five documents, section by section

This course follows five documents in Chinese. Each row names a section of a document, and the sections of notebooks
that teach it. Below stand the statements that are wrong, dated or contradict themselves, with what is right. Written by
`python -m tools.documents`.
"""
ERRATA = """\
# Errata

Written by `python -m tools.documents`. A statement of this course that is wrong? Please open an issue.

## What this course taught, and has mended

Found by outside readings, in versions from before the first release. Each row links the section that has it right now.

| the course said | right is | mended | now in |
|---|---|---|---|"""
CIRCULATING = """
## What circulates

Sentences of documents, papers and talks, in our words. [The documents' page](docs/documents.md) sorts them by document
and says how each came about.

| it is said | right is | source | shown in |
|---|---|---|---|"""


@cache
def parts(notebook: Path) -> tuple[tuple[int, str, str], ...]:
    """(level, heading, what stands under it up to the next heading of any level), in order. Code cells are there with
    what they print; a heading in a block of code is none.
    """
    texts = []
    for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        code = cell["cell_type"] == "code"
        texts.append("\n".join(["```", source, *map(printed, cell["outputs"]), "```"]) if code else source)
    text = "\n".join(texts)
    prose = re.sub(r"```.*?```", lambda block: " " * len(block[0]), text, flags=re.DOTALL)
    begins = list(re.finditer(r"^(#+) (.+)$", prose, re.MULTILINE))
    ends = [*(match.start() for match in begins[1:]), len(text)]
    return tuple((len(match[1]), match[2], text[match.end():end]) for match, end in zip(begins, ends))


def printed(output: dict[str, Any]) -> str:
    """The text of a stored output; "" where it has none."""
    return "".join(output.get("text") or output.get("data", {}).get("text/plain", ""))


def notebook_of(cell: str) -> tuple[Path, str]:
    """(its file, the heading) of "NN Heading", with or without the "(further)" behind it. ValueError where there is no
    such notebook or no such heading.
    """
    number, heading = cell.split(" ", 1)
    for notebook in sorted((ROOT / "notebooks").glob(f"{number}_*.ipynb")):
        headings = [each for _, each, _ in parts(notebook)]
        for each in headings:
            if re.sub(r" \(further( reading)?\)$", "", each) == re.sub(r" \(further( reading)?\)$", "", heading):
                return notebook, each
        raise ValueError(f"{cell!r}: expected one of the headings of {notebook.name}: {', '.join(headings)}")
    raise ValueError(f"{cell!r}: no notebook begins with {number}_")


def section(cell: str) -> str:
    """The text of a section with its subsections; each run of blanks and line breaks is one blank."""
    notebook, heading = notebook_of(cell)
    later = list(dropwhile(lambda part: part[1] != heading, parts(notebook)))
    inside = takewhile(lambda part: part is later[0] or part[0] > later[0][0], later)
    return " ".join(" ".join(text for _, _, text in inside).split())


def link(cell: str, up: str = "../") -> str:
    """A link to "NN Heading"; up: from the page to the root."""
    notebook, heading = notebook_of(cell)
    return f"[{notebook.name[:2]} {heading}]({up}notebooks/{notebook.name}#{heading.replace(' ', '-')})"


def row(*cells: str) -> str:
    """A line of a table."""
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def table_of(name: str) -> list[dict[str, Any]]:
    """The entries of docs/NAME.toml."""
    return tomllib.loads((ROOT / f"docs/{name}.toml").read_text(encoding="utf-8"))[name]


def documents_page() -> Iterator[str]:
    """The lines of docs/documents.md."""
    yield DOCUMENTS
    for number, document in enumerate(table_of("documents"), 1):
        yield f"## {number} {document['title']}\n\n*{document['english']}*\n"
        yield "| section | in English | taught in |\n|---|---|---|"
        for chinese, english, cells in document["sections"]:
            yield f"| {chinese} | {english} | {', '.join(map(link, cells))} |"
        wrong = [claim for claim in CLAIMS if number in claim.documents]
        if wrong:
            yield "\n| it says | right is | how that came about | source | shown in |\n|---|---|---|---|---|"
            yield from (row(claim.said, claim.right, claim.how, claim.source, link(claim.cell)) for claim in wrong)
        yield ""
    others = [claim for claim in CLAIMS if not claim.documents]
    if others:
        yield "## Elsewhere\n\n| it is said | right is | how that came about | source | shown in |"
        yield "|---|---|---|---|---|"
        yield from (row(claim.said, claim.right, claim.how, claim.source, link(claim.cell)) for claim in others)


def errata() -> list[dict[str, str]]:
    """The course's own, oldest first."""
    return sorted(table_of("errata"), key=lambda erratum: (erratum["mended"], erratum["where"]))


def errata_page() -> Iterator[str]:
    """The lines of ERRATA.md."""
    yield ERRATA
    yield from (row(each["said"], each["right"], each["mended"], link(each["where"], "")) for each in errata())
    yield CIRCULATING
    for claim in CLAIMS:
        yield row(claim.said, claim.right, f"{claim.source}, {claim.date}", link(claim.cell, ""))


PAGES = {"docs/documents.md": documents_page, "ERRATA.md": errata_page}

if __name__ == "__main__":
    for name, page in PAGES.items():
        (ROOT / name).write_text("\n".join(page()) + "\n", encoding="utf-8")
        print(f"wrote {name}")
