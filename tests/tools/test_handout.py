"""The students' copy: nothing of a solution, a wrong answer, a judge or a last hint is in its files or its history, and
`check` still runs a function on its example.
"""

import json
import os
import re
import shutil
import subprocess
import sys

import nbformat
import pytest

from course_lib.grading import recorded
from course_lib.grading.chapters import folders
from tools.handout.__main__ import begin_history, hand_out
from tools.solutions import SOLUTIONS, code_cells, hints

WINDOW = 4  # consecutive lines that are nobody else's; lessons share single ones with solutions
pytestmark = pytest.mark.skipif(not shutil.which("git"), reason="no git here")


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    folder = tmp_path_factory.mktemp("students") / "course"
    hand_out(folder)
    begin_history(folder)
    return folder


def git(folder, *arguments):
    return subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, errors="replace",
                          check=True).stdout


def lines_of(text):
    """The lines of a file; of a notebook those of its cells, as JSON writes them."""
    return [re.sub(r'\\n",?$|",?$', "", line.strip()).removeprefix('"').replace('\\"', '"').strip()
            for line in text.splitlines() if line.strip(' "\\n,')]


def windows(lines):
    return {tuple(lines[place:place + WINDOW]) for place in range(len(lines) - WINDOW + 1)}


def solution_windows():
    """Every WINDOW consecutive lines of code that a student has to write."""
    found = {}
    for path in SOLUTIONS.values():
        for cell in code_cells(path):
            _, _, own = cell.source.partition("### BEGIN SOLUTION")
            lines = [line.strip() for line in own.partition("### END SOLUTION")[0].splitlines() if line.strip()]
            found |= {window: path.stem for window in windows(lines) if len("".join(window)) > 60}
    return found


def texts(folder):
    """By path, each file as text."""
    for path in sorted(folder.rglob("*")):
        if path.is_file() and ".git" not in path.relative_to(folder).parts:
            yield path.relative_to(folder).as_posix(), path.read_bytes().decode(errors="replace")


def test_no_four_lines_of_a_solution_are_in_a_file_and_its_history_is_these_files_in_one_commit_of_nobody(
        copy, tmp_path):
    solutions = solution_windows()
    assert len(solutions) > 300
    found = [(where, solutions[window]) for where, text in texts(copy)
             for window in windows(lines_of(text)) & solutions.keys()]
    assert found == []
    assert git(copy, "log", "--all", "--format=%an %s").splitlines() == ["course The course as it was handed out"]
    assert git(copy, "status", "--porcelain", "--ignored") == "" == git(copy, "fsck", "--unreachable", "--no-reflogs")
    shutil.copy(SOLUTIONS[2], tmp_path / "some.ipynb")  # and where a solution is, the search finds it
    (text,) = [text for _, text in texts(tmp_path)]
    own = {window for window, name in solutions.items() if name == SOLUTIONS[2].stem}
    assert len(windows(lines_of(text)) & own) > 0.9 * len(own)


def test_no_sentence_about_a_mistake_and_no_last_hint_is_in_it(copy):
    secret = {hint[2] for path in SOLUTIONS.values() for hint in hints(path).values()}
    secret |= {mistake.says for chapter in folders() for number in recorded.of_chapter(chapter)["exercises"]
               for mistake in recorded.mistakes(number) if len(mistake.says) > 60}
    lessons = "\n".join(text for where, text in texts(copy) if where.startswith("notebooks/"))
    secret = {each for each in secret if each not in lessons}  # one is shown in a lesson, on purpose
    spoken = "\n".join(text for where, text in texts(copy) if not where.startswith("notebooks/"))
    assert len(secret) > 500
    assert [each for each in secret if each in spoken or json.dumps(each)[1:-1] in spoken] == []


def test_no_judge_no_grader_and_no_test_is_in_it_and_agents_are_asked_to_teach_and_not_to_solve(copy):
    paths = [where for where, _ in texts(copy)]
    assert not [path for path in paths if path.startswith(("solutions/", "tests/", "docs/teaching/", "benchmarks/"))]
    assert not [path for path in paths if re.search("judge|answers|hints.md|right_mutants|gradebook", path)]
    assert not {f"course_lib/grading/{name}.py" for name in ("kinds", "gradients")} & {*paths}
    assert {"AGENTS.md", "README.md", "Makefile", "notebooks/02_collectives.ipynb",
            "exercises/02_collectives/02_collectives.ipynb"} <= {*paths}
    text = (copy / "AGENTS.md").read_text(encoding="utf-8")
    assert "Do not write, complete or repair a solution cell" in text and "Ask what the student has tried" in text


def test_what_its_pages_and_notebooks_link_is_there(copy):
    pages = [*copy.glob("*/*.ipynb"), *copy.glob("exercises/*/*.ipynb"), *copy.glob("*.md"), *copy.glob("docs/*.md")]
    broken = [(page.name, link) for page in pages
              for link in re.findall(r"\]\(([\w./-]+\.(?:ipynb|md|py|png|sbatch))", page.read_text(encoding="utf-8"))
              if not (page.parent / link).exists()]
    assert len(pages) > 20 and broken == []


def run_check(copy, cell):
    """What check("2.2", ...) answers in the copy, in words; `cell` defines the function."""
    program = copy.parent / "answer.py"
    program.write_text(f"import torch\nimport torch.distributed as dist\nfrom course_lib.grading import check\n{cell}\n"
                       "if __name__ == '__main__':\n    print(repr(check('2.2', my_ring_all_gather)))\n")
    done = subprocess.run([sys.executable, program], cwd=copy, capture_output=True, text=True, timeout=300,
                          env=os.environ | {"PYTHONPATH": str(copy)})
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.ci
def test_check_runs_the_example_there_explains_an_error_and_says_where_the_marks_come_from(copy):
    notebook = nbformat.read(SOLUTIONS[2], as_version=4)
    given = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "code"
                      and cell.metadata.get("nbgrader", {}).get("grade_id") in ("exchange", "ring_all_gather"))
    said = run_check(copy, given)
    assert "2.2 my_ring_all_gather: no verdict: this copy has no right answers" in said
    assert "it ran without an error; compare with the docstring:\n" in said
    assert "rank 1 returned {'returned': tensor([11.," in said
    assert "points, " not in said and "of 3 points" not in said
    said = run_check(copy, "def my_ring_all_gather(x):\n    return 1 / 0\n")
    assert "ZeroDivisionError" in said and "hints: 2" in said


def test_a_stub_is_not_written_there_either(copy):
    assert "not written yet" in run_check(copy, "def my_ring_all_gather(x):\n    raise NotImplementedError\n")


def test_a_folder_with_something_in_it_is_refused(tmp_path):
    (tmp_path / "mine.txt").write_text("x")
    with pytest.raises(ValueError, match="not empty"):
        hand_out(tmp_path)
