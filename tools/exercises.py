"""`make exercises`: what follows from the folders in solutions/, written and tried, of the chapters that were changed.

    python -m tools.exercises [06_zero ...] [--all] [--mutants]

In this order, and a chapter that is named or changed goes through all of it: exercises/, by nbgrader (always of all
chapters, which takes seconds); recorded.json: functions, points, hints, and what each wrong answer gives; whether each
row of answers.py is judged as it says; the other tests of its exercises. What is wrong is said a line each, and the
exit status is 1. --mutants: instead, which of 25 small changes of each solution still pass.

What a solution no longer has is not in exercises/ afterwards either. The same solutions give the same bytes.
"""

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DONE = ROOT / "build" / "exercises.json"  # by chapter a digest of its folder, as it was when all went well
UNWRITTEN = "TO WRITE"  # what new_exercise.py puts where an author's words belong
TESTS = ("tests/test_exercises.py", "tests/grading/test_every_exercise.py", "tests/grading/test_answers.py")
VERDICTS = "test_every_row_of_its_table"  # of them is what was said a line each


def assignments() -> list[str]:
    """The folders of solutions/, one a chapter."""
    return sorted(path.name for path in (ROOT / "solutions").iterdir() if any(path.glob("*.ipynb")))


def generate(target: Path) -> None:
    """Write the exercises of all chapters under `target`. SystemExit with nbgrader's words where it refuses one."""
    with tempfile.TemporaryDirectory() as nobodys:
        # the author's own Jupyter settings must not change what students get
        done = subprocess.run(
            [sys.executable, "-m", "nbgrader", "generate_assignment", "*", "--no-db", "--force",
             f"--CourseDirectory.release_directory={target}"],
            cwd=ROOT, env=os.environ | {"JUPYTER_CONFIG_DIR": nobodys}, capture_output=True, text=True)
    missing = [name for name in assignments() if not any((target / name).glob("*.ipynb"))]
    if done.returncode or missing:
        raise SystemExit(f"not generated: {', '.join(missing)}\n{done.stderr}")


def files_of(name: str) -> list[Path]:
    """What authors write in the chapter's folder."""
    return sorted(path for path in (ROOT / "solutions" / name).iterdir() if path.suffix in (".ipynb", ".md", ".py"))


def digest(name: str) -> str:
    """Of what authors write in the chapter's folder."""
    found = hashlib.sha256()
    for path in files_of(name):
        found.update(path.name.encode() + path.read_bytes())
    return found.hexdigest()


def changed() -> list[str]:
    """The chapters that are others than when all went well last, or, where nobody knows, than in the last commit."""
    done = json.loads(DONE.read_text(encoding="utf-8")) if DONE.exists() else {}
    told = subprocess.run(["git", "status", "--porcelain", "--", "solutions"], cwd=ROOT, capture_output=True, text=True)
    return [name for name in assignments()
            if (done[name] != digest(name) if name in done else f"solutions/{name}/" in told.stdout)]


def unwritten(name: str) -> list[str]:
    """Where something is still to be written, a line each."""
    return [f"{path.relative_to(ROOT).as_posix()}, line {number}: {line.strip()}"
            for path in files_of(name)
            for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1) if UNWRITTEN in line]


def faults(name: str) -> Iterator[str]:
    """Record the chapter; what is wrong with its table, a line each."""
    from tqdm import tqdm  # with torch behind them, which nbgrader does without

    from course_lib.grading.staying import StayingAttempts
    from tools import answers
    from tools.solutions import SOLUTIONS

    path = SOLUTIONS[int(name[:2])]
    with StayingAttempts() as attempts:
        yield from answers.record(path, attempts)
        judged = answers.at_home(attempts)
        for row in tqdm(answers.rows(path), desc=f"{name}, verdicts", unit="row", disable=None):
            if line := answers.misjudged(row, judged):
                yield line


def run_tests(name: str) -> bool:
    """Whether the tests of the chapter's exercises pass; they say themselves what does not."""
    chapter = f"({name} or {int(name[:2])}.) and not {VERDICTS}"
    command = [sys.executable, "-m", "pytest", "-q", "-m", "not ci", "-k", chapter, *TESTS]
    return subprocess.run(command, cwd=ROOT).returncode == 0


def survivors(names: list[str]) -> Iterator[str]:
    """Mutants of the solutions that pass and are not known to be right, a line each."""
    from course_lib.grading.staying import StayingAttempts
    from tools import answers, mutants
    from tools.solutions import SOLUTIONS

    with StayingAttempts() as attempts:
        for path in (SOLUTIONS[int(name[:2])] for name in names):
            def passes(*edit: str, path: Path = path) -> bool:
                return answers.passes(path, *edit, attempts)

            yield from mutants.survivors(path, passes)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.exercises", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="chapters, such as 02_collectives")
    parser.add_argument("--all", action="store_true", help="all chapters, also those that are as they were recorded")
    parser.add_argument("--mutants", action="store_true", help="small changes of solutions that still pass")
    asked = parser.parse_args()
    if strange := set(asked.names) - {*assignments()}:
        parser.error(f"{', '.join(sorted(strange))}: expected some of {', '.join(assignments())}")
    names = asked.names or (assignments() if asked.all or asked.mutants else changed())
    if asked.mutants:
        for line in survivors(names):
            print(line, flush=True)
        return 0
    shutil.rmtree(ROOT / "exercises", ignore_errors=True)
    generate(ROOT / "exercises")
    print(f"exercises/: {', '.join(assignments())}; to be recorded: {', '.join(names) or 'none'}", flush=True)
    return max([finish(name) for name in names], default=0)


def finish(name: str) -> int:
    """One chapter from its record to its tests; 1 where something is wrong with it, which is then printed."""
    wrong = 0
    try:
        for line in chain(unwritten(name), faults(name)):
            print(line, flush=True)
            wrong = 1
    except ValueError as error:  # a table in which something is missing cannot be read
        print(error, flush=True)
        return 1
    if wrong or not run_tests(name):
        return 1
    done = json.loads(DONE.read_text(encoding="utf-8")) if DONE.exists() else {}
    DONE.parent.mkdir(exist_ok=True)
    DONE.write_text(json.dumps(done | {name: digest(name)}, indent=1), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
