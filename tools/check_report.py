"""python -m tools.check_report FILE: fail unless tests, notebook cells and browser tests passed in this run.

FILE is pytest's JUnit report. pytest is content when everything was skipped; continuous integration is not.
"""

import sys
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

NOT_PASSED = {"failure", "error", "skipped"}
KINDS = ("tests", "notebook cells", "browser tests")


def kind_of(case: ElementTree.Element) -> str:
    """Which of KINDS a <testcase> belongs to."""
    place = case.get("classname", "")
    if place.startswith("tests.browser"):
        return "browser tests"
    return "notebook cells" if place.startswith("notebooks.") else "tests"


def passed(report: str) -> Counter[str]:
    """How many of each kind passed, from the XML text of a report."""
    cases = ElementTree.fromstring(report).iter("testcase")
    return Counter(kind_of(case) for case in cases if NOT_PASSED.isdisjoint(child.tag for child in case))


def complaint(report: str) -> str | None:
    """Which of KINDS did not pass once, in words; None when each did."""
    counts = passed(report)
    empty = [kind for kind in KINDS if not counts[kind]]
    return f"not one of these passed in this run: {', '.join(empty)}" if empty else None


if __name__ == "__main__":
    sys.exit(complaint(Path(sys.argv[1]).read_text(encoding="utf-8")))
