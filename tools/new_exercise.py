"""`make new-exercise NUMBER=6.9`: the stubs of an exercise that asks for a number, and what is left to write.

    python -m tools.new_exercise 6.9 [my_function]

Whatever an author has to write holds the words TO WRITE until then, and `make exercises` says where they still stand.
"""

import argparse
import re
import subprocess
import sys
from pathlib import Path
from string import Template

import nbformat
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell

from course_lib.grading import recorded
from tools import answers, notebooks
from tools.exercises import ROOT, assignments

TEXT = """## $number TO WRITE: a title (2 points)

TO WRITE: the idea, what is given, what is asked.

**Check:** TO WRITE: the budget in words."""
SOLUTION = '''def $function(given):
    """TO WRITE: what it returns.

    given: TO WRITE: what it is, with its unit
    TO WRITE: the example, which is the first trial: given 1 -> 2
    """
    ### BEGIN SOLUTION
    return 2 * given  # TO WRITE: the right answer
    ### END SOLUTION'''
CHECK = 'check("$number", $function)'
IMPORTS = """import random
from typing import Any
from course_lib.grading.kinds import NumberExercise
"""
JUDGE = '''

class Exercise$digits(NumberExercise):
    number = "$number"
    unit = ""  # TO WRITE: "byte", "device", ..., or "exact bytes" for whole numbers with every digit
    budget = "TO WRITE: as the text has it"
    # TO WRITE: what is asked about, and the arguments: the docstring's example, then the most telling ones
    cases = (("the example, 1", (1,)), ("3", (3,)))

    def solve(self, given: int) -> int:
        return given + given  # TO WRITE: the right number, in another way than the solution finds it

    def draw(self, source: random.Random) -> tuple[str, tuple[Any, ...]]:
        given = source.randint(5, 99)  # TO WRITE: a case at random, as published answers could be looked up
        return f"{given}", (given,)
'''
ANSWERS = '''

# ---- $number $function
# TO WRITE: two right and unusual answers, and three wrong ones or more, each under the sentence that a learner is told:
# @right("$number", "what is unusual about it")
# @wrong("$number", "that is the half: both directions are asked")
TEXT_$digits = [
    # TO WRITE: two things or more that the text stresses, each as an edit of the solution that leaves it out:
    # term("$number", "in both directions", "2 * given", "given"),
    example("$number", lambda inputs, answers: "given {} -> {}".format(*inputs[0], answers[0]["value"]))]
'''
HINTS = """
## $number TO WRITE: the title

1. TO WRITE: a nudge.

2. TO WRITE: the idea.

3. ```python
   return ...  # TO WRITE: nearly the code
   ```
"""
LEFT = """$number $function is there, and asks for a number. Left to write, in this order, wherever it says TO WRITE:
  1. solutions/$name/$name.ipynb  text, docstring and solution (make text NB=..., make write-back NB=...)
  2. $judge  the cases and the right number. For what ranks send or hold: another kind, of
     course_lib/grading/kinds.py or gradients.py, and its run in solutions/$name/on_rank.py
  3. solutions/$name/answers.py  wrong and right answers, what the text stresses, the docstring's example
  4. solutions/$name/hints.md  three hints
  5. make exercises NAME=$name  records and tries all of it; a line for whatever is missing or wrong
  6. python -m course_lib.grading --explain $number  what a learner can ask about it"""


def marked_cell(source: str, grade_id: str, **marks: bool | int) -> NotebookNode:
    """A code cell that nbgrader knows by `grade_id`."""
    given = {"grade": False, "grade_id": grade_id, "locked": False, "schema_version": 3, "solution": False}
    return new_code_cell(source, metadata={"nbgrader": given | {"task": False} | marks})


def add_to_notebook(path: Path, names: dict[str, str]) -> None:
    """Text, solution and check behind the last check cell."""
    text, solution, check = (Template(each).substitute(names) for each in (TEXT, SOLUTION, CHECK))
    notebook, grade_id = nbformat.read(path, as_version=4), names["function"].removeprefix("my_")
    last = max(place for place, cell in enumerate(notebook.cells) if cell.metadata.get("nbgrader", {}).get("grade"))
    notebook.cells[last + 1:last + 1] = [
        new_markdown_cell(text), marked_cell(solution, grade_id, solution=True),
        marked_cell(check, f"check_{grade_id}", grade=True, locked=True, points=2)]
    notebooks.normalise(notebook)
    nbformat.write(notebook, path)


def add_judge(folder: Path, names: dict[str, str]) -> Path:
    """The exercise's class, in the file that has the chapter's last one."""
    def last_number(path: Path) -> int:
        text = path.read_text(encoding="utf-8")
        return max(map(int, re.findall(r'^    number = "\d+\.(\d+)"', text, re.MULTILINE)), default=0)

    path = max(folder.glob("judge*.py"), key=last_number)
    docstring, end, rest = path.read_text(encoding="utf-8").partition('"""\n\n')
    path.write_text(docstring + end + IMPORTS + rest + Template(JUDGE).substitute(names), encoding="utf-8")
    subprocess.run([sys.executable, "-m", "ruff", "check", "--quiet", "--select", "I", "--fix", path], check=True)
    return path


def create(number: str, function: str = "") -> str:
    """Write all stubs; what is left to do, in words. ValueError for a number or a name that cannot be a new one's."""
    chapter, _, own = number.partition(".")
    name = next((each for each in assignments() if chapter.isdecimal() and int(each[:2]) == int(chapter)), "")
    if not name or not own.isdecimal():
        raise ValueError(f"{number!r}: expected a chapter's number and a new one in it, such as 6.9")
    folder, function = ROOT / "solutions" / name, function or f"my_exercise_{own}"
    notebook = folder / f"{name}.ipynb"
    text = notebook.read_text(encoding="utf-8")
    if f'check(\\"{number}\\"' in text or f"def {function}(" in text:
        raise ValueError(f"{name} has {number} or {function} already: expected a new number and a new name")
    names = {"number": number, "function": function, "digits": number.replace(".", "_"), "name": name}
    add_to_notebook(notebook, names)
    judge = add_judge(folder, names)
    for file, stub in (("answers.py", ANSWERS), ("hints.md", HINTS)):
        with (folder / file).open("a", encoding="utf-8") as written:
            written.write(Template(stub).substitute(names))
    answers.write(notebook, recorded.of_chapter(int(chapter))["mistakes"])  # from here on it is known
    return Template(LEFT).substitute(names, judge=judge.relative_to(ROOT).as_posix())


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.new_exercise", description=__doc__.splitlines()[0])
    parser.add_argument("number", help="such as 6.9")
    parser.add_argument("function", nargs="?", default="", help="the name that a learner defines")
    asked = parser.parse_args()
    try:
        print(create(asked.number, asked.function))
    except ValueError as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
