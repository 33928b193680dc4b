"""`check("2.1", my_ring_reduce_scatter)`: the reader's function on real ranks, and what to make of the outcome.

It is feedback, not marks: the function runs in processes of the reader's own, and could tell them anything.
"""

import dis
import inspect
import io
from collections.abc import Callable, Iterator
from types import CodeType
from typing import Any

import torch
import torch.distributed as dist

from course_lib.grading.exercise import Exercise, Traffic, Trial
from course_lib.grading.registry import exercise, functions
from course_lib.grading.report import Report, Verdict
from course_lib.grading.student_code import ASKED, own_answers
from course_lib.runtime import Deadlock, LaunchError, LaunchTimeout, launch, record_communication
from course_lib.runtime.instruments.communication import CommunicationLog

SEED = 0  # the same for everybody, so that two readers can compare what they are told
TIMEOUT_S = 20.0  # correct answers need a tenth of a second; an endless loop should not take a reader's patience


def check(number: str, function: Callable, hint: int = 0) -> Report:
    """Run the reader's `function` for the exercise `number` on ranks: is it correct, or what is wrong, and why?

    hint: 1, 2 or 3 adds that hint to the report, the third one nearly being the code; 0, no hint.

    ValueError for an unknown number, a function of another name, or another hint; TypeError for what is no function.
    """
    asked = exercise(number)
    if not inspect.isfunction(function):
        raise TypeError(f"check({number!r}, ...) expects the function {asked.function} itself, without a call: "
                        f"given a {type(function).__name__}")
    if function.__name__ != asked.function:
        raise ValueError(f"check({number!r}, ...) expects the function {asked.function}: given {function.__name__}")
    if type(hint) is not int or not 0 <= hint <= len(asked.hints):
        raise ValueError(f"hint={hint!r}: expected 0 to {len(asked.hints)}")
    return check_exercise(asked, function, asked.hints[hint - 1] if hint else "")


def check_exercise(asked: Exercise, function: Callable, hint: str = "") -> Report:
    """Run `function` through the trials of the exercise `asked`, up to the first that fails."""
    verdict, cause, measured = Verdict.CORRECT, "", []
    taken_over = sorted(borrowed(function, set()))
    if taken_over:
        modules = ", ".join(dict.fromkeys(module for module, _ in taken_over))
        names = ", ".join(name for _, name in taken_over)
        cause = f"it uses {modules} ({names}): {ASKED}"
        return Report(asked.number, asked.function, Verdict.WRONG, asked.points, asked.budget, cause=cause, hint=hint)
    for trial in asked.trials(SEED):
        try:
            verdict, cause, figures = outcome(asked, function, trial)
        except LaunchError as error:
            verdict, cause, figures = Verdict.WRONG, f"{trial.label}: {explain(error)}", ""
        measured.append(figures)
        if verdict is not Verdict.CORRECT:
            measured = [figures]  # of the trial that failed
            break
    return Report(asked.number, asked.function, verdict, asked.points, asked.budget,
                  "\n".join(filter(None, measured)), cause, hint)


def borrowed(function: Callable, seen: set[Callable]) -> set[tuple[str, str]]:
    """What `function`, and the reader's functions that it calls by name, use of the course's own: (package, name).

    Good enough for a reader who only forgot what was asked: it looks at names, and names can be hidden.
    """
    seen.add(function)
    found = set()
    for name in names_loaded(function.__code__):
        first, *attributes = name.split(".")
        value = function.__globals__.get(first)
        module = name if value is None else value_module(value)
        if inspect.ismodule(value):
            module = ".".join([value.__name__, *attributes])
        if package := own_answers(module):
            found.add((package, name))
        elif inspect.isfunction(value) and value not in seen and not module.startswith(("torch", "course_lib")):
            found |= borrowed(value, seen)
    return found


def names_loaded(code: CodeType) -> Iterator[str]:
    """The globals that `code` reads, with the attributes that follow (dist.get_rank), and what it imports."""
    imported = chain = ""
    for instruction in dis.get_instructions(code):
        if chain and instruction.opname in ("LOAD_ATTR", "LOAD_METHOD"):
            chain += f".{instruction.argval}"
            continue
        if chain:
            yield chain
        is_ours = instruction.opname.startswith("LOAD_FAST") and instruction.argval == "course_lib"  # imported inside
        chain = instruction.argval if instruction.opname == "LOAD_GLOBAL" or is_ours else ""
        if instruction.opname == "IMPORT_NAME":
            imported = instruction.argval
            yield imported
        if instruction.opname == "IMPORT_FROM" and imported == "course_lib":
            yield f"{imported}.{instruction.argval}"
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from names_loaded(constant)


def value_module(value: Any) -> str:
    """Where `value` was defined, empty for what does not say."""
    return str(getattr(value, "__module__", ""))


def outcome(asked: Exercise, function: Callable, trial: Trial) -> tuple[Verdict, str, str]:
    """The verdict on one trial, what is wrong, and what was measured."""
    # On the CPU everywhere: the same inputs, bits and bytes, and so the same verdict, on every machine.
    results = launch(attempt, type(asked), function, trial.inputs, world_size=trial.world_size, timeout=TIMEOUT_S,
                     device="cpu")
    unwritten = next((result for result in results if isinstance(result, str)), None)
    if unwritten == asked.function:
        return Verdict.NOT_WRITTEN, "", ""
    if unwritten:
        return Verdict.NOT_WRITTEN, f"it calls {unwritten}, which is not written yet", ""
    log = results.communication
    forbidden = sorted({event.op for event in log.events} - (asked.operations or {event.op for event in log.events}))
    if forbidden:
        allowed = " and ".join(sorted(asked.operations or (), reverse=True))
        return Verdict.WRONG, f"it calls torch.distributed's own {', '.join(forbidden)}: write it with {allowed}", ""
    answers = [torch.load(io.BytesIO(data), weights_only=True) for data in results]
    judged = asked.judge(trial, answers, traffic_of(log, trial.world_size))
    return Verdict.WRONG if judged.cause else Verdict.CORRECT, judged.cause or "", judged.figures()


def attempt(kind: type[Exercise], function: Callable, inputs: list[Any]) -> bytes | str:
    """On a rank: the answer as torch.save writes it, or the name of the function that is not written yet.

    Written out here, so that an object with methods of the reader's own never reaches the process that compares.
    """
    with record_communication():
        try:
            answer = kind.run(function, inputs[dist.get_rank()])
        except NotImplementedError as error:
            name = raised_in(error)
            if name not in functions() and name != kind.function:
                raise
            return name
    data = io.BytesIO()
    torch.save(answer, data)
    return data.getvalue()


def raised_in(error: BaseException) -> str:
    """The name of the function that raised."""
    traceback = error.__traceback__
    while traceback.tb_next is not None:
        traceback = traceback.tb_next
    return traceback.tb_frame.f_code.co_name


def traffic_of(log: CommunicationLog, world_size: int) -> Traffic:
    """The messages between ranks as a table. Only send and recv have two ends: collectives are not in it."""
    sent = [[0] * world_size for _ in range(world_size)]
    for event in log.events:
        if event.op == "send":
            sent[event.rank][event.peer] += event.message_bytes
    return Traffic(sent, exact=True)


def explain(error: LaunchError) -> str:
    """What `launch` says when ranks do not return, for somebody whose function is to blame."""
    said, _, hint = str(error).partition("  Hint: ")
    lines = [line for line in said.splitlines() if line.strip() and not line.strip().startswith("(raised inside")]
    hint = " ".join(hint.split())  # it is wrapped there
    if isinstance(error, Deadlock):
        circle = circle_of(error.waits)
        lines[0] = explain_circle(circle, error.waits) if circle else f"it hangs: {hint}"
        hint = ""
    if isinstance(error, LaunchTimeout):
        hint = "Does a loop never end?"
    return "\n".join([*lines, *([hint[:1].upper() + hint[1:]] if hint else [])])


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
