"""A pytest plugin: what each test costs in CPU seconds, its children's included, and a budget that no test may exceed.

Clock minutes differ by a factor of two between hosts and with what else runs there; CPU seconds by far less. They go to
build/cpu/NAME.json (`--cpu-report NAME`), and a run ends with their sums by package. `--cpu-budget 20` fails a test
that takes more, without its fixtures: what comes up once for many tests, a page or a compiled library, is not the first
one's. A process that outlives its parent is init's, and is not seen.
"""

import json
import os
from collections import Counter
from pathlib import Path

import pytest

SPENT = "CPU seconds"
TICK_S = 1 / os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 0.01
FOLDER = Path("build/cpu")
DEAREST = 12


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


def package_of(test: str) -> str:
    """tests/zero for tests/zero/test_memory.py::test_...; notebooks; tests for files in no package."""
    parts = test.partition("::")[0].split("/")
    return "/".join(parts[:2]) if len(parts) > 2 else parts[0]


class Meter:
    """In the process that runs tests: each one's seconds travel with its report, those of all at the end."""

    def __init__(self, config: pytest.Config) -> None:
        self.config, self.budget_s = config, config.getoption("--cpu-budget")
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
        item.user_properties.append((SPENT, round(max(now - self.before, 0.0), 3)))
        report = yield
        if self.budget_s and spent > self.budget_s and report.passed:
            report.outcome = "failed"
            report.longrepr = f"{item.nodeid} took {spent:.1f} CPU seconds, at most {self.budget_s:g} in this run"
        return report

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self) -> None:
        if hasattr(self.config, "workeroutput"):
            self.config.workeroutput[SPENT] = cpu_seconds()


class Ledger:
    """In the process that reports: seconds by test, and of all workers together."""

    def __init__(self, config: pytest.Config) -> None:
        self.name, self.by_test, self.workers_s = config.getoption("--cpu-report"), {}, 0.0

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "teardown":
            self.by_test[report.nodeid] = dict(report.user_properties).get(SPENT, 0.0)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node) -> None:
        self.workers_s += getattr(node, "workeroutput", {}).get(SPENT, 0.0)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if not self.by_test or not self.name:
            return
        total_s = sum(os.times()[:2]) + (self.workers_s or sum(map(spent_by, descendants())) + sum(os.times()[2:4]))
        FOLDER.mkdir(parents=True, exist_ok=True)
        Path(FOLDER, f"{self.name}.json").write_text(json.dumps({"all": total_s, "tests": self.by_test}, indent=0))
        seconds, items = Counter(), Counter()
        for test, spent in self.by_test.items():
            seconds[package_of(test)] += spent
            items[package_of(test)] += 1
        terminalreporter.section(f"CPU seconds, {total_s / 60:.1f} minutes in all")
        for package, spent in seconds.most_common():
            terminalreporter.line(f"{spent:8.1f} {items[package]:6} {package}")
        terminalreporter.line(f"{total_s - seconds.total():8.1f}        imports, collection, workers")
        for test, spent in Counter(self.by_test).most_common(DEAREST):
            terminalreporter.line(f"{spent:8.1f} {test}")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--cpu-budget", type=float, default=0.0, help="CPU seconds that one test may take; 0: any")
    parser.addoption("--cpu-report", default="", help="writes build/cpu/NAME.json and prints sums at the end")


def pytest_configure(config: pytest.Config) -> None:
    if not getattr(config.option, "numprocesses", None):
        config.pluginmanager.register(Meter(config), "CPU meter")
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Ledger(config), "CPU ledger")
