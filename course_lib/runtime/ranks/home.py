"""Environment variables, working folder and import path: a rank takes over the notebook's, as the launch finds them.

And what a process imports ahead of the ranks it will become: libraries, and of the course this package, which must be
the notebook's own version. The chapters' modules follow as ranks turn out to need them, and go again when a file of
theirs is edited. The reader's own are never imported ahead.
"""

import os
import sys
import types
from dataclasses import dataclass
from pathlib import Path

from course_lib.runtime import context

PROJECT = str(Path(__file__).resolve().parents[3])  # the folder that holds course_lib


@dataclass(frozen=True)
class Home:
    """All that a process needs to be at home where the notebook is."""

    env: dict[str, str]
    cwd: str
    path: list[str]


def describe(env: dict[str, str], mark: str) -> Home:
    """In the notebook's process: what to share. `env` goes on top; `mark` tells ranks and what they start apart."""
    path = [entry or os.getcwd() for entry in sys.path]
    return Home({**os.environ, **env, context.RANK_MARK: mark}, os.getcwd(),
                path if PROJECT in path else [*path, PROJECT])


def adopt(home: Home) -> None:
    """In the rank: make it so. `__main__` is empty, since names of a notebook or script arrive with the function."""
    os.environ.clear()
    os.environ.update(home.env)
    os.chdir(home.cwd)
    sys.path[:] = home.path
    sys.argv[:] = [""]
    sys.modules["__main__"] = types.ModuleType("__main__")


# The first SERVES_AFTER are what no rank can do without. The others are what torch would otherwise import lazily,
# seconds long, in every rank that builds an optimiser or wraps a model.
PRELOAD = (
    "torch", "cloudpickle", "psutil", "course_lib.runtime.ranks.rank", "numpy", "sympy", "torch.fx", "torch.optim",
    "torch._dynamo", "torch.nn.parallel", "torch.distributed.device_mesh", "torch.distributed.tensor",
    "torch.distributed.tensor.parallel", "torch.distributed.fsdp", "torch.distributed.pipelining",
    "torch.distributed.optim", "torch.distributed.checkpoint", "torch.utils.data", "torch.utils.checkpoint", "tqdm",
)
SERVES_AFTER = 4


class CourseModules:
    """The course's modules that ranks had to import by themselves: the server has them ready for the next launch.

    A rank of chapter 9 imports 170 modules, 0.7 s with four ranks on two cores, where all else of a launch takes 0.07.
    """

    def __init__(self, folder: str) -> None:
        self._told = Path(folder, "imported")
        self._kept = set(_course_modules())  # what the server itself runs on
        self._files: dict[str, tuple[int, int] | None] = {}  # of each module imported ahead, as its file was then

    def leave_imports(self) -> None:
        """In a rank that ends: leave word of what it had to import."""
        if names := [name for name in _course_modules() if name not in self._kept and name not in self._files]:
            self._told.write_text("\n".join(names), encoding="utf-8")

    def take_imports(self) -> list[str]:
        """In the server, between launches: what the last launch's first rank had to import, once."""
        try:
            names = self._told.read_text(encoding="utf-8").splitlines()
            self._told.unlink()
        except (OSError, ValueError):  # it had all, or died while it wrote
            return []
        return [name for name in names if name.startswith("course_lib.") and name not in sys.modules]

    def remember(self) -> None:
        """After an import ahead: the state of the files that it read."""
        for name in _course_modules():
            if name not in self._kept and name not in self._files:
                self._files[name] = _state_of(sys.modules[name])

    def forget_stale_modules(self) -> list[str]:
        """Before a launch: if any file is another now, no module imported ahead is left. The names of those that were.

        All of them, since a module holds what it has imported from others.
        """
        if all(_state_of(sys.modules.get(name)) == state for name, state in self._files.items()):
            return []
        forgotten = list(self._files)
        for name in forgotten:
            module = sys.modules.pop(name, None)
            package, _, own_name = name.rpartition(".")
            if getattr(sys.modules.get(package), own_name, None) is module:  # what `from package import module` finds
                delattr(sys.modules[package], own_name)
        self._files.clear()
        return forgotten


def _course_modules() -> list[str]:
    return [name for name in sys.modules if name.startswith("course_lib.")]


def _state_of(module: object) -> tuple[int, int] | None:
    """When the module's file was last changed, and its size: what Python itself goes by. None without a file."""
    try:
        found = os.stat(module.__file__)
    except (AttributeError, TypeError, OSError):
        return None
    return found.st_mtime_ns, found.st_size
