"""Whether output must come out the same each time: while notebooks are made, and where a test compares it."""

import os


def stable_output() -> bool:
    """Set by tools/notebooks.py, by the tests and for the kernels that nbval starts; a reader has neither variable."""
    return "PYTEST_CURRENT_TEST" in os.environ or "COURSE_LIB_STABLE_OUTPUT" in os.environ
