"""Time two ways to do the same work, turn by turn, so that a busy machine slows both alike."""

import importlib
import json
import math
import os
import pkgutil
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

# Does the work once. Returns None, or the seconds it measured itself where the ranks time it.
Work = Callable[[], float | None]
Both = Callable[[], Sequence[float]]  # times ours and theirs in the same launch
Maker = Callable[[], tuple[Work, Work] | Both]  # prepares once, outside the timing
SIDES = OURS, THEIRS = "ours", "theirs"
PREPARATION = "preparation"  # what fails before either side has begun
EVENTS = "COURSE_LIB_BENCHMARK_EVENTS"  # names the file in which the command reads how far its child is


@dataclass(frozen=True)
class Benchmark:
    name: str
    make: Maker
    runs: int


@dataclass(frozen=True)
class Failure:
    side: str  # one of SIDES, or PREPARATION
    what: str

    def __str__(self) -> str:
        return f"{self.side} {self.what}"


@dataclass(frozen=True)
class Result:
    """Median seconds of each side over `runs` timed turns; None where there was no turn before the failure."""

    name: str
    ours_s: float | None
    theirs_s: float | None
    runs: int
    failure: Failure | None = None

    @classmethod
    def of(cls, name: str, turns: Sequence[Sequence[float]], failure: Failure | None = None) -> "Result":
        """From the seconds of (ours, theirs) in every turn."""
        ours_s, theirs_s = map(statistics.median, zip(*turns)) if turns else (None, None)
        return cls(name, ours_s, theirs_s, len(turns), failure)

    @property
    def ratio(self) -> float | None:
        return self.ours_s / self.theirs_s if self.runs else None

    def as_json(self) -> dict[str, str | float | None]:
        row = {"name": self.name, "ours_s": self.ours_s, "theirs_s": self.theirs_s, "ratio": self.ratio,
               "runs": self.runs}
        return row | ({"failed": str(self.failure)} if self.failure else {})


REGISTERED: dict[str, Benchmark] = {}


def benchmark(runs: int = 5) -> Callable[[Maker], Maker]:
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
        REGISTERED[make.__name__] = Benchmark(make.__name__, make, runs)
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


def seconds(work: Work) -> float:
    """Do the work once and say how long it took. Raises ValueError when what it reports is no time."""
    started = time.perf_counter()
    own = work()
    elapsed = time.perf_counter() - started if own is None else own
    if not (math.isfinite(elapsed) and elapsed > 0):
        raise ValueError(f"a benchmark returns None or the positive seconds it measured, given {own!r}")
    return elapsed


def turns(chosen: Benchmark) -> Iterator[Sequence[float]]:
    """Seconds of (ours, theirs) in each of its timed turns, after one untimed turn."""
    tell("side", PREPARATION)
    made = chosen.make()
    for turn in range(chosen.runs + 1):
        tell("side", PREPARATION)  # a launch that times both says itself which is running (benchmarks/ranks.py)
        took = made() if callable(made) else _turn(made, order=(1, 0) if turn and turn % 2 == 0 else (0, 1))
        if turn:
            yield took


def _turn(works: tuple[Work, Work], order: tuple[int, int]) -> list[float]:
    took = [0.0, 0.0]
    for side in order:
        tell("side", SIDES[side])
        took[side] = seconds(works[side])
    return took
