"""The reader's own copies under workspace/: notebooks and exercises without outputs, and the pages that they link.

`make lab` begins with this.

    python -m tools.workspace            give what is missing or new; what a reader has changed stays
    python -m tools.workspace --fresh    start over, after asking; the old folder is kept under another name

A copy that the reader has run or edited is theirs. When its original changes, the new one arrives beside it, as
NAME.new.ipynb. What was given last is remembered in workspace/.given.json, so that a copy nobody touched is replaced.
To open a notebook is not to touch it: JupyterLab then writes metadata and saves, so only the cells' texts and outputs
are compared.
"""

import argparse
import hashlib
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import nbformat
from ipykernel.ipkernel import IPythonKernel

ROOT = Path(__file__).resolve().parent.parent
ORIGINALS = ("notebooks/*.ipynb", "exercises/*/*.ipynb")
PAGES = ("docs/glossary.md", "docs/documents.md")
GIVEN = ".given.json"
COLAB = "colab"  # the tag of the cell that brings the course to Google Colab; here it is there already
ANSWERS = ".against("  # a cell with this call holds the answer to a prediction


@dataclass(frozen=True)
class Workspace:
    """The copies of the notebooks below `root` in `folder`: `name` below `root`, or an absolute path."""

    root: Path = ROOT
    name: str = "workspace"

    @property
    def folder(self) -> Path:
        return self.root / self.name

    def fill(self) -> list[Path]:
        """Give what is missing or has changed; returns the files written, relative to the folder."""
        given, written = self.given(), []
        for original in self.originals():
            relative = original.relative_to(self.root)
            text = without_outputs(original) if original.suffix == ".ipynb" else original.read_text(encoding="utf-8")
            if given.get(str(relative)) == digest(text) and (self.folder / relative).exists():
                continue
            target = next(path for path in places(relative)
                          if self.may_write(path, given) or digest(self.text_of(path)) == digest(text))
            if digest(self.text_of(target)) != digest(text):
                self.write(target, text)
                written.append(target)
            given[str(target)] = given[str(relative)] = digest(text)
        self.write(Path(GIVEN), json.dumps(given, indent=1, sort_keys=True) + "\n")
        return written

    def originals(self) -> Iterator[Path]:
        for pattern in (*ORIGINALS, *PAGES):
            yield from sorted(self.root.glob(pattern))

    def given(self) -> dict[str, str]:
        """Relative path -> digest of what was given there last."""
        return json.loads(self.text_of(Path(GIVEN)) or "{}")

    def may_write(self, target: Path, given: dict[str, str]) -> bool:
        """Whether nothing of the reader's is there."""
        return not (self.folder / target).exists() or digest(self.text_of(target)) == given.get(str(target))

    def text_of(self, relative: Path) -> str:
        path = self.folder / relative
        return path.read_text(encoding="utf-8") if path.exists() else ""

    def write(self, relative: Path, text: str) -> None:
        path = self.folder / relative
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def set_aside(self) -> Path:
        """Keep the folder under another name, which is returned."""
        names = (self.root / f"{self.name}-old-{number}" for number in range(1, 10_000))
        return self.folder.rename(next(path for path in names if not path.exists()))


def places(relative: Path) -> Iterator[Path]:
    """Where a copy may go: its own place, then names beside it."""
    yield relative
    for number in range(1, 10_000):
        yield relative.with_suffix(f".new{number if number > 1 else ''}{relative.suffix}")


def without_outputs(path: Path) -> str:
    """The notebook at `path` as text, as nobody has run it: a prediction comes before its answer.

    A cell that answers a prediction stands right below the question, so its source is folded.
    """
    notebook = nbformat.read(path, as_version=4)
    # As this kernel describes it: otherwise JupyterLab fills it in and calls a notebook unsaved that was only opened.
    notebook.metadata.language_info = nbformat.from_dict(IPythonKernel.language_info)
    notebook.cells = [cell for cell in notebook.cells if not is_for_colab(cell)]
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
            if ANSWERS in cell.source:
                cell.metadata.setdefault("jupyter", {})["source_hidden"] = True
    return nbformat.writes(notebook) + "\n"


def is_for_colab(cell: nbformat.NotebookNode) -> bool:
    return COLAB in cell.metadata.get("tags", [])


def digest(text: str) -> str:
    """Of what is the reader's in a notebook, the cells' texts and outputs; of all of a text that is no notebook."""
    try:
        cells = json.loads(text)["cells"]
        parts = [[cell["cell_type"], "".join(cell["source"]), cell.get("attachments") or {}, cell.get("outputs") or []]
                 for cell in cells]
        text = json.dumps(parts, sort_keys=True)
    except (ValueError, KeyError, TypeError):
        pass  # damaged by hand: then every letter counts
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def said_of(written: list[Path], name: str, first: bool) -> str:
    """One line about what was given, for the `first` time or not; empty where that is nothing."""
    beside = [path for path in written if ".new" in path.name]
    replaced = [path for path in written if path not in beside]
    said = []
    if replaced and first:
        said.append(f"your copies are there, {listed(replaced)}; run and edit them as you like")
    elif replaced:
        said.append(f"new from the course, nothing of yours was in their place: {listed(replaced)}")
    if beside:
        said.append("yours stay as they are; the course has changed, and the new ones lie beside them: "
                    f"{', '.join(map(str, beside))}")
    return f"{name}/: {'; '.join(said)}" if said else ""


def listed(paths: list[Path]) -> str:
    return f"{len(paths)} notebooks" if len(paths) > 3 else ", ".join(map(str, paths))


def start_over(workspace: Workspace) -> None:
    """SystemExit where the reader says no; EOFError where nobody can be asked."""
    if not workspace.folder.exists():
        return
    answer = input(f"Start over with fresh copies? {workspace.name}/ is kept under another name. [y/N] ")
    if answer.strip().lower() not in ("y", "yes"):
        raise SystemExit("nothing was changed")
    print(f"your old copies: {workspace.set_aside().relative_to(workspace.root)}/")


def give_copies(fresh: bool = False, folder: Path = ROOT / "workspace") -> None:
    """Fill the workspace, in new folders where the reader says so, and print what was given.

    `folder` may lie elsewhere, as in a hub whose course is not the reader's to write to.
    """
    workspace = Workspace(ROOT, str(folder.relative_to(ROOT) if folder.is_relative_to(ROOT) else folder))
    if fresh:
        start_over(workspace)
    first = not workspace.folder.exists()
    line = said_of(workspace.fill(), workspace.name, first)
    if line:
        print(line)


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.workspace", description=__doc__.splitlines()[0])
    parser.add_argument("--fresh", action="store_true", help="start over, after asking")
    give_copies(parser.parse_args(arguments).fresh)


if __name__ == "__main__":
    main(sys.argv[1:])
