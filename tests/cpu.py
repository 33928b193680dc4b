"""A pytest plugin: what each test costs in CPU seconds, its children's included, and a budget that no test may exceed.

Clock minutes differ by a factor of two between hosts and with what else runs there; CPU seconds by far less. They are a
property of each test in the file of `--junitxml`. `--cpu-budget 20` fails a test that takes more, without its fixtures:
what comes up once for many tests, a page or a compiled library, is not the first one's. A process that outlives its
parent is init's, and is not seen.
"""

import os
from pathlib import Path

import pytest

TICK_S = 1 / os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 0.01


def descendants(pid: str = "self") -> list[str]:
    """All living descendants of a process as Linux lists them; none elsewhere."""
    found = []
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            for child in Path(f"/proc/{pid}/task/{task}/children").read_text().split():
                found += [child, *descendants(child)]
    except OSError:
        pass  # it has ended meanwhile, or this is not Linux
    return found


def spent_by(pid: str) -> float:
    """CPU seconds of a process and of the children that it has waited for."""
    try:
        return sum(map(int, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:15])) * TICK_S
    except OSError:
        return 0.0


def cpu_seconds() -> float:
    """What this process and all its descendants have spent so far."""
    return sum(os.times()[:4]) + sum(map(spent_by, descendants()))


class Meter:
    """In the process that runs tests: each one's seconds travel with its report."""

    def __init__(self, budget_s: float) -> None:
        self.budget_s = budget_s
        self.before = self.set_up = 0.0  # CPU seconds when the test, and its call, began

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self):
        self.before = self.set_up = cpu_seconds()
        return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo):
        if call.when == "setup":
            self.set_up = cpu_seconds()
        if call.when != "teardown":
            return (yield)
        now = cpu_seconds()
        spent = max(now - self.set_up, 0.0)
        item.user_properties.append(("CPU seconds", round(max(now - self.before, 0.0), 3)))
        report = yield
        if self.budget_s and spent > self.budget_s and report.passed:
            report.outcome = "failed"
            report.longrepr = f"{item.nodeid} took {spent:.1f} CPU seconds, at most {self.budget_s:g} in this run"
        return report


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--cpu-budget", type=float, default=0.0, help="CPU seconds that one test may take; 0: any")


def pytest_configure(config: pytest.Config) -> None:
    if not getattr(config.option, "numprocesses", None):
        config.pluginmanager.register(Meter(config.getoption("--cpu-budget")), "CPU meter")
