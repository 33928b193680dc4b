"""Other values in the place of what was measured or computed, of which some contradict what a picture says."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import fields, is_dataclass, replace
from fractions import Fraction
from itertools import islice
from types import FunctionType, ModuleType
from typing import Any

import numpy as np
import torch

from course_lib.runtime.instruments.recordings import Recording
from course_lib.runtime.instruments.timeline import Timeline
from course_lib.runtime.launcher import Results

NUMBERS: dict[str, Callable[[Any], Any]] = {
    "nothing": lambda x: 0 * x,
    "the negative": lambda x: -x,
    "a thousand times as much": lambda x: 1000 * x,
    "a thousandth": lambda x: x // 1000 if isinstance(x, int) else x / 1000,
}
DEPTH = 2  # {name: [numbers]}: a number of one of the series
MOST_PARTS = 16


def is_data(value: Any) -> bool:
    return not isinstance(value, (str, FunctionType, ModuleType, type)) and not callable(value)


def others(value: Any, depth: int = DEPTH) -> Iterator[tuple[str, Any]]:
    """(how it differs, another value of the same form); nothing for what is no data."""
    if isinstance(value, (bool, np.bool_)):
        yield "the contrary", not value
        return
    if isinstance(value, Timeline):
        yield from ((how, change(value)) for how, change in TIMELINES.items())
    elif isinstance(value, Results) and value.recorded:
        for how, change in TIMELINES.items():
            yield how, with_timelines(value, change)
    if isinstance(value, (list, tuple, range, torch.Tensor, np.ndarray)) and len_of(value) > 1:
        yield "backwards", backwards(value)
        yield "always the first", like(value, [value[0]] * len(value))
    if isinstance(value, dict) and len(value) > 1:
        yield "dealt out backwards", dict(zip(value, reversed(value.values())))
    for how, change in NUMBERS.items():
        with suppress(ValueError, TypeError):  # a dataclass that refuses it
            yield how, everywhere(value, change)
    if depth:
        for key, part in islice(parts_of(value), MOST_PARTS):
            for how, other in others(part, depth - 1):
                with suppress(ValueError, TypeError):
                    yield f"{how} at {key!r}", with_parts(value, {key: other})


def everywhere(value: Any, change: Callable[[Any], Any]) -> Any:
    """`value` with every number in it changed."""
    if isinstance(value, (bool, np.bool_)):
        return value
    if isinstance(value, (int, float, Fraction, np.number, np.ndarray, torch.Tensor)):
        return change(value)
    whole = list(value) if isinstance(value, range) else value
    return with_parts(whole, {key: everywhere(part, change) for key, part in parts_of(whole)})


def is_facts(value: Any) -> bool:
    """A dataclass of numbers and the like; what was recorded has changes of its own."""
    return is_dataclass(value) and not isinstance(value, (type, Recording))


def parts_of(value: Any) -> list[tuple[Any, Any]]:
    """(where, what) of the parts of a container; empty for anything else."""
    if isinstance(value, dict):
        return list(value.items())
    if isinstance(value, (list, tuple)):
        return list(enumerate(value))
    names = [field.name for field in fields(value) if field.init] if is_facts(value) else []
    return [(name, getattr(value, name)) for name in names]


def len_of(value: Any) -> int:
    return 0 if getattr(value, "ndim", 1) == 0 else len(value)


def backwards(value: Any) -> Any:
    return value.flip(0) if isinstance(value, torch.Tensor) else value[::-1] if isinstance(value, np.ndarray) else like(
        value, list(value)[::-1])


def like(value: Any, parts: list[Any]) -> Any:
    """`parts` in a container such as `value`."""
    if isinstance(value, torch.Tensor):
        return torch.stack(parts)
    if isinstance(value, np.ndarray):
        return np.stack(parts)
    if isinstance(value, Results):
        return Results(parts, value.recorded)
    return tuple(parts) if isinstance(value, tuple) else parts


def with_parts(value: Any, new: dict[Any, Any]) -> Any:
    """`value` with other parts at the keys of `new`."""
    if not new:
        return value
    if isinstance(value, dict):
        return {**value, **new}
    if is_facts(value):
        return replace(value, **new)
    return like(value, [new.get(place, part) for place, part in enumerate(value)])


def moved(timeline: Timeline, when: Callable[[Any], tuple[float, float]]) -> Timeline:
    events, waits = ([replace(event, start_s=when(event)[0], end_s=when(event)[1]) for event in part]
                     for part in (timeline.events, timeline.waits))
    return replace(timeline, events=events, waits=waits)


def mirrored(timeline: Timeline) -> Timeline:
    end = timeline.duration_s
    return moved(timeline, lambda event: (end - event.end_s, end - event.start_s))


def always_busy(timeline: Timeline) -> Timeline:
    """Every span from the beginning to the end, each on a core, and nobody waits."""
    spans = [replace(event, start_s=0.0, end_s=timeline.duration_s) if event.lane == "compute" else event
             for event in timeline.events]
    return replace(timeline, events=spans, waits=[], cpu_s=dict.fromkeys(timeline.cpu_s, timeline.duration_s))


def always_waiting(timeline: Timeline) -> Timeline:
    """Every communication call is waited for from its start to its end."""
    calls = [event for event in timeline.events if event.lane == "communication"]
    return replace(timeline, waits=[replace(event, lane="waiting") for event in calls])


def never_free(timeline: Timeline) -> Timeline:
    """Every wait from the beginning to the end."""
    waits = [replace(wait, start_s=0.0, end_s=timeline.duration_s) for wait in always_waiting(timeline).waits]
    return replace(timeline, waits=waits)


TIMELINES: dict[str, Callable[[Timeline], Timeline]] = {
    "the last first": mirrored, "everybody always busy": always_busy, "everybody always waiting": always_waiting,
    "everybody waiting from the beginning to the end": never_free}


def with_timelines(results: Results, change: Callable[[Timeline], Timeline]) -> Results:
    recorded = [[change(log) if isinstance(log, Timeline) else log for log in logs] for logs in results.recorded]
    return Results(list(results), recorded)
