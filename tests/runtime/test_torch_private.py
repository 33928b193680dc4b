"""What torch keeps to itself is used in one file, and all of it is in the torch that is installed."""

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import course_lib
from course_lib.runtime import torch_private

COURSE = Path(course_lib.__file__).parent


def find(name: str) -> Any:
    """The object of this dotted name; AttributeError where torch has none."""
    parts = name.split(".")
    found = importlib.import_module(parts[0])
    for number, part in enumerate(parts[1:], start=2):
        try:
            found = getattr(found, part)
        except AttributeError:
            try:
                found = importlib.import_module(".".join(parts[:number]))
            except ModuleNotFoundError:
                raise AttributeError(name) from None
    return found


def missing(name: str, needed_by: str) -> str | None:
    """The sentence for whoever brings the course to this torch; None where the name is there."""
    try:
        find(name)
    except AttributeError:
        return (f"torch {torch.__version__} has no {name}. It is needed by {needed_by}: look for what has taken its "
                "place, and change course_lib/runtime/torch_private.py")
    return None


@pytest.mark.parametrize("name", torch_private.NAMES)
def test_torch_still_has_the_private_name(name):
    if name.endswith("_dump_fr_trace") and torch.__version__ < "2.9":
        pytest.skip("an older torch records under NCCL alone")
    sentence = missing(name, torch_private.NAMES[name])
    assert sentence is None, sentence


def test_a_name_that_is_gone_is_told_with_torch_s_version_and_who_needs_it():
    sentence = missing("torch._C._gone_by_now", "record_memory")
    assert sentence.startswith(f"torch {torch.__version__} has no torch._C._gone_by_now. It is needed by record_memory")


def private_names(source: str) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of what `source` uses of torch by names with an underscore in front of a part."""
    tree = ast.parse(source)
    means = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            named = [(node, alias.name, alias.asname or alias.name.split(".")[0],
                      alias.name if alias.asname else alias.name.split(".")[0]) for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            named = [(node, f"{node.module}.{alias.name}", alias.asname or alias.name, f"{node.module}.{alias.name}")
                     for alias in node.names]
        else:
            continue
        for where, whole, local, meaning in named:
            means[local] = meaning
            if is_private(whole):
                yield where.lineno, whole
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and (name := dotted_name(node, means)) and is_private(name):
            yield node.lineno, name


def dotted_name(node: ast.expr, means: dict[str, str]) -> str:
    """torch.autograd.Variable.x for `Variable.x`; empty for what is no chain of imported names."""
    if isinstance(node, ast.Name):
        return means.get(node.id, "")
    base = dotted_name(node.value, means) if isinstance(node, ast.Attribute) else ""
    return f"{base}.{node.attr}" if base else ""


def is_private(name: str) -> bool:
    top, *rest = name.split(".")
    return top == "torch" and any(part.startswith("_") and not part.startswith("__") for part in rest)


def test_no_other_file_uses_what_torch_keeps_to_itself():
    found = [f"{path.relative_to(COURSE.parent)}:{line} uses {name}: take it from course_lib/runtime/torch_private.py"
             for path in sorted(COURSE.rglob("*.py")) if path.name != "torch_private.py"
             for line, name in private_names(path.read_text(encoding="utf-8"))]
    assert found == []


def test_every_private_name_of_the_file_is_in_its_table():
    path = COURSE / "runtime" / "torch_private.py"
    used = {name for _, name in private_names(path.read_text(encoding="utf-8"))}
    whole = {name for name in used if not any(other.startswith(name + ".") for other in used)}
    assert {name for name in whole if not any(name.startswith(known) for known in torch_private.NAMES)} == set()


@pytest.mark.parametrize("source", ["import torch\ntorch._C.x()", "from torch.utils import _pytree",
                                    "from torch.utils._pytree import tree_map",
                                    "import torch.distributed.distributed_c10d as c\nc._x = 1",
                                    "from torch.autograd import Variable as V\nV._execution_engine"])
def test_a_private_name_is_found_however_it_is_spelled(source):
    assert list(private_names(source))


@pytest.mark.parametrize("source", ["import torch\ntorch.ones(2)._version", "from torch import nn\nnn.Linear.__init__",
                                    "import torch.nn as nn\nself._x"])
def test_what_is_no_name_of_torch_is_left_alone(source):
    assert not list(private_names(source))
