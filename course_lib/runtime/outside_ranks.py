"""A sentence for whoever calls torch.distributed in the notebook itself, where there is no process group.

torch's own advice there, to call init_process_group, leads astray.
"""

import sys
from typing import Any

from course_lib.runtime import context
from course_lib.runtime.errors import LaunchError

SENTENCE = ("Only ranks have a process group, and this notebook is none. Put these lines in a function f and call "
            "launch(f, world_size=4): f itself, without a call.")


def explain_in(shell: Any) -> None:
    """Say the sentence below the traceback of each cell of `shell` that needs it. A second call changes nothing."""
    # An event: set_custom_exc has room for one handler only, and would take the place of the reader's.
    if _explain not in shell.events.callbacks["post_run_cell"]:
        shell.events.register("post_run_cell", _explain)


def _explain(result: Any) -> None:
    if is_outside_ranks(result.error_in_exec):
        print(SENTENCE, file=sys.stderr)


def is_outside_ranks(error: BaseException | None) -> bool:
    """Whether `error` is torch's for a process without a group, and this process cannot have one."""
    return (isinstance(error, ValueError) and not isinstance(error, LaunchError)
            and "init_process_group" in str(error) and "has not been initialized" in str(error)
            and not context.in_rank() and not context.under_torchrun())
