"""A notebook before it is graded: SubmittedNotebook reads what was handed in, RestoreCells mends it.

A cell that was duplicated has the id of its original, and nbgrader ends there; one whose marks were lost, renamed or
deleted with it costs every mark behind it. So RestoreCells stands before all other preprocessors of `nbgrader
autograde`, and gives each cell nbgrader's marks as the teacher gave them, whatever has happened to them.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from nbconvert.exporters import NotebookExporter
from nbconvert.exporters.exporter import ResourcesDict
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell
from nbgrader import utils
from nbgrader.api import Gradebook
from nbgrader.coursedir import CourseDirectory
from nbgrader.preprocessors import NbGraderPreprocessor

from course_lib.grading.marks.handed_in import files_in
from course_lib.grading.marks.reading import read_notebook

RESTORED = "course_restored"  # in a notebook's metadata: what was done, a line each, for the record


def is_check(cell: NotebookNode) -> bool:
    """Whether the points of this cell come from running it; the others are marked by hand."""
    return cell.cell_type == "code" and utils.is_grade(cell) and not utils.is_solution(cell)


@dataclass(frozen=True)
class Original:
    """A cell that is locked, checked or a solution, as it was given out."""

    grade_id: str
    cell_type: str
    source: str
    grade: bool
    solution: bool
    locked: bool
    points: float = 0.0

    @property
    def marks(self) -> dict:
        """The metadata with which nbgrader knows the cell."""
        points = {"points": self.points} if self.grade else {}
        return {"grade": self.grade, "grade_id": self.grade_id, "locked": self.locked, "schema_version": 3,
                "solution": self.solution, "task": False, **points}

    def is_in(self, cell: NotebookNode) -> bool:
        """Whether `cell`, which has no marks, is this one by what it holds."""
        if cell.cell_type != self.cell_type:
            return False
        if self.solution and self.cell_type == "code":
            return bool(functions_of(self.source) & functions_of(cell.source))
        return bool(self.source.strip()) and cell.source.strip() == self.source.strip()


class RestoreCells(NbGraderPreprocessor):
    """Give each of the teacher's cells its marks back, once; put back what is missing, but for solutions."""

    def preprocess(self, nb: NotebookNode, resources: ResourcesDict) -> tuple[NotebookNode, ResourcesDict]:
        """Give the cells of a submission the marks that the teacher's notebook had, from nbgrader's data base.

        ValueError for links and the like in the folder: then nbgrader takes back what it has copied of it.
        """
        names, coursedir = resources["nbgrader"], CourseDirectory(config=self.config)
        files_in(Path(coursedir.format_path(coursedir.submitted_directory, names["student"], names["assignment"])))
        with Gradebook(names["db_url"]) as gradebook:
            originals = originals_of(gradebook.find_notebook(names["notebook"], names["assignment"]))
        nb.metadata.clear()  # a record there, of full marks, would be believed where grading is interrupted
        nb.metadata[RESTORED] = restore(nb.cells, originals)
        for line in nb.metadata[RESTORED]:
            self.log.warning("%s: %s", names["student"], line)
        return nb, resources


def originals_of(notebook: object) -> list[Original]:
    """The cells of a notebook in nbgrader's database, in order."""
    points = {cell.name: cell.max_score for cell in notebook.grade_cells}
    solutions = {cell.name for cell in notebook.solution_cells}
    return [Original(cell.name, cell.cell_type, cell.source, cell.name in points, cell.name in solutions, cell.locked,
                     points.get(cell.name, 0.0)) for cell in notebook.source_cells]


def restore(cells: list[NotebookNode], originals: list[Original]) -> list[str]:
    """Mend `cells` in place; what was done, a line each."""
    known, seen, done = {each.grade_id: each for each in originals}, set(), []
    for cell in reversed(cells):  # of two the last one counts, as it does when the notebook is run
        marks = cell.metadata.pop("nbgrader", None)  # which may say anything
        grade_id = marks.get("grade_id") if isinstance(marks, dict) else None
        grade_id = grade_id if isinstance(grade_id, str) else None
        if grade_id in known.keys() - seen:
            cell.metadata["nbgrader"] = known[grade_id].marks
            if cell.cell_type != known[grade_id].cell_type:
                cell.pop("attachments", None)  # which only Markdown has
            seen.add(grade_id)
        elif marks is not None:
            done.append(f"a cell lost the marks of {str(grade_id)[:80]!r}: "
                        + ("there is another one with them" if grade_id in seen else "nobody gave such a cell out"))
    for place, original in enumerate(originals):
        if original.grade_id in seen:
            continue
        found = next((cell for cell in reversed(cells) if "nbgrader" not in cell.metadata and original.is_in(cell)),
                     None)
        if found is not None:
            found.metadata["nbgrader"] = original.marks
            done.append(f"a cell got the marks of {original.grade_id!r} again: it is the same by what it holds")
        elif original.grade or not original.solution:
            cells.insert(place_after(cells, originals[:place]), new_cell(original, any("id" in cell for cell in cells)))
            done.append(f"{original.grade_id!r} was missing and is there again")
    return done


def place_after(cells: list[NotebookNode], before: list[Original]) -> int:
    """Behind the last of the cells that come before; at the top where none is there."""
    ids = {each.grade_id for each in before}
    return max((place + 1 for place, cell in enumerate(cells)
                if cell.metadata.get("nbgrader", {}).get("grade_id") in ids), default=0)


def new_cell(original: Original, with_id: bool) -> NotebookNode:
    """The cell as it was given out. with_id: notebooks from before nbformat 4.5 have no ids."""
    make = new_code_cell if original.cell_type == "code" else new_markdown_cell
    cell = make(original.source, metadata={"nbgrader": original.marks})
    if not with_id:
        del cell["id"]
    return cell


def functions_of(source: str) -> set[str]:
    """The names of the functions that a cell defines, by its lines: a parser may take gigabytes or end this process."""
    return {line[4:].partition("(")[0].strip() for line in source.splitlines() if line.startswith("def ")}


class SubmittedNotebook(NotebookExporter):
    """What `nbgrader autograde` reads: first the file that was handed in, then what it has made of that itself."""

    def from_file(self, file_stream: TextIO, resources: ResourcesDict | None = None, **kwargs: object
                  ) -> tuple[str, ResourcesDict]:
        """The notebook of an open file, the student's with limits."""
        if not self.parent._sanitizing:
            return super().from_file(file_stream, resources, **kwargs)
        return self.from_notebook_node(read_notebook(Path(file_stream.name)), resources, **kwargs)
