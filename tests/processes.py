"""Which processes are left of something that marked them by a variable of their environment."""

import os
from contextlib import suppress

import psutil


def processes_with(variable: str, value: str) -> list[psutil.Process]:
    """Those that live, but for this one."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            if (process.pid != os.getpid() and process.environ().get(variable) == value
                    and process.status() != psutil.STATUS_ZOMBIE):
                found.append(process)
    return found
