"""python -m tools.handout DIR: a copy of the course for students, with a git history of one commit.

It has the notebooks, the exercises, what they import and `make lab`. It has no solutions, wrong answers or judges, no
records of them, of the hints the first two, none of the tests and tools that know answers, and nothing of our history.
`check` runs a function on its docstring's example there; marks come from the class's grader. An AGENTS.md asks AI tools
to teach and not to solve.
"""

import argparse
import json
import shutil
import subprocess
from pathlib import Path

from course_lib.grading.chapters import folders
from course_lib.grading.registry import exercises_of, write_examples

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).parent
TAKEN = ("notebooks", "exercises", "course_lib", "images", "docs/glossary.md", "docs/documents.md", "docs/cluster",
         "tools/__init__.py", "tools/environment.py", "tools/workspace.py", "tools/lab", "LICENSE", "pyproject.toml",
         "requirements.lock", "environment.yml", ".gitignore")
# Of the grader only what calls a function on a rank.
LEFT_OUT = ("course_lib/grading/marks", "course_lib/grading/trusted", "course_lib/grading/kinds.py",
            "course_lib/grading/gradients.py")
TAKEN_AGAIN = ("course_lib/grading/trusted/__init__.py", "course_lib/grading/trusted/inside")
OWN = ("README.md", "AGENTS.md", "Makefile")  # beside this file
HINTS = 2  # of three: the last is nearly the code


def copy(part: str, target: Path) -> None:
    """A file or a folder of the course, as it is."""
    if (ROOT / part).is_dir():
        shutil.copytree(ROOT / part, target / part, ignore=shutil.ignore_patterns("__pycache__", ".ipynb_checkpoints"))
    else:
        (target / part).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / part, target / part)


def hand_out(target: Path) -> int:
    """Copy into the new or empty folder `target`; the number of files. ValueError where something is there."""
    if target.exists() and any(target.iterdir()):
        raise ValueError(f"{target} is not empty: expected a new folder")
    for part in TAKEN:
        copy(part, target)
    for part in LEFT_OUT:
        shutil.rmtree(target / part) if (target / part).is_dir() else (target / part).unlink()
    for part in TAKEN_AGAIN:
        copy(part, target)
    for name in OWN:
        shutil.copy2(HERE / name, target / name)
    for chapter, folder in folders().items():
        there = target / "course_lib" / "grading" / "examples" / folder.name
        there.mkdir(parents=True)
        write_examples(there, exercises_of(chapter))
        write_record(folder, there)
        if (folder / "on_rank.py").exists():
            shutil.copy2(folder / "on_rank.py", there)
    return sum(path.is_file() for path in target.rglob("*"))


def write_record(folder: Path, target: Path) -> None:
    """Functions, points, work in training and the first hints of a chapter; no mistakes."""
    record = json.loads((folder / "recorded.json").read_text(encoding="utf-8"))
    hints = {number: three[:HINTS] for number, three in record["hints"].items()}
    kept = {"exercises": record["exercises"], "work": record["work"], "hints": hints, "mistakes": {}}
    (target / "recorded.json").write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")


def begin_history(target: Path) -> None:
    """One commit with everything, of nobody in particular."""
    names = ["-c", "user.name=course", "-c", "user.email=course@localhost", "-c", "commit.gpgsign=false"]
    for arguments in (["init", "--quiet", "--initial-branch=main"], ["add", "--all"],
                      [*names, "commit", "--quiet", "--message", "The course as it was handed out"]):
        subprocess.run(["git", *arguments], cwd=target, check=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.handout", description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="a new folder")
    asked = parser.parse_args()
    number = hand_out(asked.folder)
    if shutil.which("git"):
        begin_history(asked.folder)
    print(f"{asked.folder}: {number} files, without solutions, judges and wrong answers")


if __name__ == "__main__":
    main()
