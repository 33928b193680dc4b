"""Every answer checked once, in few launches: all trials on two ranks in one, all on three in another, and so on.

`grading.check` starts ranks for each trial, which is right for one exercise and slow for twenty-six. What passes here
passes there. What does not, or takes its launch down with it, is examined again by itself, and that verdict counts.
"""

import random
from collections.abc import Callable, Mapping

import numpy
import torch
import torch.distributed as dist

from course_lib.grading.exercise import SEED, Exercise, Trial, ranks_of
from course_lib.grading.registry import exercise
from course_lib.grading.report import Report, Verdict
from course_lib.grading.selfstudy import attempt, check_exercise, conclude, find_course_answers
from course_lib.runtime import LaunchError, launch
from course_lib.runtime.instruments import recordings
from course_lib.runtime.instruments.communication import CommunicationLog

TIME_LIMIT_S = 60.0  # of all trials on as many ranks: right answers need a few seconds
Task = tuple[str, Trial, Callable]


def check_all(functions: Mapping[str, Callable], say: Callable[[str], None]) -> dict[str, Report]:
    """The report of each answer by its number. say(text): what is being done, now and then."""
    asked = {number: exercise(number) for number in functions}
    tasks = [(number, trial, function) for number, function in functions.items()
             for trial in asked[number].trials(SEED)]
    passed = {number for number, function in functions.items() if not find_course_answers(function, set())}
    for world_size in sorted({trial.world_size for _, trial, _ in tasks}):
        some = [task for task in tasks if task[1].world_size == world_size and task[0] in passed]
        if some:
            say(f"{len(some)} trials on {ranks_of(world_size)}")
            passed -= find_failures(some, asked, world_size)
    reports = {}
    for number, function in functions.items():
        if number in passed:
            reports[number] = Report(number, asked[number].function, Verdict.CORRECT, asked[number].points, "")
        else:
            say(f"{number} once more, by itself")
            reports[number] = check_exercise(asked[number], function)
    return reports


def find_failures(tasks: list[Task], asked: Mapping[str, Exercise], world_size: int) -> set[str]:
    """The numbers of those that do not pass one of their `tasks`; of all where the launch as a whole fails."""
    try:
        ranks = launch(attempts, [(asked[number], function, trial) for number, trial, function in tasks],
                       world_size=world_size, timeout=TIME_LIMIT_S, device="cpu")
    except LaunchError:
        return {number for number, _, _ in tasks}
    found = set()
    for (number, trial, _), *outcomes in zip(tasks, *ranks):
        log = CommunicationLog.merge(log for _, logs in outcomes for log in logs)
        if conclude(asked[number], trial, [result for result, _ in outcomes], log).verdict is not Verdict.CORRECT:
            found.add(number)
    return found


def attempts(tasks: list[tuple[Exercise, Callable, Trial]]) -> list[tuple[tuple, list[recordings.Recording]]]:
    """On a rank: what each trial gave, and what was recorded of it. Each begins as in a launch of its own."""
    found = []
    for asked, function, trial in tasks:
        for seed in (random.seed, numpy.random.seed, torch.manual_seed):
            seed(0)
        result = attempt(asked, function, trial)
        found.append((result, recordings.take()))
        dist.barrier()
    return found
