"""save: all ranks write what they hold, and then, at once, there is one more checkpoint.

    copy      background only: what this rank holds, as it is now, on the host; the step then goes on, and on a GPU
              stands behind the copy, while the host does not
    plan      ranks that hold the same numbers write a share of them each               planners.py
    write     every rank a file of its own, into a hidden folder                        planners.py
    sum up    every rank the size and checksum of its file; place 0 makes the manifest
    name      place 0 renames the folder, and deletes the run's oldest                  folders.py

Only one run saves into a folder, and a process has one save under way at a time (`_under_way`).

Source of the copy that lets the step go on: Mohan et al. 2021, "CheckFreq"; torch's async_save does the same.
"""

import secrets
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from course_lib.checkpoint.folders import Lock, Run, Unnamed, begin, commit, origin, prune
from course_lib.checkpoint.manifest import describe_file
from course_lib.checkpoint.piece import Model, State, borrowed_names, pieces, random_pieces, tied_names
from course_lib.groups.exchange import agree, fingerprint
from course_lib.groups.membership import member
from course_lib.runtime.tensors import copy_to_host

T = TypeVar("T")


# The ranks that write together, also when there is one and no process group

@dataclass(frozen=True)
class RankGroup:
    """Place `r` of `n`; `group` is None where there is no process group."""

    group: dist.ProcessGroup | None
    n: int
    r: int

    def everyones(self, fact: T) -> list[T]:
        """What each rank says, by place. Collective."""
        return [fact] if self.group is None else agree(None, fact, self.group)

    def each(self, do: Callable[[], T]) -> list[T]:
        """Each rank does it, and has all results; or all have the OSError or ValueError that one rank had. Collective.
        """
        said: tuple[Any, Exception | None]
        try:
            said = do(), None
        except (OSError, ValueError) as error:
            said = None, error
        everyones = self.everyones(said)
        for _, error in everyones:
            if error is not None:
                raise error
        return [result for result, _ in everyones]

    def first(self, do: Callable[[], T]) -> T:
        """What place 0 alone does: its result on every rank, or its error on all. Collective."""
        return self.each(do if self.r == 0 else lambda: None)[0]


def all_ranks() -> RankGroup:
    """The ranks of the world."""
    if not dist.is_initialized():
        return RankGroup(None, 1, 0)
    me = member()
    return RankGroup(me.group, me.n, me.r)


_beside: "weakref.WeakKeyDictionary[dist.ProcessGroup, dist.ProcessGroup]" = weakref.WeakKeyDictionary()


def beside() -> RankGroup:
    """The same ranks on a group of their own, through the host: what a thread says there does not meet what the step
    says meanwhile. Made once; collective.
    """
    ranks = all_ranks()
    if ranks.group is None:
        return ranks
    if ranks.group not in _beside:
        _beside[ranks.group] = dist.new_group(backend="gloo")
    return RankGroup(_beside[ranks.group], ranks.n, ranks.r)


def begin_run(overwrite: bool = False) -> Run:
    """A new run, the same on all ranks. Collective."""
    return Run(all_ranks().first(lambda: secrets.token_hex(4)), overwrite)


def continue_run(path: Path) -> Run:
    """The run of the checkpoint at `path`, which goes on. Collective."""
    ranks = all_ranks()
    run = Run(ranks.first(lambda: origin(path).run))
    ranks.first(lambda: run.meet(path.parent))
    return run


# save

class Saving:
    """A checkpoint that is being written while the step goes on. `wait()` before the rank returns, on all ranks."""

    def __init__(self, copies: Sequence[Callable[[], None]], *arguments: Any) -> None:
        def write_copies() -> Path:
            for wait in copies:
                wait()
            return write(*arguments)

        thread = ThreadPoolExecutor(1, "checkpoint")
        self._written = thread.submit(write_copies)
        thread.shutdown(wait=False)  # it ends when that is written

    def wait(self) -> Path:
        """Until it is complete: its path. Raises what went wrong."""
        return self._written.result()


_under_way: list[Saving] = []


def save(folder: str | Path, model: Model, optimizer: torch.optim.Optimizer | None = None, step: int = 0, *,
         extra: Mapping[str, Any] | None = None, keep: int | None = None, background: bool = False,
         run: Run | None = None) -> Path | Saving:
    """Write a checkpoint of `model` and `optimizer` after `step` steps into `folder`, which all ranks see. Collective.

    Returns its path; with background=True at once, after a copy, a Saving to wait for. Saving again waits for it too.

    model: a module, or a list of this rank's stages; see piece.py. extra: what the run itself has to remember, plain
    JSON, from place 0: where it is in the data, the seed, the learning rate's schedule. keep: how many complete
    checkpoints of the run stay (None: all). run: whose it is; see folders.py. torch's generators of random numbers are
    saved as well.

    ValueError, on all ranks, for a folder that another run has saved into. OSError or RuntimeError, on all ranks, for
    what cannot be written: then no checkpoint in `folder` has changed.
    """
    if isinstance(step, bool) or not isinstance(step, int) or step < 0:
        raise ValueError(f"step={step!r}: expected a whole number of at least 0")
    if keep is not None and (isinstance(keep, bool) or not isinstance(keep, int) or keep < 1):
        raise ValueError(f"keep={keep!r}: expected at least 1, or None for all")
    ranks, run, folder = all_ranks(), run or Unnamed(), Path(folder)
    # The save before this one may still be written; two at once would need twice the copies on the host.
    finish()
    ranks.first(lambda: run.require_own(folder))  # now, and not by the thread that writes
    held = pieces(model, optimizer)
    # In the background the optimiser goes on to change these numbers, so the copy has to be made before save returns.
    copies: list[Callable[[], None]] = []
    state = {**on_host(held, copies if background else None), **random_pieces(ranks.r, ranks.n)}
    borrowed = borrowed_names(model)
    borrowed = {name for name in held if not borrowed.isdisjoint((name, name.rpartition(".")[0]))}
    everyones_tied, layout = zip(*ranks.everyones((tied_names(model), layout_of(held))))
    tied = {name: first for of_rank in everyones_tied for name, first in of_rank.items()}
    manifest = {"step": step, "extra": dict(extra or {}), "options": options_of(optimizer), "tied": tied,
                "layout": list(layout)}
    if background:
        _under_way.append(Saving(copies, beside(), folder, state, borrowed, manifest, keep, run))
        return _under_way[-1]
    return write(ranks, folder, state, borrowed, manifest, keep, run)


def finish() -> None:
    """Wait for the save that is under way, if there is one. Raises what went wrong with it."""
    while _under_way:
        _under_way.pop().wait()


def write(ranks: RankGroup, folder: Path, state: State, borrowed: set[str], manifest: dict[str, Any],
          keep: int | None, run: Run) -> Path:
    """The files, the manifest, the name. Collective over `ranks`."""
    from course_lib.checkpoint.planners import write_pieces  # which takes torch a second to import

    lock = Lock(folder, run)

    def open_folder() -> tuple[Path, Path]:
        lock.take()
        run.require_own(folder)
        return begin(folder, manifest["step"])

    def close_folder() -> None:
        # The name comes last: a run that is killed before leaves a hidden folder, and never half a checkpoint.
        commit(temporary, final, {**manifest, "run": run.id, "files": files})
        run.wrote(final)
        prune(folder, keep, run.id)

    try:
        temporary, final = ranks.first(open_folder)
        write_pieces(temporary, state, borrowed, ranks.group)
        mine = [*temporary.glob(f"__{ranks.r}_*"), *([temporary / ".metadata"] if ranks.r == 0 else [])]
        # Each rank reads back its own file, which is still in its cache; place 0 alone would read all of them.
        described = ranks.each(lambda: {path.name: describe_file(path) for path in mine})
        files = {name: facts for of_rank in described for name, facts in of_rank.items()}
        ranks.first(close_folder)
    finally:
        lock.release()
    return final


def on_host(state: State, copies: list[Callable[[], None]] | None) -> State:
    """The pieces' numbers in the host's memory. With a list, in memory that nobody else writes to; into it goes what to
    wait for until they are there.
    """
    def moved(tensor: Tensor) -> Tensor:
        if copies is None:
            return tensor.detach().cpu()
        copy, wait = copy_to_host(tensor)
        copies.append(wait)
        return copy

    return {name: [replace(piece, tensor=moved(piece.tensor)) for piece in some] for name, some in state.items()}


def options_of(optimizer: torch.optim.Optimizer | None) -> list[dict[str, Any]] | None:
    """Learning rate and the like, of each group of parameters."""
    if optimizer is None:
        return None
    return [{key: value.item() if isinstance(value, Tensor) else value for key, value in group.items()
             if key not in ("params", "param_names")} for group in optimizer.param_groups]


def layout_of(state: State) -> int:
    """A number that is the same where the same boxes of the same names are held."""
    return fingerprint("\n".join(f"{name} {p.offsets} {list(p.tensor.shape)}" for name in sorted(state)
                                 for p in state[name]))
