"""The course on Google Colab: the first cell of a notebook clones the repository there and runs this file.

Colab has PyTorch with CUDA already, and keeps it: only what is missing or too old is installed, and torch is held where
it is. JupyterLab is left out, since Colab is the page. Copies go to workspace/ beside the course, as `make lab`
puts them, and the notebook that is open works in that folder.
"""

import os
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parent.parent
LEFT_OUT = {"jupyterlab"}
AFTERWARDS = """\
The course is here. Before you read on: Edit > Clear all outputs, or the answers stand below the questions.
Colab has few cores: ranks run, and their times mean little. Exercises: /content/course/workspace/exercises."""
RESTART = "Now Runtime > Restart session, then run this cell once more: {} had been loaded in an older version."


def find_version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def list_unmet(dependencies: list[str]) -> Iterator[Requirement]:
    """What of the course's dependencies has to be installed. SystemExit where that is torch."""
    for requirement in map(Requirement, dependencies):
        version = find_version(requirement.name)
        if requirement.name in LEFT_OUT or version and requirement.specifier.contains(version, prereleases=True):
            continue
        if requirement.name == "torch":
            raise SystemExit(f"The course needs {requirement}, and here is {version or 'none'}: choose a newer runtime "
                             "(Runtime > Change runtime type).")
        yield requirement


def install(missing: list[Requirement]) -> None:
    """With pip, torch held in its version and its build."""
    held = ROOT / "build" / "held.txt"
    held.parent.mkdir(exist_ok=True)
    held.write_text(f"torch=={find_version('torch')}\n", encoding="utf-8")
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "--constraint", held, *map(str, missing)],
                   check=True)


def main() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    missing = list(list_unmet(project["dependencies"]))
    old = [requirement.name for requirement in missing if requirement.name in sys.modules]
    if missing:
        install(missing)
    if str(ROOT) not in sys.path:
        sys.path.insert(0, str(ROOT))
    # For the processes that cells start.
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    from google.colab import output

    from tools.workspace import give_copies  # needs the path

    give_copies()
    os.chdir(ROOT / "workspace" / "notebooks")

    output.enable_custom_widget_manager()  # widgets that Colab does not know bring their own JavaScript
    print(RESTART.format(", ".join(old)) if old else AFTERWARDS)


if __name__ == "__main__":
    main()
