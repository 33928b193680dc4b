"""Pages on which somebody reads a student's notebook: the feedback that students get, and nbgrader's formgrader.

Whatever a notebook holds is shown as text, twice over. Its Markdown and HTML pass `harmless`, which lets through what
formats text and writes all else out. And the page's Content-Security-Policy runs no script but formgrader's own, and
loads nothing from elsewhere, not even MathJax: a formula is shown as it was typed. Both are nbgrader's own templates
otherwise. formgrader lies in the origin of a teacher's JupyterLab, where a script could start a kernel.
"""

import html
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import bleach
from jinja2 import pass_context
from jinja2.runtime import Context
from nbconvert.exporters import HTMLExporter
from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath
from nbformat import NotebookNode
from nbgrader.server_extensions.formgrader import handlers
from tornado.web import HTTPError
from traitlets import default
from traitlets.config import Config

from course_lib.grading.trusted.notebooks import is_check

TEMPLATES = Path(__file__).parent / "templates"
HEADING = re.compile(r"^#+ (\d+\.\d+ .*?)(?: \([\d.]+ points?\))?$", re.MULTILINE)
TAGS = frozenset("a abbr b blockquote br code dd del div dl dt em h1 h2 h3 h4 h5 h6 hr i img kbd li ol p pre s span "
                 "strong sub sup table tbody td tfoot th thead tr u ul".split())
PICTURE = re.compile(r"data:image/(png|jpeg|gif|webp);base64,[A-Za-z0-9+/=\s]*")
LINK = re.compile(r"\s*(https?:|mailto:|[^:]*$)", re.IGNORECASE)
STUDENTS_FILE = "default-src 'none'; style-src 'unsafe-inline'; img-src 'self' data:; sandbox"
SHOWN = ("student", "first_name", "last_name", "notebook_path")  # what formgrader's template does not escape


def is_allowed(tag: str, name: str, value: str) -> bool:
    """Whether an attribute stays: no class or id, for which scripts and styles look, and no picture from elsewhere."""
    if name == "src":
        return tag == "img" and PICTURE.fullmatch(value) is not None
    if name == "href":
        return tag == "a" and LINK.match(value) is not None
    return name in {"a": ("title",), "abbr": ("title",), "img": ("alt", "title", "width", "height"),
                    "ol": ("start",), "td": ("colspan", "rowspan"), "th": ("colspan", "rowspan")}.get(tag, ())


def harmless(page: str | bytes) -> str:
    """A student's HTML with the tags that format text; others are shown as they were typed.

    >>> harmless("<b>bold</b> <script>alert(1)</script> <a href='javascript:alert(1)' onclick='f()'>link</a>")
    '<b>bold</b> &lt;script&gt;alert(1)&lt;/script&gt; <a>link</a>'
    """
    text = page.decode(errors="replace") if isinstance(page, bytes) else str(page)
    return bleach.clean(text, tags=TAGS, attributes=is_allowed, protocols={"http", "https", "mailto", "data"})


@pass_context
def harmless_markdown(context: Context, source: str) -> str:
    """A student's Markdown as harmless HTML. Its pictures are those that are attached to the cell."""
    attachments = context.get("cell", {}).get("attachments", {})
    renderer = IPythonRenderer(escape=False, attachments=attachments, exclude_anchor_links=True)
    return harmless(MarkdownWithMath(renderer=renderer).render(source))


def own_scripts(page: str, nonce: object) -> str:
    """nbgrader's own part of a page, whose scripts may run where a policy names `nonce`; MathJax is left out."""
    page = re.sub(r"<script\b[^>]*(?:mathjax|MathJax).*?</script>", "", page, flags=re.DOTALL)
    page = re.sub(r'onclick="toggle_name\((true|false)\);"', r'data-names="\1"', page)  # a policy forbids these
    return page.replace("<script", f'<script nonce="{nonce}"')


def escape_names(resources: dict) -> dict:
    """What formgrader's template writes as it is, and a student may have chosen."""
    return {**resources, **{name: html.escape(str(resources.get(name) or "")) for name in SHOWN}}


# By name: formgrader shows its configuration as JSON.
FILTERS = {name: f"{__name__}.{function.__name__}" for name, function in {
    "markdown2html": harmless_markdown, "clean_html": harmless, "own_scripts": own_scripts,
    "escape_names": escape_names}.items()}


class OfThisCourse(handlers.FormgraderHandler):
    """nbgrader would run the nbgrader_config.py of any folder that a link or a picture's address names."""

    def get(self) -> object:
        """To the list of assignments; 403 with a folder."""
        if self.get_argument("path", ""):
            raise HTTPError(403, "formgrader shows the course of the folder in which JupyterLab was started")
        return super().get()


class StudentsFiles(handlers.SubmissionFilesHandler):
    """What lies beside a notebook, perhaps a page with scripts: it is shown as if it came from nowhere."""

    @property
    def content_security_policy(self) -> str:
        """For the header."""
        return f"{super().content_security_policy}; {STUDENTS_FILE}"


def guard_formgrader(config: Config) -> None:
    """For nbgrader_config.py: what nbgrader shows of a student's notebook is harmless, in feedback and formgrader."""
    config.HTMLExporter.sanitize_html = True
    config.HTMLExporter.filters = FILTERS
    config.HTMLExporter.template_name = "exercise_formgrade"
    config.HTMLExporter.extra_template_basedirs = [str(TEMPLATES), handlers.template_path]
    config.HTMLExporter.extra_template_paths = [handlers.template_path]
    ours = {each.__base__: each for each in (OfThisCourse, StudentsFiles)}
    handlers.default_handlers[:] = [(route, ours.get(handler, handler), *more)
                                    for route, handler, *more in handlers.default_handlers]


class FeedbackPage(HTMLExporter):
    """What `nbgrader generate_feedback` writes."""

    def __init__(self, config: Config | None = None, **kwargs: object) -> None:
        # nbgrader's converter configures every HTMLExporter; what is said of this class comes before that.
        config = config or Config()
        static = config.HTMLExporter.get("extra_template_paths", [])
        own = Config({"FeedbackPage": {
            "template_name": "exercise_feedback", "extra_template_basedirs": [str(TEMPLATES), handlers.template_path],
            "extra_template_paths": [handlers.template_path, *static], "sanitize_html": True, "filters": FILTERS}})
        own.merge(config)
        super().__init__(config=own, **kwargs)

    @default("export_from_notebook")
    def _export_from_notebook_default(self) -> None:
        return None  # not in JupyterLab's menu "Save and Export Notebook As"

    def default_filters(self) -> Iterator[tuple[str, Callable]]:
        """nbgrader's filters for its template, and one that names exercises in the list of contents."""
        yield from super().default_filters()
        yield "name_exercises", name_exercises


def name_exercises(page: str, nb: NotebookNode) -> str:
    """The page with the exercise's heading and points in each line of the contents that says "Test cell"."""
    for grade_id, heading in headings(nb).items():
        link = re.escape(f'<a href="#{grade_id}">')
        page = re.sub(rf"({link})Test cell</a> \(Score: ([\d.]+) / ([\d.]+)\)",
                      lambda found, heading=heading: f"{found[1]}{html.escape(heading)}</a>, {float(found[2]):g} of "
                                                     f"{float(found[3]):g} points", page)
    return page


def headings(nb: NotebookNode) -> dict[str, str]:
    """By the grade_id of a check cell, the heading of its exercise: the last numbered one above."""
    found: dict[str, str] = {}
    heading = ""
    for cell in nb.cells:
        if cell.cell_type == "markdown":
            heading = (HEADING.findall(cell.source) or [heading])[-1]
        elif is_check(cell) and heading:
            found[cell.metadata.nbgrader.grade_id] = heading
    return found
