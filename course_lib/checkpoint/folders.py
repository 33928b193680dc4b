"""Checkpoints as folders: how one comes to be all at once, which is the last good one, and whose.

    runs/step_00000040/            one checkpoint: complete, because it has this name
        __0_0.distcp ...           what rank 0 wrote, and so on: torch.distributed.checkpoint's
        .metadata                  where in them each box lies: torch's, too
        manifest.json              the step, the run, when it was written, and the size and checksum of each file
    runs/.saving-step_00000060/    one that is being written, or that a crash left: never read, swept away later
    runs/.lock                     while one holds it, nobody else saves; a process that ends lets go of it

A folder gets its name by one rename, which a file system does wholly or not at all, and only after all it holds is on
the disk. So at every moment the last complete checkpoint is there: whoever dies, and whenever.

Each is of one run, and a run deletes its own only. A run has an id, drawn once: every manifest has it, and whoever goes
on from a checkpoint carries it on. The last one is the one that was written last, whatever its step: a run that went
back to an earlier step, or a new run in an old folder, writes smaller numbers than there are.

A folder may be a stranger's: links in it are not followed, so that nothing outside it is read or written.
"""

import json
import os
import re
import shutil
import socket
import time
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from course_lib.checkpoint.manifest import (
    LAST_NS,
    MANIFEST,
    MOST_BYTES,
    UNNAMED,
    DamagedCheckpoint,
    checksum,
    read_manifest,
    wrong_entries,
)

fcntl: ModuleType | None
try:
    import fcntl
except ImportError:  # Windows, where two that save at once are found by what they have written only
    fcntl = None

LOCK = ".lock"
SAVING, DELETING = ".saving-", ".deleting-"
NAME = re.compile(r"step_(\d{8,})(?:-(\d+))?")


# Which there are

class Origin(NamedTuple):
    """When a checkpoint was written, in ns, and by which run: None where its manifest cannot be read any more."""

    written_ns: int
    run: str | None


def complete_checkpoints(folder: str | Path) -> list[Path]:
    """The complete checkpoints in `folder`, as they were written, oldest first; none where there is no such folder."""
    found = []
    for path in Path(folder).glob("step_*"):
        match = NAME.fullmatch(path.name)
        if match and (path / MANIFEST).is_file() and not path.is_symlink():
            found.append((origin(path).written_ns, int(match[1]), int(match[2] or 1), path))
    return [path for *_, path in sorted(found)]


def origin(path: Path) -> Origin:
    """Which run wrote the checkpoint at `path`, and when. Where it does not say when, the time of its oldest file."""
    facts = (path / MANIFEST).stat()
    return _origin(path, facts.st_mtime_ns, facts.st_size)


@lru_cache(maxsize=4096)
def _origin(path: Path, modified_ns: int, size: int) -> Origin:
    try:
        manifest = read_manifest(path)
    except DamagedCheckpoint:
        return Origin(oldest_ns(path), None)
    return Origin(manifest["written_ns"] if "written_ns" in manifest else oldest_ns(path), manifest.get("run", UNNAMED))


def oldest_ns(path: Path) -> int:
    """When the first of its files was written: what has damaged one of them has perhaps written it anew."""
    return min(file.lstat().st_mtime_ns for file in path.iterdir())


def step_of(path: Path) -> int:
    """The step that the name of a checkpoint says, which is there also where its manifest is damaged."""
    return int(NAME.fullmatch(path.name)[1])


def latest(folder: str | Path) -> Path | None:
    """The complete checkpoint in `folder` that was written last, or None."""
    return next(reversed(complete_checkpoints(folder)), None)


def find(path: str | Path, missing_ok: bool = False) -> Path | None:
    """`path` itself where it is a checkpoint, else the last one in it. Where there is none: ValueError, or None."""
    path = Path(path)
    if (path / MANIFEST).is_file():
        return path
    found = latest(path)
    if found is None and not missing_ok:
        there = "no such folder" if not path.is_dir() else f"it holds {sorted(p.name for p in path.iterdir())[:6]}"
        linked = "".join(f"; {each.name} is a link, followed only where it is named itself"
                         for each in path.glob("step_*") if each.is_symlink())
        raise ValueError(f"no complete checkpoint in {str(path)!r}: {there}. Expected a folder that save() wrote to"
                         + linked[:200])
    return found


# How one comes to be

def begin(folder: str | Path, step: int) -> tuple[Path, Path]:
    """(where to write, the name that it gets when it is complete). One rank calls this, before the others write.

    What crashes have left is swept away. A step that is there already, damaged perhaps, keeps its folder: the new one
    is a second of that step.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    for left in (*folder.glob(f"{SAVING}*"), *folder.glob(f"{DELETING}*")):
        if left.is_dir() and not left.is_symlink():
            shutil.rmtree(left)
        else:
            left.unlink()
    attempts = [int(match[2] or 1) for path in folder.glob(f"step_{step:08d}*")
                if (match := NAME.fullmatch(path.name))]
    name = f"step_{step:08d}" + (f"-{max(attempts) + 1}" if attempts else "")
    temporary = folder / f"{SAVING}{name}"
    temporary.mkdir()
    return temporary, folder / name


def commit(temporary: Path, final: Path, manifest: Mapping[str, Any]) -> None:
    """Make it a checkpoint, when all files are written and on the disk: the manifest first, and then the name.

    It is written later than all others in its folder, also where another host's clock was ahead.
    """
    last_ns = max((origin(path).written_ns for path in complete_checkpoints(final.parent)), default=0)
    manifest = {**manifest, "written_ns": min(max(time.time_ns(), last_ns + 1), LAST_NS)}
    if wrong := wrong_entries(manifest):  # load would say so, too late
        raise ValueError(f"the checkpoint cannot be saved: load would refuse its {', '.join(wrong)}. Expected numbers "
                         f"and texts as the optimiser's options, and a .metadata of at most {MOST_BYTES:,} bytes")
    with open(temporary / MANIFEST, "w", encoding="utf-8") as file:
        json.dump({**manifest, "sha256": checksum(manifest)}, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    sync_folder(temporary)
    os.rename(temporary, final)
    sync_folder(final.parent)


def prune(folder: str | Path, keep: int | None, run: str) -> list[Path]:
    """Delete the checkpoints of `run` but the `keep` that were written last (None: all stay); returns which."""
    if keep is None:
        return []
    deleted = [path for path in complete_checkpoints(folder) if origin(path).run == run][:-keep]
    for path in deleted:
        delete(path)
    return deleted


def delete(path: Path) -> None:
    """Hidden first, and then emptied, so that a half-deleted one is never taken for one."""
    hidden = path.with_name(DELETING + path.name)
    os.rename(path, hidden)
    shutil.rmtree(hidden)


def sync_folder(path: Path) -> None:
    """A new name is on the disk when its folder is. Windows cannot, and needs not."""
    if os.name != "nt":
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


# Whose they are

class Run:
    """Who saves. `known`: by folder, the names of the checkpoints that this run has met or written: on place 0, which
    alone looks. Make one with begin_run or continue_run, on all ranks.

    overwrite: the checkpoints that were there go when the first one of the run is complete, and not before.
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


class Lock:
    """`folder` is this process's to write to, from take() to release(). ValueError, which says whose it is, where it is
    somebody else's. File systems without locks: nothing is locked.
    """

    def __init__(self, folder: Path, run: Run) -> None:
        self.path, self.run, self.descriptor = folder / LOCK, run, -1

    def take(self) -> None:
        """Take the lock. ValueError, naming the owner, where another run saves into the folder now."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if fcntl is None:
            return
        if self.path.is_symlink() or self.path.exists() and not self.path.is_file():
            raise ValueError(f"{self.path} is a link, or no file: expected none of that name. Nothing was written")
        self.descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
        try:
            fcntl.flock(self.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            text = os.read(self.descriptor, 200).decode(errors="replace")
            owner = text if text and text.isprintable() else "somebody"
            self.release()
            raise ValueError(f"{owner} is saving into {str(self.path.parent)!r} now: expected a folder of this run's "
                             "own. Nothing was written") from None
        except OSError:  # no locks here
            return
        os.truncate(self.descriptor, 0)
        os.write(self.descriptor, f"run {self.run} (host {socket.gethostname()}, process {os.getpid()})".encode())

    def release(self) -> None:
        """Give the lock back; nothing where it was not held. Its file stays: who deleted it might delete another's."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1
