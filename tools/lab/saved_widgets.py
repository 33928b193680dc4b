"""What a saved notebook keeps of its widgets: an extension of the Jupyter server that works on each notebook it saves.

JupyterLab saves the state of every widget that its page has met, each with the whole of its script and style sheet.
Here stays what some output shows, and of each script and style sheet one copy: the others ask for it.
"""

import json
import re
from typing import Any

STATE = "application/vnd.jupyter.widget-state+json"
VIEW = "application/vnd.jupyter.widget-view+json"
# In place of a script, one that takes it from the model that has it. A style sheet counts for the whole page.
BORROW = """const module = (model) => model.widget_manager.get_model("{model}").then((lender) => {{
    const url = URL.createObjectURL(new Blob([lender.get("_esm")], {{ type: "text/javascript" }}));
    return import(url).finally(() => URL.revokeObjectURL(url));
}});
export default {{ render: async (props) => (await module(props.model)).default.render(props) }};
"""
BORROWED = re.compile(re.escape(BORROW.split("{model}")[0]) + r"(\w+)")


def trim(notebook: dict[str, Any]) -> None:
    """Change the notebook (as JSON) to keep of its widgets no more than is needed to show them again."""
    saved = notebook["metadata"].get("widgets", {}).get(STATE, {}).get("state", {})
    restore_scripts(saved)
    views = [output["data"] for cell in notebook["cells"] for output in cell.get("outputs", ())
             if VIEW in output.get("data", {})]
    for data in views:
        if data[VIEW]["model_id"] not in saved and len(data) > 1:
            del data[VIEW]  # it could only say "model not found"; its picture lies beside it
    shown = reached([data[VIEW]["model_id"] for data in views if VIEW in data], saved)
    for name in saved.keys() - shown:
        del saved[name]
    share_scripts(saved)
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


def share_scripts(saved: dict[str, Any]) -> None:
    lenders: dict[str, str] = {}
    sheets: set[str] = set()
    for name in sorted(saved):
        state = saved[name]["state"]
        script, sheet = state.get("_esm"), state.get("_css")
        if script and lenders.setdefault(script, name) != name:
            state["_esm"] = BORROW.format(model=lenders[script])
        if sheet in sheets:
            state["_css"] = ""
        elif sheet:
            sheets.add(sheet)


def restore_scripts(saved: dict[str, Any]) -> None:
    """Undo share_scripts: the model that lends may be gone from the outputs by now."""
    sheets = [model["state"]["_css"] for model in saved.values() if model["state"].get("_css")]
    for model in saved.values():
        state = model["state"]
        borrowed = BORROWED.match(state.get("_esm") or "")
        if borrowed and borrowed[1] in saved:
            state["_esm"] = saved[borrowed[1]]["state"]["_esm"]
        if borrowed and sheets and not state.get("_css"):
            state["_css"] = sheets[0]


def on_save(model: dict[str, Any], **kwargs: Any) -> None:
    if model["type"] == "notebook" and model.get("content") and model["content"].get("nbformat") == 4:
        trim(model["content"])


def _jupyter_server_extension_points() -> list[dict[str, str]]:
    return [{"module": "tools.lab.saved_widgets"}]


def _load_jupyter_server_extension(server: Any) -> None:
    server.contents_manager.register_pre_save_hook(on_save)
