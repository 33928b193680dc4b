"""Where the times of a table come from: the machine, the versions of what was timed, and how busy the machine was."""

import datetime
import os
import platform
from importlib import metadata

import psutil
import torch

from course_lib.runtime.backends import count_gpus, gpu_kind

QUIET = 1.0  # load before
TIMED = ("torch", "accelerate", "deepspeed", "ipywidgets")


def processor() -> str:
    """Its name where Linux or Python knows one, otherwise its kind: x86_64, arm64."""
    try:
        with open("/proc/cpuinfo") as lines:
            names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    except OSError:
        names = []
    return next(iter(names), platform.processor()) or platform.machine()


def gpus() -> str:
    """How many and which one, as a part of the line; nothing where there is none."""
    kind, num_gpus = gpu_kind(), count_gpus()
    return f", {num_gpus} x {torch.get_device_module(kind).get_device_name(0)}" if num_gpus else ""


def versions() -> str:
    found = [f"Python {platform.python_version()}"]
    for name in TIMED:
        try:
            found.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            found.append(f"no {name}")
    return ", ".join(found)


def load() -> float:
    """Processes that ran or waited for a core, the mean of the last minute."""
    return psutil.getloadavg()[0]


def footer(load_before: float) -> str:
    """Four lines to stand below a table of times."""
    busy = ": others were at work, a draft" if load_before > QUIET else ""
    memory_gib = psutil.virtual_memory().total / 2**30
    return (f"machine   {processor()}, {os.cpu_count()} cores, {memory_gib:.0f} GiB{gpus()}, "
            f"{platform.system()} {platform.release()}\n"
            f"versions  {versions()}\n"
            f"load      {load_before:.2f} before, {load():.2f} after (mean of a minute){busy}\n"
            f"date      {datetime.date.today()}")
