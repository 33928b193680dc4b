"""Code in the notebook, as it is on disk: `show(f)` for the live source, `show_diff(a, b)` for what one changes.

A copy in a notebook would drift from the module; what `show` prints cannot.
"""

import difflib
import html
import inspect
import textwrap
from dataclasses import dataclass
from types import FunctionType, MethodType, ModuleType
from typing import Any

from pygments import lex
from pygments.lexers import PythonLexer
from pygments.token import Comment, Keyword, Name, Number, Operator, String

# JupyterLab's editor colours, so that light and dark follow its theme; elsewhere those of its light theme.
COLOURS = {
    Comment: "var(--jp-mirror-editor-comment-color, #356a70)",
    Keyword: "var(--jp-mirror-editor-keyword-color, #008000)",
    Operator.Word: "var(--jp-mirror-editor-keyword-color, #008000)",
    String: "var(--jp-mirror-editor-string-color, #ba2121)",
    Number: "var(--jp-mirror-editor-number-color, #666)",
    Name.Function: "var(--jp-mirror-editor-def-color, #00f)",
    Name.Class: "var(--jp-mirror-editor-def-color, #00f)",
}
MONOSPACE = "font-family: var(--jp-code-font-family, monospace)"
BOX = (f"{MONOSPACE}; font-size: 13px; line-height: 1.35; margin: 0; padding: 8px 12px; "
       "white-space: pre; overflow-x: auto; border-left: 3px solid #0077bb; "
       "color: var(--jp-content-font-color1, #000); background: var(--jp-layout-color2, #f5f5f5)")
HEADING = f"{MONOSPACE}; font-size: 12px; color: var(--jp-content-font-color2, #555)"
ADDED = "background: rgba(0, 153, 136, 0.25)"
REMOVED = "background: rgba(204, 51, 17, 0.2)"


@dataclass(frozen=True)
class Listing:
    """Source code that draws itself, under a heading that says where it lives."""

    heading: str
    code: str

    def _repr_html_(self) -> str:
        code = colour_code(self.code)
        return f'<div style="{HEADING}">{html.escape(self.heading)}</div><pre style="{BOX}">{code}</pre>'

    def __repr__(self) -> str:
        return f"# {self.heading}\n{self.code}"


@dataclass(frozen=True)
class Difference:
    """What turns one source into another, line by line: `- ` went, `+ ` came, `  ` stayed."""

    heading: str
    lines: tuple[str, ...]

    def _repr_html_(self) -> str:
        styles = {"+": ADDED, "-": REMOVED}
        drawn = "".join(f'<div style="{styles.get(line[:1], "")}">{html.escape(line)}</div>' for line in self.lines)
        return f'<div style="{HEADING}">{html.escape(self.heading)}</div><pre style="{BOX}">{drawn}</pre>'

    def __repr__(self) -> str:
        return "\n".join([f"# {self.heading}", *self.lines])


def show(*objects: Any) -> Listing:
    """The source of functions, classes or modules, as it is now. TypeError for what has no source in Python."""
    if not objects:
        raise TypeError("show() of nothing: expected a function, class or module")
    sources = [source(each) for each in objects]
    files = dict.fromkeys(home(each) for each in objects)
    return Listing(", ".join(files), "\n\n".join(sources))


def show_diff(before: Any, after: Any) -> Difference:
    """What `after` changes in `before`, two functions or classes. TypeError for what has no source in Python."""
    lines = [line for line in difflib.ndiff(source(before).splitlines(), source(after).splitlines())
             if not line.startswith("?")]
    files = dict.fromkeys((home(before), home(after)))
    return Difference(f"{', '.join(files)}: {name(before)} -> {name(after)}", tuple(lines))


def source(thing: Any) -> str:
    """The source text of a function, class or module, not indented. TypeError where it has none in Python."""
    unwrapped = inspect.unwrap(thing) if isinstance(thing, FunctionType) else thing
    if isinstance(unwrapped, (FunctionType, MethodType, ModuleType, type)):
        try:
            return textwrap.dedent(inspect.getsource(unwrapped)).rstrip()
        except (OSError, TypeError):  # C code, or typed into a plain Python prompt
            pass
    raise TypeError(f"{thing!r} has no Python source to show: expected a function, class or module written in Python")


def name(thing: Any) -> str:
    """What a reader would call it: `Class.method` where it is one."""
    return getattr(thing, "__qualname__", thing.__name__)


def home(thing: Any) -> str:
    """course_lib/collectives/ring.py, or `this notebook`."""
    module = thing.__name__ if isinstance(thing, ModuleType) else thing.__module__
    if module == "__main__":
        return "this notebook"
    is_package = isinstance(thing, ModuleType) and hasattr(thing, "__path__")
    return module.replace(".", "/") + ("/__init__.py" if is_package else ".py")


def colour_code(code: str) -> str:
    """`code` as HTML, a span for each token that has a colour."""
    pieces = []
    for kind, text in lex(code, PythonLexer(stripnl=False, ensurenl=False)):
        colour = next((COLOURS[known] for known in COLOURS if kind in known), None)
        escaped = html.escape(text)
        pieces.append(f'<span style="color: {colour}">{escaped}</span>' if colour else escaped)
    return "".join(pieces)
