"""python -m tools.grading_figures: what `make grade` says beforehand, measured, into the figures.json of its marks.

A solved notebook of each chapter is graded alone, by `make grade`'s command. What follows goes to nbgrader.
"""

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from course_lib.grading.marks.figures import RECORDED
from tools.exercises import ROOT, assignments


def make_class(folder: Path, name: str) -> None:
    """A course in which one student has handed in the solutions of an assignment."""
    shutil.copy(ROOT / "nbgrader_config.py", folder)
    for part in ("solutions", "exercises"):
        shutil.copytree(ROOT / part / name, folder / part / name)
    shutil.copytree(ROOT / "solutions" / name, folder / "submitted" / "right" / name)


def measure(name: str, options: list[str]) -> dict[str, float]:
    """Seconds and bytes of one submission, as grading keeps them."""
    with tempfile.TemporaryDirectory() as folder:
        make_class(Path(folder), name)
        more = ["--", *options] if options else []
        subprocess.run([sys.executable, "-m", "course_lib.grading.marks.batch", name, "--quiet", *more], cwd=folder,
                       check=True)
        (kept,) = Path(folder, ".grading", name).glob("*.json")
        found = json.loads(kept.read_text(encoding="utf-8"))
    return {"seconds": round(found["seconds"], 1), "peak_bytes": round(found["peak_bytes"], -6)}


if __name__ == "__main__":
    figures = {name: measure(name, sys.argv[1:]) for name in assignments()}
    RECORDED.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(figures, indent=1))
