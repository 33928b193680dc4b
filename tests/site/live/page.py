"""A plain page with every widget of the course, and a plain static server for it. No pytest here."""

import html
import json
import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from playwright.sync_api import BrowserContext

from course_lib import widgets
from tools.site.live.build import classes
from tools.site.outputs import first_state

EVERY = [kind.__name__ for kind in classes() if kind is not widgets.Prediction]
QUESTIONS = {"How many bytes does each rank send?": ("bytes", []), "Which is faster?": ("", ["ring", "tree"])}
DARK = "body[data-theme=dark] { background: #131416; color: #cfd0d0; } body[data-theme=dark] a { color: #9db8ff }"


class Quiet(SimpleHTTPRequestHandler):
    """Without a line for each request."""

    def log_message(self, *words: Any) -> None:
        pass


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """The address at which `folder` is served."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder))) as server:
        server.handle_error = lambda *request: None  # no traceback where a page was closed while it loaded
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


class Opened:
    """A page, and what it complains about."""

    def __init__(self, context: BrowserContext, address: str, site: str = "") -> None:
        """site: where all that the page asks for has to lie."""
        self.context, self.page, self.errors = context, context.new_page(), []
        self.page.set_default_timeout(180_000)  # a busy machine takes long to compile Python
        self.page.on("console", lambda said: said.type == "error" and self.errors.append(said.text))
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("request", lambda asked: asked.url.startswith((site, "data:", "blob:"))
                     or self.errors.append(f"asks {asked.url}"))
        self.page.goto(address, wait_until="load")


def figure(name: str, settings: dict[str, Any] | None = None, stored: bool = True) -> str:
    """The figure of a widget; `stored`: with its first state, so that it needs no Python to be there."""
    kind, given = getattr(widgets, name), settings or {}
    state = first_state(kind.__module__, name, given) if stored else ""
    script = f'<script type="application/json">{state}</script>' if stored else ""
    return (f'<figure class="course-widget" id="{name}" data-module="{kind.__module__}" data-class="{name}" '
            f'data-settings="{html.escape(json.dumps(given))}"><p>the recorded picture</p>{script}</figure>')


def question(words: str, unit: str, options: list[str]) -> str:
    """The figures of a prediction and of its answer."""
    came = options[0] if options else "1,536 bytes"
    return (f'<figure class="course-prediction" data-question="{words}" data-unit="{unit}" '
            f'data-options="{html.escape(json.dumps(options))}"><p>{words}</p></figure>'
            f'<figure class="course-answer" data-question="{words}" data-measured="{came}">Answer: {came} '
            "(no prediction was locked)</figure>")


def write_page(path: Path, *parts: str) -> None:
    """A page one folder below the site's, as most are."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>All widgets</title>'
                    f'<meta name="viewport" content="width=device-width"><link rel="icon" href="data:,">'
                    f'<style>body {{ background: #ffffff; color: #212121; font-family: sans-serif }} {DARK}</style>'
                    f'<script type="module" src="../course/live.js"></script></head>'
                    f'<body><main><h1>All widgets</h1>{"".join(parts)}</main></body></html>', encoding="utf-8")


def require_close(found: Any, expected: Any, slack: float = 0.0) -> None:
    """The same but for the last digits of numbers, since a page has a newer Python: its sum() rounds less. A mark's
    place, which is rounded to hundredths, may then be the next hundredth.
    """
    if isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for name in expected:
            require_close(found[name], expected[name], 0.0101 if name == "at" else slack)
    elif isinstance(expected, list):
        assert len(found) == len(expected)
        for each, other in zip(found, expected):
            require_close(each, other, slack)
    else:
        near = isinstance(expected, float) and math.isclose(found, expected, rel_tol=1e-12, abs_tol=slack)
        assert near or found == expected, (found, expected)
