"""The feedback page: nbgrader's own template, where long lines wrap and the list of contents names the exercises."""

import html
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from nbconvert.exporters import HTMLExporter
from nbformat import NotebookNode
from nbgrader.server_extensions.formgrader import handlers
from traitlets import default
from traitlets.config import Config

from course_lib.grading.trusted.preprocessor import is_check

TEMPLATES = Path(__file__).parent / "templates"
HEADING = re.compile(r"^#+ (\d+\.\d+ .*?)(?: \([\d.]+ points?\))?$", re.MULTILINE)


class FeedbackPage(HTMLExporter):
    """What `nbgrader generate_feedback` writes."""

    def __init__(self, config: Config | None = None, **kwargs: object) -> None:
        # nbgrader's converter configures every HTMLExporter; what is said of this class comes before that.
        config = config or Config()
        static = config.HTMLExporter.get("extra_template_paths", [])
        own = Config({"FeedbackPage": {
            "template_name": "exercise_feedback", "extra_template_basedirs": [str(TEMPLATES), handlers.template_path],
            "extra_template_paths": [handlers.template_path, *static]}})
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
