"""A pytest plugin: a failure is told as it happens, so that a run that is cut off has said what it found."""

import pytest

_MOST = 1000  # characters of a failure; the whole comes at the end


class ToldAtOnce:
    """Writes below the dots. With xdist this is the process that gathers what workers report."""

    def __init__(self, terminal: pytest.TerminalReporter) -> None:
        self.terminal = terminal

    @pytest.hookimpl(trylast=True)  # behind its letter
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            crash = getattr(report.longrepr, "reprcrash", None)
            words = crash.message if crash else report.longreprtext
            self.terminal.write_line(f"\n{report.nodeid} failed after {report.duration:.0f} s: {words[:_MOST]}")


@pytest.hookimpl(trylast=True)  # the terminal is configured before
def pytest_configure(config: pytest.Config) -> None:
    terminal = config.pluginmanager.get_plugin("terminalreporter")
    if terminal is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(ToldAtOnce(terminal), "told at once")
