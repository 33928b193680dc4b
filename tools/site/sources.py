"""build/site_source: what Sphinx reads. The tree's own pages and notebooks, under their own names, so that their links
stay true, and the pages that are made from code.
"""

import re
import shutil
from pathlib import Path

import nbformat
from myst_parser.mdit_to_docutils.base import default_slugify

from tools.site import api, exercises, facts, listings
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
# tools/site/live puts a form and its answers there.
PLANNER = """\
# The planner

A model, the GPUs that you have, and a batch: every layout that can be built and fits, the best first, with its reasons
and with how far off such an estimate was on published runs. [Chapter 10](notebooks/10_planner.ipynb) shows how it
computes; in a terminal it is `python -m course_lib.planner --model llama-3-70b --gpus 64xH100 --tokens 2M`.

```{raw} html
<div class="course-planner"><p>This form needs scripts, and a page that comes from a server: a file opened in a browser
may not start them. <code>python -m http.server --directory build/site</code> is one.</p></div>
```
"""
CONTENTS = [
    ("Notebooks", [f"notebooks/{path.stem}" for path in NOTEBOOKS]),
    ("Exercises", ["exercises/index"]),
    ("Look up", ["planner", "docs/glossary", "docs/documents", "facts", "ERRATA", "api/index", "source/index"]),
    ("Teach", ["TEACHING", "docs/teaching/plans", "docs/teaching/polls", "docs/teaching/rubrics",
               "docs/teaching/struggles", "docs/teaching/terms", "docs/teaching/isolation"]),
    ("Contribute", ["CONTRIBUTING", "docs/one_click", "docs/decisions/README", "CHANGELOG"]),
]


def write_sources(folder: Path) -> None:
    """Fill `folder`; a file that would stay the same is not touched, so that Sphinx reads it no second time."""
    pictures = folder / EXTRA / PICTURES
    written = {folder / "index.md": front_page(), folder / "planner.md": PLANNER, folder / "facts.md": facts.page(),
               folder / "source/index.md": listings.index_page(),
               folder / "exercises/index.md": exercises.index_page(ROOT / "exercises")}
    written |= {folder / name: text for name, text in api.pages().items()}
    written |= {folder / name: below(name, (ROOT / name).read_text(encoding="utf-8")) for name in PAGES}
    written |= {folder / path.relative_to(ROOT): notebook_page(path, pictures) for path in NOTEBOOKS}
    written |= {folder / path.relative_to(ROOT): exercise_page(path, pictures) for path in EXERCISES}
    written |= {folder / EXTRA / address: text for address, text in listings.pages()}
    for path, text in written.items():
        write(path, with_slugs(text) if path.suffix == ".md" else text)
    for name in FILES:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, folder / name)
    for path in [*folder.rglob("*.md"), *folder.rglob("*.ipynb"), *(folder / EXTRA / "source").rglob("*.html")]:
        if path not in written:  # of an older tree
            path.unlink()


def write(path: Path, text: str) -> None:
    if not path.exists() or path.read_text(encoding="utf-8") != text:
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


def front_page() -> str:
    """README, and the contents for the sidebar."""
    trees = [f"```{{toctree}}\n:hidden:\n:caption: {caption}\n\n" + "\n".join(pages) + "\n```"
             for caption, pages in CONTENTS]
    return "\n\n".join([(ROOT / "README.md").read_text(encoding="utf-8"), *trees]) + "\n"


def below(name: str, text: str) -> str:
    """A page with the pages that stand below it in the sidebar."""
    folder = {"CONTRIBUTING.md": "docs/contributing", "docs/decisions/README.md": "docs/decisions"}.get(name)
    if folder is None:
        return text
    pages = [f"/{folder}/{path.stem}" for path in sorted((ROOT / folder).glob("*.md")) if path.stem != "README"]
    return "\n".join([text, "```{toctree}", ":hidden:", "", *pages, "```", ""])
