"""Published training runs, each with all that the time of its step depends on, and its source.

A row is a plain dict; `fields` of published.json says what its keys mean, and which defaults they have. The split says
what a row may be used for: "calibration" to fit constants on, "visible" to look at and to compare with, never to fit.
"""

import json
from functools import lru_cache
from importlib.resources import files
from typing import Any


@lru_cache(maxsize=1)
def published_file() -> dict[str, Any]:
    """The content of published.json."""
    return json.loads(files("course_lib.facts").joinpath("published.json").read_text(encoding="utf-8"))


def published_rows(split: str | None = None, group: str | None = None) -> list[dict[str, Any]]:
    """All rows, or those of one split or one group. ValueError for a split or a group that there is not."""
    rows = published_file()["rows"]
    for key, value in (("split", split), ("group", group)):
        if value is not None:
            known = sorted({row[key] for row in rows})
            if value not in known:
                raise ValueError(f"{key}={value!r}: expected one of {', '.join(known)}")
            rows = [row for row in rows if row[key] == value]
    return [dict(row) for row in rows]


def published_table(name: str) -> dict[str, Any]:
    """What published.json has beside the rows: "zero_bubble_peak_memory_GB", "fields"."""
    return published_file()[name]
