"""Where progress bars are written."""

import os
import sys
from typing import TextIO


def bar_stream() -> TextIO:
    """stdout in a notebook and its ranks, where what comes on stderr looks like an error; elsewhere stderr.

    Jupyter names itself in the environment of each kernel, and ranks inherit that.
    """
    return sys.stdout if "JPY_PARENT_PID" in os.environ else sys.stderr
