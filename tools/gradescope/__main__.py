"""python -m tools.gradescope NAME: dist/gradescope_NAME.zip, the autograder of a chapter as Gradescope takes it.

It holds the chapter's solutions: whoever can download the file has them. setup.sh and run_autograder stand beside this.
"""

import argparse
import secrets
import tomllib
import zipfile
from pathlib import Path

from tools.exercises import ROOT, assignments

HERE = Path(__file__).parent


def requirements() -> list[str]:
    """What the grader imports: the course's own requirements and those of classes, in pyproject's ranges."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return project["dependencies"] + project["optional-dependencies"]["classes"]


def pack(name: str, target: Path) -> Path:
    """Write the archive. ValueError for an unknown assignment."""
    if name not in assignments():
        raise ValueError(f"there is no assignment {name!r}: expected one of {', '.join(assignments())}")
    library = [path for path in sorted((ROOT / "course_lib").rglob("*"))
               if path.is_file() and "__pycache__" not in path.parts]
    # Of other chapters, too: one exercise's judge may use another's. Answers and hints stay at home.
    library += [path for path in sorted((ROOT / "solutions").glob("*/*"))
                if path.name.startswith(("judge", "on_rank", "recorded"))]
    notebooks = [ROOT / part / name / f"{name}.ipynb" for part in ("solutions", "exercises")]
    target.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for program in ("setup.sh", "run_autograder"):
            entry = zipfile.ZipInfo(program)
            entry.external_attr = 0o100755 << 16
            archive.writestr(entry, (HERE / program).read_bytes())
        archive.writestr("assignment", f"{name}\n")
        archive.writestr("requirements.txt", "\n".join(requirements()) + "\n")
        archive.write(ROOT / "requirements.lock", "requirements.lock")
        # the same submission gets the same inputs, however often it is handed in
        archive.writestr("course/.grading_key", secrets.token_hex(32))
        for path in (ROOT / "nbgrader_config.py", *notebooks, *library):
            archive.write(path, f"course/{path.relative_to(ROOT).as_posix()}")
    return target


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tools.gradescope", description=__doc__.splitlines()[0])
    parser.add_argument("name", help="an assignment such as 02_collectives")
    name = parser.parse_args().name
    print(pack(name, ROOT / "dist" / f"gradescope_{name}.zip").relative_to(ROOT))
