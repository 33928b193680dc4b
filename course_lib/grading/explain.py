"""What `launch` says when ranks do not return, for somebody whose function is to blame."""

import inspect
import re
from collections.abc import Callable

from course_lib.grading.exercise import Exercise
from course_lib.runtime import Deadlock, LaunchError, LaunchTimeout

# A place that is not the reader's: the grader's, torch's, any other library's.
OURS = re.compile(r"\s*(course_lib[/\\]|\S*site-packages[/\\]|\S*lib[/\\]python3)")
# f() missing 1 required positional argument, f() takes 1 positional argument but 2 were given
MISFIT = re.compile(r"TypeError: (?:\S*\.)?(\w+)\(\) (?:missing (\d+) required positional|takes .*? but (\d+) "
                    r"(?:positional arguments? )?(?:was|were) given)")
AT = re.compile(r"( failed) at (.*?, line \d+)")


def explain(error: LaunchError, asked: Exercise, function: Callable) -> str:
    """The error in the reader's own lines, and what it means in this exercise."""
    said, _, hint = str(error).partition("  Hint: ")
    lines = [line for line in said.splitlines() if line.strip() and not line.strip().startswith("(raised inside")]
    lines = readers_lines(lines, asked.function)
    hint = " ".join(hint.split())  # it is wrapped there
    if isinstance(error, Deadlock) or (isinstance(error, LaunchTimeout) and error.all_wait):
        circle = circle_of(error.waits)
        lines[0] = explain_circle(circle, error.waits) if circle else f"it hangs: {hint.partition(' Hint: ')[0]}"
        hint = ""
    elif isinstance(error, LaunchTimeout):
        hint = "Does a loop never end?"
    return "\n".join([*lines, *explain_parameters(said, function), *asked.meaning(said),
                      *([hint[:1].upper() + hint[1:]] if hint else [])])


def explain_parameters(said: str, function: Callable) -> list[str]:
    """Where a call does not fit: the learner's own line beside what was expected."""
    found = MISFIT.search(said)
    if not found:
        return []
    name, missing, given = found[1], found[2], found[3]
    method = name.rpartition(".")[2]
    if method in ("forward", "backward") and name != function.__name__:
        return [f"Expected {method}(ctx, ...): it begins with ctx, and is a staticmethod."]
    if name != function.__name__:
        return []
    parameters = inspect.signature(function).parameters.values()
    needed = sum(each.default is each.empty and each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)
                 for each in parameters)
    expected = int(given) if given else needed - int(missing)
    return [f"Yours is  def {name}{inspect.signature(function)}  (line {function.__code__.co_firstlineno}): "
            f"expected {expected} parameter{'s' * (expected != 1)}."]


def readers_lines(lines: list[str], function: str) -> list[str]:
    """A traceback without the grader's and libraries' lines; a failure among those is said to be in the call."""
    start = next((at for at, line in enumerate(lines) if line.startswith("Traceback of rank")), len(lines))
    stack = [line for line in lines[start + 1:] if not OURS.match(line)]
    failed = AT.search(lines[0])
    if failed and OURS.match(failed[2]):
        place = stack[-1].strip().partition(" in ")[0] if stack else ""
        lines[0] = lines[0].replace(failed[0], failed[1] + (f" at {place}" if place else f" calling {function}"))
    return lines[:start] + (lines[start:start + 1] + stack if stack else [])


def circle_of(waits: dict[int, tuple[str, int]]) -> list[int]:
    """Ranks each of which waits for the next, and the last for the first; empty where there are none."""
    for start in sorted(waits):
        path = [start]
        while path[-1] in waits and waits[path[-1]][1] not in path:
            path.append(waits[path[-1]][1])
        if path[-1] in waits:
            return path[path.index(waits[path[-1]][1]):]
    return []


def explain_circle(circle: list[int], waits: dict[int, tuple[str, int]]) -> str:
    """The circle in a sentence, and the way out."""
    kinds = {waits[rank][0] for rank in circle}
    verb = {"send": "sends to", "recv": "waits for a message from"}
    around = ", which ".join(f"{verb[waits[rank][0]]} rank {waits[rank][1]}" for rank in circle)
    if kinds == {"send"}:
        return (f"it hangs in a circle of sends that nobody receives: rank {circle[0]} {around}. A send waits for its "
                "receiver. Start the send and the receive together, as exchange does.")
    if kinds == {"recv"}:
        return (f"it hangs in a circle of receives: rank {circle[0]} {around}. No such message is on "
                "its way: what rank a sends to rank b, rank b receives from source a. Are the two mixed up?")
    return (f"it hangs in a circle: rank {circle[0]} {around}. Compare the order of the calls: what one rank sends, "
            "the other has to receive in the same step.")
