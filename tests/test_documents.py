"""docs/documents.md: where each section of the five documents is taught, and each wrong statement corrected."""

from course_lib.facts.claims import CLAIMS
from tools.documents import PAGE, link, page


def test_the_page_is_what_the_tool_writes():
    assert PAGE.read_text(encoding="utf-8") == "\n".join(page()) + "\n", "expected: python -m tools.documents"


def test_every_statement_that_is_wrong_has_a_section_that_shows_what_is_right():
    assert all(link(claim.cell) for claim in CLAIMS)
