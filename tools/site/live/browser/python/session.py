"""The widgets of one page, and the planner's command. A question comes in as JSON, and so goes the answer."""

import contextlib
import importlib
import io
import json
import time
from pathlib import Path

import traitlets

widgets = {}  # by the number that the page has given them


def ask(question):
    asked = json.loads(question)
    answer = next(answer for sign, answer in ANSWERS.items() if sign in asked)
    return json.dumps(answer(**asked))


def change(number, module, name, settings, changes=None, message=None):
    """What a reader's change, or message, has changed in a widget, which is made if it is new.

    With neither, all that there is to know of it.
    """
    if number not in widgets:
        assert module.startswith("course_lib.widgets."), module
        widgets[number] = getattr(importlib.import_module(module), name)(**settings)
    widget, changes, refused = widgets[number], changes or {}, None
    widget.changed, widget.sent = set(), []
    try:
        widget.set_state(changes)
        if message is not None:
            widget.hear(message)
    except traitlets.TraitError as error:
        refused = str(error)
    known = {} if refused else changes
    names = {*widget.changed, *changes} if changes or message is not None else widget.keys
    state = {name: getattr(widget, name) for name in names}
    return {"state": {name: value for name, value in state.items() if name not in known or known[name] != value},
            "sent": widget.sent, "refused": refused}


def judge(question, unit, options, locked, measured):
    """What a prediction was worth, in the words of a notebook. locked, measured: texts, as typed and as recorded."""
    from course_lib.widgets.prediction import PredictionOutcome, answer_of

    said, came = (answer_of(text, options, unit) for text in (locked, measured))
    return {"verdict": PredictionOutcome(question, unit, said, came).verdict()}


def plan(options, files):
    """What `python -m course_lib.planner` prints, its exit status and seconds. files: what it may read, by name."""
    from course_lib.planner import command  # the widgets of most pages do without it

    for name, text in files.items():
        Path(name).write_text(text, encoding="utf-8")
    began = time.perf_counter()
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(out):
        try:
            code = command.main(options)
        except SystemExit as end:
            code = end.code
    return {"text": out.getvalue(), "code": code, "seconds": time.perf_counter() - began}


ANSWERS = {"number": change, "measured": judge, "files": plan}  # by a word that only such a question has
