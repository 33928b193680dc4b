"""Widgets on a page of Chromium, with no JupyterLab and no kernel: Python answers from the test itself. No pytest.

What a widget's JavaScript does is the same everywhere; JupyterLab and the static site add how a model talks to Python.
"""

import json
from typing import Any

from playwright.sync_api import Browser

from course_lib.widgets import Explorable
from tests.browser.widget import Widget
from tools.site.outputs import own

ADDRESS = "http://course.test/"  # nothing is asked of the network
DARK = "[data-jp-theme-light=false] { --jp-layout-color0: #111111; --jp-content-font-color1: #ffffff; color: white }"
# put(...) shows a widget; models[id] is what anywidget would have, its save_changes asks Python at once.
PUT = """
window.models = {};
window.put = async ({ id, script, state }) => {
    const heard = new Map();
    const model = {
        state, changed: {}, asked: 0,
        get: (name) => model.state[name],
        set(name, value) {
            const change = typeof name === "string" ? { [name]: value } : name;
            Object.assign(model.changed, change);
            model.take(change);
        },
        take(change) {
            const differs = (name) => JSON.stringify(model.state[name]) !== JSON.stringify(change[name]);
            const news = Object.keys(change).filter(differs);
            Object.assign(model.state, change);
            news.forEach((name) => [...(heard.get(`change:${name}`) ?? [])].forEach((hear) => hear()));
        },
        async save_changes() {
            const change = model.changed;
            model.changed = {};
            model.asked += 1;
            model.take(await window.python(id, change));
        },
        on: (events, hear) => events.split(" ").forEach((event) => {
            heard.set(event, (heard.get(event) ?? new Set()).add(hear));
        }),
        off: (events, hear) => events.split(" ").forEach((event) => heard.get(event)?.delete(hear)),
    };
    models[id] = model;
    const section = document.createElement("section");
    section.id = id;
    const el = document.createElement("div");
    section.append(el);
    document.querySelector("main").append(section);
    const module = await import(URL.createObjectURL(new Blob([script], { type: "text/javascript" })));
    module.default.render({ model, el });
};"""
PAGE = f"""<!doctype html><html lang="en"><meta charset="utf-8"><title>Widgets</title><link rel="icon" href="data:,">
<style>body {{ background: var(--jp-layout-color0, white); margin: 8px }} {DARK}</style><script>{PUT}</script>
<body data-jp-theme-light="true"><main></main></body>"""


def state_of(widget: Explorable) -> dict[str, Any]:
    """What the browser knows of a widget."""
    return {name: getattr(widget, name) for name in widget.trait_names(sync=True) if own(widget, name)}


class StaticPage:
    """`python[name]` is the widget here, `shown[name]` the one on the page."""

    def __init__(self, chromium: Browser, widgets: dict[str, Explorable], **how: Any) -> None:
        self.context = chromium.new_context(viewport={"width": 1100, "height": 2400}, **how)
        self.page, self.python, self.errors = self.context.new_page(), widgets, []
        self.page.set_default_timeout(30_000)
        self.page.on("console", lambda said: said.type == "error" and self.errors.append(said.text))
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.route(ADDRESS, lambda route: route.fulfill(body=PAGE, content_type="text/html"))
        self.page.expose_function("python", self.answer)
        self.page.goto(ADDRESS)
        self.page.add_style_tag(content=next(iter(widgets.values()))._css)
        for name, widget in widgets.items():
            self.page.evaluate("put", {"id": name, "script": widget._esm, "state": state_of(widget)})
        self.shown = {name: Widget(self, 0, self.page.locator(f"#{name} .explorable")) for name in widgets}

    def answer(self, name: str, change: dict[str, Any]) -> dict[str, Any]:
        """What Python has made of a change: what the browser asked for and got, it has already, and perhaps newer."""
        known = json.loads(json.dumps(state_of(self.python[name]))) | change
        self.python[name].set_state(change)
        new = json.loads(json.dumps(state_of(self.python[name])))
        return {trait: value for trait, value in new.items() if value != known[trait]}

    def tell(self, name: str) -> None:
        """The browser hears what was set in Python."""
        self.page.evaluate("([name, state]) => models[name].take(state)", [name, state_of(self.python[name])])

    def asked(self, name: str) -> int:
        """How often the widget has asked Python."""
        return self.page.evaluate("(name) => models[name].asked", name)

    def change_theme(self, theme: str) -> None:
        self.page.evaluate("(light) => { document.body.dataset.jpThemeLight = light; }", str(theme == "light").lower())
