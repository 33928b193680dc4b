"""Time two ways to do the same work, turn by turn, so that a busy machine slows both alike."""

import importlib
import math
import pkgutil
import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import ModuleType

# Does the work once. Returns None, or the seconds it measured itself where the ranks time it.
Work = Callable[[], float | None]
Maker = Callable[[], tuple[Work, Work]]  # prepares once, outside the timing, and returns (ours, theirs)


@dataclass(frozen=True)
class Benchmark:
    name: str
    make: Maker
    runs: int


@dataclass(frozen=True)
class Result:
    """Median seconds of each side over `runs` timed turns."""

    name: str
    ours_s: float
    theirs_s: float
    ratio: float
    runs: int


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
    """The named benchmarks, all when no name is given. Raises ValueError for a name that is not `known`."""
    unknown = [name for name in names if name not in known]
    if unknown:
        there_are = ", ".join(sorted(known)) or "none"
        raise ValueError(f"no benchmark is called {', '.join(unknown)}; there are: {there_are}")
    return [known[name] for name in names or sorted(known)]


def seconds(work: Work) -> float:
    """Do the work once and say how long it took. Raises ValueError when what it reports is no time."""
    started = time.perf_counter()
    own = work()
    elapsed = time.perf_counter() - started if own is None else own
    if not (math.isfinite(elapsed) and elapsed > 0):
        raise ValueError(f"a benchmark returns None or the positive seconds it measured, given {own!r}")
    return elapsed


def measure(chosen: Benchmark) -> Result:
    """Time ours and theirs in turn, `runs` times, after one untimed turn each."""
    sides = chosen.make()
    for work in sides:
        work()
    times: tuple[list[float], list[float]] = ([], [])
    for turn in range(chosen.runs):
        for side in (0, 1) if turn % 2 == 0 else (1, 0):
            times[side].append(seconds(sides[side]))
    ours_s, theirs_s = (statistics.median(of_side) for of_side in times)
    return Result(chosen.name, ours_s, theirs_s, ours_s / theirs_s, chosen.runs)
