"""What a saved notebook keeps of its widgets: an extension of the Jupyter server that works on each notebook it saves.

JupyterLab saves the state of every widget that its page has met, each with the whole of its script and style sheet,
about 30 kB. Here stays what some output shows.
"""

import json
import re
from typing import Any

STATE = "application/vnd.jupyter.widget-state+json"
VIEW = "application/vnd.jupyter.widget-view+json"


def trim(notebook: dict[str, Any]) -> None:
    """Change the notebook (as JSON) to keep of its widgets no more than is needed to show them again."""
    saved = notebook["metadata"].get("widgets", {}).get(STATE, {}).get("state", {})
    views = [output["data"] for cell in notebook["cells"] for output in cell.get("outputs", ())
             if VIEW in output.get("data", {})]
    for data in views:
        if data[VIEW]["model_id"] not in saved and len(data) > 1:
            del data[VIEW]  # it could only say "model not found"; its picture lies beside it
    shown = reached([data[VIEW]["model_id"] for data in views if VIEW in data], saved)
    for name in saved.keys() - shown:
        del saved[name]
    if not saved:
        notebook["metadata"].pop("widgets", None)


def reached(names: list[str], saved: dict[str, Any]) -> set[str]:
    """The models `names` and those that they refer to, as far as they are saved."""
    found, waiting = set(), list(names)
    while waiting:
        name = waiting.pop()
        if name in saved and name not in found:
            found.add(name)
            waiting += re.findall(r"IPY_MODEL_(\w+)", json.dumps(saved[name]))
    return found


def on_save(model: dict[str, Any], **kwargs: Any) -> None:
    if model["type"] == "notebook" and model.get("content") and model["content"].get("nbformat") == 4:
        trim(model["content"])


def _jupyter_server_extension_points() -> list[dict[str, str]]:
    return [{"module": "tools.lab.saved_widgets"}]


def _load_jupyter_server_extension(server: Any) -> None:
    server.contents_manager.register_pre_save_hook(on_save)
