"""A pytest plugin: notebooks, as tools.run_notebooks has executed them, are what is stored: strictly, cell by cell.

A test for each cell, one for the headlines of each cell that draws (tests/claims), and one that the notebook as it is
here was executed at all. Nothing runs here; with --nbval the notebooks are nbval's, which runs them itself.
"""

import json
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest


class Compared(pytest.Item):
    """A question of which the answer, in words, is empty where all is well."""

    ask: Callable[[], str]

    def runtest(self) -> None:
        if words := self.ask():
            pytest.fail(words, pytrace=False)

    def reportinfo(self) -> tuple[Path, int, str]:
        return self.path, 0, f"{self.path.name}::{self.name}"


class ExecutedNotebook(pytest.File):
    def collect(self) -> Iterator[Compared]:
        import nbformat  # here and below: each costs a second, and most runs of pytest compare no notebook

        from tests.claims.cell import headlines
        from tests.claims.compare import claims, faults
        from tools.run_notebooks import failure

        file = Path(self.config.getoption("executed"), self.path.name)
        stored = nbformat.read(self.path, as_version=4)
        executed = nbformat.read(file, as_version=4) if file.exists() else None
        yield self.item("executed", partial(not_executed, stored, executed, f"make executed NB={self.nodeid}"))
        if executed is None or sources(executed) != sources(stored):
            return
        pairs = [(f"{self.path.name[:2]}[{number}]", *pair)
                 for number, pair in enumerate(zip(stored.cells, executed.cells)) if pair[0].cell_type == "code"]
        for count, (label, cell, now) in enumerate(pairs):
            yield self.item(f"Cell {count}", partial(
                difference_of, label, cell, now, executed.metadata.executed.beside > 1))
            if "executed" in now.metadata and not failure(now) and (headlines(cell.source) or claims(cell.outputs)):
                yield self.item(f"Cell {count}, contradicted", partial(
                    faults, now.metadata.executed.headlines, cell.outputs))

    def item(self, name: str, ask: Callable[[], str]) -> Compared:
        item = Compared.from_parent(self, name=name)
        item.ask = ask
        return item


def sources(notebook) -> list[str]:
    return [cell.source for cell in notebook.cells]


def not_executed(stored, executed, how: str) -> str:
    """Why there is nothing to compare with."""
    from tools.run_notebooks import digest

    if executed is None or sources(executed) != sources(stored):
        return f"not executed as it is here: {how}"
    if executed.metadata.executed.digest != digest():
        return f"executed before course_lib became what it is here: {how}"
    return executed.metadata.executed.died


def difference_of(label: str, stored, now, side_by_side: bool) -> str:
    """Of a cell's outputs, or the error that ended it. Side by side a headline about a time may give way: one that says
    the time, or that ABOUT_TIMES names.
    """
    from course_lib.pictures.drawn import NOT_SEEN
    from tools.cells import ABOUT_TIMES
    from tools.harness.outputs import difference, said, sanitized
    from tools.run_notebooks import failure

    if stored.execution_count is None:  # Colab's
        return ""
    if "executed" not in now.metadata:
        return "did not run: the kernel had ended"
    words = failure(now) or difference(now.outputs, stored.outputs)
    timed = label in ABOUT_TIMES or "took TIME" in sanitized("".join(map(said, now.outputs)))
    if words and side_by_side and timed:
        seen = [type(each)(json.loads(json.dumps(each).replace(NOT_SEEN, ""))) for each in now.outputs]
        if not difference(seen, stored.outputs):
            warnings.warn(f"{label}: a headline about a time does not hold side by side: not judged", stacklevel=1)
            return ""
    return f"{now.source}\n\n{words}" if words else ""


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.File | None:
    is_ours = file_path.suffix == ".ipynb" and not parent.config.getoption("nbval", False)
    return ExecutedNotebook.from_parent(parent, path=file_path) if is_ours else None


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--executed", default="build/executed", metavar="FOLDER", help="what tools.run_notebooks wrote")
