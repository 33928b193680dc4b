"""What tests of ranks may ask: which processes serve them, where a call is, and that somebody gives up sooner or later.

A test that needs more of the runtime's inner life gets a function here.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace

from course_lib.runtime.ranks import fork_pool, supervisor
from course_lib.runtime.ranks.fork_pool import ForkPool
from course_lib.runtime.ranks.pools import pool
from course_lib.runtime.team.team import Team
from course_lib.runtime.torch_private import replace_attribute

_LIMITS = {"still_s": (supervisor, "_STILL_S"), "comes_back_s": (supervisor, "_COMES_BACK_S"),
           "lives_within_s": (fork_pool, "_LIVES_WITHIN_S"), "closes_within_s": (fork_pool, "CLOSES_WITHIN_S")}


@contextmanager
def limits(**seconds: float) -> Iterator[None]:
    """Other limits than a reader's, inside. still_s: all ranks wait, and that is a deadlock. comes_back_s: a team's
    rank leaves a call that has failed. lives_within_s: a server gives a sign of life. closes_within_s: it ends.
    """
    with ExitStack() as stack:
        for name, value in seconds.items():
            stack.enter_context(replace_attribute(*_LIMITS[name], value))
        yield


@contextmanager
def call_limit(team: Team, seconds: float) -> Iterator[None]:
    """Another time limit for the team's calls inside: those that must work have none that a busy machine could miss."""
    crew = team._ranks.crew
    before, crew.task = crew.task, replace(crew.task, timeout_s=seconds)
    try:
        yield
    finally:
        crew.task = before


def server_pid(served: Team | ForkPool | None = None) -> int | None:
    """The process that forks ranks: for a team, from a pool, or for this process's launches. None: there is none."""
    server = (served._ranks.crew.pool if isinstance(served, Team) else served or pool())._server
    return None if server is None or server.poll() is not None else server.pid


def rank_pids(team: Team) -> list[int]:
    """The processes of a team's ranks, dead ones too."""
    return [process.pid for process in team._ranks.crew.processes]


def wait_until_idle(idle: ForkPool) -> None:
    """Until the server's time without a call has run out, whether it has left or somebody needs it."""
    idle._leaving.join()


def task_holders(team: Team) -> set[int]:
    """Ranks that have taken the whole task of the call under way; none where no call is."""
    running = team._ranks._running
    return set(running.given) if running else set()


def is_stopping(team: Team) -> bool:
    """Whether the call under way has been interrupted, and its ranks are on their way back."""
    running = team._ranks._running
    return running is not None and running.error is not None and running.crew.pool.hurried.is_set()


def rank_lines(team: Team) -> dict[int, str]:
    return team._ranks.where()


def is_over(team: Team) -> bool:
    return team._ranks.story is not None
