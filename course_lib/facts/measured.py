"""What the course itself measured on a GPU: the rows of `python -m tools.gpu_day`, with card, driver and day.

on_h100.json holds them. A row's `figure` is the line for people, its `numbers` what that was written from; `run` says
which of the two runs of that day it is from. docs/decisions/gpus.md says what they mean, and what of the course they
contradict.
"""

import json
from collections.abc import Mapping
from functools import lru_cache
from html import escape
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


UNITS = {"": 1.0, "%": 0.01, "ms": 1e-3, "GB": 1e9, "GB/s": 1e9, "TFLOP/s": 1.0}


class MeasuredTable:
    """Predictions beside what the card did: draws itself as text and as HTML.

    rows: by name, (predicted, step, key, ...): the keys lead to one of the numbers of `measured_on_gpu(step)`, and
    predicted is another of its keys, such as "kept_predicted", or a number in its unit: s, bytes, a share, TFLOP/s.
    unit: one of UNITS, in which all are shown.

    >>> MeasuredTable({"355M, bf16": (0.4, "step, bf16, fused", "mfu")}, "%")
    NVIDIA H100 80GB HBM3, 2026-11-27  predicted, %  measured, %  measured / predicted
    355M, bf16                                   40         26.9                  0.67
    """

    def __init__(self, rows: Mapping[str, tuple[Any, ...]], unit: str) -> None:
        if unit not in UNITS:
            raise ValueError(f"unknown unit {unit!r}: expected one of {', '.join(map(repr, UNITS))}")
        self.unit, self.rows = unit, dict[str, tuple[float, float]]()  # by name: predicted, measured
        for name, (predicted, step, *keys) in rows.items():
            measured: Any = measured_on_gpu(step)
            said = measured[predicted] if isinstance(predicted, str) else predicted
            for key in keys:
                measured = measured[key]
            self.rows[name] = said, measured

    def cells(self) -> list[tuple[str, ...]]:
        day, of = gpu_day(), f", {self.unit}" if self.unit else ""
        return [(f"{day['card']}, {day['date']}", f"predicted{of}", f"measured{of}", "measured / predicted"),
                *((name, *(f"{each / UNITS[self.unit]:.3g}" for each in pair), f"{pair[1] / pair[0]:.2f}")
                  for name, pair in self.rows.items())]

    def __repr__(self) -> str:
        cells = self.cells()
        first, *widths = (max(map(len, column)) for column in zip(*cells))
        return "\n".join("  ".join([name.ljust(first), *map(str.rjust, rest, widths)]) for name, *rest in cells)

    def _repr_html_(self) -> str:
        head, *rows = ("".join(f"<td>{escape(cell)}</td>" for cell in cells) for cells in self.cells())
        return f"<table><tr>{head.replace('td>', 'th>')}</tr>{''.join(f'<tr>{row}</tr>' for row in rows)}</table>"
