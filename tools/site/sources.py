"""build/site_source: what Sphinx reads. The tree's own pages and notebooks, under their own names, so that their links
stay true, and the pages that are made from code: a page for each package of course_lib, of its public names, and what
a page adds to an exercise.
"""

import importlib
import inspect
import re
import shutil
from functools import cache
from pathlib import Path

import nbformat
from myst_parser.mdit_to_docutils.base import default_slugify
from nbformat import NotebookNode

from course_lib.grading import recorded
from course_lib.grading.registry import exercise
from tools.pages import rendered
from tools.site import listings
from tools.site.outputs import PICTURES, as_html

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
EXERCISES = sorted((ROOT / "exercises").glob("*/*.ipynb"))
PAGES = ["CHANGELOG.md", "CONTRIBUTING.md", "ERRATA.md", "TEACHING.md",
         *(path.relative_to(ROOT).as_posix() for path in sorted((ROOT / "docs").rglob("*.md")))]
FILES = ["CITATION.cff", "LICENSE", "docs/cluster/train.sbatch", "images/matrix_cut.png", "images/start_here.png"]
EXTRA = "extra"  # copied into the site as it is
LINK = re.compile(r"(\]\((?!\w+:)[^()\s#]*)#((?:[^()\s]|\([^()\s]*\))+)\)")
RECORDED = "*The outputs on this page were recorded. To run its cells, [get the course](../index.md#start).*"


def write_sources(folder: Path) -> None:
    """Fill `folder` anew."""
    shutil.rmtree(folder)
    pictures = folder / EXTRA / PICTURES
    index = rendered("index.md", readme=(ROOT / "README.md").read_text(encoding="utf-8"),
                     notebooks=[f"notebooks/{path.stem}" for path in NOTEBOOKS])
    pages = {"index.md": index, "planner.md": rendered("planner.md"),
             "source/index.md": listings.index_page(), "exercises/index.md": exercises_page(ROOT / "exercises"),
             **api_pages(), **{name: below(name, (ROOT / name).read_text(encoding="utf-8")) for name in PAGES}}
    for name, text in pages.items():
        write(folder / name, with_slugs(text))
    for path in NOTEBOOKS:
        write(folder / path.relative_to(ROOT), notebook_page(path, pictures))
    for path in EXERCISES:
        write(folder / path.relative_to(ROOT), exercise_page(path, pictures))
    for address, text in listings.pages():
        write(folder / EXTRA / address, text)
    for name in FILES:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, folder / name)


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def notebook_page(path: Path, pictures: Path) -> str:
    """A notebook of the course, with its recorded outputs."""
    notebook = as_html(path, pictures, "../")
    title, _, rest = notebook.cells[0].source.partition("\n")
    notebook.cells[0].source = f"{title}\n\n{RECORDED}\n{rest}"
    return with_slugged_cells(notebook)


def exercise_page(path: Path, pictures: Path) -> str:
    """The exercises of a chapter."""
    notebook = as_html(path, pictures, "../../")
    extend(notebook)
    return with_slugged_cells(notebook)


def with_slugged_cells(notebook: nbformat.NotebookNode) -> str:
    for cell in notebook.cells:
        cell.metadata = nbformat.NotebookNode(tags=cell.metadata.get("tags", []))
        if cell.cell_type == "markdown":
            cell.source = with_slugs(cell.source)
    return nbformat.writes(notebook)


def with_slugs(text: str) -> str:
    """Links to headings as MyST names these: JupyterLab's #Which-wire? is #which-wire."""
    return LINK.sub(lambda link: f"{link[1]}#{default_slugify(link[2].replace('-', ' '))})", text)


def below(name: str, text: str) -> str:
    """A page with the pages that stand below it in the sidebar."""
    folder = {"CONTRIBUTING.md": "docs/contributing", "docs/decisions/README.md": "docs/decisions"}.get(name)
    return text if folder is None else "\n".join([text, "```{toctree}", ":hidden:", ":glob:", "", f"/{folder}/[!R]*",
                                                  "```", ""])


# What a page adds to an exercise: where ranks come from, the hints, and answers in words, folded

RUBRICS = ROOT / "docs" / "teaching" / "rubrics.md"
HINTS = ("a nudge", "the idea", "nearly the code")


@cache
def sample_answers() -> dict[str, str]:
    """Number of a design question -> three answers in words, with the points that they get."""
    sections = re.split(r"^## (\d+\.\d+) .*$", RUBRICS.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {number: text.strip() for number, text in zip(sections[1::2], sections[2::2])}


def extend(notebook: NotebookNode) -> None:
    """Add to each exercise of the notebook, below its check, what a page has."""
    cells = []
    for cell in notebook.cells:
        cells.append(cell)
        checked = re.match(r'check\("([\d.]+)"', cell.source) if cell.cell_type == "code" else None
        if checked:
            cells.append(nbformat.v4.new_markdown_cell(below_check(checked[1])))
    notebook.cells = cells


def below_check(number: str) -> str:
    """What stands below the check of an exercise, in MyST."""
    return rendered("exercise.md", ranks=max(trial.world_size for trial in exercise(number).trials(0)),
                    hints=list(zip(HINTS, map(as_markdown, recorded.hints(number)))),
                    answers=sample_answers().get(number))


def as_markdown(text: str) -> str:
    """A hint as it was written: only code has lines, and in prose no sign means anything."""
    if "\n" in text:
        return f"```text\n{text}\n```"
    return re.sub(r"([\\`*_\[\]<>|#$])", r"\\\1", text)


def exercises_page(folder: Path) -> str:
    """The list of all exercises."""
    texts = {path: path.read_text(encoding="utf-8") for path in sorted(folder.glob("*/*.ipynb"))}
    return rendered("exercises.md", chapters={
        path: [title for cell in nbformat.reads(text, as_version=4).cells if cell.cell_type == "markdown"
               for title in re.findall(r"^## (\d+\.\d+ .*)$", cell.source, re.MULTILINE)]
        for path, text in texts.items()})


# A page for each package: its `__all__`, in that order. Docstrings are plain text, and shown as they were written

# In the order in which the course meets them.
PACKAGES = ("runtime", "reference", "why_distribute", "collectives", "data_parallel", "pipeline_parallel",
            "tensor_parallel", "zero", "sequence_parallel", "expert_parallel", "hybrid_parallel", "checkpoint",
            "planner", "facts", "grading", "mine", "widgets")


def api_pages() -> dict[str, str]:
    """Path in the site's sources -> its text, in MyST: what a package's docstring says, then its functions and classes.
    """
    modules = {name: importlib.import_module(f"course_lib.{name}") for name in PACKAGES}
    constants = {name: [each for each in module.__all__ if not callable(getattr(module, each))]
                 for name, module in modules.items()}
    return {"api/index.md": rendered("api_index.md", packages=PACKAGES)} | {
        f"api/{name}.md": rendered("api_package.md", package=name, constants=constants[name]) for name in PACKAGES}


def as_rst(lines: list[str]) -> list[str]:
    """Plain text as reStructuredText that shows it as it is."""
    text = inspect.cleandoc("\n".join(lines))
    language = "pycon" if ">>>" in text else "text"
    return [f".. code-block:: {language}", "   :class: docstring", "",
            *(f"   {line}" for line in text.splitlines()), ""] if text else []
