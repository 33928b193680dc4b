"""The source files as pages, each line with an address: course_lib/zero/fsdp.py is source/course_lib/zero/fsdp.html.

Sphinx's own viewcode gives addresses to documented names alone, and the notebooks show functions that no page lists.
"""

import html
import inspect
import pydoc
from collections.abc import Iterator
from functools import cache
from itertools import islice, takewhile
from pathlib import Path

from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer

ROOT = Path(__file__).resolve().parents[2]
FORMATTER = HtmlFormatter(lineanchors="L", linenos="inline", anchorlinenos=True, wrapcode=True)
# What decides exercises stays where solutions stay.
LEFT_OUT = ("course_lib/grading/judges", "course_lib/grading/marks", "course_lib/grading/trusted")
# Without Sphinx: its theme draws a table of contents of all pages beside each of 400 listings, which takes minutes.
PAGE = """\
<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width,initial-scale=1">
<meta name="color-scheme" content="light dark"><title>{file}</title>
<link rel="stylesheet" href="{up}_static/pygments.css"><link rel="stylesheet" href="{up}_static/styles/furo.css">
<link rel="stylesheet" href="{up}_static/site.css"><link rel="icon" href="{up}_static/favicon.svg"></head>
<body><script>document.body.dataset.theme = localStorage.getItem("theme") || "auto";</script>
<main class="course-listing">
<p><a href="{up}index.html">The course</a> / <a href="{up}source/index.html">Sources</a></p>
<h1>{file}</h1>
{code}</main></body></html>
"""


@cache
def source_files() -> dict[str, str]:
    """Path in the repository -> name of its page, of course_lib."""
    files = (path.relative_to(ROOT) for path in sorted((ROOT / "course_lib").rglob("*.py")))
    return {path.as_posix(): f"source/{path.with_suffix('').as_posix()}" for path in files
            if not any(map(path.is_relative_to, LEFT_OUT))}


def address_of(file: str) -> str:
    """The page of a source file, from the site's root; "" where it has none."""
    page = source_files().get(file)
    return f"{page}.html" if page else ""


@cache
def lines_of(file: str) -> list[str]:
    return [line.strip() for line in (ROOT / file).read_text(encoding="utf-8").splitlines()]


def line_of(file: str, code: str) -> int:
    """The line of the file at which the first definition of `code` begins; 0 where none of its definitions is there.

    Decorators repeat, and so do methods of two classes: the lines below tell them apart.
    """
    lines, shown = lines_of(file), [line.strip() for line in code.splitlines()]
    for place, line in enumerate(shown):
        if not line.startswith(("def ", "class ", "@")):
            continue
        first = list(islice(takewhile(bool, shown[place:]), 5))
        for number in range(len(lines)):
            if lines[number:number + len(first)] == first:
                return number + 1
    return 0


def place_of(module: str, name: str) -> tuple[str, int] | None:
    """(file, line) of a documented name, wherever it is defined; None for what has no source here."""
    thing = pydoc.locate(f"{module}.{name}")
    try:
        thing = inspect.unwrap(thing.fget if isinstance(thing, property) else thing)
        file = Path(inspect.getsourcefile(thing) or "").resolve().relative_to(ROOT).as_posix()
        return file, inspect.getsourcelines(thing)[1]
    except (TypeError, OSError, ValueError):
        return None


def pages() -> Iterator[tuple[str, str]]:
    """(address, HTML) of each listing."""
    for file, page in source_files().items():
        code = highlight((ROOT / file).read_text(encoding="utf-8"), PythonLexer(), FORMATTER)
        yield address_of(file), PAGE.format(file=html.escape(file), code=code, up="../" * page.count("/"))


def index_page() -> str:
    """The list of all source pages, in MyST: a paragraph of links for each folder."""
    folders: dict[str, list[str]] = {}
    for file in source_files():
        folders.setdefault(file.rpartition("/")[0], []).append(file)
    lines = ["# Sources", "", "The package as it is in this version of the course. Each line has an address.", "",
             "```{raw} html"]
    for folder, files in folders.items():
        links = ", ".join(f'<a href="../{address_of(file)}">{file.rpartition("/")[2]}</a>' for file in files)
        lines.append(f"<h2>{folder}</h2><p>{links}</p>")
    return "\n".join([*lines, "```", ""])
