"""Environment variables, working folder and import path: a rank takes over the notebook's, as the launch finds them."""

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

    def summary(self) -> str:
        """One line for a trace, without the values of environment variables."""
        return f"working folder {self.cwd}, {len(self.env)} environment variables"  # whose values may be secrets


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
