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

HEAD = """\
# Facts, with their sources

Numbers of others that this course uses, {count} of them: each stands once in `course_lib.facts`, with its unit, its
source and the date of the source. A question mark says that nobody here had the source open: the number was written
down from memory, or from somebody who quotes it. What is often said and wrong stands in
[the documents, section by section](docs/documents.md).
"""
RUNS = """\
## Training runs

{count} training runs, each with all that the time of its step depends on; the planner is compared with them, and its
constants are fitted on those of the split *calibration* alone. All fields are in `course_lib/facts/published.json`.
"""


def page() -> str:
    """The whole page in MyST."""
    parts, count = [], 0
    for module in pkgutil.iter_modules(facts.__path__):
        found = importlib.import_module(f"course_lib.facts.{module.name}")
        written = re.findall(r"^([A-Z_0-9]+)(?::.*)? = ", inspect.getsource(found), re.MULTILINE)  # and not imported
        rows = [(what, fact) for name in written for what, fact in facts_in(getattr(found, name), (name,))]
        if rows:
            count += len(rows)
            first_line = (found.__doc__ or "").split("\n\n")[0].replace("\n", " ")
            parts.append("\n".join([f"## {module.name.replace('_', ' ').capitalize()}", "", first_line, "",
                                    table(["what", "value", "unit", "source", "date"],
                                          [[what, number(fact.value) + fact.doubt, fact.unit, fact.source, fact.date]
                                           for what, fact in rows])]))
    runs = published_rows()
    parts.append(RUNS.format(count=len(runs)) + "\n" + table(
        ["run", "devices", "split into", "metric", "value", "split", "source"],
        [[run["id"], f"{run['gpus']} x {run['hw']}", layout(run), run["metric"], number(run["value"]), run["split"],
          run["source"]] for run in runs]))
    return "\n\n".join([HEAD.format(count=f"{count:,}"), *parts]) + "\n"


def facts_in(value: Any, way: tuple[str, ...]) -> Iterator[tuple[str, Fact]]:
    """(what it is, in words, the fact) for each Fact in a constant, however deep."""
    if isinstance(value, Fact):
        yield ", ".join(way[1:]) or way[0].replace("_", " ").lower(), value
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from facts_in(getattr(value, field.name), (*way, field.name.replace("_", " ")))
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from facts_in(inner, (*way, plain(key)))
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


def plain(key: Any) -> str:
    if isinstance(key, tuple):
        return " ".join(map(plain, key))
    return f"{key:,}" if isinstance(key, int) else str(key)


def number(value: float) -> str:
    """As it was published, with no more digits than a float has for sure."""
    return f"{value:,}" if isinstance(value, int) and abs(value) < 1e15 else f"{value:.10g}"


def layout(run: dict[str, Any]) -> str:
    return ",".join(f"{axis}{run[axis]}" for axis in ("dp", "tp", "pp", "cp", "ep") if run.get(axis, 1) > 1) or "none"


def table(head: list[str], rows: list[list[Any]]) -> str:
    """A Markdown table whose cells may hold anything."""
    body = (line([escape(str(each)) for each in row]) for row in rows)
    return "\n".join([line(head), "|" + "---|" * len(head), *body])


def line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def escape(text: str) -> str:
    """Plain text as Markdown that shows it."""
    for sign in "\\`*_[]<|":
        text = text.replace(sign, f"\\{sign}")
    return text.replace("://", "&#58;//")
