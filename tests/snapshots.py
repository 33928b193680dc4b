"""A pytest plugin: sentences that a reader is told stand in one file per package, which is read as text in a review.

    def test_an_odd_split_is_refused(snapshot):
        with pytest.raises(ValueError) as refused:
            cut(7, parts=2)
        assert str(refused.value) == snapshot

compares with tests/PACKAGE/sentences.txt. `pytest tests/PACKAGE --update-sentences` writes what whole files say now;
whoever changes a sentence reads the difference there. Numbers that decide belong into the test, beside it.
"""

import re
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
KEY = re.compile(r"^## (test_\S+\.py .+)$\n", re.MULTILINE)
said_now: dict[Path, dict[str, str]] = {}  # of this run, with --update-sentences


@cache
def stored(file: Path) -> dict[str, str]:
    """Sentences by test, in the order of the file."""
    _, *parts = KEY.split(file.read_text(encoding="utf-8") if file.exists() else "")
    return {key: text.rstrip("\n") for key, text in zip(parts[::2], parts[1::2])}


class Sentences:
    """Equals the text that is stored for its test: the first, the second ... that it is compared with."""

    def __init__(self, item: pytest.Item) -> None:
        self.file = TESTS.joinpath(*item.path.parent.relative_to(TESTS).parts[:1], "sentences.txt")
        self.name, self.number = f"{item.path.name} {item.name}", 0
        self.updates, self.expected = item.config.getoption("--update-sentences"), "nothing was compared yet"

    def __eq__(self, said: object) -> bool:
        self.number += 1
        key = self.name + (f" ({self.number})" if self.number > 1 else "")
        text = str(said).rstrip("\n")
        if self.updates:
            said_now.setdefault(self.file, {})[key] = text
            return True
        self.expected = stored(self.file).get(key, f"no {key!r} in {self.file}: run with --update-sentences")
        return text == self.expected

    def __repr__(self) -> str:
        return repr(self.expected)


@pytest.fixture
def snapshot(request: pytest.FixtureRequest) -> Sentences:
    return Sentences(request.node)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-sentences", action="store_true", help="write tests/PACKAGE/sentences.txt")


def pytest_sessionfinish() -> None:
    for file, new in said_now.items():
        ran = {key.split()[0] for key in new}
        kept = {key: text for key, text in stored(file).items() if key.split()[0] not in ran}
        file.write_text("\n".join(f"## {key}\n{text}\n" for key, text in sorted((kept | new).items())),
                        encoding="utf-8")
