"""What the course itself measured on a GPU: the rows of `python -m tools.gpu_day`, with card, driver and day.

on_h100.json holds them. A row's `figure` is the line for people, its `numbers` what that was written from; `run` says
which of the two runs of that day it is from. docs/decisions/gpus.md says what they mean, and what of the course they
contradict.
"""

import json
from functools import lru_cache
from importlib.resources import files
from typing import Any


@lru_cache(maxsize=1)
def gpu_day() -> dict[str, Any]:
    """The content of on_h100.json: card, driver, torch, date, `rows`, and the cells of notebooks that ran."""
    return json.loads(files("course_lib.facts").joinpath("on_h100.json").read_text(encoding="utf-8"))


def measured_on_gpu(step: str) -> dict[str, Any]:
    """The numbers of one step, by name. ValueError, with all names, for a step that there is not.

    >>> row = measured_on_gpu("step, fp32, written out")
    >>> f"{row['parameters'] / 1e6:.0f} million parameters, {row['step_s']:.3f} s, MFU {row['mfu']:.0%}"
    '355 million parameters, 0.525 s, MFU 56%'
    """
    rows = {row["step"]: row["numbers"] for row in gpu_day()["rows"]}
    if step not in rows:
        raise ValueError(f"no step is called {step!r}: expected one of {', '.join(rows)}")
    return rows[step]
