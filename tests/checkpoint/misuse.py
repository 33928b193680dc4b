"""Misuse and accidents, for test_misuse.py: each gets a folder with the checkpoints of steps 1 to 3 of a run, and that
run, and returns what was said. All in one process.
"""

import json
import os
import shutil
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from course_lib import checkpoint
from course_lib.checkpoint import folders, planners, saving
from course_lib.checkpoint.runs import Lock
from tests.checkpoint.one_run import TINY, One

resource = pytest.importorskip("resource")  # a full disk is one that takes no more from this process: not on Windows
ALL = frozenset(f"step_0000000{step}" for step in (1, 2, 3))


def said_by(do: Callable[[], object]) -> str:
    """What it raises; that it raises nothing is a mistake of the case."""
    with pytest.raises((ValueError, OSError, RuntimeError)) as raised:
        do()
    return f"{type(raised.value).__name__}: {raised.value}"


@contextmanager
def instead(module: object, name: str, other: Callable) -> None:
    real = getattr(module, name)
    setattr(module, name, other)
    try:
        yield real
    finally:
        setattr(module, name, real)


def fail(*_: object, **__: object) -> None:
    raise OSError(28, "No space left on device")


# Folders and runs

def another_run(folder, run):
    return said_by(lambda: One().save(folder, 1, keep=1))


def another_run_in_the_background(folder, run):
    return said_by(lambda: One().save(folder, 1, background=True))  # now, not when somebody waits


def without_a_run(folder, run):
    return said_by(lambda: checkpoint.save(folder, run.model, None, 9))


def a_shorter_run_that_overwrites(folder, run):
    One(overwrite=True).save(folder, 1)
    return str(sorted(path.name for path in checkpoint.complete_checkpoints(folder)))


def a_crash_in_the_first_save_that_overwrites(folder, run):
    with instead(saving, "commit", fail):
        return said_by(lambda: One(overwrite=True).save(folder, 1))


def two_runs_at_once(folder, run):
    fresh = folder / "fresh"
    lock = Lock(fresh, run.run)
    lock.take()
    said = said_by(lambda: One().save(fresh, 1))
    lock.release()
    One().save(fresh, 1)
    return said


def the_slower_of_two_runs(folder, run):
    fresh, slower = folder / "fresh", One()
    One().save(fresh, 1)
    return said_by(lambda: slower.save(fresh, 1))


def the_same_run_twice_at_once(folder, run):
    one, other = One(), One()
    one.resume(folder), other.resume(folder)
    one.save(folder, 4, keep=9)
    return said_by(lambda: other.save(folder, 4, keep=9))


def the_lock_of_one_that_was_killed(folder, run):
    (folder / ".lock").write_text("run 0 (host gone, process 1)")
    return run.save(folder, 4).name


def a_run_that_goes_back(folder, run):
    run.resume(folder / "step_00000001")
    return run.save(folder, 2, keep=3).name + ", and then " + One().resume(folder)


def rewrite(path: Path, **changes: object) -> None:
    """A manifest as it was written before there were runs, or with other facts."""
    manifest = {**folders.read_manifest(path), **changes}
    manifest = {name: value for name, value in manifest.items() if value is not None}
    (path / "manifest.json").write_text(json.dumps({**manifest, "sha256": folders.checksum(manifest)}))


def two_runs_of_old_times(folder, run):
    for age, name in enumerate(("step_00000001", "step_00000002", "step_00000003")):
        rewrite(folder / name, run=None, written_ns=None)
        for file in (folder / name).iterdir():
            os.utime(file, (1000 - age, 1000 - age))  # the highest step is the oldest
    return One().resume(folder)


def a_run_that_was_not_swept_away(folder, run):
    rewrite(folder / "step_00000002", run="another")
    one = One()
    said = one.resume(folder)
    one.save(folder, 4, keep=3)
    return said


def the_same_step_again(folder, run):
    return run.save(folder, 3).name


# Disks

def a_full_disk(folder, run):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4000, limits[1]))
    try:
        return said_by(lambda: run.save(folder, 4, keep=1))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def a_disk_that_is_full_at_the_manifest(folder, run):
    with instead(folders.json, "dump", fail):
        said = said_by(lambda: run.save(folder, 4, keep=1))
    run.save(folder, 4, keep=9)
    return said


def a_full_disk_in_the_background(folder, run):
    with instead(planners, "write_pieces", fail):
        saving_ = run.save(folder, 4, keep=1, background=True)
        said = said_by(saving_.wait)
    saving._under_way.clear()
    return said


def a_folder_that_is_removed(folder, run):
    shutil.rmtree(folder)
    return run.save(folder, 4).name


def a_read_only_folder(folder, run):
    def refuse(*_, **__):
        raise OSError(30, "Read-only file system")

    with instead(os, "mkdir", refuse):
        return said_by(lambda: run.save(folder, 4, keep=1))


def a_file_in_the_place_of_the_folder(folder, run):
    (folder / "file").write_text("in the way")
    return said_by(lambda: One().save(folder / "file", 1))


# Crashes

def a_crash_in_a_save(folder, run):
    with instead(saving, "commit", fail):
        said = said_by(lambda: run.save(folder, 4, keep=1))
    left = [path.name for path in folder.glob(".saving-*")]
    run.save(folder, 4, keep=9)
    return f"{said}; left {left}, then {[path.name for path in folder.glob('.*')]}"


def a_crash_in_a_prune(folder, run):
    with instead(folders.shutil, "rmtree", fail):
        said = said_by(lambda: run.save(folder, 4, keep=3))
    assert checkpoint.latest(folder).name == "step_00000004"
    return f"{said}; then {run.save(folder, 5, keep=9).name}, left {[path.name for path in folder.glob('.*')]}"


# Damage

def damaged(name: str, damage: Callable[[Path], object], strict: bool = False) -> Callable:
    def case(folder, run):
        damage(folder / "step_00000003" / name)
        if strict:
            return said_by(lambda: One().resume(folder, strict=True))
        return One().resume(folder)

    return case


def cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))


def nothing_intact(folder, run):
    for name in ALL:
        cut_short(folder / name / ".metadata")
    return said_by(lambda: One().resume(folder))


def a_damaged_one_by_name(folder, run):
    flip(folder / "step_00000003" / "__0_0.distcp")
    return said_by(lambda: One().resume(folder / "step_00000003"))


def the_last_of_this_run_is_damaged_and_the_others_are_anothers(folder, run):
    for name in ("step_00000001", "step_00000002"):
        rewrite(folder / name, run="another")
    cut_short(folder / "step_00000003" / "__0_0.distcp")
    return said_by(lambda: One().resume(folder))


# Other runs than the one that was

def a_folder_with_a_typo(folder, run):
    return One().resume(folder / "typo")


def another_shape(folder, run):
    return said_by(lambda: One(replace(TINY, hidden_size=16)).resume(folder))


def another_depth(folder, run):
    return said_by(lambda: One(replace(TINY, num_layers=2)).resume(folder))
