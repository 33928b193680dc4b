"""How long a submission takes and how much memory, said before grading begins.

What this folder's own last gradings took counts; before there are any, what a solved notebook took on the authors'
machine, two cores (figures.json, from what `make grade` keeps in .grading).
"""

import json
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import psutil

from course_lib.pictures.units import human_bytes, human_seconds

RECORDED = Path(__file__).with_suffix(".json")
FEW = 3  # fewer gradings than these say little


@dataclass(frozen=True)
class Cost:
    """Of one submission, graded beside others."""

    seconds: float
    peak_bytes: float  # of all its processes together, shared pages counted once
    source: str  # whose figures these are


def expected_cost(kept: list[dict], name: str) -> Cost | None:
    """From what was kept of submissions graded here, else the recorded figures; None where there are neither.

    kept: {"seconds", "peak_bytes"} of each.
    """
    if len(kept) >= FEW:
        return Cost(median(each["seconds"] for each in kept), max(each["peak_bytes"] for each in kept),
                    f"{len(kept)} graded here before")
    recorded = json.loads(RECORDED.read_text(encoding="utf-8")) if RECORDED.exists() else {}
    if name not in recorded:
        return None
    return Cost(recorded[name]["seconds"], recorded[name]["peak_bytes"], "a solved notebook on the authors' two cores")


def forecast(count: int, jobs: int, cost: Cost | None) -> str:
    """What grading will take, in a sentence. A hanging exercise adds its limit, which nobody can know beforehand."""
    many = f"{count} submission{'s' * (count != 1)} to grade, {jobs} at a time"
    if cost is None:
        return f"{many}; nothing is known yet of how long one takes"
    free = psutil.virtual_memory().available
    need = jobs * cost.peak_bytes
    warning = f"; only {human_bytes(free)} are free: take fewer JOBS" * (need > free)
    rounds = -(-count // jobs) if count else 0
    return (f"{many}: about {human_seconds(cost.seconds)} and {human_bytes(cost.peak_bytes)} each ({cost.source}), "
            f"{human_seconds(rounds * cost.seconds)} and {human_bytes(need)} in all, and 20 s for each exercise that "
            f"hangs{warning}")


def memory_of(pid: int) -> int:
    """Bytes of a process and all below it; a page that several share counts once, where the system says how many."""
    try:
        root = psutil.Process(pid)
        family = [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return 0
    return sum(own_memory(each) for each in family)


def own_memory(process: psutil.Process) -> int:
    """Bytes of one process: its share of shared pages, or all of them where the system does not say."""
    try:
        return process.memory_full_info().pss
    except (psutil.AccessDenied, AttributeError):
        pass
    except psutil.NoSuchProcess:
        return 0
    try:
        return process.memory_info().rss
    except psutil.Error:
        return 0
