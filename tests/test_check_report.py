"""Continuous integration refuses a run in which nothing of a kind passed."""

from tools.check_report import complaint

PASSED = '<testcase classname="{}" name="a" />'
SKIPPED = '<testcase classname="{}" name="a"><skipped message="no browser" /></testcase>'
FULL = ("tests.test_layers", "notebooks.00_start_here.ipynb", "tests.browser.test_notebooks")


def report(*cases: str) -> str:
    return f"<testsuites><testsuite>{''.join(cases)}</testsuite></testsuites>"


def test_a_run_with_all_three_kinds_is_accepted():
    assert complaint(report(*map(PASSED.format, FULL))) is None


def test_a_run_of_several_reports_is_taken_together():
    tests, notebooks = report(*map(PASSED.format, FULL[::2])), report(PASSED.format(FULL[1]))
    assert complaint(tests, notebooks) is None
    assert complaint(tests) == "not one of these passed in this run: notebook cells"


def test_skipped_browser_tests_are_refused():
    cases = [PASSED.format(FULL[0]), PASSED.format(FULL[1]), SKIPPED.format(FULL[2])]
    assert complaint(report(*cases)) == "not one of these passed in this run: browser tests"


def test_a_single_skipped_browser_test_is_refused_and_any_other_is_not():
    cases = [*map(PASSED.format, FULL), SKIPPED.format(FULL[0])]
    assert complaint(report(*cases)) is None
    assert complaint(report(*cases, SKIPPED.format(FULL[2]))) == "browser tests that did not run: 1"


def test_an_empty_run_is_refused():
    assert complaint(report()) == "not one of these passed in this run: tests, notebook cells, browser tests"
