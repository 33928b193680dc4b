"""Where this repository is found, in every place that has to say so: pyproject.toml is the one that is written by hand.

    python -m tools.one_click address OWNER/NAME    its address on GitHub into pyproject.toml, README.md's badges and
                                                    the cells for Colab that are there
    python -m tools.one_click cells [NB ...]        the cell for Colab to the top of notebooks (all)

While pyproject.toml names no address there are no badges, since nothing would open, and the cells for Colab say so.

The cell for Colab does nothing elsewhere and gives the notebook no name. Nothing runs it when outputs are recorded
(its tag skip-execution), pages leave it out (remove-cell), and readers' copies in workspace/ do not have it.
"""

import argparse
import re
import sys
import tomllib
from pathlib import Path

import nbformat

from tools.notebooks import normalise
from tools.workspace import COLAB, is_for_colab

ROOT = Path(__file__).resolve().parent.parent
PYPROJECT, README = ROOT / "pyproject.toml", ROOT / "README.md"
NOTEBOOKS = sorted(ROOT.glob("notebooks/*.ipynb"))
FIRST = "notebooks/00_start_here.ipynb"
ROW = re.compile(r"(<!-- one click: .*? -->\n).*?(\n<!-- until here -->)", re.DOTALL)
TAGS = [COLAB, "remove-cell", "skip-execution"]
WITHOUT_ADDRESS = """\
*(Badges to open this repository in Codespaces, Binder and Colab appear here with its address: `python -m
tools.one_click address OWNER/NAME`.)*"""
# By words, a picture and where it leads: the tests' state, and each way to a kernel that needs nothing installed.
BADGES = {
    "Tests": ("https://github.com/{0}/actions/workflows/ci.yml/badge.svg",
              "https://github.com/{0}/actions/workflows/ci.yml"),
    "Open in GitHub Codespaces": ("https://github.com/codespaces/badge.svg", "https://codespaces.new/{0}"),
    "Open in Binder": ("https://mybinder.org/badge_logo.svg",
                       f"https://mybinder.org/v2/gh/{{0}}/main?urlpath=lab/tree/workspace/{FIRST}"),
    "Open in Colab": ("https://colab.research.google.com/assets/colab-badge.svg",
                      f"https://colab.research.google.com/github/{{0}}/blob/main/{FIRST}"),
}


def repository() -> str:
    """OWNER/NAME on GitHub as pyproject.toml says it; empty while it has none."""
    return tomllib.loads(PYPROJECT.read_text(encoding="utf-8"))["tool"]["course"]["repository"]


def badges(name: str) -> str:
    """README's row."""
    rows = (f"[![{words}]({picture})]({link})".format(name) for words, (picture, link) in BADGES.items())
    return "\n".join(rows) if name else WITHOUT_ADDRESS


def colab_source(name: str) -> str:
    """The text of the cell for Colab. It binds no name: a notebook that leaned on it would fail in readers' copies."""
    return f"""\
if "google.colab" in __import__("sys").modules:  # on Google Colab alone: brings the course there, in about two minutes
    get_ipython().system("test -d /content/course || git clone --quiet --depth 1 "
                         "https://github.com/{name or 'OWNER/NAME'} /content/course")
    get_ipython().run_line_magic("run", "/content/course/tools/colab.py")"""


def write_cell(path: Path, name: str) -> None:
    """Put the cell below the notebook's title, in place of an earlier one."""
    notebook = nbformat.read(path, as_version=4)
    notebook.cells = [cell for cell in notebook.cells if not is_for_colab(cell)]
    notebook.cells.insert(1, nbformat.v4.new_code_cell(colab_source(name), metadata={"tags": TAGS}))
    normalise(notebook)
    nbformat.write(notebook, path)


def write_address(name: str) -> None:
    """SystemExit where `name` is no OWNER/NAME."""
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", name):
        raise SystemExit(f"{name!r}: expected OWNER/NAME, as in the address of the repository on GitHub")
    line = re.compile(r'^repository = ".*"$', re.MULTILINE)
    for path, pattern, text in ((PYPROJECT, line, f'repository = "{name}"'), (README, ROW, rf"\1{badges(name)}\2")):
        path.write_text(pattern.sub(text, path.read_text(encoding="utf-8")), encoding="utf-8")


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.one_click", description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("address").add_argument("name", help="OWNER/NAME")
    commands.add_parser("cells").add_argument("notebooks", nargs="*", type=Path, default=NOTEBOOKS)
    asked = parser.parse_args(arguments)
    if asked.command == "address":
        write_address(asked.name)
    for path in getattr(asked, "notebooks", None) or NOTEBOOKS:
        write_cell(path, repository())


if __name__ == "__main__":
    main(sys.argv[1:])
