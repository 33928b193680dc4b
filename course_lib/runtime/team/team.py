"""A team: ranks that stay from one cell to the next, each with names of its own.

    team = start_ranks(world_size=4)        with the arguments of launch
    team.run(step, 3)                       as launch(step, 3), in ranks that remember
    team[2]["x"], team[2].eval("x.norm()")  what one rank holds
    team.pull("loss"), team.push(lr=0.1)    from all, to all
    %%ranks                                 a cell in all of them; %%ranks 0,2 in two

%%ranks runs in the newest open team. What its ranks print, show and raise comes as from launch; the value of the last
expression is the cell's, by rank.
"""

import html
import itertools
import sys
import threading
import weakref
from collections.abc import Callable, Collection, Mapping
from typing import Any, Literal

from course_lib.pictures.units import human_bytes
from course_lib.runtime import backends, context
from course_lib.runtime.errors import LaunchError
from course_lib.runtime.launcher import Results, check_is_function, check_options
from course_lib.runtime.ranks.pools import pool_that_stays
from course_lib.runtime.team import namespace
from course_lib.runtime.team.namespace import KINDS, RankHoldings, take_snapshot
from course_lib.runtime.team.rank_cell import Lender, RankCell, RankTexts, remember_text
from course_lib.runtime.team.staying import StayingRanks

MOST_NAMES = 8  # of a rank, that are listed
_open: list["weakref.ref[Team]"] = []  # oldest first
_texts = itertools.count(1)


class Team:
    """Made by start_ranks. Its ranks end with close(), with the `with` block, or when nothing refers to it any more."""

    def __init__(self, ranks: StayingRanks) -> None:
        self._ranks = ranks
        self._lender = Lender()
        self._end = weakref.finalize(self, _close_beside, ranks)
        self._end.atexit = False  # the pool ends its ranks then
        _open.append(weakref.ref(self))

    def __enter__(self) -> "Team":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the ranks, and whatever they have started."""
        self._end.detach()
        self._ranks.close()

    @property
    def world_size(self) -> int:
        """How many ranks it was started with."""
        return self._ranks.world_size

    @property
    def alive(self) -> list[int]:
        """The ranks that live."""
        return self._ranks.alive

    def run(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Results:
        """Run `fn(*args, **kwargs)` on every rank and return the results in rank order, with what was recorded.

        As launch, also in what it raises. But the ranks are the same as before, and live on: also after an error, so
        far as that goes, which its last lines say. Names that fn uses and the notebook does not have are the rank's.
        Raises TeamEnded where a rank has ended before.
        """
        check_is_function(fn, "team.run")
        name = getattr(fn, "__name__", type(fn).__name__)
        return self._ranks.call(name, namespace.call_function, (fn, args, kwargs), {})

    def run_cell(self, cell: RankCell | str, ranks: Collection[int] | None = None,
                 scope: Mapping[str, Any] | None = None) -> RankTexts | None:
        """Run a cell on each of `ranks`, by default all, among that rank's own names: what %%ranks does.

        scope: the notebook's names, which ranks see where they have none of their own. Returns the value of the last
        expression by rank, as text; None where no rank has any. SyntaxError before any rank begins.
        """
        if isinstance(cell, str):
            cell = RankCell(cell, f"<cell {next(_texts)} for ranks>")
        cell.compile()
        remember_text(cell.file, cell.text)
        chosen = self._choose(ranks)
        code, data = self._lender.choose(cell.list_names(), scope or {}, chosen)
        texts = self._ranks.call(cell.short_name(), namespace.run_cell, (cell, code, data), {},
                                 None if ranks is None else chosen)
        self._lender.note(data, chosen)
        shown = {rank: text for rank, text in zip(chosen, texts) if text is not None}
        return RankTexts(shown) if shown else None

    def __getitem__(self, rank: int) -> "TeamRank":
        """One rank, to look at. IndexError where there is none of that number."""
        if not isinstance(rank, int) or not 0 <= rank < self.world_size:
            raise IndexError(f"this team has ranks 0 to {self.world_size - 1}, got {rank!r}")
        return TeamRank(self, rank)

    def pull(self, name: str) -> list[Any]:
        """The value of a name in every living rank, in order, tensors on the CPU. KeyError where a rank has none."""
        return self._read(name, self.alive)

    def push(self, **values: Any) -> None:
        """Give every living rank these names, with a copy of the value each. Tensors arrive on the rank's device."""
        self._ranks.look(namespace.write_names, (values,), self.alive)

    def _read(self, name: str, ranks: list[int]) -> list[Any]:
        answers = self._ranks.look(namespace.read_name, (name,), ranks)
        for rank, (found, value) in zip(ranks, answers):
            if not found:
                raise KeyError(f"rank {rank} has no name {name!r}; its names: {', '.join(value) or 'none yet'}")
        return [value for _, value in answers]

    def _choose(self, ranks: Collection[int] | None) -> list[int]:
        chosen = list(range(self.world_size)) if ranks is None else sorted(set(ranks))
        if not chosen or not all(isinstance(rank, int) and 0 <= rank < self.world_size for rank in chosen):
            raise ValueError(f"expected some of the ranks 0 to {self.world_size - 1}, got {list(ranks or ())}")
        return chosen

    @property
    def is_busy(self) -> bool:
        """Whether a call is under way, in another thread."""
        return self._ranks.is_busy

    def snapshot(self) -> dict[int, dict[str, Any]]:
        """What each living rank did last and holds, with the first values of its tensors: plain numbers and words."""
        if not self.alive:
            return {}
        where, taken = self._ranks.where(), self._ranks.look(take_snapshot, (), self.alive)
        return {rank: {"where": where[rank], **held} for rank, held in zip(self.alive, taken)}

    def holdings(self) -> dict[int, RankHoldings]:
        """What the names of each living rank hold."""
        return dict(zip(self.alive, self._ranks.look(namespace.describe_names, (), self.alive)))

    def __repr__(self) -> str:
        states, holdings = self._look()
        return "\n".join([self._headline(), *(
            f"  rank {rank}  {state}" + (f"; {_say_holdings(holdings[rank])}" if rank in holdings else "")
            for rank, state in states.items())])

    def _headline(self) -> str:
        state = ("closed" if not self.alive else f"ended, since {self._ranks.story}" if self._ranks.story
                 else "at work" if self.is_busy else "ready")
        return f"Team of {self.world_size} rank{'s' * (self.world_size > 1)} over {self._ranks.backend}: {state}"

    def _look(self) -> tuple[dict[int, str], dict[int, RankHoldings]]:
        """Where each rank is, and what those hold that can be asked now."""
        holdings = {} if self.is_busy or not self.alive else self.holdings()
        where = self._ranks.where().items()
        return {rank: state if rank in self.alive else "has ended" for rank, state in where}, holdings

    def _repr_html_(self) -> str:
        states, holdings = self._look()
        rows = [["rank", "where", *(kind.replace("_", " ") for kind in KINDS), "names"]]
        for rank, state in states.items():
            held = holdings.get(rank)
            sizes = [human_bytes(held.by_kind[kind]) if held else "" for kind in KINDS]
            rows.append([str(rank), state, *sizes, _say_names(held) if held else ""])
        head, *body = ["".join(f"<{tag}>{html.escape(text)}</{tag}>" for text in row)
                       for tag, row in zip(["th"] + ["td"] * len(states), rows)]
        return (f"<table><caption>{html.escape(self._headline())}</caption><thead><tr>{head}</tr></thead>"
                f"<tbody>{''.join(f'<tr>{row}</tr>' for row in body)}</tbody></table>")


class TeamRank:
    """One rank of a team, to look at."""

    def __init__(self, team: Team, rank: int) -> None:
        self._team, self.rank = team, rank

    def __getitem__(self, name: str) -> Any:
        """The value of a name of this rank, as a copy; tensors on the CPU. KeyError where it has none."""
        return self._team._read(name, [self.rank])[0]

    def eval(self, expression: str) -> Any:
        """The value of an expression of this rank's names: `team[2].eval("x.grad.norm()")`. SyntaxError, RankFailed."""
        file = f"<team[{self.rank}].eval>"
        compile(expression, file, "eval")
        remember_text(file, expression)
        return self._team._ranks.look(namespace.evaluate, (expression, file), [self.rank])[0]


def _close_beside(ranks: StayingRanks) -> None:
    """In a thread: garbage is collected anywhere, perhaps while this very thread asks the pool for something."""
    threading.Thread(target=ranks.close, name="course_lib closes a team", daemon=True).start()


def newest_team() -> Team | None:
    """The team that was started last, of those that are open."""
    teams = (reference() for reference in reversed(_open))
    return next((team for team in teams if team is not None and team._end.alive), None)


def _say_holdings(held: RankHoldings) -> str:
    sizes = ", ".join(f"{kind.replace('_', ' ')} {human_bytes(size)}" for kind, size in held.by_kind.items() if size)
    return f"{sizes or 'no tensors'}: {_say_names(held)}" if held.names else "holds nothing"


def _say_names(held: RankHoldings) -> str:
    names = [each.name for each in held.names]
    return ", ".join(names[:MOST_NAMES]) + (f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else "")


def start_ranks(world_size: int = 4, *, backend: Literal["auto", "nccl", "gloo", "gloo-cuda"] = "auto",
                device: Literal["auto", "cpu"] = "auto", timeout: float = 60.0, seed: int = 0, threads: int = 1,
                env: dict[str, str] | None = None) -> Team:
    """Start `world_size` ranks that keep what they hold from one call, or cell, to the next, and return them as a team.

    The arguments are those of launch. `timeout` counts for each call by itself, and random numbers are seeded once, at
    the start. An idle rank holds 10 MB of its own.

    Raises ValueError for arguments that cannot work, and a LaunchError where the ranks do not start.
    """
    check_options(world_size, timeout, seed, threads, env)
    if context.in_rank():
        raise ValueError("start_ranks was called inside a rank. A rank cannot start ranks: call it from the notebook")
    if context.under_torchrun():
        raise ValueError("start_ranks was called under torchrun, which has started the ranks already: launch joins "
                         "them")
    backend = backends.choose(backend, device, world_size)
    env = {**backends.hide_gpus(backend), **(env or {})}
    ranks = StayingRanks(pool_that_stays(), world_size, backend, seed, threads, timeout, env)
    try:
        ranks.call("nothing yet", namespace.do_nothing, (), {})
    except BaseException:
        ranks.close()
        raise
    return Team(ranks)


NO_TEAM = ("%%ranks runs its cell in ranks that stay, and there are none. Start them in a cell of their own: "
           "team = start_ranks(world_size=4)")
_others = itertools.count(1)  # cells that no notebook numbers: those of a script


class RanksUsageError(ValueError):
    """The reader's slip: told in a line, without the stack of the magic."""

    _render_traceback_ = LaunchError._render_traceback_


def register_in(shell: Any) -> None:
    """Give `shell` the magic. A second call changes nothing."""
    shell.register_magic_function(lambda line, cell: run_magic(shell, line, cell), "cell", "ranks")


def run_magic(shell: Any, line: str, body: str) -> RankTexts | None:
    """What `%%ranks` does in a cell of `shell`."""
    team = newest_team()
    if team is None:
        raise RanksUsageError(NO_TEAM)
    return team.run_cell(this_cell(shell, line, body), parse_ranks(line), shell.user_ns)


def parse_ranks(line: str) -> list[int] | None:
    """The ranks that `0,2` names; None for all. ValueError for anything else.

    >>> parse_ranks("0, 2"), parse_ranks(" ")
    ([0, 2], None)
    """
    parts = line.replace(",", " ").split()
    if not all(part.isdecimal() for part in parts):
        raise RanksUsageError(f"%%ranks expects ranks, such as %%ranks 0,2, got {line.strip()!r}")
    return [int(part) for part in parts] or None


def this_cell(shell: Any, line: str, body: str) -> RankCell:
    """The cell that runs now, under the file name that the notebook has given it, its lines numbered as it shows them.

    IPython knows the text of a cell as what its magics become; errors are to show what the reader wrote.
    """
    text = f"%%ranks{line and ' '}{line}\n{body}"
    raw = getattr(shell.history_manager, "input_hist_raw", [""])[-1]
    if "%%ranks" in raw and body.rstrip("\n") in raw:  # not where code calls the magic, as an exported notebook does
        text = raw
    known, frame = getattr(shell.compile, "_filename_map", {}), sys._getframe()
    while frame is not None and frame.f_code.co_filename not in known:
        frame = frame.f_back
    file = f"<cell {next(_others)} of %%ranks>" if frame is None else frame.f_code.co_filename
    return RankCell(text, file, skip_lines=text[: text.find("%%ranks")].count("\n") + 1)
