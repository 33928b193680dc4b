"""python -m tools.check_report FILE ...: fail unless tests, notebook cells and browser tests passed in this run.

Each FILE is a JUnit report of pytest's. pytest is content when everything was skipped; continuous integration is not,
nor when a single browser test was.
"""

import sys
from collections import Counter
from itertools import chain
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


def complaint(*reports: str) -> str | None:
    """Which of KINDS did not pass once, or how many browser tests did not run, in words; None when all is well."""
    passed, skipped = Counter(), Counter()
    for case in chain.from_iterable(ElementTree.fromstring(report).iter("testcase") for report in reports):
        results = {child.tag for child in case}
        passed[kind_of(case)] += NOT_PASSED.isdisjoint(results)
        skipped[kind_of(case)] += "skipped" in results
    empty = [kind for kind in KINDS if not passed[kind]]
    if empty:
        return f"not one of these passed in this run: {', '.join(empty)}"
    return f"browser tests that did not run: {skipped[KINDS[-1]]}" if skipped[KINDS[-1]] else None


if __name__ == "__main__":
    sys.exit(complaint(*(Path(name).read_text(encoding="utf-8") for name in sys.argv[1:])))
