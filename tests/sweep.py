"""A pytest plugin: how broad a test is that tries many values of one thing.

    @pytest.mark.sweep("seed", few=range(1), all=range(4), words="1 seed of 4")
    def test_every_plan_can_be_built(seed): ...

`make test` runs the test with each value in `few`. `make sweep` asks for --sweep, which runs it with each value in
`all`; `all=seeds(10)` is other ten numbers in every sweep, drawn from COURSE_SEED, which repeats them. A test that is
marked with `words` alone runs in `make sweep` only. What a run without --sweep has left out is printed at its end, in
`words`.
"""

import os
import random

import pytest

LEFT_OUT = "left for make sweep"


def seeds(count: int) -> list[int]:
    """The numbers 0 to count - 1; in a sweep others, which COURSE_SEED decides."""
    drawn = random.Random(os.environ.get("COURSE_SEED"))
    return drawn.sample(range(2**31), count) if "COURSE_SEED" in os.environ else list(range(count))


def pytest_report_header() -> str | None:
    return f"random seeds of COURSE_SEED={os.environ['COURSE_SEED']}" if "COURSE_SEED" in os.environ else None


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--sweep", action="store_true", help="the whole breadth of the tests that are marked sweep")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    for mark in metafunc.definition.iter_markers("sweep"):
        name = mark.args[0] if mark.args else None
        if name in metafunc.fixturenames:  # of a file's tests that are marked as one, not all may want it
            chosen = mark.kwargs["all" if metafunc.config.getoption("sweep") else "few"]
            metafunc.parametrize(name, chosen, ids=mark.kwargs.get("ids"), scope=mark.kwargs.get("scope"))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("sweep"):
        return
    whole = [item for item in items if any(not mark.args for mark in item.iter_markers("sweep"))]
    items[:] = [item for item in items if item not in whole]
    config.hook.pytest_deselected(items=whole)
    # The property travels from a worker of xdist with the test's report: that of another test for one that has none.
    for item, told in [*zip(items, items), *((item, items[0]) for item in whole if items)]:
        for mark in item.iter_markers("sweep"):
            if not mark.args or mark.args[0] in item.fixturenames:
                what = item.nodeid.partition("::" if mark.kwargs.get("scope") else "[")[0]
                told.user_properties.append((LEFT_OUT, f"{what}: {mark.kwargs['words']}"))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    ran = [each for stats in terminalreporter.stats.values() for each in stats if isinstance(each, pytest.TestReport)]
    left_out = {text for report in ran for name, text in report.user_properties if name == LEFT_OUT}
    if left_out:
        terminalreporter.section("only a part of these ran; `make sweep` runs the whole")
        for text in sorted(left_out):
            terminalreporter.line(text)
