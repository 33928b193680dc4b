"""`doctor()`: is this machine fit for the course, and if not, what to do about it."""

import importlib.metadata
import importlib.util
import shutil
import socket
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from html import escape
from pathlib import Path

import psutil
import torch
import torch.distributed as dist
from torch.torch_version import TorchVersion

from course_lib.pictures.drawn import Drawn
from course_lib.runtime import backends, context
from course_lib.runtime.errors import LaunchError
from course_lib.runtime.launcher import launch
from course_lib.runtime.ranks.fork_pool import ForkPool
from course_lib.runtime.ranks.pools import pool

OLDEST_TORCH = "2.11"  # .ci/run bare tries it; pyproject.toml asks for it
BACKEND_NAMES = {"nccl": "NCCL on GPUs", "gloo": "gloo on the CPU"}
UNTRIED = ("The course has been run on one H100 (docs/decisions/gpus.md), and between several GPUs never: `python -m "
           "tools.gpu_day` says what works here, and launch(..., device='cpu') keeps to the CPU")
DRIVER_ADVICE = ("this torch is built for CUDA and finds no GPU: CUDA_VISIBLE_DEVICES may hide it, or its driver is "
                 "older than this torch's CUDA needs (nvidia-smi shows both): update the driver")
BROKEN_ADVICE = ("launch(..., device='cpu') works without it; nvidia-smi shows the driver and who else uses the GPU: "
                 "update the driver, or install a torch that is built for it")
WIDGETS = ("jupyterlab", "ipywidgets", "anywidget", "jupyterlab_widgets", "matplotlib")


@dataclass(frozen=True)
class Check:
    """One thing looked at: what was found, and advice where that is not good enough."""

    name: str
    found: str
    advice: str = ""  # empty: all is well

    @property
    def ok(self) -> bool:
        return not self.advice


@dataclass(frozen=True, repr=False)
class DoctorReport(Drawn):
    """What `doctor` found. Draws itself as a table; `ok` when no check asks for anything."""

    checks: tuple[Check, ...]

    @property
    def ok(self) -> bool:
        return all(check.ok for check in self.checks)

    def finding(self) -> str:
        """One line: what to look at, or that all is there; the same on every healthy machine."""
        bad = ", ".join(check.name for check in self.checks if not check.ok)
        return f"doctor: look at {bad}" if bad else "doctor: everything the course needs is here"

    def __str__(self) -> str:
        lines = [f"  {'ok ' if check.ok else 'BAD'}  {check.name}: {check.found}"
                 + (f"\n       -> {check.advice}" if check.advice else "") for check in self.checks]
        return "\n".join([self.finding(), *lines])

    def html(self) -> str:
        rows = "".join(
            f"<tr><td>{'✓' if check.ok else '✗'}</td><td style='text-align:left'>{escape(check.name)}</td>"
            f"<td class='found' style='text-align:left'>{escape(check.found)}"
            + (f"<br><b>{escape(check.advice)}</b>" if check.advice else "") + "</td></tr>" for check in self.checks)
        return f"<p>{escape(self.finding())}</p><table>{rows}</table>"


def doctor() -> DoctorReport:
    """Check Python, torch, backends, GPUs, loopback, files, widgets, cores and memory, and launch ranks for real."""
    looks = (_python, _torch, _backends, _gpus, _loopback, _files, _widgets, _cores, _memory, _ranks)
    return DoctorReport(tuple(_look(look) for look in looks))


def _look(look: Callable[[], Check]) -> Check:
    try:
        return look()
    except Exception as error:  # a check that breaks is a finding, not the end of the report
        return Check(look.__name__.strip("_"), f"{type(error).__name__}: {error}", "this check itself failed")


def _python() -> Check:
    advice = "the course needs Python 3.11 or newer: make the environment with a newer one"
    return Check("Python", f"{sys.version.split()[0]}, environment {Path(sys.prefix).name}",
                 advice if sys.version_info < (3, 11) else "")


def _torch() -> Check:
    old = TorchVersion(torch.__version__) < OLDEST_TORCH
    alone = "" if dist.is_available() else ("this torch was built without torch.distributed: install the ordinary one "
                                            "from PyPI")
    upgrade = f"the course needs torch {OLDEST_TORCH} or newer: pip install -U torch"
    return Check("torch", torch.__version__, upgrade if old else alone)


def _backends() -> Check:
    has = [name for name, there in (("gloo", dist.is_gloo_available()), ("NCCL", dist.is_nccl_available())) if there]
    one, four = (BACKEND_NAMES[backends.choose("auto", "auto", n)] for n in (1, 4))
    used = one if one == four else f"{one} for 1 rank and {four} for 4 ranks"
    advice = "" if "gloo" in has else "ranks cannot talk on this machine: install the ordinary torch from PyPI"
    return Check("backends", f"{' and '.join(has) or 'none'}: launch uses {used}", advice)


def _gpus() -> Check:
    num_gpus = backends.count_gpus()
    if not num_gpus:
        # A torch for CPUs is what most readers want, also beside a GPU: only one for GPUs that finds none is at fault.
        at_fault = dist.is_nccl_available() and bool(listed_gpus())
        return Check("GPUs", f"none: {why_no_gpu()}", DRIVER_ADVICE if at_fault else "")
    if context.in_rank() or context.under_torchrun():
        return Check("GPUs", str(num_gpus))
    try:
        kind, total = launch(_sum_on_own_device, world_size=1, backend="nccl", timeout=120)[0]
    except LaunchError as error:
        said = textwrap.shorten(str(error), 200)
        return Check("GPUs", f"{num_gpus}, and a rank could not use its own: {said}", BROKEN_ADVICE)
    if kind == "cpu" or total != 3.0:
        return Check("GPUs", f"{num_gpus}, and 1 + 2 on one ({kind}) gave {total}", BROKEN_ADVICE)
    return Check("GPUs", f"{num_gpus}, and one rank added two tensors on its own. {UNTRIED}")


def _sum_on_own_device() -> tuple[str, float]:
    total = torch.ones(()) + torch.full((), 2.0)
    return total.device.type, total.item()


def why_no_gpu() -> str:
    """Why ranks compute on the CPU, in words, where `count_gpus` says 0."""
    listed = listed_gpus()
    if not listed:
        return "ranks compute on the CPU"
    torch_is = f"this torch ({torch.__version__})"
    reason = f"{torch_is} finds none" if dist.is_nccl_available() else f"{torch_is} is built without CUDA"
    return f"nvidia-smi lists {', '.join(listed)}, but {reason}, so ranks compute on the CPU"


def listed_gpus() -> list[str]:
    """The names of NVIDIA's GPUs as their driver's own tool lists them, which needs no torch."""
    if shutil.which("nvidia-smi") is None:
        return []
    asked = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    found = subprocess.run(asked, capture_output=True, text=True, timeout=30)
    return found.stdout.strip().splitlines() if found.returncode == 0 else []


def _loopback() -> Check:
    with socket.create_server(("127.0.0.1", 0)) as server:
        with socket.create_connection(server.getsockname(), timeout=2) as client, server.accept()[0] as there:
            client.sendall(b"hello")
            said = there.recv(5)
    advice = "" if said == b"hello" else "ranks talk over 127.0.0.1: a firewall or VPN is in the way"
    return Check("loopback", f"127.0.0.1 answered {said!r}" if advice else "127.0.0.1 answers", advice)


def _files() -> Check:
    with tempfile.NamedTemporaryFile() as file:
        file.write(b"x")
    free_gb = psutil.disk_usage(tempfile.gettempdir()).free / 1e9
    advice = "" if free_gb > 1 else "less than 1 GB is free there: make room, or set TMPDIR to another folder"
    return Check("temporary files", f"{tempfile.gettempdir()}, {free_gb:.0f} GB free", advice)


def _widgets() -> Check:
    missing = [name for name in WIDGETS if not importlib.util.find_spec(name)]
    found = [f"{name} {importlib.metadata.version(name)}" for name in WIDGETS if name not in missing]
    return Check("widgets", ", ".join(found) or "none", f"pip install {' '.join(missing)}" if missing else "")


def _cores() -> Check:
    usable = context.count_cores()
    # One core works, slowly: not something to ask the reader to mend.
    return Check("cores", f"{usable} usable; four ranks {'share them' if usable < 4 else 'have one each'}")


def _memory() -> Check:
    free_gb = psutil.virtual_memory().available / 1e9
    advice = "" if free_gb > 2 else "four ranks want 2 GB: close something"
    return Check("memory", f"{free_gb:.1f} GB available", advice)


def _ranks() -> Check:
    if context.in_rank() or context.under_torchrun():
        return Check("ranks", "this is one")
    total = launch(_sum_of_ranks, world_size=2, backend="gloo", timeout=120)
    how = "forked" if isinstance(pool(), ForkPool) else "kept warm"
    advice = "" if total == [1, 1] else f"two ranks summed 0 + 1 and got {total}: the backend is broken"
    return Check("ranks", f"two ranks met and summed their ranks ({how})", advice)


def _sum_of_ranks() -> int:
    mine = torch.tensor(dist.get_rank())
    dist.all_reduce(mine)
    return int(mine)
