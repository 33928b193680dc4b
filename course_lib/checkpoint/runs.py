"""Whose checkpoints lie in a folder: each is of one run, and a run deletes its own only.

    a run          an id, drawn once; every manifest has it, and whoever goes on from a checkpoint carries it on
    refused        a folder with checkpoints that the run does not know: another run's, or of somebody who goes on with
                   the same run at the same time
    overwrite      the checkpoints that were there go when the first one of the run is complete, and not before
    a lock         while one saves into a folder, nobody else does: the kernel lets go of it when its process ends
"""

import os
import secrets
import socket
from pathlib import Path
from types import ModuleType

from course_lib.checkpoint.folders import UNNAMED, complete_checkpoints, delete, origin
from course_lib.checkpoint.ranks import all_ranks

fcntl: ModuleType | None
try:
    import fcntl
except ImportError:  # Windows, where two that save at once are found by what they have written only
    fcntl = None

LOCK = ".lock"


class Run:
    """Who saves. `known`: by folder, the names of the checkpoints that this run has met or written: on place 0, which
    alone looks. Make one with begin_run or continue_run, on all ranks.
    """

    def __init__(self, name: str, overwrite: bool = False) -> None:
        self.id, self.overwrite = name, overwrite
        self.known: dict[Path, set[str]] = {}

    def __str__(self) -> str:
        return self.id

    def meet(self, folder: Path) -> None:
        """Accept all checkpoints that lie in `folder` now: the run goes on from them, or will take their place."""
        self.known[folder.resolve()] = {path.name for path in complete_checkpoints(folder)}

    def wrote(self, path: Path) -> None:
        """Note that the checkpoint at `path` is this run's. Checkpoints in whose place it stands are deleted."""
        folder = path.parent.resolve()
        if self.overwrite and self.known.get(folder):
            for old in complete_checkpoints(folder):
                if old.name in self.known[folder] and origin(old).run != self.id:
                    delete(old)
            self.overwrite = False
        self.known.setdefault(folder, set()).add(path.name)

    def require_own(self, folder: Path) -> None:
        """ValueError where checkpoints lie in `folder` that this run does not know."""
        if self.overwrite and folder.resolve() not in self.known:
            self.meet(folder)
        known = self.known.get(folder.resolve(), ())
        strangers = [path for path in complete_checkpoints(folder) if path.name not in known]
        if strangers:
            raise ValueError(self._refusal(folder, strangers))

    def _refusal(self, folder: Path, strangers: list[Path]) -> str:
        last, ids = strangers[-1].name, {origin(path).run for path in strangers}
        if self.id in ids:
            return (f"{str(folder)!r} has {last} of this run, {self.id}, which somebody else has written: expected one "
                    "process group at a time to go on with a run. Nothing was written")
        return (f"{str(folder)!r} holds {len(strangers)} checkpoint{'s' * (len(strangers) > 1)} of another run, the "
                f"last is {last}: expected an empty folder, or --resume {folder} to go on with that run, or "
                "--overwrite to put this one in its place (in Python: resume_run, overwrite=True). Nothing was written")


class Unnamed(Run):
    """A save without a run: whoever makes it sees for himself that nobody else saves there."""

    def __init__(self) -> None:
        super().__init__(UNNAMED)

    def require_own(self, folder: Path) -> None:
        """ValueError where all that lies in `folder` is of runs that have a name."""
        there = complete_checkpoints(folder)
        if there and all(origin(path).run not in (UNNAMED, None) for path in there):
            raise ValueError(self._refusal(folder, there))


def begin_run(overwrite: bool = False) -> Run:
    """A new run, the same on all ranks. Collective."""
    return Run(all_ranks().first(lambda: secrets.token_hex(4)), overwrite)


def continue_run(path: Path) -> Run:
    """The run of the checkpoint at `path`, which goes on. Collective."""
    ranks = all_ranks()
    run = Run(ranks.first(lambda: origin(path).run))
    ranks.first(lambda: run.meet(path.parent))
    return run


class Lock:
    """`folder` is this process's to write to, from take() to release(). ValueError, which says whose it is, where it is
    somebody else's. File systems without locks: nothing is locked.
    """

    def __init__(self, folder: Path, run: Run) -> None:
        self.path, self.run, self.descriptor = folder / LOCK, run, -1

    def take(self) -> None:
        """Take the lock. ValueError, naming the owner, where another run saves into the folder now."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        while fcntl is not None and self.descriptor < 0:
            self.descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o644)
            try:
                fcntl.flock(self.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                owner = os.read(self.descriptor, 200).decode(errors="replace") or "somebody"
                self._close()
                raise ValueError(f"{owner} is saving into {str(self.path.parent)!r} now: expected a folder of this "
                                 "run's own. Nothing was written") from None
            except OSError:  # no locks here
                return
            if not self._is_there():  # whoever had it has deleted it
                self._close()
        if self.descriptor >= 0:
            os.truncate(self.descriptor, 0)
            os.write(self.descriptor, f"run {self.run} (host {socket.gethostname()}, process {os.getpid()})".encode())

    def release(self) -> None:
        """Give the lock back and delete its file; nothing where it was not held."""
        if self.descriptor >= 0:
            if self._is_there():
                self.path.unlink()
            self._close()

    def _is_there(self) -> bool:
        """Whether the file that is locked is the one that has the name."""
        try:
            return os.path.samestat(os.fstat(self.descriptor), os.stat(self.path))
        except FileNotFoundError:
            return False

    def _close(self) -> None:
        os.close(self.descriptor)
        self.descriptor = -1
