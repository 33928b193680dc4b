"""A pytest plugin: notebooks, as tools.run_notebooks has executed them, are what is stored: strictly, cell by cell.

A test for each cell, one for the headlines of each cell that draws (tests/claims), and one that the notebook as it is
here was executed at all. Nothing runs here; with --nbval the notebooks are nbval's, which runs them itself.
"""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

TOLD = "headline about a time"


class Differs(Exception):
    """What was executed is not what is stored."""


class Compared(pytest.Item):
    """A question of which the answer, in words, is empty where all is well."""

    ask: Callable[[], str]

    def runtest(self) -> None:
        if words := self.ask():
            raise Differs(words)

    def repr_failure(self, excinfo: pytest.ExceptionInfo, style: str | None = None):
        return str(excinfo.value) if excinfo.errisinstance(Differs) else super().repr_failure(excinfo, style)

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
            item = self.item(f"Cell {count}", lambda: "")
            item.ask = partial(difference_of, label, cell, now, executed.metadata.executed.beside > 1, item)
            yield item
            if "executed" in now.metadata and not failure(now) and (headlines(cell.source) or claims(cell.outputs)):
                found = partial(faults, now.metadata.executed.headlines, cell.outputs)
                yield self.item(f"Cell {count}, contradicted", lambda found=found: "\n".join(found()))

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


def difference_of(label: str, stored, now, side_by_side: bool, item: Compared) -> str:
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
    if words := failure(now):
        return f"{now.source}\n\n{words}"
    words = difference(now.outputs, stored.outputs)
    if words and side_by_side and (label in ABOUT_TIMES or "took TIME" in sanitized("".join(map(said, now.outputs)))):
        if not difference([without(NOT_SEEN, output) for output in now.outputs], stored.outputs):
            item.user_properties.append((TOLD, f"{label} does not hold beside another notebook, which is not judged"))
            return ""
    return f"{now.source}\n\n{words}" if words else ""


def without(words: str, output):
    """`output` without `words` in its texts."""
    data = {mime: text.replace(words, "") if isinstance(text, str) else text
            for mime, text in output.get("data", {}).items()}
    return type(output)({**output, "data": data}) if data else output


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.File | None:
    if file_path.suffix == ".ipynb" and not parent.config.getoption("nbval", False):
        return ExecutedNotebook.from_parent(parent, path=file_path)
    return None


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--executed", default="build/executed", metavar="FOLDER", help="what tools.run_notebooks wrote")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for report in terminalreporter.getreports("passed"):
        for name, words in report.user_properties:
            if name == TOLD:
                terminalreporter.line(f"{name}: {words}")
