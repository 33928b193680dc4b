"""The course on Google Colab: the first cell of a notebook clones the repository there and runs this file.

Colab has PyTorch with CUDA already, and keeps it: pip brings only what is missing or too old, and torch is held where
it is. JupyterLab is left out, since Colab is the page. Copies go to workspace/ beside the course, as `make lab`
puts them, and the notebook that is open works in that folder.
"""

import os
import subprocess
import sys
import tomllib
from importlib import invalidate_caches, metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
AFTERWARDS = """\
The course is here. Before you read on: Edit > Clear all outputs, or the answers stand below the questions.
Colab has few cores: ranks run, and their times mean little. Exercises: /content/course/workspace/exercises."""
RESTART = "Now Runtime > Restart session, then run this cell once more: {} had been loaded in an older version."
TOO_OLD = "What the course needs does not go with torch {}: choose a newer runtime (Runtime > Change runtime type)."


def versions() -> dict[str, str]:
    """Of all that is installed."""
    invalidate_caches()
    return {each.name: each.version for each in metadata.distributions()}


def install(wanted: list[str], torch: str) -> None:
    """With pip, torch held in its version and its build. SystemExit where the course needs a newer one."""
    held = ROOT / "build" / "held.txt"
    held.parent.mkdir(exist_ok=True)
    held.write_text(f"torch=={torch}\n", encoding="utf-8")
    if subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "--constraint", held, *wanted]).returncode:
        raise SystemExit(TOO_OLD.format(torch))


def main() -> None:
    before, project = versions(), tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    install([each for each in project["dependencies"] if not each.startswith("jupyterlab")], before["torch"])
    old = [name for name, version in versions().items() if before.get(name, version) != version and name in sys.modules]
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
