"""An interpreter kept warm for one rank (macOS, Windows). Run as a script, never imported:

    python -P -u warm_rank.py PROJECT RANK ADDRESS TOKEN FOLDER MODULE ...     with the connection's key on stdin

It imports what ranks need, says so, and then runs one task after another for the notebook's process.
"""

import importlib
import os
import shutil
import sys
from contextlib import suppress
from multiprocessing.connection import Client, Connection


def main(rank: int, address: str, token: str, folder: str, *modules: str) -> None:
    """Import `modules`, connect to the notebook, and run one task after the other until the connection closes."""
    key = sys.stdin.buffer.read()
    for name in modules:
        with suppress(ImportError):  # a torch built without this part: a rank that needs it will say so
            importlib.import_module(name)
    connection = Client(address, authkey=key)
    connection.send(rank)
    try:
        while True:
            run_task(connection, folder)
            sys.stdout.flush()
            sys.stderr.flush()
            # Before the message: who hears "ready" knows that all output of this task lies in front of the marks.
            for stream in (1, 2):
                os.write(stream, f"\0course_lib {token} {rank}\0".encode())
            connection.send("ready")
    except (EOFError, OSError):  # the notebook has ended
        shutil.rmtree(folder, ignore_errors=True)


def run_task(connection: Connection, folder: str) -> None:
    """Take the notebook's environment, then run one call."""
    importlib.import_module("course_lib.runtime.ranks.home").adopt(connection.recv())
    importlib.import_module("course_lib.runtime.ranks.rank").main_kept_warm(connection, folder)


if __name__ == "__main__":
    sys.path.append(sys.argv[1])
    main(int(sys.argv[2]), *sys.argv[3:])
