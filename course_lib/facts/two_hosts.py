"""Times over a slow cable between two hosts, as the authors' machine measured them.

Notebooks measure them anew. Where a machine allows no namespaces, they draw these, and say that they are recorded.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class RecordedTimes:
    """`seconds` in the order in which the notebook measures them, of one run. `date` is the day of that run."""

    seconds: tuple[float, ...]
    machine: str
    date: str

    def __str__(self) -> str:
        return f"recorded on the authors' machine: {self.machine}, {self.date}"


MACHINE = "Linux, two cores, a cable of 100 Mbit/s between two namespaces"

# An MLP forward and backward for 64, 128, 256 and 512 tokens: cut over two ranks of one host, then of two hosts.
CUT_MLP_TIMES = RecordedTimes((0.0047, 0.0067, 0.0113, 0.0194, 0.0131, 0.0251, 0.0518, 0.1040), MACHINE, "2026-11-22")
# A training step of 8 and of 32 rows with dp=2, tp=2: dp across the cable, then tp across it.
TWO_HOST_STEP_TIMES = RecordedTimes((0.0931, 0.1174, 0.1322, 0.4913), MACHINE, "2026-11-23")
