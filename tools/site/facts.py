"""The page of facts: every number of course_lib.facts, with its unit, its source and its date."""

import dataclasses
import importlib
import inspect
import pkgutil
import re
from collections.abc import Iterator
from typing import Any

from course_lib import facts
from course_lib.facts import Fact, published_rows
from tools.pages import TEMPLATES, rendered


def page() -> str:
    """The whole page in MyST."""
    modules = []
    for module in pkgutil.iter_modules(facts.__path__):
        found = importlib.import_module(f"course_lib.facts.{module.name}")
        written = re.findall(r"^([A-Z_0-9]+)(?::.*)? = ", inspect.getsource(found), re.MULTILINE)  # and not imported
        if rows := [each for name in written for each in facts_in(getattr(found, name), (name,))]:
            words = (found.__doc__ or "").split("\n\n")[0].replace("\n", " ")
            modules.append((module.name.replace("_", " ").capitalize(), words, rows))
    return rendered("facts.md", modules=modules, count=sum(len(rows) for *_, rows in modules), runs=published_rows())


def facts_in(value: Any, way: tuple[str, ...]) -> Iterator[tuple[str, Fact]]:
    """(what it is, in words, the fact) for each Fact in a constant, however deep."""
    if isinstance(value, Fact):
        yield ", ".join(way[1:]) or way[0].replace("_", " ").lower(), value
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from facts_in(getattr(value, field.name), (*way, field.name.replace("_", " ")))
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from facts_in(inner, (*way, key_words(key)))
    elif isinstance(value, (list, tuple)):
        for inner in value:
            yield from facts_in(inner, (*way, label(inner)))


def label(value: Any) -> str:
    """What tells one thing of a list from the next: its name, or its texts and numbers."""
    if isinstance(value, Fact) or not dataclasses.is_dataclass(value):
        return value.unit if isinstance(value, Fact) else ""
    if hasattr(value, "name"):
        return value.name
    plain_fields = (getattr(value, field.name) for field in dataclasses.fields(value))
    return " ".join(str(each) for each in plain_fields if isinstance(each, (str, int)) and each != "")


def key_words(key: Any) -> str:
    if isinstance(key, tuple):
        return " ".join(map(key_words, key))
    return f"{key:,}" if isinstance(key, int) else str(key)


def number(value: float) -> str:
    """As it was published, with no more digits than a float has for sure."""
    return f"{value:,}" if isinstance(value, int) and abs(value) < 1e15 else f"{value:.10g}"


def layout(run: dict[str, Any]) -> str:
    return ",".join(f"{axis}{run[axis]}" for axis in ("dp", "tp", "pp", "cp", "ep") if run.get(axis, 1) > 1) or "none"


def plain(text: str) -> str:
    """Plain text as Markdown that shows it."""
    for sign in "\\`*_[]<|":
        text = text.replace(sign, f"\\{sign}")
    return text.replace("://", "&#58;//")


TEMPLATES.filters |= {"plain": plain, "number": number, "layout": layout}
