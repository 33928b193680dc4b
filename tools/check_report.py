"""python -m tools.check_report FILE ...: fail unless tests, notebook cells and browser tests passed in this run.

Each FILE is a JUnit report of pytest's. pytest is content when everything was skipped; continuous integration is not,
nor when a single browser test was. Where COURSE_NEEDS_NAMESPACES is set, skipped tests of the class grader's isolation
are a failure, too. What was skipped, and why, is printed in any case.
"""

import os
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


def skipped_kinds(*reports: str) -> Counter:
    """How many tests were skipped for each reason, the test's file standing for the tests that have none."""
    found: Counter = Counter()
    for case in chain.from_iterable(ElementTree.fromstring(report).iter("testcase") for report in reports):
        for child in case.findall("skipped"):
            found[child.get("message") or case.get("classname", "")] += 1
    return found


def complaint(*reports: str, needs_namespaces: bool = False) -> str | None:
    """Which of KINDS did not pass once, or how many browser tests did not run, in words; None when all is well.

    needs_namespaces: whether tests of isolation have to run.
    """
    passed, skipped = Counter(), Counter()
    for case in chain.from_iterable(ElementTree.fromstring(report).iter("testcase") for report in reports):
        results = {child.tag for child in case}
        passed[kind_of(case)] += NOT_PASSED.isdisjoint(results)
        skipped[kind_of(case)] += "skipped" in results
    empty = [kind for kind in KINDS if not passed[kind]]
    if empty:
        return f"not one of these passed in this run: {', '.join(empty)}"
    isolated = sum(count for reason, count in skipped_kinds(*reports).items() if "namespaces" in reason)
    if needs_namespaces and isolated:
        return f"tests of isolation that did not run, though namespaces are asked for: {isolated}"
    return f"browser tests that did not run: {skipped[KINDS[-1]]}" if skipped[KINDS[-1]] else None


def main(names: list[str]) -> str | None:
    """Print what was skipped; the complaint, if there is one."""
    reports = [Path(name).read_text(encoding="utf-8") for name in names]
    for reason, count in sorted(skipped_kinds(*reports).items()):
        print(f"skipped {count:4}: {reason}")
    return complaint(*reports, needs_namespaces=bool(os.environ.get("COURSE_NEEDS_NAMESPACES")))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
