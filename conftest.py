"""What every test run needs, the notebooks' own included."""

import os
import signal
import sys

import pytest
from hypothesis import settings

# Kernels that tests start inherit it: course_lib then prints nothing that varies.
os.environ["COURSE_LIB_STABLE_OUTPUT"] = "1"

# A shell without job control lets its background jobs ignore interrupts, and whatever they start: some tests interrupt.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# The same examples in every run, however busy the machine: no test has a deadline. Only `make sweep` looks at new ones.
settings.register_profile("course", deadline=None, derandomize=True, database=None)
settings.register_profile("sweep", deadline=None, print_blob=True)
settings.load_profile("sweep" if "--sweep" in sys.argv else "course")

pytest_plugins = ["tests.executed", "tests.sweep", "tests.order", "tests.snapshots", "tests.cpu"]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item):
    """Continuous integration skips no browser, nor isolation where the machine is said to have it."""
    report = yield
    isolated = "namespaces" in str(report.longrepr) and os.environ.get("COURSE_NEEDS_NAMESPACES")
    if report.skipped and os.environ.get("CI") == "true" and (item.get_closest_marker("browser") or isolated):
        report.outcome = "failed"
    return report
