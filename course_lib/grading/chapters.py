"""Where exercises stand: a folder for each chapter, such as solutions/06_zero, found by its name and listed nowhere.

    on_rank.py       what runs beside the reader's function on a rank
    judge.py         the chapter's exercises: trials, right answers, budgets (judge_shards.py, ... where they are many)
    recorded.json    functions and points, hints, and mistakes with what they give: `make exercises` writes it

A copy that was handed out has no solutions/, and in examples/ as much of each folder as `check` needs there.

This module is a package, too: its __path__ is where the folders lie. So their files are modules like any other, also on
a rank to which an exercise is sent, and `load` is the only way to one: no statement can name `06_zero`.
"""

import importlib
import re
import sys
from functools import cache
from pathlib import Path
from types import ModuleType

import cloudpickle

HERE = Path(__file__).resolve().parent
PLACES = (HERE.parents[1] / "solutions", HERE / "examples")
NAME = re.compile(r"(\d\d)_\w+")

__path__ = [str(next((place for place in PLACES if place.is_dir()), PLACES[-1]))]


@cache
def folders() -> dict[int, Path]:
    """By its number, the folder of each chapter."""
    return {int(found[1]): path for path in sorted(Path(__path__[0]).glob("*/"))
            if (found := NAME.fullmatch(path.name))}


def load(chapter: int, name: str) -> ModuleType:
    """The file `name`.py in the folder of a chapter: load(6, "on_rank"). ModuleNotFoundError where there is none."""
    folder = folders()[chapter]
    module = importlib.import_module(f"{__name__}.{folder.name}.{name}")
    if folder.parent not in PLACES:  # where a rank would look for it
        cloudpickle.register_pickle_by_value(sys.modules[module.__package__])
    return module


def text_for_ranks(module: str) -> str | None:
    """The source of a chapter's on_rank.py, None for a module that ranks can import. ValueError for any other file of a
    chapter: it may hold answers.
    """
    if not module.startswith(f"{__name__}."):
        return None
    folder, _, name = module.removeprefix(f"{__name__}.").partition(".")
    if name != "on_rank":
        raise ValueError(f"a rank cannot get {folder}/{name}.py: what runs there stands in {folder}/on_rank.py")
    return Path(__path__[0], folder, "on_rank.py").read_text(encoding="utf-8")
