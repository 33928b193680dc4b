"""In a notebook's kernel, after a cell: each of its headlines again, over data that contradict it."""

import ast
import contextlib
import io
import json
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import combinations, repeat, zip_longest
from typing import Any

import numpy as np
import torch

from course_lib.pictures.drawn import NOT_SEEN
from course_lib.runtime.instruments.timeline import Timeline
from tests.claims.cell import DOES_NOT_HOLD, Headline, headlines, launches, names_of, targets
from tests.claims.others import is_data, others

TRIES_FOR_S = 10.0  # of the processor: a busy machine tries as many
SLOW_S = 0.5  # an assignment that takes longer is not made again


@dataclass
class Verdict:
    """What became of a headline: contradicted by some data, or why not."""

    source: str  # the beginning of its call
    said: str = ""  # as nbval compares it
    contradicted: str = ""  # the same of data that contradict it
    by: str = ""  # which data
    fault: str = ""


def verdicts(source: str, namespace: dict[str, Any]) -> str:
    """As JSON, a Verdict for each headline of the cell `source` that has just run in `namespace`."""
    with contextlib.redirect_stdout(io.StringIO()):
        return json.dumps([asdict(verdict(headline, namespace)) for headline in headlines(source)])


def verdict(headline: Headline, namespace: dict[str, Any]) -> Verdict:
    found = Verdict(ast.unparse(headline.call)[:90])
    if headline.holds is None:
        found.fault = "no holds=: what its data would have to say is not written down"
    elif isinstance(headline.holds, ast.Constant):
        found.fault = f"holds={headline.holds.value}, whatever the data say"
    elif not headline.in_the_open:
        found.fault = "drawn in a function or a loop: draw it in the cell itself"
    elif launches(headline.call, namespace):
        found.fault = "launches in the picture's own call: give the result a name first"
    if found.fault:
        return found
    picture = evaluate(headline.call, namespace)
    holds = evaluate(headline.holds, namespace)
    found.said = repr(picture)
    if not isinstance(holds, (bool, np.bool_)) and not (isinstance(holds, torch.Tensor) and holds.dtype == torch.bool):
        found.fault = f"holds={holds!r}: expected True or False"
    elif not holds:
        found.fault = DOES_NOT_HOLD
    elif not any(is_data(namespace[name]) for name in names_of(headline.holds, headline.before, namespace)
                 & names_of(headline.drawn, headline.before, namespace)):
        found.fault = "holds= asks nothing of what is drawn"
    else:
        contradict(headline, namespace, found, drawn(picture))
    return found


def contradict(headline: Headline, namespace: dict[str, Any], found: Verdict, before: str) -> None:
    """The first data that change the picture and make its headline give way."""
    deadline, slow, tried = time.process_time() + TRIES_FOR_S, set(), 0
    for by, changes, again in contradictions(headline, namespace):
        if time.process_time() > deadline:
            break
        tried += 1
        picture = redrawn(headline, namespace, changes, again, slow)
        if picture is not None and not_seen(picture) and drawn(picture) != before:
            found.contradicted, found.by = repr(picture), by
            return
    found.fault = f"says the same over {tried} other data, or its own are not in the picture"


def contradictions(headline: Headline, namespace: dict[str, Any]
                   ) -> Iterator[tuple[str, dict[str, Any], list[ast.stmt]]]:
    """(in words, other values by name, assignments to make again with them)."""
    needed = names_of(headline.call, headline.before, namespace)
    again = [statement for statement in headline.before
             if targets(statement) & needed and not launches(statement, namespace)]
    made_at = {name: number for number, statement in enumerate(headline.before) for name in names_stored(statement)}
    position = {id(statement): number for number, statement in enumerate(headline.before)}

    def after(*names: str) -> list[ast.stmt]:
        last = max(made_at.get(name, -1) for name in names)
        return [statement for statement in again if position[id(statement)] > last]

    data = sorted(name for name in needed if is_data(namespace[name]))
    for one, other in combinations(data, 2):
        if type(namespace[one]) is type(namespace[other]):
            yield f"{one} and {other} exchanged", {one: namespace[other], other: namespace[one]}, after(one, other)
    # A try for each name in turn, so that no large one holds up the others.
    for tries in zip_longest(*(zip(repeat(name), others(namespace[name])) for name in data)):
        for name, (how, value) in filter(None, tries):
            yield f"{name}: {how}", {name: value}, after(name)


def names_stored(statement: ast.stmt) -> set[str]:
    return {node.id for node in ast.walk(statement) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}


def redrawn(headline: Headline, namespace: dict[str, Any], changes: dict[str, Any], again: list[ast.stmt],
            slow: set[int]) -> Any:
    """The picture over other data; None where there is none of them, as of nothing on a logarithmic axis."""
    kept = dict(namespace)
    try:
        namespace |= changes
        for statement in again:
            if id(statement) not in slow:
                started = time.process_time()
                exec(compile(ast.Module([statement], []), "<again>", "exec"), namespace)
                if time.process_time() - started > SLOW_S:
                    slow.add(id(statement))
        return evaluate(headline.call, namespace)
    except Exception:
        return None
    finally:
        for name in namespace.keys() - kept.keys():
            del namespace[name]
        namespace |= kept


def evaluate(expression: ast.expr, namespace: dict[str, Any]) -> Any:
    return eval(compile(ast.Expression(expression), "<headline>", "eval"), namespace)


def not_seen(picture: Any) -> bool:
    return NOT_SEEN in repr(picture)


def drawn(picture: Any) -> str:
    """The data in a picture, without its words."""
    if isinstance(picture, Timeline):
        return repr((picture.events, picture.waits))
    if hasattr(picture, "logs"):
        return repr([(name, log.over_time()) for name, log in picture.logs.items()])
    if hasattr(picture, "figures"):
        return repr(picture.figures)
    if hasattr(picture, "panels"):
        return repr([panel.simulation.timeline for panel in picture.panels])
    if hasattr(picture, "experts"):
        return repr((picture.tokens, picture.experts))
    series = [(name, list(xs), list(ys)) for name, (xs, ys) in {**picture.points, **picture.lines}.items()]
    return repr((series, list(picture.marks.items())))
