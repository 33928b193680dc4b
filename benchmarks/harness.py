"""Time two ways to do the same work, turn by turn, so that a busy machine slows both alike.

A turn of a side has two times. The clock's depends on who else wants the cores. CPU seconds, user and system, depend on
the work: where ranks outnumber cores, the sum of them is what a step lasts on a quiet machine.
"""

import importlib
import json
import math
import os
import pkgutil
import resource
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import NamedTuple


class Seconds(NamedTuple):
    """Of one side in one turn. cpu: a rank's, the mean of all ranks; None where nobody has counted."""

    clock: float
    cpu: float | None = None


# Does the work once. Returns None, or the seconds it measured itself where that has to be done elsewhere.
Work = Callable[[], Seconds | float | None]
Both = Callable[[], Sequence[Seconds]]  # times ours and theirs in the same launch
Maker = Callable[[], tuple[Work, Work] | Both]  # prepares once, outside the timing
SIDES = OURS, THEIRS = "ours", "theirs"
PREPARATION = "preparation"  # what fails before either side has begun
EVENTS = "COURSE_LIB_BENCHMARK_EVENTS"  # names the file in which the command reads how far its child is


@dataclass(frozen=True)
class Goal:
    """What a row is to reach. of: "cpu_ratio", "ratio" (of the clock) or "ours_s"; at_most None: to compare with."""

    at_most: float | None
    of: str = "cpu_ratio"

    def met(self, result: "Result") -> bool | None:
        """As the table shows it, with two digits of a ratio. None where it was not measured, or nothing is asked."""
        found = getattr(result, self.of)
        if found is None or self.at_most is None:
            return None
        return round(found, 3 if self.of == "ours_s" else 2) <= self.at_most


@dataclass(frozen=True)
class Benchmark:
    name: str
    make: Maker
    runs: int
    goal: Goal | None = None


@dataclass(frozen=True)
class Failure:
    side: str  # one of SIDES, or PREPARATION
    what: str

    def __str__(self) -> str:
        return f"{self.side} {self.what}"


@dataclass(frozen=True)
class Result:
    """Seconds of (ours, theirs) in each timed turn. What is derived is None without a turn, or where nobody counted."""

    name: str
    turns: Sequence[Sequence[Seconds]]
    failure: Failure | None = None

    def median_s(self, side: int, of: str) -> float | None:
        """of: "clock" or "cpu"."""
        seconds = [getattr(turn[side], of) for turn in self.turns]
        return statistics.median(seconds) if seconds and None not in seconds else None

    def spread(self, of: str) -> tuple[float, float] | None:
        """The least and the largest of the turns' own ratios: the ratio of the medians lies between them."""
        pairs = [(getattr(ours, of), getattr(theirs, of)) for ours, theirs in self.turns]
        if not pairs or not all(theirs and ours is not None for ours, theirs in pairs):
            return None
        return min(ours / theirs for ours, theirs in pairs), max(ours / theirs for ours, theirs in pairs)

    def _ratio(self, of: str) -> float | None:
        ours, theirs = self.median_s(0, of), self.median_s(1, of)
        return ours / theirs if theirs and ours is not None else None

    ours_s = property(lambda self: self.median_s(0, "clock"))
    theirs_s = property(lambda self: self.median_s(1, "clock"))
    ratio = property(lambda self: self._ratio("clock"))
    ours_cpu_s = property(lambda self: self.median_s(0, "cpu"))
    theirs_cpu_s = property(lambda self: self.median_s(1, "cpu"))
    cpu_ratio = property(lambda self: self._ratio("cpu"))
    runs = property(lambda self: len(self.turns))

    def as_json(self) -> dict[str, object]:
        names = "name", "ours_s", "theirs_s", "ratio", "ours_cpu_s", "theirs_cpu_s", "cpu_ratio", "runs"
        row = {name: getattr(self, name) for name in names}
        row |= {"spread": self.spread("clock"), "cpu_spread": self.spread("cpu")}
        return row | ({"failed": str(self.failure)} if self.failure else {})


REGISTERED: dict[str, Benchmark] = {}


def benchmark(runs: int = 5, goal: Goal | None = None) -> Callable[[Maker], Maker]:
    """Register the decorated function, which returns the two ways to do the work, under its own name.

    Raises ValueError for fewer than one run, or for a name that another module has registered.
    """
    if runs < 1:
        raise ValueError(f"a benchmark needs at least 1 run, given runs={runs}")

    def register(make: Maker) -> Maker:
        known = REGISTERED.get(make.__name__)
        if known and known.make.__module__ != make.__module__:
            modules = f"{known.make.__module__} and {make.__module__}"
            raise ValueError(f"{modules} both name a benchmark {make.__name__!r}")
        REGISTERED[make.__name__] = Benchmark(make.__name__, make, runs, goal)
        return make

    return register


def discover(package: ModuleType) -> dict[str, Benchmark]:
    """Import every module of `package`, and return what is registered then, by name."""
    for module in pkgutil.iter_modules(package.__path__):
        if module.name != "__main__":
            importlib.import_module(f"{package.__name__}.{module.name}")
    return REGISTERED


def choose(names: Iterable[str], known: dict[str, Benchmark]) -> list[Benchmark]:
    """The named benchmarks, all by module when no name is given. Raises ValueError for a name that is not `known`."""
    unknown = [name for name in names if name not in known]
    if unknown:
        there_are = ", ".join(sorted(known)) or "none"
        raise ValueError(f"no benchmark is called {', '.join(unknown)}; there are: {there_are}")
    everything = sorted(known, key=lambda name: (known[name].make.__module__, name))
    return [known[name] for name in names or everything]


def tell(kind: str, *values: str | float) -> None:
    """Append a line to the file of events, where the command that started this process has asked for one."""
    if EVENTS in os.environ:
        with open(os.environ[EVENTS], "a", encoding="utf-8") as events:
            events.write(json.dumps([kind, *values]) + "\n")


def store(rows: Sequence[dict], path: Path) -> None:
    """All rows so far as JSON, whole at every moment."""
    part = path.with_name(path.name + ".part")
    part.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    os.replace(part, path)


def cpu_seconds() -> float:
    """User and system time of this process until now, of all its threads and of the children it has waited for."""
    used = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return sum(each.ru_utime + each.ru_stime for each in used)


def seconds(work: Work) -> Seconds:
    """Do the work once and say how long it took. Raises ValueError when what it reports is no time."""
    started, cpu_before = time.perf_counter(), cpu_seconds()
    own = work()
    if own is None:
        return Seconds(time.perf_counter() - started, cpu_seconds() - cpu_before)
    took = own if isinstance(own, Seconds) else Seconds(own)
    if not (math.isfinite(took.clock) and took.clock > 0):
        raise ValueError(f"a benchmark returns None or the positive seconds it measured, given {own!r}")
    return took


def turns(chosen: Benchmark) -> Iterator[Sequence[Seconds]]:
    """Seconds of (ours, theirs) in each of its timed turns, after one untimed turn."""
    tell("side", PREPARATION)
    made = chosen.make()
    for turn in range(chosen.runs + 1):
        tell("side", PREPARATION)  # a launch that times both says itself which is running (benchmarks/ranks.py)
        took = made() if callable(made) else _turn(made, order=(1, 0) if turn and turn % 2 == 0 else (0, 1))
        if turn:
            yield took


def _turn(works: tuple[Work, Work], order: tuple[int, int]) -> list[Seconds]:
    took = [Seconds(0.0)] * 2
    for side in order:
        tell("side", SIDES[side])
        took[side] = seconds(works[side])
    return took
