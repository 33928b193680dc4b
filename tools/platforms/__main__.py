"""python -m tools.platforms gradescope|classroom50 NAME: dist/PLATFORM_NAME.zip, with all that grading NAME needs.

Gradescope takes the zip as it is. Classroom 50 takes what is in it, below CLASSROOM/autograders/ASSIGNMENT/. Both hold
the chapter's solutions: whoever can download the file has them.
"""

import argparse
import secrets
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path

from tools.exercises import ROOT, assignments

HERE = Path(__file__).parent
# By platform, the files at the top of the archive and whether each is a program.
STARTERS = {"gradescope": {"setup.sh": "gradescope_setup.sh", "run_autograder": "gradescope_run.sh"},
            "classroom50": {"autograder.py": "classroom50_autograder.py"}}
KEY = "course/.grading_key"  # the same submission gets the same inputs, however often it is handed in


def requirements() -> list[str]:
    """What the grader imports: the course's own requirements and those of classes, in pyproject's ranges."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return project["dependencies"] + project["optional-dependencies"]["classes"]


def files_of(name: str) -> Iterator[tuple[str, Path]]:
    """(name in the archive, file) of the course, as far as grading `name` needs it."""
    yield "requirements.lock", ROOT / "requirements.lock"
    yield "course/nbgrader_config.py", ROOT / "nbgrader_config.py"
    for part in ("solutions", "exercises"):
        yield f"course/{part}/{name}/{name}.ipynb", ROOT / part / name / f"{name}.ipynb"
    for path in sorted((ROOT / "solutions").glob("*/*")):  # of the others, too: one exercise's judge may use another's
        if path.name.startswith(("judge", "on_rank", "recorded")):
            yield f"course/{path.relative_to(ROOT).as_posix()}", path
    for path in sorted((ROOT / "course_lib").rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts and path.suffix != ".pyc":
            yield f"course/{path.relative_to(ROOT).as_posix()}", path


def pack(platform: str, name: str, target: Path) -> Path:
    """Write the archive. ValueError for an unknown assignment."""
    if name not in assignments():
        raise ValueError(f"there is no assignment {name!r}: expected one of {', '.join(assignments())}")
    target.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for inside, starter in STARTERS[platform].items():
            entry = zipfile.ZipInfo.from_file(HERE / starter, inside)
            entry.external_attr = 0o100755 << 16
            archive.writestr(entry, (HERE / starter).read_bytes(), zipfile.ZIP_DEFLATED)
        archive.writestr("assignment", f"{name}\n")
        archive.writestr("requirements.txt", "\n".join(requirements()) + "\n")
        archive.writestr(KEY, secrets.token_hex(32))
        for inside, path in files_of(name):
            archive.write(path, inside)
    return target


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.platforms", description=__doc__.splitlines()[0])
    parser.add_argument("platform", choices=sorted(STARTERS))
    parser.add_argument("name", help="an assignment such as 02_collectives")
    asked = parser.parse_args()
    print(pack(asked.platform, asked.name, ROOT / "dist" / f"{asked.platform}_{asked.name}.zip").relative_to(ROOT))


if __name__ == "__main__":
    main()
