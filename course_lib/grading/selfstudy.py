"""`check("2.1", my_ring_reduce_scatter)`: the reader's function on real ranks, and what to make of the outcome.

It is feedback, not marks: the function runs in processes of the reader's own, and could tell them anything. Behind
`check` stand the reader's errors in the reader's own lines, and a search for the course's answers in what was written.
"""

import inspect
import io
import math
import os
import re
import sys
import warnings
from collections.abc import Callable
from contextlib import nullcontext, redirect_stderr
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist

from course_lib.grading import recorded
from course_lib.grading.exercise import HANGS_S, SEED, TIME_LIMIT_S, Exercise, SentBytes, Trial
from course_lib.grading.names import find_course_answers, tell_what_class_lacks
from course_lib.grading.on_rank import OutOfTime, limit_computing
from course_lib.grading.registry import exercise
from course_lib.grading.report import Report, Verdict, keep
from course_lib.grading.spent import Judgement
from course_lib.grading.trusted.inside.doors import no_new_groups
from course_lib.grading.trusted.inside.rank import serialize
from course_lib.grading.trusted.inside.student_code import ASKED
from course_lib.runtime import Deadlock, LaunchError, LaunchTimeout, Results, launch, record_communication
from course_lib.runtime.instruments.communication import CommunicationLog

Attempts = Callable[[Exercise, Callable, Trial], Results]  # `attempt` on the ranks of a trial; raises LaunchError
# A place that is not the reader's: the grader's, torch's, any other library's.
OURS = re.compile(r"\s*(course_lib[/\\]|\S*(?:on_rank|judge\w*)\.py|\S*site-packages[/\\]|\S*lib[/\\]python3)")
# Copy.forward() missing 1 required positional argument, Copy.forward() takes 1 positional argument but 2 were given
MISFIT = re.compile(r"TypeError: (?:\S*\.)?(forward|backward)\(\) (?:missing \d+ required positional|takes .*? but \d)")
AT = re.compile(r"( failed) at (.*?, line \d+)")


class NotPassed(AssertionError):
    """An exercise is not right where nbgrader executes its check cell: nbgrader reads points from errors."""

    def _render_traceback_(self) -> list[str]:
        return str(self).splitlines()


def check(number: str, function: Callable) -> Report:
    """Run the reader's `function` for the exercise `number` on ranks: is it correct, or what is wrong, and why?

    What does not pass has a button for each hint, the third one nearly being the code.

    Where nbgrader itself executes the notebook (its Validate button, or autograde without TrustedGrade) what does not
    pass must fail the cell: NotPassed is raised there.

    ValueError for an unknown number or a function of another name; TypeError for what is no function.
    """
    asked = exercise(number)
    if not inspect.isfunction(function):
        raise TypeError(f"check({number!r}, ...) expects the function {asked.function} itself, without a call: "
                        f"given a {type(function).__name__}")
    if function.__name__ != asked.function:
        raise ValueError(f"check({number!r}, ...) expects the function {asked.function}: given {function.__name__}")
    executed = "NBGRADER_EXECUTION" in os.environ  # where a word on stderr costs all points
    with redirect_stderr(sys.stdout) if executed else nullcontext():
        report = check_exercise(asked, function)
    if told := tell_what_class_lacks(function):
        report = replace(report, warned="\n".join(filter(None, [report.warned, *told])))
    if report.verdict in (Verdict.TRIED, Verdict.NOT_JUDGED) and not executed:  # and where it is, no mark comes of it
        return report
    keep(report)
    if report.passed or executed:
        return report if report.passed else under_nbgrader(report)
    return replace(report, hints=recorded.hints(number))


def under_nbgrader(report: Report) -> Any:
    """A report that does not pass, in the form from which nbgrader reads the points where it executes the cell."""
    executes = os.environ.get("NBGRADER_EXECUTION")
    if executes == "autograde" and report.points:
        print(report)
        return report.points  # a number as the cell's value is a part of its points
    if executes:
        raise NotPassed(repr(report))
    return report


def check_exercise(asked: Exercise, function: Callable, attempts: Attempts | None = None) -> Report:
    """Run `function` through the trials of the exercise `asked`, up to the first that fails; say why it fails.

    attempts: runs `attempt` on the ranks of a trial; on new ones, where nobody says how.
    """
    found = examine(asked, function, attempts=attempts)
    cause, judged = found.cause, found.judged
    if judged and judged.fault:
        known = recorded.cause(asked.number, asked.tolerance, found.trial, judged,
                               lambda place: judgement(asked, function, asked.trials(SEED)[place], attempts))
        cause = judged.with_cause(known).cause
    verdict = Verdict.TRIED if found.verdict is Verdict.CORRECT and not asked.is_judged else found.verdict
    return Report(asked.number, asked.function, verdict, asked.points, asked.budget, found.measured, cause or "",
                  found.warned)


@dataclass(frozen=True)
class Examined:
    """What became of an answer: of the trial that failed where one did, else of all of them."""

    verdict: Verdict
    cause: str = ""
    trial: int = 0  # the last that was run
    judged: Judgement | None = None  # None where there was nothing to judge
    measured: str = ""
    warned: str = ""


def examine(asked: Exercise, function: Callable, seed: int = SEED, attempts: Attempts | None = None) -> Examined:
    """Run `function` through the trials of `seed`, up to the first that fails, without looking for known mistakes."""
    if asked.asks and not asked.is_judged:
        return Examined(Verdict.CORRECT, measured="nothing was run: only your teacher's grader can answer what it asks")
    taken_over = sorted(find_course_answers(function))
    if taken_over:
        modules = ", ".join(dict.fromkeys(module for module, _ in taken_over))
        names = ", ".join(name for _, name in taken_over)
        return Examined(Verdict.WRONG, f"it uses {modules} ({names}): {ASKED}")
    measured, warned = [], ""
    for place, trial in enumerate(asked.trials(seed)):
        try:
            found = replace(outcome(asked, function, trial, attempts), trial=place)
        except LaunchError as error:
            verdict = Verdict.NOT_JUDGED if is_a_limit(error) else Verdict.WRONG
            return Examined(verdict, f"{trial.label}: {explain(error, asked, function)}", place)
        warned = warned or found.warned
        if found.verdict is not Verdict.CORRECT:
            return replace(found, warned=warned)
        measured.append(found.measured)
    return replace(found, measured="\n".join(filter(None, measured)), warned=warned)


def judgement(asked: Exercise, function: Callable, trial: Trial, attempts: Attempts | None = None) -> Judgement | None:
    """What the judge says of the function on one trial; None where there is nothing to judge."""
    try:
        return outcome(asked, function, trial, attempts).judged
    except LaunchError:
        return None


def outcome(asked: Exercise, function: Callable, trial: Trial, attempts: Attempts | None = None) -> Examined:
    """The verdict on one trial, what is wrong, and what was measured."""
    results = (attempts or on_new_ranks)(asked, function, trial)
    return conclude(asked, trial, results, results.communication)


def on_new_ranks(asked: Exercise, function: Callable, trial: Trial) -> Results:
    """What `attempt` returns on each rank of the trial."""
    # On the CPU everywhere: the same inputs, bits and bytes, and so the same verdict, on every machine.
    return launch(attempt, asked, function, trial, TIME_LIMIT_S, world_size=trial.world_size, timeout=HANGS_S,
                  device="cpu")


def conclude(asked: Exercise, trial: Trial, results: list[tuple[str, bytes, list[str]]], log: CommunicationLog
             ) -> Examined:
    """The judgement of what `attempt` has returned on each rank of the trial, and of what the ranks sent."""
    unwritten = next((name for name, _, _ in results if name), None)
    if unwritten:
        own = unwritten == asked.function
        return Examined(Verdict.NOT_WRITTEN, "" if own else f"it calls {unwritten}, which is not written yet")
    warned = warnings_of([lines for _, _, lines in results])
    forbidden = sorted({event.op for event in log.events} - (asked.operations or {event.op for event in log.events}))
    if forbidden:
        allowed = " and ".join(sorted(asked.operations or (), reverse=True))
        cause = f"it calls torch.distributed's own {', '.join(forbidden)}: write it with {allowed}"
        return Examined(Verdict.WRONG, "\n".join([cause, *asked.meaning(cause)]), warned=warned)
    answers = [torch.load(io.BytesIO(data), weights_only=True) for _, data, _ in results]
    judged = asked.judge(trial, answers, traffic_of(log, trial.world_size))
    verdict = Verdict.CORRECT if not judged.fault else Verdict.COSTLY if judged.right else Verdict.WRONG
    return Examined(verdict, judged.cause or "", judged=judged, measured=judged.figures(), warned=warned)


def attempt(asked: Exercise, function: Callable, trial: Trial, limit_s: float) -> tuple[str, bytes, list[str]]:
    """On a rank: the function that is not written yet, the answer as torch.save writes it, and what was warned of.

    Written out here, so that an object with methods of the reader's own never reaches the process that compares.
    """
    questions = []

    def ask(question: Any) -> Any:
        questions.append(question)
        return asked.reply(trial, question)

    # No new groups, as in the class grader: what passes here has to pass there.
    with record_communication(), no_new_groups(), warnings.catch_warnings(record=True) as caught:
        try:
            with limit_computing(limit_s):
                answer = asked.run(function, trial.inputs[dist.get_rank()], *([ask] if asked.asks else []))
            unwritten = ""
        except NotImplementedError as error:
            if error.args:  # a library's says what it lacks, a stub's says nothing
                raise
            answer, unwritten = None, raised_in(error)
    if asked.asks and type(answer) is dict:
        answer["asked"] = len(questions)
    return unwritten, serialize(answer), list(dict.fromkeys(f"{each.category.__name__}: {each.message}"
                                                            for each in caught))


def warnings_of(ranks: list[list[str]]) -> str:
    """Each warning once, with the ranks that it came from."""
    lines = []
    for text in dict.fromkeys(line for rank in ranks for line in rank):
        who = [str(rank) for rank, own in enumerate(ranks) if text in own]
        all_of_them = f"all {len(ranks)} ranks" if len(who) == len(ranks) > 1 else (
            f"rank{'s' * (len(who) > 1)} {', '.join(who)}")
        lines.append(f"{all_of_them}: {text}")
    return "\n".join(lines)


def raised_in(error: BaseException) -> str:
    """The name of the function that raised."""
    traceback = error.__traceback__
    while traceback.tb_next is not None:
        traceback = traceback.tb_next
    return traceback.tb_frame.f_code.co_name


def traffic_of(log: CommunicationLog, world_size: int) -> SentBytes:
    """The messages between ranks as a table. What a collective sends is taken to go to the right neighbour."""
    sent = [[0] * world_size for _ in range(world_size)]
    for event in log.events:
        if event.op not in ("recv", "barrier"):
            peer = event.peer if event.op == "send" else (event.rank + 1) % world_size
            sent[event.rank][peer] += math.ceil(event.sent_bytes or 0)
    return SentBytes(sent, exact=True)


def is_a_limit(error: LaunchError) -> bool:
    """Whether nothing but a limit says that there is no answer: ranks that wait for one another are known to."""
    return (isinstance(error, LaunchTimeout) and not error.all_wait
            or isinstance(getattr(error, "cause", None), OutOfTime))


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
        hint = "Does it wait for something other than a rank? Or this machine has too much to do."
    return "\n".join([*lines, *explain_context(said, function), *asked.meaning(said),
                      *([hint[:1].upper() + hint[1:]] if hint else [])])


def explain_context(said: str, function: Callable) -> list[str]:
    """Where torch gives a method of an autograd Function one argument more than it takes."""
    found = MISFIT.search(said)
    if not found or found[1] == function.__name__:
        return []
    return [f"Expected {found[1]}(ctx, ...): it begins with ctx, and is a staticmethod."]


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
