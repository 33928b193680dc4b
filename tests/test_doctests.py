"""Every `>>>` in a docstring of course_lib is run and prints what stands below it.

The files are found by reading them, so that collecting imports nothing. An example sees the names of its own module,
and needs no ranks.
"""

import doctest
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
WITH_EXAMPLES = {path: path.read_text(encoding="utf-8").count(">>> ") for path in (ROOT / "course_lib").rglob("*.py")}


@pytest.mark.parametrize("path", sorted(path for path, count in WITH_EXAMPLES.items() if count),
                         ids=lambda path: path.relative_to(ROOT / "course_lib").as_posix())
def test_every_example_of_a_module_prints_what_stands_below_it(path: Path, capsys) -> None:
    name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    failed, tried = doctest.testmod(import_module(name))
    assert not failed, capsys.readouterr().out
    assert tried == WITH_EXAMPLES[path], "an example stands where doctest does not look"
