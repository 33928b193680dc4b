"""docs/documents.md: where the course teaches what the five documents name, and which of their statements are wrong.

    python -m tools.documents            writes it again, from docs/documents.toml and course_lib/facts/claims.py
"""

import json
import re
import tomllib
from collections.abc import Iterator
from functools import cache
from itertools import dropwhile, takewhile
from pathlib import Path
from typing import Any

from course_lib.facts.claims import CLAIMS, Claim

ROOT = Path(__file__).parents[1]
SOURCE, PAGE = ROOT / "docs/documents.toml", ROOT / "docs/documents.md"
HEADER = """\
# The five documents, section by section

This course follows five documents in Chinese. Each row names a section of a document, and the sections of notebooks
that teach it. Below stand the statements that are wrong, dated or contradict themselves, with what is right. Written by
`python -m tools.documents`.
"""


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


def headings(notebook: Path) -> list[str]:
    """The headings of all markdown cells."""
    return [heading for _, heading, _ in parts(notebook)]


def name_of(heading: str) -> str:
    """A heading without what says that a first reader may leave the section out."""
    return re.sub(r" \(further( reading)?\)$", "", heading)


def notebook_of(cell: str) -> tuple[Path, str]:
    """(its file, the heading) of "NN Heading". ValueError where there is no such notebook or no such heading.

    "(further)" behind a heading need not be said.
    """
    number, heading = cell.split(" ", 1)
    notebooks = sorted((ROOT / "notebooks").glob(f"{number}_*.ipynb"))
    if not notebooks:
        raise ValueError(f"{cell!r}: no notebook begins with {number}_")
    found = [each for each in headings(notebooks[0]) if name_of(each) == name_of(heading)]
    if not found:
        raise ValueError(f"{cell!r}: expected one of the headings of {notebooks[0].name}: "
                         f"{', '.join(headings(notebooks[0]))}")
    return notebooks[0], found[0]


def section(cell: str) -> str:
    """The text of a section with its subsections; each run of blanks and line breaks is one blank."""
    notebook, heading = notebook_of(cell)
    later = list(dropwhile(lambda part: part[1] != heading, parts(notebook)))
    level = later[0][0]
    inside = takewhile(lambda part: part is later[0] or part[0] > level, later)
    return " ".join(" ".join(text for _, _, text in inside).split())


def link(cell: str) -> str:
    """A link to "NN Heading"."""
    notebook, heading = notebook_of(cell)
    return f"[{notebook.name[:2]} {heading}](../notebooks/{notebook.name}#{heading.replace(' ', '-')})"


def rows_of_claim(claim: Claim) -> str:
    texts = (claim.said, claim.right, claim.how, claim.source)
    return " | ".join(["", *(text.replace("|", "\\|") for text in texts), link(claim.cell), ""]).strip()


def page() -> Iterator[str]:
    """The lines of docs/documents.md."""
    documents = tomllib.loads(SOURCE.read_text(encoding="utf-8"))["documents"]
    yield HEADER
    for number, document in enumerate(documents, 1):
        yield f"## {number} {document['title']}\n\n*{document['english']}*\n"
        yield "| section | in English | taught in |\n|---|---|---|"
        for chinese, english, cells in document["sections"]:
            yield f"| {chinese} | {english} | {', '.join(map(link, cells))} |"
        wrong = [claim for claim in CLAIMS if number in claim.documents]
        if wrong:
            yield "\n| it says | right is | how that came about | source | shown in |\n|---|---|---|---|---|"
            yield from map(rows_of_claim, wrong)
        yield ""
    others = [claim for claim in CLAIMS if not claim.documents]
    if others:
        yield "## Elsewhere\n\n| it is said | right is | how that came about | source | shown in |"
        yield "|---|---|---|---|---|"
        yield from map(rows_of_claim, others)


def main() -> None:
    PAGE.write_text("\n".join(page()) + "\n", encoding="utf-8")
    print(f"wrote {PAGE.relative_to(ROOT)}: {len(CLAIMS)} statements")


if __name__ == "__main__":
    main()
