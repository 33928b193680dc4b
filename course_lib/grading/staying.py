"""Attempts on ranks that stay, for whoever judges many answers one after the other: tools/exercises.py.

A call in ranks that stay costs a millisecond of a core for each rank, where new ranks take tens of them. Every attempt
finds what it would find on new ranks: the same random numbers, and no message of the one before.
"""

from collections import Counter
from collections.abc import Callable

from course_lib.grading.exercise import HANGS_S, TIME_LIMIT_S, Exercise, Trial
from course_lib.grading.selfstudy import attempt
from course_lib.runtime import LaunchError, Results, Team, start_ranks
from course_lib.runtime.instruments.communication import CommunicationLog
from course_lib.runtime.ranks.rank import seed_everything

ENDINGS = ("\n  All ranks live", "\n  This ends the team")  # what a team says behind the words of launch


class StayingAttempts:
    """`check_exercise(asked, function, attempts=ours)` runs on our ranks, of which there are as many teams as sizes."""

    def __init__(self) -> None:
        self.teams: dict[int, Team] = {}
        self.num_teams = 0  # that were started: one for each size, and one after each answer that ended or upset one

    def __enter__(self) -> "StayingAttempts":
        return self

    def __exit__(self, *_: object) -> None:
        for size in list(self.teams):
            self.teams.pop(size).close()

    def __call__(self, asked: Exercise, function: Callable, trial: Trial) -> Results:
        """What `attempt` returns on each rank of the trial. LaunchError in the words of launch."""
        size = trial.world_size
        if size not in self.teams:
            self.teams[size] = start_ranks(size, device="cpu", timeout=HANGS_S)
            self.num_teams += 1
        team = self.teams[size]
        try:
            results = team.run(attempt_as_new, asked, function, trial)
        except LaunchError as error:
            if len(team.alive) < size:
                self.teams.pop(size).close()
            for ending in ENDINGS:
                error.args = (str(error).partition(ending)[0],)
            raise
        if not is_in_step(results.communication, size):
            self.teams.pop(size).close()
        return results


def attempt_as_new(asked: Exercise, function: Callable, trial: Trial) -> tuple[str, bytes, list[str]]:
    """`attempt` with the random numbers that new ranks begin with."""
    seed_everything(0)
    return attempt(asked, function, trial, TIME_LIMIT_S)


def is_in_step(log: CommunicationLog, world_size: int) -> bool:
    """Whether nothing is left of an attempt that returned: as many sends as receives, and collectives by all."""
    made = Counter((event.op, event.rank) for event in log.events)
    of_op = {op: [made[op, rank] for rank in range(world_size)] for op, _ in made}
    return sum(of_op.pop("send", [])) == sum(of_op.pop("recv", [])) and all(len(set(each)) == 1
                                                                             for each in of_op.values())
