"""Recorded outputs as a page shows them: pictures in files of their own; widgets, timelines and predictions as figures.

A figure has what tools/site/live needs to let it move, and holds what stands there until then, or without scripts:

    <figure class="course-widget" data-class="ZeroMemory" data-module="course_lib.widgets.zero_memory"
            data-settings='{"model": ...}'> the recorded picture, its sentence </figure>
    <figure class="course-timeline"> the recorded picture, a link to the file for Perfetto </figure>
    <figure class="course-prediction" data-question=... data-unit=... data-options='[...]'> the question </figure>
    <figure class="course-answer" data-question=... data-measured=...> what came out </figure>

A notebook stores a widget's picture and its sentence. The sentence begins with the name of the class, and the cell
above has the call, so nothing else has to be recorded: the call's arguments are read, a widget is made with them, and
its sentence must be the recorded one.
"""

import ast
import base64
import hashlib
import importlib
import json
import re
import struct
from pathlib import Path
from typing import Any

import jinja2
import nbformat
from nbformat import NotebookNode
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer

from course_lib import widgets
from course_lib.runtime.instruments.timeline import TRACE
from course_lib.widgets.base import Explorable
from tools.pages import TEMPLATE_FOLDER, Poll, polls_in
from tools.site.listings import address_of, line_of

PICTURES = "pictures"  # a folder of the site
TEMPLATES = jinja2.Environment(loader=jinja2.FileSystemLoader(TEMPLATE_FOLDER), autoescape=True)
TEMPLATES.filters["json"] = lambda value: json.dumps(value, ensure_ascii=False)
OUTPUT = TEMPLATES.get_template("output.html.j2")
LISTING = re.compile(r"<div style=[^>]*>([\w/., ]+\.py)(: [^<]*)?</div>(?=<pre)")  # above what course_lib.show prints


def as_html(path: Path, pictures: Path, up: str) -> NotebookNode:
    """The notebook at `path` with its outputs as HTML; pictures go into the folder `pictures`.

    up: from the page to the site's root, such as "../".
    """
    notebook = nbformat.read(path, as_version=4)
    polls = list(polls_in(path))
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            if "data" in output:
                output.data = render_data(cell.source, output.data, output.metadata, polls, pictures, up)
                output.metadata = NotebookNode()
    return notebook


def render_data(source: str, data: NotebookNode, metadata: NotebookNode, polls: list[Poll], pictures: Path,
               up: str) -> NotebookNode:
    """One output's MIME bundle, as text/html where it is more than text."""
    text = data.get("text/plain", "")
    if "image/png" in data:
        page = picture(source, text, base64.b64decode(data["image/png"]), metadata.get(TRACE), pictures, up)
    elif "text/html" in data:
        page = listing(data["text/html"], text, up)
    elif (poll := poll_of(source, text, polls)) is None:
        return data
    elif text.startswith("Answer: "):
        answer = text.removesuffix(" (no prediction was locked)")
        measured = answer.removeprefix("Answer: ").partition("; the formula says ")[0]
        page = OUTPUT.render(kind="answer", poll=poll, answer=answer, measured=measured)
    else:
        page = OUTPUT.render(kind="prediction", poll=poll)
    return NotebookNode({"text/html": page})


def picture(source: str, sentence: str, png: bytes, trace: str | None, pictures: Path, up: str) -> str:
    """An <img> with its sentence as text alternative, in a figure where a widget can take its place; that of a timeline
    over a link to its events, in a file for Perfetto.
    """
    width, height = struct.unpack(">II", png[16:24])
    # matplotlib's own text says nothing; the cell below or above does
    given = {"kind": "picture", "address": f"{up}{PICTURES}/{put(png, pictures, 'png')}", "width": width,
             "height": height, "words": "" if sentence.startswith("<Figure") else sentence}
    widget = class_named(sentence)
    settings = recorded_settings(widget, source, sentence) if widget is not None else None
    if settings is not None:
        # `first` stands there before any Python is loaded
        given |= {"widget": widget, "settings": settings,
                  "first": first_state(widget.__module__, widget.__name__, settings)}
    if trace:
        given |= {"kind": "timeline", "trace": f"{up}{PICTURES}/{put(trace.encode(), pictures, 'json')}",
                  "kilobytes": round(len(trace) / 1000)}
    return OUTPUT.render(given)


def put(content: bytes, folder: Path, ending: str) -> str:
    """The name of a file of `folder` with this content, which says nothing else."""
    name = f"{hashlib.sha256(content).hexdigest()[:16]}.{ending}"
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / name).exists():
        (folder / name).write_bytes(content)
    return name


def poll_of(source: str, text: str, polls: list[Poll]) -> Poll | None:
    """The prediction that the output asks or answers; None for another output."""
    asked = next((poll for poll in polls if text == f"Prediction: {poll.question} (nothing is locked yet)"), None)
    if asked is not None or not text.startswith("Answer: "):
        return asked
    answered = re.findall(r"(\w+)\.against\(", source)
    return next((poll for poll in reversed(polls) if answered and poll.variable == answered[-1]), None)


def listing(page: str, text: str, up: str) -> str:
    """Recorded HTML; what `show` and `show_diff` print has each file linked, at the line where the code begins."""
    heading = LISTING.match(page)
    if heading is None:
        return page
    code, linked = text.split("\n", 1)[-1], heading[0]
    for name in heading[1].split(", "):
        if address := address_of(name):
            line = line_of(name, code)
            linked = linked.replace(name, f'<a href="{up}{address}{f"#L-{line}" * bool(line)}">{name}</a>')
    # A difference keeps the colours of its lines; other code gets those of the page.
    return linked + (page[heading.end():] if heading[2] else highlight(code, PythonLexer(), HtmlFormatter()))


# Which widget, with which settings, a recorded picture shows

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
