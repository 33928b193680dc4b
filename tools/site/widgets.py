"""Which widget, with which settings, a recorded picture shows; and a widget as it stands at first, for a page's script.

A notebook stores a widget's picture and its sentence. The sentence begins with the name of the class, and the cell
above has the call, so nothing else has to be recorded: the call's arguments are read, a widget is made with them, and
its sentence must be the recorded one.
"""

import ast
import importlib
import json
from typing import Any

from course_lib import widgets
from course_lib.widgets.base import Explorable


class NotTheRecordedWidget(Exception):
    """The call in the cell gives another widget than the recorded one."""


def class_named(sentence: str) -> type[Explorable] | None:
    """The widget whose sentence this is; None where it is another output."""
    name = sentence.split(",", 1)[0]
    found = getattr(widgets, name, None) if name in widgets.__all__ else None
    return found if isinstance(found, type) and issubclass(found, Explorable) else None


def calls_of(name: str, source: str) -> list[ast.Call]:
    """The calls of `name` or of something's `.name` in the source."""
    return [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)
            and name in (getattr(node.func, "id", ""), getattr(node.func, "attr", ""))]


def recorded_settings(widget: type[Explorable], source: str, sentence: str) -> dict[str, Any] | None:
    """All settings of the recorded widget, those that the cell leaves out too; None where it was not made by a call
    with written-out arguments, such as a TeamView, which needs the ranks.

    NotTheRecordedWidget where that call gives another sentence.
    """
    calls = calls_of(widget.__name__, source)
    if len(calls) != 1:
        return None
    try:
        values = [ast.literal_eval(each) for each in calls[0].args]
        named = {each.arg: ast.literal_eval(each.value) for each in calls[0].keywords}
    except ValueError:
        return None
    shown = widget(*values, **named)
    if shown.sentence() != sentence:
        raise NotTheRecordedWidget(f"{ast.unparse(calls[0])} says {shown.sentence()!r}, recorded is {sentence!r}")
    return {name: getattr(shown, name) for name in widget.controls}


def first_state(module: str, name: str, settings: dict[str, Any]) -> str:
    """All that Python tells the browser of a new widget, as JSON that may stand in a <script> of a page."""
    widget = getattr(importlib.import_module(module), name)(**settings)
    names = [name for name in widget.trait_names(sync=True) if own(widget, name)]
    return json.dumps({name: getattr(widget, name) for name in names}, ensure_ascii=False).replace("</", "<\\/")


def own(widget: Any, trait: str) -> bool:
    """Whether a trait is the widget's own: ipywidgets and anywidget add some, and scripts, which a page has once."""
    kinds = [kind for kind in type(widget).__mro__ if kind.__module__.startswith("course_lib.")]
    return not trait.startswith("_") and any(trait in vars(kind) for kind in kinds)
