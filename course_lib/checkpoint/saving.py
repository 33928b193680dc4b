"""save: all ranks write what they hold, and then, at once, there is one more checkpoint.

    deal out  ranks that hold the same numbers write a share of them each                dealing.py
    copy      background only: this share as it is now, on the host; the step goes on while the copy is written
    write     every rank a file of its own, into a hidden folder                        planners.py
    sum up    every rank the size and checksum of its file; place 0 makes the manifest
    name      place 0 renames the folder, and deletes the run's oldest                  folders.py

Only one run saves into a folder: runs.py.

Source of the copy that lets the step go on: Mohan et al. 2021, "CheckFreq"; torch's async_save does the same.
"""

import threading
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from course_lib.checkpoint.dealing import deal_out
from course_lib.checkpoint.folders import begin, commit, describe_file, prune
from course_lib.checkpoint.models import Model, pieces, tied_names
from course_lib.checkpoint.piece import State
from course_lib.checkpoint.random_state import PREFIX, random_pieces
from course_lib.checkpoint.ranks import RankGroup, all_ranks, beside
from course_lib.checkpoint.runs import Lock, Run, Unnamed
from course_lib.groups.exchange import fingerprint


class Saving:
    """A checkpoint that is being written while the step goes on. `wait()` before the rank returns, on all ranks."""

    def __init__(self, ranks: RankGroup, folder: Path, state: State, manifest: dict, keep: int | None, run: Run
                 ) -> None:
        self._path: Path | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(ranks, folder, state, manifest, keep, run),
                                        name="checkpoint")
        self._thread.start()

    def _run(self, *arguments: Any) -> None:
        try:
            self._path = write(*arguments)
        except BaseException as error:  # the step goes on, and wait() says it
            self._error = error

    @property
    def done(self) -> bool:
        """Whether this rank has nothing more to do for it."""
        return not self._thread.is_alive()

    def wait(self) -> Path:
        """Until it is complete: its path. Raises what went wrong."""
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._path


_under_way: list[Saving] = []


def save(folder: str | Path, model: Model, optimizer: torch.optim.Optimizer | None = None, step: int = 0, *,
         extra: Mapping[str, Any] | None = None, keep: int | None = None, background: bool = False,
         run: Run | None = None) -> Path | Saving:
    """Write a checkpoint of `model` and `optimizer` after `step` steps into `folder`, which all ranks see. Collective.

    Returns its path; with background=True at once, after a copy, a Saving to wait for. Saving again waits for it too.

    model: a module, or a list of this rank's stages; see models.py. extra: what the run itself has to remember, plain
    JSON, from place 0: where it is in the data, the seed, the learning rate's schedule. keep: how many complete
    checkpoints of the run stay (None: all). run: whose it is; see runs.py. torch's generators of random numbers are
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
    state = on_host(deal_out({**held, **random_pieces(ranks.r, ranks.n)}, ranks), copy=background)
    tied = {name: first for of_rank in ranks.everyones(tied_names(model)) for name, first in of_rank.items()}
    manifest = {"step": step, "extra": dict(extra or {}), "options": options_of(optimizer), "tied": tied,
                "layout": ranks.everyones(layout_of(held))}
    if background:
        _under_way.append(Saving(beside(), folder, state, manifest, keep, run))
        return _under_way[-1]
    return write(ranks, folder, state, manifest, keep, run)


def finish() -> None:
    """Wait for the save that is under way, if there is one. Raises what went wrong with it."""
    while _under_way:
        _under_way.pop().wait()


def write(ranks: RankGroup, folder: Path, state: State, manifest: dict[str, Any], keep: int | None, run: Run) -> Path:
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
        write_pieces(temporary, state, ranks.group)
        mine = [*temporary.glob(f"__{ranks.r}_*"), *([temporary / ".metadata"] if ranks.r == 0 else [])]
        # Each rank reads back its own file, which is still in its cache; place 0 alone would read all of them.
        described = ranks.each(lambda: {path.name: describe_file(path) for path in mine})
        files = {name: facts for of_rank in described for name, facts in of_rank.items()}
        ranks.first(close_folder)
    finally:
        lock.release()
    return final


def on_host(state: State, copy: bool) -> State:
    """The pieces' numbers in the host's memory; `copy`: in memory that nobody else writes to."""
    own = {name: copy and not name.startswith(PREFIX) for name in state}
    return {name: [replace(piece, tensor=piece.tensor.detach().to("cpu", copy=own[name])) for piece in some]
            for name, some in state.items()}


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
