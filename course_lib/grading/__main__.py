"""How an exercise is judged, for whoever asks: its trials, budgets, points and time, and no answer.

    python -m course_lib.grading --explain          the list of exercises
    python -m course_lib.grading --explain 6.2      the trials of one, in order, and what else decides
"""

import argparse
import ast
import textwrap
from pathlib import Path

from course_lib.grading import recorded
from course_lib.grading.chapters import folders
from course_lib.grading.compare import EXACT
from course_lib.grading.exercise import SEED, TIME_LIMIT_S, Exercise, Trial
from course_lib.grading.registry import every_exercise, exercise
from course_lib.grading.report import OVER_BUDGET
from course_lib.pictures.units import human_bytes


def explain(asked: Exercise) -> str:
    """How the exercise is judged, in words. Nothing is run, and nothing that a trial expects is computed."""
    in_class = "as many: the first is the same, others are drawn again" if asked.is_judged else "more, which are drawn"
    parts = {"budget": [asked.budget], "trials": [describe_trial(asked, trial) for trial in asked.trials(SEED)],
             "in a class": [f"{in_class} from a seed that nobody knows"],
             "time": [f"{TIME_LIMIT_S:g} s of computing for each trial, at home and in a class"],
             "allowed": describe_calls(asked), "numbers": describe_tolerance(asked),
             "stressed": terms_of(asked.number), "points": describe_points(asked)}
    lines = [f"{asked.number} {asked.function}: the trials run one after the other, up to the first that fails"]
    for name, texts in parts.items():
        for text in texts:
            lines += textwrap.wrap(text, 108, initial_indent=f"  {name:<10}  ", subsequent_indent=" " * 14)
            name = ""
    return "\n".join(lines)


def describe_trial(asked: Exercise, trial: Trial) -> str:
    """Its label; where bytes are counted, how many a rank may send."""
    most = asked.bound(trial) if hasattr(asked, "bound") and trial.world_size > 1 else None
    where = getattr(asked, "spent_on", "")  # " to one neighbour"
    spent = f": a rank sends at most {human_bytes(most)}{where}" if most else ": nothing is sent"
    return trial.label + spent * (most is not None)


def describe_calls(asked: Exercise) -> list[str]:
    """Which of torch.distributed may be called, and what may be asked."""
    if asked.operations is None:
        calls = "all of torch.distributed but new groups; nothing of course_lib's chapters"
    else:
        calls = f"of torch.distributed {' and '.join(sorted(asked.operations, reverse=True)) or 'nothing'}"
    return [calls, *["questions of your function are answered during the run, and counted"] * asked.asks]


def describe_tolerance(asked: Exercise) -> list[str]:
    """How far numbers may be off, where they may."""
    relative, absolute = asked.tolerance
    return [] if asked.tolerance == EXACT else [f"may be off by {relative:g} of their size, or by {absolute:g}; whole "
                                                "numbers by nothing"]


def describe_points(asked: Exercise) -> list[str]:
    """What a right answer is worth, and one that costs too much; how many mistakes are known by name."""
    known = len(recorded.mistakes(asked.number))
    return [f"{asked.points} for what is right and within budget, {OVER_BUDGET * asked.points:g} for what is right and "
            "over a budget that does not decide whether it is an answer, 0 for all else",
            *[f"{known} mistakes are known by what they give: whoever makes one is told which"] * bool(known)]


def terms_of(number: str) -> list[str]:
    """What the text stresses: a solution that leaves it out is refused. Read, not run; [] in a copy without answers."""
    path = Path(folders()[int(number.partition(".")[0])], "answers.py")
    calls = [node.args for node in ast.walk(ast.parse(path.read_text(encoding="utf-8") if path.exists() else ""))
             if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "term"]
    return [args[1].value for args in calls if len(args) > 1 and args[0].value == number]


def main(arguments: list[str] | None = None) -> None:
    """Print one explanation, or the list."""
    parser = argparse.ArgumentParser(prog="python -m course_lib.grading", description=__doc__.splitlines()[0])
    parser.add_argument("--explain", nargs="?", const="", required=True, metavar="6.2", help="without a number: a list")
    asked = parser.parse_args(arguments)
    if asked.explain:
        print(explain(exercise(asked.explain)))
        return
    for each in every_exercise():
        print(f"{each.number:>5} {each.function}, {each.points} point{'s' * (each.points != 1)}: {each.budget}")


if __name__ == "__main__":
    main()
