"""docs/documents.md: where each section of the five documents is taught, and each wrong statement corrected."""

import pytest

from course_lib.facts.claims import CLAIMS
from tools.documents import PAGE, page, section


def test_the_page_is_what_the_tool_writes():
    assert PAGE.read_text(encoding="utf-8") == "\n".join(page()) + "\n", "expected: python -m tools.documents"


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.name)
def test_what_is_right_instead_of_a_wrong_statement_stands_in_the_section_that_the_page_links(claim):
    assert claim.shown in section(claim.cell), claim.right


def test_a_section_that_does_not_exist_is_refused_with_those_that_do():
    with pytest.raises(ValueError, match="expected one of the headings of 01_why_distribute.ipynb: .*The first wall"):
        section("01 The ninth wall")


def test_a_heading_is_found_with_and_without_what_says_that_it_may_be_left_out():
    assert section("10 Known limits") == section("10 Known limits (further)") != ""
