"""Imports point down only: pyproject.toml's contracts, which `lint-imports` keeps, and what these cannot say."""

import ast
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("course_lib", "tools", "benchmarks", "tests")
# By file, a line that is added and the words that refuse it: a rule each.
WRONG = {
    "course_lib/runtime/launcher.py": ("def late():\n    from .. import zero", "runtime.launcher -> course_lib.zero"),
    "course_lib/zero/units.py": ("from ..data_parallel import fp16_hook", "zero.units -> course_lib.data_parallel"),
    "course_lib/reference/text.py": ("from ..runtime import span", "reference.text -> course_lib.runtime"),
    "course_lib/facts/models.py": ("from torch import nn", "facts.models -> torch"),
    "course_lib/show.py": ("import ipywidgets", "show -> ipywidgets"),
    "course_lib/groups/gradients.py": ("from tests import snapshots", "groups.gradients -> tests.snapshots"),
    "course_lib/__init__.py": ("from . import facts", "course_lib -> course_lib.facts"),
    "course_lib/nano3d.py": ("from course_lib import costs", "nano3d -> course_lib.costs"),
    "course_lib/grading/on_rank.py": ("from . import registry", "grading.on_rank -> course_lib.grading.registry"),
    "course_lib/grading/trusted/grader.py": ("from .. import kinds", "trusted.grader -> course_lib.grading.kinds"),
    "course_lib/costs/links.py": ("def late():\n    from . import network", "cycles are allowed in course_lib.costs"),
    "course_lib/quantum_parallel.py": ("import torch", "course_lib.quantum_parallel"),
    "tools/colab.py": ("from benchmarks import ranks", "tools.colab -> benchmarks.ranks"),
    "tools/harness/kernel.py": ("from tools import colab", "harness.kernel -> tools.colab"),
}


def lint(folder: Path) -> subprocess.CompletedProcess:
    """`lint-imports` on the tree in `folder`."""
    command = [Path(sys.executable).with_name("lint-imports"), "--no-cache", "--no-logo"]
    return subprocess.run(command, cwd=folder, env=os.environ | {"COLUMNS": "500"}, capture_output=True, text=True)


def test_every_import_keeps_the_contracts():
    found = lint(ROOT)
    assert found.returncode == 0, found.stdout


@pytest.mark.ci
def test_imports_that_point_up_or_around_and_a_module_without_a_place_are_refused(tmp_path):
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for path in (path for name in PACKAGES for path in (ROOT / name).rglob("*.py")):
        target = tmp_path / path.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target)
    for path, (lines, _) in WRONG.items():
        with (tmp_path / path).open("a", encoding="utf-8") as file:
            file.write(f"\n{lines}\n")
    said = lint(tmp_path).stdout
    assert [words for _, words in WRONG.values() if words not in said] == [], said


def test_what_is_imported_by_its_name_is_of_the_same_package():
    """lint-imports reads statements: import_module("...") could pass by every contract."""
    for path in (ROOT / "course_lib").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            called = isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", ""))
            if called in ("import_module", "__import__") and isinstance(node.args[0], ast.Constant):
                package = path.relative_to(ROOT / "course_lib").parts[0]
                assert not node.args[0].value.startswith(PACKAGES) or (
                    node.args[0].value.startswith(f"course_lib.{package}.")), f"{path}:{node.lineno}"


RANKS_MAY = re.compile(r"course_lib\.(runtime|reference|pictures|facts)\b.*|course_lib\.grading\.on_rank(\.\w+)?")
JUDGES_MAY_NOT = re.compile(r"\.\.|tools|tests|benchmarks|course_lib\.(train|nano3d|mine|widgets|show)\b"
                            r"|course_lib\.grading\.(trusted|marks|selfstudy|report|staying)\b")


def imports_in(path: Path) -> list[str]:
    """All that a file imports, `from a import b` as a.b."""
    nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    return [*(alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names),
            *("." * node.level + ".".join(filter(None, (node.module, alias.name))) for node in nodes
              if isinstance(node, ast.ImportFrom) for alias in node.names)]


def test_what_an_exercise_runs_on_a_rank_imports_what_a_rank_sees_and_its_judge_nothing_above_it():
    """The files in solutions/ are no package that lint-imports could read."""
    on_rank, judges = (sorted(ROOT.glob(f"solutions/*/{name}.py")) for name in ("on_rank", "judge*"))
    assert len(on_rank) > 7 and len(judges) > 15
    for path in on_rank:
        own = [name for name in imports_in(path) if name.startswith((".", "importlib", *PACKAGES))]
        assert [name for name in own if not RANKS_MAY.fullmatch(name)] == [], path
        assert "__import__" not in path.read_text(encoding="utf-8")
    for path in judges:
        assert [name for name in imports_in(path) if JUDGES_MAY_NOT.match(name)] == [], path
