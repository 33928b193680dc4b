"""Continuous integration refuses a run in which nothing of a kind passed."""

from tools.check_report import complaint, main, skipped_kinds

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


def test_what_was_skipped_is_counted_by_reason_and_printed(tmp_path, capsys):
    text = report(*map(PASSED.format, FULL), SKIPPED.format("tests.a"), SKIPPED.format("tests.b"))
    assert skipped_kinds(text) == {"no browser": 2}
    (tmp_path / "tests.xml").write_text(text, encoding="utf-8")
    assert main([str(tmp_path / "tests.xml")]) is None
    assert capsys.readouterr().out == "skipped    2: no browser\n"


def test_tests_of_isolation_that_were_skipped_are_refused_where_namespaces_are_asked_for(tmp_path, monkeypatch):
    skipped = SKIPPED.format("tests.grading").replace("no browser", "this machine allows no namespaces")
    text = report(*map(PASSED.format, FULL), skipped)
    assert complaint(text) is None
    assert "isolation that did not run" in complaint(text, needs_namespaces=True)
    monkeypatch.setenv("COURSE_NEEDS_NAMESPACES", "1")
    (tmp_path / "tests.xml").write_text(text, encoding="utf-8")
    assert "isolation" in main([str(tmp_path / "tests.xml")])
