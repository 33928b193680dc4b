"""How hard the notebooks' prose is to read, by textstat (make's environment has it; elsewhere: pip install textstat).

    python -m tools.readability             Flesch reading ease and Flesch-Kincaid grade of each notebook
    python -m tools.readability COMMIT      the same before and after: of the commit, and of this tree

Reading ease: higher is easier; 60 to 70 is plain English. Grade: years of school. Both count words per sentence and
syllables per word, and know nothing of whether a sentence is true or clear. Prose is what stands in markdown cells
without headings, tables, blocks of code, formulas and lists of sources.
"""

import re
import subprocess
import sys
from pathlib import Path

import nbformat
import textstat

ROOT = Path(__file__).resolve().parent.parent
LEFT_OUT = re.compile(r"(?s:```.*?```)|^#+ .*$|^\|.*$|^> .*$|(?s:\*\*Sources\.\*\*.*)", re.MULTILINE)
LINK = re.compile(r"\[([^\[\]]*)\]\([^()]*(?:\([^()]*\)[^()]*)?\)")


def prose_of(notebook: nbformat.NotebookNode) -> str:
    """Its sentences: a link is its text, a list's item a paragraph, and no mark of markdown is left."""
    cells = [cell.source for cell in notebook.cells if cell.cell_type == "markdown"]
    text = LINK.sub(r"\1", LEFT_OUT.sub("", "\n\n".join(cells)))
    text = re.sub(r"^\s*(?:[-*]|\d+\.) ", "\n", text, flags=re.MULTILINE)
    paragraphs = (" ".join(part.split()) for part in re.sub(r"[*_`]", "", text).split("\n\n"))
    # A paragraph that ends in a colon, or in nothing, is a sentence of its own.
    return "\n".join(part if part.endswith((".", "?", "!")) else f"{part.rstrip(':')}." for part in paragraphs if part)


def scores(notebook: nbformat.NotebookNode) -> tuple[float, float]:
    """(Flesch reading ease, Flesch-Kincaid grade)."""
    prose = prose_of(notebook)
    return textstat.flesch_reading_ease(prose), textstat.flesch_kincaid_grade(prose)


def notebooks_of(commit: str) -> dict[str, nbformat.NotebookNode]:
    """Name -> notebook, of a commit; of this tree where it is ""."""
    if not commit:
        return {path.stem: nbformat.read(path, as_version=4) for path in sorted(ROOT.glob("notebooks/*.ipynb"))}
    names = git("ls-tree", "--name-only", commit, "notebooks/").split()
    return {Path(name).stem: nbformat.reads(git("show", f"{commit}:{name}"), as_version=4)
            for name in names if name.endswith(".ipynb")}


def git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, encoding="utf-8").stdout


def main() -> None:
    commits = [*sys.argv[1:2], ""]
    trees = {commit: notebooks_of(commit) for commit in commits}
    print(f"{'notebook':22}" + "".join(f"{commit or 'this tree':>26}" for commit in commits))
    print(f"{'':22}" + f"{'reading ease':>16}{'grade':>10}" * len(commits))
    for name in trees[""]:
        found = [scores(trees[commit][name]) if name in trees[commit] else None for commit in commits]
        print(f"{name:22}" + "".join(f"{each[0]:16.1f}{each[1]:10.1f}" if each else " " * 26 for each in found))


if __name__ == "__main__":
    main()
