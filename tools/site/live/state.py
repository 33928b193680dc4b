"""A widget as it stands at first, as the page's script takes it."""

import importlib
import json
from typing import Any


def first_state(module: str, name: str, settings: dict[str, Any]) -> str:
    """All that Python tells the browser of a new widget, as JSON that may stand in a <script> of a page."""
    widget = getattr(importlib.import_module(module), name)(**settings)
    synced = {key: getattr(widget, key) for key in type(widget).class_trait_names(sync=True) if own(widget, key)}
    return json.dumps(synced, ensure_ascii=False).replace("</", "<\\/")


def own(widget: Any, trait: str) -> bool:
    """Whether a trait is the widget's own, and not one of those that ipywidgets and anywidget add."""
    return any(trait in vars(kind) for kind in type(widget).__mro__ if kind.__module__.startswith("course_lib."))
