"""A widget as it stands at first, as the page's script takes it."""

import importlib
import json
from typing import Any


def first_state(module: str, name: str, settings: dict[str, Any]) -> str:
    """All that Python tells the browser of a new widget, as JSON that may stand in a <script> of a page."""
    widget = getattr(importlib.import_module(module), name)(**settings)
    names = [name for name in widget.trait_names(sync=True) if own(widget, name)]
    return json.dumps({name: getattr(widget, name) for name in names}, ensure_ascii=False).replace("</", "<\\/")


def own(widget: Any, trait: str) -> bool:
    """Whether a trait is the widget's own: ipywidgets and anywidget add some, and scripts, which a page has once."""
    kinds = [kind for kind in type(widget).__mro__ if kind.__module__.startswith("course_lib.")]
    return not trait.startswith("_") and any(trait in vars(kind) for kind in kinds)
