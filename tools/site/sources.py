"""build/site_source: what Sphinx reads. The tree's own pages and notebooks, under their own names, so that their links
stay true, and the pages that are made from code.
"""

import re
import shutil
from pathlib import Path

import nbformat
from myst_parser.mdit_to_docutils.base import default_slugify

from tools.pages import rendered
from tools.site import api, exercises, listings
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
             "source/index.md": listings.index_page(), "exercises/index.md": exercises.index_page(ROOT / "exercises"),
             **api.pages(), **{name: below(name, (ROOT / name).read_text(encoding="utf-8")) for name in PAGES}}
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
    exercises.extend(notebook)
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
