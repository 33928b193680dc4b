"""Record and edit the course's notebooks; the Makefile's notebooks, showing and write-back call this.

    python -m tools.notebooks run [NB ...]      run from a fresh kernel, store normalised outputs (all)
    python -m tools.notebooks tidy NB ...       ids and metadata as `run` leaves them, after an edit; nothing runs
    python -m tools.notebooks showing [FILE ...]    notebooks that show these sources (those that git sees changed)
    python -m tools.notebooks touched           the first, and two at most that differ from main or show what does

Normalised means: a second run stores the same bytes again, up to pictures of timings.
"""

import argparse
import ast
import asyncio
import base64
import hashlib
import re
import subprocess
import sys
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from course_lib.pictures.drawn import NOT_SEEN
from tools import minutes
from tools.harness.outputs import difference, error_of, said
from tools.run_notebooks import NOTEBOOKS, execute, failure, summary
from tools.workspace import is_for_colab

ROOT = Path(__file__).resolve().parent.parent
METADATA = {
    "kernelspec": {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"},
    "language_info": {"file_extension": ".py", "mimetype": "text/x-python", "name": "python"},
}
KEPT_CELL_METADATA = ("jupyter", "nbgrader", "tags")
WIDGET_MIME = "application/vnd.jupyter.widget-"
LONGEST_CELL = 25  # lines of code that a reader can hold in view
MOST_MINUTES = 90  # of a sitting, by the rule of tools/minutes.py
MOST_TOUCHED = 2  # that `make test` runs besides the first


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
            output.data = NotebookNode({mime: output.data[mime] for mime in output.data
                                        if not mime.startswith(WIDGET_MIME)})
            if not output.data:
                continue
        if output.output_type == "execute_result":
            output.execution_count = execution_count
        kept.append(output)
    return kept


def without_local_text(text: str) -> str:
    """`text` without the paths and addresses of this machine and process, as a traceback holds them."""
    for folder, stored in ((sys.prefix, ".venv/"), (str(ROOT), "")):
        for path in (folder, folder.replace(str(Path.home()), "~", 1)):  # IPython shortens the home directory
            text = re.sub(re.escape(path) + r"[/\\]", stored, text)
    text = re.sub(r"(?:/\S{0,80}/)?ipykernel_\d+[/\\]\d+\.py", "<cell>", text)
    return re.sub(r"0x[0-9a-f]{6,}", "0x0", text)


def keep_equal_outputs(new: NotebookNode, old: NotebookNode) -> None:
    """Put back into the cells of `new` what strict nbval would call equal, such as a measured time.

    Not where pictures are others now: there text and picture say what one run has measured. Not an error: its sentence
    belongs to its traceback, which is not compared.
    """
    for cell, before in zip(new.cells, old.cells):
        if cell.cell_type == "code" and not error_of(cell.outputs) and pictures_in(cell) == pictures_in(before) and (
                not difference(cell.outputs, before.outputs)):
            cell.outputs = before.outputs


def pictures_in(cell: NotebookNode) -> list[object]:
    """The pictures among a cell's outputs, and what is kept beside them."""
    return [(output.data["image/png"], output.metadata) for output in cell.outputs
            if "image/png" in output.get("data", {})]


def run(path: Path) -> None:
    """Execute and normalise the notebook at `path`; SystemExit where it does not run, or where what it prints is new
    and a second run prints something else.
    """
    before, notebook = nbformat.read(path, as_version=4), executed(path)
    if differing(notebook, before) and (doubtful := differing(executed(path), notebook)):
        raise SystemExit(f"{path}: not written, two runs differ\n" + "\n".join(doubtful))
    print(f"{path}: {summary(notebook)}")
    keep_equal_outputs(notebook, before)
    normalise(notebook)
    nbformat.write(notebook, path)


def executed(path: Path) -> NotebookNode:
    notebook = asyncio.run(execute(path))
    if words := notebook.metadata.executed.died or next(filter(None, map(failure, notebook.cells)), ""):
        raise SystemExit(f"{path}: not written, it does not run\n{words}")
    if contradicted := [said(output) for cell in notebook.cells for output in cell.get("outputs", [])
                        if NOT_SEEN in said(output)]:
        raise SystemExit(f"{path}: not written, a headline does not hold\n" + "\n".join(contradicted))
    return notebook


def differing(one: NotebookNode, other: NotebookNode) -> list[str]:
    """What strict nbval would say of two runs of the same cells."""
    pairs = zip(one.cells, other.cells)
    told = [(now.source, difference(now.outputs, then.outputs)) for now, then in pairs if now.cell_type == "code"]
    return [f"{source}\n{words}" for source, words in told if words]


def tidy(path: Path) -> None:
    """Normalise the notebook at `path` as it stands."""
    notebook = nbformat.read(path, as_version=4)
    normalise(notebook)
    nbformat.write(notebook, path)


def shown_in(path: Path) -> set[str]:
    """The source files that the notebook at `path` shows: course_lib.show prints `# FILE, FILE` above the code."""
    outputs = [output for cell in nbformat.read(path, as_version=4).cells for output in cell.get("outputs", [])]
    headings = [said(output).partition("\n")[0] for output in outputs]
    # show_diff goes on behind a colon: what became of what.
    return {file for heading in headings if heading.startswith("# ")
            for file in heading.removeprefix("# ").partition(":")[0].split(", ")}


def git(*words: str) -> list[str]:
    """The lines that git prints; none where it refuses."""
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True).stdout.splitlines()


def showing(files: set[str]) -> list[str]:
    return [name_of(path) for path in sorted(ROOT.glob("notebooks/*.ipynb")) if shown_in(path) & files]


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def touched() -> list[str]:
    """The notebooks that differ from where this branch left main, then those that show a source that does."""
    files = git("diff", "--name-only", *git("merge-base", "HEAD", "main") or ["HEAD"], "--")
    return list(dict.fromkeys([*(name for name in map(name_of, NOTEBOOKS) if name in files), *showing(set(files))]))


def for_test() -> list[str]:
    """The first notebook and MOST_TOUCHED others that a change touches; what is left for .ci/run is told."""
    first = name_of(NOTEBOOKS[0])
    others = [name for name in touched() if name != first]
    if left := others[MOST_TOUCHED:]:
        print("touched too, and left for .ci/run:", *left, file=sys.stderr)
    return [first, *others[:MOST_TOUCHED]]


def faults(notebook: NotebookNode) -> list[str]:
    """What a notebook may not be committed with, one message a fault."""
    code = [cell for cell in notebook.cells if cell.cell_type == "code" and not is_for_colab(cell)]
    first, *others = [cell.source for cell in code] or ["none"]
    unused = unused_imports(first, *others) if only_imports(first) else []
    longest = max(map(minutes.minutes, minutes.read(notebook)[0]))
    found = named({
        "metadata.widgets: GitHub refuses the notebook; run make notebooks": "widgets" in notebook.metadata,
        "the first code cell holds more than imports": not only_imports(first),
        f"imports that no cell uses: {', '.join(unused)}": unused,
        f"a sitting of {longest:.0f} minutes, more than {MOST_MINUTES}: shorten it": longest > MOST_MINUTES,
        "not run from top to bottom (nothing is compared then); run make notebooks":
            [cell.execution_count for cell in code] != list(range(1, len(code) + 1)),
    })
    return found + [f"cell {cell.execution_count}: {fault}" for cell in code for fault in faults_of_cell(cell)]


def named(broken: dict[str, object]) -> list[str]:
    return [fault for fault, is_there in broken.items() if is_there]


def faults_of_cell(cell: NotebookNode) -> list[str]:
    tags, data = cell.metadata.get("tags", []), [output.get("data", {}) for output in cell.outputs]
    return named({
        "widget-view output; run make notebooks":
            any(mime.startswith(WIDGET_MIME) for each in data for mime in each),
        "a picture names what drew it; save with metadata={'Software': None}":
            any(b"Software" in base64.b64decode(each.get("image/png", "")) for each in data),
        "ends in ';', which hides the value from the reader but not from nbval": cell.source.rstrip().endswith(";"),
        "a headline that its own data contradict; run make notebooks":
            any(NOT_SEEN in said(output) for output in cell.outputs),
        "an error output, and no tag raises-exception": "raises-exception" not in tags and error_of(cell.outputs),
        f"more than {LONGEST_CELL} lines of code":
            sum(bool(line.strip()) for line in cell.source.splitlines()) > LONGEST_CELL,
        "opts out of nbval; print something exact instead":
            any(tag.startswith("nbval-") for tag in tags) or "NBVAL_" in cell.source,
    })


def only_imports(source: str) -> bool:
    """Whether a cell imports and does nothing else; a magic is something else."""
    try:
        return all(isinstance(node, (ast.Import, ast.ImportFrom)) for node in ast.parse(source).body)
    except SyntaxError:
        return False


def unused_imports(first: str, *others: str) -> list[str]:
    """Names of the first code cell that no other one mentions. ruff does not read cells of %%ranks."""
    names = [alias.asname or alias.name.partition(".")[0] for node in ast.parse(first).body for alias in node.names]
    words = set(re.findall(r"\w+", " ".join(others)))
    return [name for name in names if name not in words]


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.notebooks", description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    for name, number in (("run", "*"), ("tidy", "+")):
        commands.add_parser(name).add_argument("notebooks", nargs=number, type=Path, default=NOTEBOOKS)
    commands.add_parser("showing").add_argument("files", nargs="*")
    commands.add_parser("touched")
    chosen = parser.parse_args(arguments)
    if chosen.command == "showing":
        print(*showing(set(chosen.files or git("diff", "--name-only", "HEAD", "--"))))
    elif chosen.command == "touched":
        print(*for_test())
    else:
        for path in chosen.notebooks:
            {"run": run, "tidy": tidy}[chosen.command](path)


if __name__ == "__main__":
    main(sys.argv[1:])
