"""The source files as pages, each line with an address: course_lib/zero/fsdp.py is source/course_lib/zero/fsdp.html.

Sphinx's own viewcode gives addresses to documented names alone, and the notebooks show functions that no page lists.
"""

from collections.abc import Iterator
from functools import cache
from itertools import islice, takewhile
from pathlib import Path

from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer

from tools.pages import rendered

ROOT = Path(__file__).resolve().parents[2]
FORMATTER = HtmlFormatter(lineanchors="L", linenos="inline", anchorlinenos=True, wrapcode=True)
# What decides exercises stays where solutions stay.
LEFT_OUT = ("course_lib/grading/marks", "course_lib/grading/trusted", "course_lib/grading/kinds.py",
            "course_lib/grading/gradients.py")


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


def pages() -> Iterator[tuple[str, str]]:
    """(address, HTML) of each listing: without Sphinx, whose theme draws a table of contents of all pages beside each.
    """
    for file, page in source_files().items():
        code = highlight((ROOT / file).read_text(encoding="utf-8"), PythonLexer(), FORMATTER)
        yield address_of(file), rendered("listing.html", file=file, code=code, up="../" * page.count("/"))


def index_page() -> str:
    """The list of all source pages, in MyST: a paragraph of links for each folder."""
    files = [(*file.rpartition("/")[::2], page) for file, page in source_files().items()]
    return rendered("sources.md", files=[dict(zip(("folder", "name", "page"), each)) for each in files])
