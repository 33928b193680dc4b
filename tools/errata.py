"""ERRATA.md: statements about large-scale training that circulate and are wrong, and those that this course has taught.

    python -m tools.errata            writes it again, from course_lib/facts/claims.py and docs/errata.toml
"""

import tomllib
from collections.abc import Iterator
from pathlib import Path

from course_lib.facts.claims import CLAIMS
from tools.documents import link

ROOT = Path(__file__).resolve().parent.parent
SOURCE, PAGE = ROOT / "docs" / "errata.toml", ROOT / "ERRATA.md"
HEADER = """\
# Errata

Written by `python -m tools.errata`. A statement of this course that is wrong? Please open an issue.

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


def errata() -> list[dict[str, str]]:
    """The course's own, oldest first."""
    return sorted(tomllib.loads(SOURCE.read_text(encoding="utf-8"))["errata"],
                  key=lambda erratum: (erratum["mended"], erratum["where"]))


def row(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def from_root(cell: str) -> str:
    """A link to a section of a notebook, from this page."""
    return link(cell).replace("](../", "](")


def page() -> Iterator[str]:
    """The lines of ERRATA.md."""
    yield HEADER
    for each in errata():
        yield row(each["said"], each["right"], each["mended"], from_root(each["where"]))
    yield CIRCULATING
    for claim in CLAIMS:
        yield row(claim.said, claim.right, f"{claim.source}, {claim.date}", from_root(claim.cell))


def main() -> None:
    PAGE.write_text("\n".join(page()) + "\n", encoding="utf-8")
    print(f"wrote {PAGE.name}: {len(errata())} of ours, {len(CLAIMS)} that circulate")


if __name__ == "__main__":
    main()
