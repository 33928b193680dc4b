"""The calls of a team, one at a time, and what is left of it when one goes wrong."""

import itertools
import os
import threading
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import Any

from course_lib.runtime.errors import LaunchError, LaunchInterrupted, TeamEnded
from course_lib.runtime.launcher import Results
from course_lib.runtime.ranks import diagnosis
from course_lib.runtime.ranks.crew import Crew
from course_lib.runtime.ranks.frames import readers_frame
from course_lib.runtime.ranks.messages import Task, Whereabouts
from course_lib.runtime.ranks.parcels import pack_call
from course_lib.runtime.ranks.pools import BranchPool, WarmPool
from course_lib.runtime.ranks.processes import hold_interrupts
from course_lib.runtime.ranks.supervisor import Supervisor
from course_lib.runtime.team.namespace import do_nothing
from course_lib.runtime.team.rank_cell import name_ranks

_teams = itertools.count()
CLOSED = "closed"  # the story of a team that its reader has closed
MADE_ANEW = ("The process group is made anew before the next call: process groups, device meshes and whatever holds "
             "one (DDP, for example) have to be made again.")


class StayingRanks:
    """Forked (or warm) ranks of one team. `states` says of each rank what it did last."""

    def __init__(self, pool: "BranchPool | WarmPool", world_size: int, backend: str, seed: int, threads: int,
                 timeout_s: float, env: dict[str, str]) -> None:
        store = os.path.join(pool.folder, f"team-{next(_teams)}")
        self.crew = Crew(pool, Task(0, world_size, backend, store, seed, threads, timeout_s, b""), env, stays=True)
        self.world_size, self.backend = world_size, backend
        self.states: dict[int, str] = {}
        self.story: str | None = None  # why no call can run any more
        self._one_at_a_time = threading.RLock()
        self._running: Supervisor | None = None
        self._joined = 0  # the number of the process group that all ranks are in

    @property
    def alive(self) -> list[int]:
        """Ranks whose processes live."""
        return [rank for rank in range(self.world_size) if rank not in self.crew.lost and self.story != CLOSED]

    @property
    def is_busy(self) -> bool:
        """Whether a call is under way, in another thread."""
        return self._running is not None

    def call(self, what: str, fn: Callable, args: tuple, kwargs: dict[str, Any], ranks: Collection[int] | None = None
             ) -> Results:
        """As launch, in ranks that live on. `what` is what each of them is said to have done."""
        packed = pack_call(fn, args, kwargs)
        with self._one_at_a_time:
            self._refuse_after_end()
            if self.crew.group != self._joined and ranks is not None:
                self._run("to join", pack_call(do_nothing, (), {}), None)  # a group is joined by all, or by none
            return self._run(what, packed, ranks)

    def look(self, fn: Callable, args: tuple, ranks: Collection[int]) -> Results:
        """A call that needs no other rank: also where others have ended."""
        with self._one_at_a_time:
            if self.story == CLOSED:
                self._refuse_after_end()
            for rank in ranks:
                if rank not in self.alive:
                    raise TeamEnded(f"rank {rank} has ended, and what it held is gone. {self.story}")
            return self._run(None, pack_call(fn, args, {}), ranks)

    def _refuse_after_end(self) -> None:
        if self.story == CLOSED:
            raise TeamEnded("this team is closed. start_ranks(...) starts another one")
        if self.story is not None:
            left = f"What {name_ranks(self.alive)} held" if self.alive else "Nothing"
            raise TeamEnded(f"no call runs in this team any more: {self.story}\n  {left} can still be looked at, as "
                            "team[0]['x'], until team.close(). start_ranks(...) starts another team")

    def _run(self, what: str | None, packed: bytes, ranks: Collection[int] | None) -> Results:
        group, lost = self.crew.group, set(self.crew.lost)
        tasks = self.crew.make_tasks(packed, ranks, self._joined if what is None else None)  # a look joins no group
        self._running = Supervisor(self.crew, tasks, self.crew.task.timeout_s)
        try:
            return Results(*self._running.run())
        except (LaunchError, LaunchInterrupted) as error:
            left = self._say_what_is_left(error, group, lost)
            error.args = (f"{diagnosis.say_for_team(str(error))}\n{diagnosis.wrap_lines(left)}",)
            raise
        finally:
            if what is not None:
                if self._running.has_begun:  # an interrupt may have come before
                    self._joined = group
                self._note_states(what, self._running)
            self._running = None

    def _say_what_is_left(self, error: BaseException, group: int, lost: set[int]) -> str:
        now = self.crew.lost - lost
        if now:
            self.story = str(error).splitlines()[0]
            left = f"{name_ranks(self.alive)} can be looked at until team.close()" if self.alive else "none is left"
            forced = self.crew.forced & now
            how = f"{name_ranks(forced)} did not come back and had to end" if forced else f"{name_ranks(now)} has ended"
            return f"This ends the team: {how}; {left}."
        kept = "All ranks live, and keep what they hold."
        return f"{kept} {MADE_ANEW}" if self.crew.group != group else kept

    def _note_states(self, what: str, ran: Supervisor) -> None:
        for rank in ran.tasks:
            report = ran.reported.get(rank)
            line = readers_frame(getattr(report, "frames", ()))
            if rank in self.crew.lost:
                self.states[rank] = f"has ended in {what}"
            elif line is not None:
                verb = "was stopped" if getattr(report, "type_name", "") == "Stopped" else "failed"
                self.states[rank] = f"{verb} at {line.where()}"
            else:
                self.states[rank] = f"has run {what}"

    def where(self) -> dict[int, str]:
        """Where each rank is, or what it did last."""
        running = self._running
        seen = dict(running.ranks.seen) if running else {}  # a copy: the call's own thread adds to it
        states = {rank: self.states.get(rank, "is new") for rank in range(self.world_size)}
        return states | {rank: _say_where(each) for rank, each in seen.items()}

    def close(self) -> None:
        """End the ranks and whatever they have started. Again: nothing happens."""
        with self._one_at_a_time:
            if self.story == CLOSED:
                return
            self.story = CLOSED
            with hold_interrupts(self.crew.pool.hurried):
                with suppress(LaunchError, LaunchInterrupted):  # the pool's own process is gone, and the ranks with it
                    self.crew.finish(set(range(len(self.crew.processes))) - self.crew.lost)
                self.crew.clear_up()
                self.crew.pool.close()


def _say_where(seen: Whereabouts) -> str:
    line = readers_frame(seen.frames)
    return f"{'waits' if seen.waits_in else 'is'} at {line.where()}" if line else "is at work"

