"""A rank that waits for ever: what the trade's tools see of it, with gloo as with NCCL.

    write_later       this rank's last collectives and its stacks, written down after a while; NCCL's watchdog does it
    compare_traces    all ranks' collectives side by side, by torch's own analyser: which rank has not called which
    first_error       a script under torchrun: what the rank said that raised first

Sources: torch/csrc/distributed/c10d/FlightRecorder.hpp; torch.distributed.flight_recorder; and the documentation of
torch.distributed.elastic.multiprocessing.errors (TORCHELASTIC_ERROR_FILE).
"""

import faulthandler
import json
import os
import pickle
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import torch.distributed as dist

from course_lib.runtime.torch_private import flight_recorder_trace


def write_later(folder: Path, after_s: float = 1.0) -> None:
    """In `after_s` seconds a thread of this rank writes trace_RANK (Flight Recorder) and stack_RANK (faulthandler) into
    `folder`, also while the rank waits inside a collective.
    """
    rank = dist.get_rank()

    def write() -> None:
        trace = pickle.loads(flight_recorder_trace())
        if unnamed := trace["pg_config"].pop("", None):  # torch 2.13: gloo leaves out the name of the world's group,
            trace["pg_config"]["0"] = {**unnamed, "name": "0", "desc": "default_pg"}  # for which the analyser asks
        (folder / f"trace_{rank}").write_bytes(pickle.dumps(trace))
        with open(folder / f"stack_{rank}", "w", encoding="utf-8") as file:
            faulthandler.dump_traceback(file)

    threading.Timer(after_s, write).start()


def compare_traces(folder: Path) -> list[str]:
    """What torch's analyser says of the files trace_RANK in `folder`, which all ranks have to have written: its lines.
    """
    analyser = [sys.executable, "-m", "torch.distributed.flight_recorder.fr_trace", str(folder), "-p", "trace_"]
    done = subprocess.run(analyser, capture_output=True, text=True)
    if done.returncode:
        raise ValueError(f"{' '.join(analyser[1:])} ended with {done.returncode}: {done.stderr[-500:]}")
    return (done.stdout + done.stderr).splitlines()  # it logs


def first_error(script: str, num_ranks: int = 2) -> str:
    """Run `script` on ranks of torchrun: the message of the first exception that left a function under @record.

    ValueError where there is none.
    """
    with tempfile.TemporaryDirectory() as folder:
        path, errors = Path(folder, "script.py"), Path(folder, "error.json")
        path.write_text(script, encoding="utf-8")
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(num_ranks)]
        done = subprocess.run([*torchrun, path], env={**os.environ, "TORCHELASTIC_ERROR_FILE": str(errors)},
                              capture_output=True)
        if not errors.exists():
            raise ValueError(f"torchrun ended with {done.returncode} and left no error: expected a script in which a "
                             "rank raises in a function under @record")
        return json.loads(errors.read_text(encoding="utf-8"))["message"]["message"]
