"""Run, normalise and edit the course's notebooks; the Makefile's notebooks, text and write-back call this.

    python -m tools.notebooks run [NB ...]     run from a fresh kernel, store normalised outputs (all)
    python -m tools.notebooks text NB          write the notebook as py:percent text under build/text/
    python -m tools.notebooks write-back NB    put the edited text into the notebook, keep fitting outputs
    python -m tools.notebooks showing [FILE ...]    notebooks whose show() prints these sources (those git sees changed)

Normalised means: a second run stores the same bytes again, up to pictures of timings.
"""

import argparse
import copy
import hashlib
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
from nbformat import NotebookNode
from nbval.plugin import get_sanitize_patterns

from tools.harness.kernels import AsyncKernelManagerByFiles

ROOT = Path(__file__).resolve().parent.parent
SANITIZE = ROOT / "tests" / "nbval_sanitize.cfg"
TEXT_FOLDER = ROOT / "build" / "text"
# py:percent with magics as they are: jupytext's own py:percent comments them out, and on the way back takes for one of
# them, in prose too, a line such as #!/bin/bash, which then loses its #.
TEXT_FORMAT = "py:hydrogen"
CELL_TIMEOUT_S = 180  # against a hang, also on a busy machine; nbval, which sets the budget, allows 60

METADATA = {
    "kernelspec": {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"},
    "language_info": {"file_extension": ".py", "mimetype": "text/x-python", "name": "python"},
}
KEPT_CELL_METADATA = ("jupyter", "nbgrader", "tags")
WIDGET_MIME = "application/vnd.jupyter.widget-"
# plt.show() must give the same bytes under every matplotlib, which else signs its pictures; "tight" is the default.
PICTURES = ["--InlineBackend.print_figure_kwargs={'bbox_inches': 'tight', 'metadata': {'Software': None}}"]


def local_text() -> list[tuple[re.Pattern[str], str]]:
    """What a traceback holds of this machine and process, and what is stored instead."""
    folders = [(sys.prefix, ".venv/"), (str(ROOT), "")]
    home = str(Path.home())
    # IPython shortens the home directory
    folders += [(path.replace(home, "~", 1), to) for path, to in folders if path.startswith(home)]
    patterns = [(re.compile(re.escape(path) + r"[/\\]"), to) for path, to in folders]
    cell_file, address = re.compile(r"(?:/\S{0,80}/)?ipykernel_\d+[/\\]\d+\.py"), re.compile(r"0x[0-9a-f]{6,}")
    return [*patterns, (cell_file, "<cell>"), (address, "0x0")]


def execute(notebook: NotebookNode, folder: Path) -> None:
    """Run every cell of `notebook` in place, in a fresh kernel of this environment, started in `folder`.

    Raises nbclient's CellExecutionError where a cell without the tag raises-exception fails, CellTimeoutError
    where one takes more than CELL_TIMEOUT_S.
    """
    os.environ["COURSE_LIB_STABLE_OUTPUT"] = "1"
    os.environ["JUPYTER_PREFER_ENV_PATH"] = "1"  # a kernel called python3 in the author's home must not win
    client = NotebookClient(
        notebook,
        timeout=CELL_TIMEOUT_S,
        kernel_name="python3",
        kernel_manager_class=AsyncKernelManagerByFiles,
        record_timing=False,
        store_widget_state=False,
        extra_arguments=PICTURES,
        resources={"metadata": {"path": str(folder)}},
    )
    client.execute()


def normalise(notebook: NotebookNode) -> None:
    """Reduce `notebook` in place to what the reader sees: no widget state, versions or local paths."""
    notebook.metadata = nbformat.from_dict(METADATA)
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    notebook.cells = [cell for cell in notebook.cells if cell.source.strip()]
    seen: dict[str, int] = {}
    count = 0
    for cell in notebook.cells:
        cell.source = cell.source.rstrip()
        kept = [key for key in KEPT_CELL_METADATA if key in cell.metadata]
        cell.metadata = NotebookNode({key: cell.metadata[key] for key in kept})
        cell.id = stable_id(cell, seen)
        if cell.cell_type == "code":
            was_run = cell.execution_count is not None
            count += was_run
            cell.execution_count = count if was_run else None
            cell.outputs = normalised_outputs(cell.outputs, cell.execution_count)


def stable_id(cell: NotebookNode, seen: dict[str, int]) -> str:
    """An id from the cell's text alone, so that inserting a cell changes no other; `seen` counts repeats."""
    digest = hashlib.sha256(f"{cell.cell_type}\n{cell.source}".encode()).hexdigest()[:8]
    seen[digest] = seen.get(digest, 0) + 1
    return digest if seen[digest] == 1 else f"{digest}-{seen[digest]}"


def normalised_outputs(outputs: list[NotebookNode], execution_count: int | None) -> list[NotebookNode]:
    """The outputs a reader of the stored notebook can see, pieces of one stream joined."""
    kept: list[NotebookNode] = []
    for output in outputs:
        if output.output_type == "stream" and kept and kept[-1].get("name") == output.name:
            kept[-1].text += output.text
            continue
        if output.output_type == "error":
            output.traceback = [without_local_text(line) for line in output.traceback]
        if "data" in output:
            output.data = normalised_data(output.data)
            if not output.data:
                continue
        if output.output_type == "execute_result":
            output.execution_count = execution_count
        kept.append(output)
    return kept


def normalised_data(data: NotebookNode) -> NotebookNode:
    """A MIME bundle without the widget types."""
    return NotebookNode({mime: data[mime] for mime in data if not mime.startswith(WIDGET_MIME)})


def without_local_text(text: str) -> str:
    """`text` without the paths and addresses that differ from machine to machine."""
    for pattern, replacement in local_text():
        text = pattern.sub(replacement, text)
    return text


def keep_equal_text(new: NotebookNode, old: NotebookNode) -> None:
    """Put back into `new` every text of `old` that strict nbval would call equal, such as a measured time.

    An error's sentence belongs to its traceback, which is new: both name the cell by its number.
    Not in a cell whose pictures are others now: there text and picture say what one run has measured.
    """
    patterns = get_sanitize_patterns(SANITIZE.read_text(encoding="utf-8"))

    def sanitized(text: str) -> str:
        for pattern, replacement in patterns:
            text = re.sub(pattern, replacement, text)
        return text

    old_cells = {cell.id: cell for cell in old.cells}
    for cell in new.cells:
        before_cell = old_cells.get(cell.id, {})
        if pictures_in(cell) != pictures_in(before_cell):
            continue
        for output, before in zip(cell.get("outputs", []), before_cell.get("outputs", [])):
            if output.output_type == "error":
                continue
            for now, then in ((output, before), (output.get("data", {}), before.get("data", {}))):
                for key in now.keys() & then.keys():
                    is_text = isinstance(now[key], str) and not key.startswith("image/")
                    if is_text and sanitized(now[key]) == sanitized(then[key]):
                        now[key] = then[key]


def pictures_in(cell: NotebookNode | dict) -> list[str]:
    """The pictures among a cell's outputs, as text."""
    return [data for output in cell.get("outputs", []) for mime, data in sorted(output.get("data", {}).items())
            if mime.startswith("image/")]


def run(path: Path) -> None:
    """Execute and normalise the notebook at `path`; SystemExit with the failing cell when it does not run."""
    notebook = nbformat.read(path, as_version=4)
    before = copy.deepcopy(notebook)
    started = time.perf_counter()
    try:
        execute(notebook, path.parent)
    except (CellExecutionError, CellTimeoutError, DeadKernelError) as error:
        raise SystemExit(f"{path}: not written, it does not run\n{error}") from None
    normalise(notebook)
    keep_equal_text(notebook, before)
    nbformat.write(notebook, path)
    print(f"{path}: {len(notebook.cells)} cells in {time.perf_counter() - started:.0f} s")


def text_of(path: Path) -> Path:
    """Where the text of the notebook at `path` lies. A chapter's exercises are called like the chapter."""
    of_exercises = path.resolve().is_relative_to(ROOT / "solutions")
    return TEXT_FOLDER / f"{'solutions_' * of_exercises}{path.stem}.py"


def to_text(path: Path) -> None:
    """Write the notebook at `path` as text; SystemExit when that would overwrite an edited text."""
    import jupytext

    text = jupytext.writes(nbformat.read(path, as_version=4), fmt=TEXT_FORMAT)
    target = text_of(path)
    if target.exists() and target.read_text(encoding="utf-8") != text:
        raise SystemExit(f"{target} differs from {path}: make write-back NB={path}, or delete it")
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text, encoding="utf-8")
    print(f"edit {target.relative_to(ROOT)}, then: make write-back NB={path} && make notebooks NB={path}")


def write_back(path: Path) -> None:
    """Replace the cells of the notebook at `path` (made when absent) by the edited text, remove the text."""
    import jupytext
    from jupytext.combine import combine_inputs_with_outputs

    source = text_of(path)
    if not source.exists():
        raise SystemExit(f"there is no {source.relative_to(ROOT)}: make text NB={path} writes it")
    notebook = jupytext.read(source, fmt=TEXT_FORMAT)
    if path.exists():
        notebook = combine_inputs_with_outputs(notebook, nbformat.read(path, as_version=4))
    normalise(notebook)
    nbformat.write(notebook, path)
    source.unlink()


def shown_in(path: Path) -> set[str]:
    """The source files that the notebook at `path` shows: course_lib.show prints `# FILE, FILE` above the code."""
    cells = nbformat.read(path, as_version=4).cells
    texts = [output.get("data", {}).get("text/plain", "") for cell in cells for output in cell.get("outputs", [])]
    headings = [text.splitlines()[0] for text in texts if text.startswith("# ")]
    # show_diff goes on behind a colon: what became of what.
    return {file for heading in headings for file in heading.removeprefix("# ").partition(":")[0].split(", ")}


def changed_files() -> list[str]:
    """Relative to the root, what differs from the last commit."""
    command = ["git", "diff", "--name-only", "HEAD"]
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.splitlines()


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.notebooks", description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("run").add_argument("notebooks", nargs="*", type=Path)
    for name in ("text", "write-back"):
        commands.add_parser(name).add_argument("notebook", type=Path)
    commands.add_parser("showing").add_argument("files", nargs="*")
    chosen = parser.parse_args(arguments)
    if chosen.command == "run":
        for path in chosen.notebooks or sorted(ROOT.glob("notebooks/*.ipynb")):
            run(path)
    elif chosen.command == "showing":
        files = set(chosen.files or changed_files())
        print(*(path.relative_to(ROOT) for path in sorted(ROOT.glob("notebooks/*.ipynb")) if shown_in(path) & files))
    else:
        {"text": to_text, "write-back": write_back}[chosen.command](chosen.notebook)


if __name__ == "__main__":
    main(sys.argv[1:])
