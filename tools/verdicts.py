"""Whether recorded answers are judged rightly at many seeds, at home and in class: no wrong one passes, no right one
is refused.

    python -m tools.verdicts [02_collectives ...] [--seeds 10] [--in-class] [--only 2.3]

It prints each answer that was judged wrongly, with the seeds, and how many there were of each kind. Self-study shows
the trials of seed 0 alone; at other seeds this runs what a class gets, on the same ranks.
"""

import argparse
from collections.abc import Callable, Iterator
from pathlib import Path

from tqdm import tqdm

from course_lib.grading.exercise import Exercise
from course_lib.grading.registry import exercise
from course_lib.grading.report import Verdict
from course_lib.grading.selfstudy import examine
from course_lib.grading.trusted.grader import Cells, Grader
from course_lib.grading.trusted.worker import Limits
from tools.answers import Answer, RightAnswer
from tools.solutions import SOLUTIONS, code_cells, right_answers, wrong_answers

Judged = Callable[[str, Answer, int], tuple[Verdict, str]]  # name, answer, seed -> verdict and cause
# In the notebook of a student who has the solutions' names, and whose answer stands in a module of its own.
CELL = """
import sys, types
answers = types.ModuleType("tools.answers")
answers.wrong = answers.right = lambda number, says: lambda function: function
sys.modules.update({{"tools": types.ModuleType("tools"), "tools.answers": answers}})
module = dict(globals())
try:
    exec(compile({text!r}, "answers.py", "exec"), module)
    {function} = module{name}
except Exception as error:  # or the solution itself would be judged
    def {function}(*arguments, failed=repr(error)):
        raise RuntimeError("{cannot}: " + failed)
"""
CANNOT = "the answers' file cannot run in class"


class VerdictsOnly(Grader):
    """Names no recorded mistakes, which takes as long as the verdict."""

    def known_cause(self, exercise: Exercise, cells: Cells) -> str:
        return ""


def at_home(name: str, answer: Answer, seed: int) -> tuple[Verdict, str]:
    found = examine(exercise(answer.number), answer.function, seed)
    return found.verdict, found.cause


def in_class(path: Path, grader: Grader) -> Judged:
    """The way to marks of answers that stand beside the notebook at `path`."""
    given = [{"source": cell.source, "name": cell.metadata.nbgrader.grade_id, "own": False}
             for cell in code_cells(path) if not cell.metadata.nbgrader.grade]
    texts = {kind: path.with_name(f"{kind}_answers.py").read_text(encoding="utf-8") for kind in ("right", "wrong")}

    def judged(name: str, answer: Answer, seed: int) -> tuple[Verdict, str]:
        asked = exercise(answer.number)
        first, bracket, place = name.partition("[")
        text = texts["right" if isinstance(answer, RightAnswer) else "wrong"]
        source = CELL.format(text=text, function=asked.function, name=f'["{first}"]{bracket}{place}', cannot=CANNOT)
        report = grader.report(asked, [*given, {"source": source, "name": "answer", "own": True}], seed)
        if CANNOT in report.cause:
            raise RuntimeError(f"{path.parent.name}, {name}: {report.cause}")
        return report.verdict, grader.broken or report.cause

    return judged


def judged_wrongly(path: Path, judged: Judged, seeds: range, only: str) -> Iterator[str]:
    """A line for each answer beside the notebook at `path` whose verdict is not what it should be; then the counts."""
    answers = [each for each in (*right_answers(path), *wrong_answers(path)) if only in ("", each[1].number)]
    wrongly = {True: 0, False: 0}
    for name, answer in tqdm(answers, desc=path.stem, unit="answer", disable=None):
        is_right = isinstance(answer, RightAnswer)
        found = {seed: judged(name, answer, seed) for seed in seeds}
        odd = {seed: cause for seed, (verdict, cause) in found.items() if (verdict is Verdict.CORRECT) != is_right}
        if odd:
            wrongly[is_right] += 1
            seed, cause = next(iter(odd.items()))
            does = "refused" if is_right else "passes"
            yield (f"{answer.number} {name}: {does} at {len(odd)} of {len(seeds)} seeds, first {seed}"
                   + (f": {cause}" if cause else ""))
    rights = sum(isinstance(answer, RightAnswer) for _, answer in answers)
    yield (f"{path.stem}: {wrongly[True]} of {rights} right answers are refused, {wrongly[False]} of "
           f"{len(answers) - rights} wrong ones pass")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    known = {path.stem: path for path in SOLUTIONS.values()}
    parser.add_argument("names", nargs="*", metavar="NAME", help="chapters, such as 02_collectives; all by default")
    parser.add_argument("--seeds", type=int, default=10, help="of the trials, 0 to SEEDS - 1")
    parser.add_argument("--in-class", action="store_true", help="by TrustedGrade's way, for marks")
    parser.add_argument("--only", default="", metavar="NUMBER", help="one exercise, such as 2.3")
    asked = parser.parse_args()
    with VerdictsOnly("auto", Limits()) as grader:
        for name in asked.names or known:
            judged = in_class(known[name], grader) if asked.in_class else at_home
            for line in judged_wrongly(known[name], judged, range(asked.seeds), asked.only):
                print(line, flush=True)


if __name__ == "__main__":
    main()
