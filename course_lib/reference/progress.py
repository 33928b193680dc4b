"""The progress bar of a training run."""

import os
import sys

from tqdm import tqdm  # plain: a widget is gone when the notebook is opened again

from course_lib.pictures.stable import stable_output


def progress_bar(num_steps: int, title: str, shown: bool) -> tqdm:
    """A bar that counts steps, where it is `shown` and times may be in the output.

    On stdout in a notebook and its ranks, where what comes on stderr looks like an error; elsewhere on stderr. Jupyter
    names itself in the environment of each kernel, and ranks inherit that.
    """
    stream = sys.stdout if "JPY_PARENT_PID" in os.environ else sys.stderr
    return tqdm(total=num_steps, desc=title, unit="step", file=stream, disable=not shown or stable_output())
