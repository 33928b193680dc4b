"""What every test run needs, the notebooks' own included."""

import os
import signal

from hypothesis import settings

# Kernels that tests start inherit it: course_lib then prints nothing that varies.
os.environ["COURSE_LIB_STABLE_OUTPUT"] = "1"

# A shell without job control lets its background jobs ignore interrupts, and whatever they start: some tests interrupt.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# The same examples in every run, however busy the machine: no test has a deadline.
settings.register_profile("course", deadline=None, derandomize=True, database=None)
settings.load_profile("course")

pytest_plugins = ["tests.executed", "tests.sweep", "tests.order", "tests.told_at_once",
                  "tests.snapshots"]
