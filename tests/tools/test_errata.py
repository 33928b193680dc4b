"""ERRATA.md: what circulates and is wrong, and what this course taught."""

import re

import pytest
from tools.errata import PAGE, errata, page

from course_lib.facts.claims import CLAIMS
from tools.documents import section


def test_the_page_is_what_the_tool_writes():
    assert PAGE.read_text(encoding="utf-8") == "\n".join(page()) + "\n", "expected: python -m tools.errata"


@pytest.mark.parametrize("erratum", errata(), ids=lambda erratum: erratum["where"])
def test_the_section_that_an_erratum_links_has_it_right(erratum):
    assert erratum["shown"] in section(erratum["where"]), erratum["right"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", erratum["mended"])


def test_every_claim_is_on_the_page():
    text = PAGE.read_text(encoding="utf-8")
    assert [claim.name for claim in CLAIMS if claim.said.replace("|", "\\|") not in text] == []
