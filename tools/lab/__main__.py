"""Open the course in JupyterLab: `make lab` and `make teach` call this.

    python -m tools.lab                  fill workspace/ with your copies, and open the first notebook
    python -m tools.lab --fresh          the same, with new copies (asks first)
    python -m tools.lab --teach          in the course's own folder, with nbgrader's menus; makes no copies

Its address is the last line. Of the server's log only errors are shown; what kernels write goes to
build/lab.log. What follows `--` goes to JupyterLab.
"""

import argparse
import os
import signal
import sys
from pathlib import Path

from jupyterlab.labapp import LabApp

from tools.lab import settings_in_environment
from tools.workspace import ROOT, give_copies

FIRST = "/lab/tree/workspace/notebooks/00_start_here.ipynb"
LOG = ROOT / "build" / "lab.log"


def main(arguments: list[str]) -> None:
    split = arguments.index("--") if "--" in arguments else len(arguments)
    parser = argparse.ArgumentParser(prog="python -m tools.lab", description=__doc__.splitlines()[0],
                                     epilog="What follows -- goes to JupyterLab, such as: -- --no-browser")
    parser.add_argument("--fresh", action="store_true", help="new copies, after asking")
    parser.add_argument("--teach", action="store_true", help="the course's folder, with nbgrader's menus; no copies")
    asked = parser.parse_args(arguments[:split])
    if not asked.teach:
        give_copies(asked.fresh)
    os.chdir(ROOT)  # nbgrader finds its configuration there
    os.environ.update(settings_in_environment(asked.teach))
    serve([f"--LabApp.default_url={'/lab' if asked.teach else FIRST}", *arguments[split + 1:]])


def serve(flags: list[str]) -> None:
    """Until Ctrl-C, which ends all kernels too."""
    quiet = ["--ServerApp.log_level=ERROR", "--LabApp.log_level=ERROR"]
    as_root = ["--allow-root"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
    send_kernels_to(LOG)
    server = LabApp.initialize_server([*quiet, *as_root, *flags])
    # Jupyter's own handler asks first, and without a terminal leaves the kernels alone.
    signal.signal(signal.SIGINT, lambda *_: server.stop(from_signal=True))
    # Said by us, on one line, whether the token was made or given.
    server.log.addFilter(lambda record: "To access the server" not in record.getMessage())
    server.io_loop.add_callback(lambda: print(f"JupyterLab runs until Ctrl-C. Open:\n{address_of(server)}", flush=True))
    server.start()


def send_kernels_to(log: Path) -> None:
    """What kernels write outside of cells goes to the file `log`, or it would stand below the address.

    They inherit the file descriptors 1 and 2; the server goes on writing to the terminal by copies of them.
    """
    try:
        log.parent.mkdir(exist_ok=True)
        file = log.open("w", encoding="utf-8")
    except OSError:
        return  # a folder that is not ours to write to: all goes to the terminal
    sys.stdout.flush()
    sys.stdout = open(os.dup(1), "w", encoding="utf-8", buffering=1)
    sys.stderr = open(os.dup(2), "w", encoding="utf-8", buffering=1)
    os.dup2(file.fileno(), 1)
    os.dup2(file.fileno(), 2)


def address_of(server) -> str:
    """Where a browser on this machine finds it, with its token."""
    return server.display_url.split()[-1]


if __name__ == "__main__":
    main(sys.argv[1:])
