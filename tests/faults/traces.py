"""What a launch could leave behind: processes, open files and sockets of the caller, temporary files (Linux)."""

import os
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import psutil


@dataclass(frozen=True)
class Traces:
    """Everything of this process that must be the same before and after a launch."""

    processes: frozenset[int]  # ids of all descendants but the servers
    num_servers: int  # that start ranks: one, though after a fault perhaps another one
    descriptors: Counter[str]  # kind or path -> how many are open here
    files: frozenset[str]

    def since(self, before: "Traces") -> list[str]:
        """What is here now and was not then, as text; empty when nothing was left."""
        told = [f"process {_told(pid)}" for pid in sorted(self.processes - before.processes)]
        told += [f"{self.num_servers} servers"] * (self.num_servers > max(before.num_servers, 1))
        told += [f"{number} x open {kind}" for kind, number in (self.descriptors - before.descriptors).items()]
        return told + [f"file {path}" for path in sorted(self.files - before.files)]


def traces(*folders: str | Path) -> Traces:
    """Of this process now, with all files under `folders`."""
    servers = {child.pid for child in psutil.Process().children() if "fork_server.py" in " ".join(child.cmdline())}
    descendants = {process.pid for process in psutil.Process().children(recursive=True)}
    # torch makes a folder for compiled kernels when it is imported; a new server has a new folder.
    files = frozenset(re.sub(r"/course_lib_[^/]*", "/course_lib", str(path)) for folder in folders
                      for path in Path(folder).rglob("*") if "torchinductor_" not in str(path))
    return Traces(frozenset(descendants - servers), len(servers), Counter(_open_descriptors()), files)


def _open_descriptors() -> list[str]:
    kinds = []
    for number in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{number}")
        except FileNotFoundError:  # the listing's own
            continue
        kinds.append(re.sub(r"\[\d+\]", "", target))  # socket:[1234]
    return kinds


def alive(pid: int) -> bool:
    """Whether the process exists and is more than an entry that waits to be reaped."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _told(pid: int) -> str:
    try:
        return f"{pid}: {' '.join(psutil.Process(pid).cmdline())[:80]}"
    except psutil.NoSuchProcess:
        return f"{pid} (has ended since)"
