"""Misuse and accidents: what is told, and that no case loses a completed checkpoint."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from course_lib import checkpoint
from course_lib.checkpoint import manifest
from course_lib.checkpoint.folders import Lock
from course_lib.hybrid_parallel import LearningRate, resume_run, save_run
from course_lib.runtime import launch
from tests.checkpoint import runs
from tests.checkpoint.one_run import One, cut_short, first_run, rewrite, said_by

resource = pytest.importorskip("resource")  # a full disk is one that takes no more from this process: not on Windows
ONE, TWO, THREE = ALL = [f"step_0000000{step}" for step in (1, 2, 3)]

CASES: dict[str, tuple[Callable, str, list[str]]] = {
    # what is done with the folder and the run; a part of what is told; what may not be found afterwards
    "another run saves": (lambda folder, run: said_by(One().save, folder, 1, keep=1),
        "holds 3 checkpoints of another run, the last is step_00000003: expected an empty folder, or --resume", []),
    "another run saves in the background": (lambda folder, run: said_by(One().save, folder, 1, background=True),
        "or --overwrite to put this one in its place", []),  # now, not when somebody waits
    "a save names no run": (lambda folder, run: said_by(checkpoint.save, folder, run.model, None, 9),
        "holds 3 checkpoints of another run", []),
    "a shorter run overwrites": (lambda folder, run: f"{One(overwrite=True).save(folder, 1)}", "step_00000001-2", ALL),
    "a crash in the first save that overwrites": (lambda folder, run: without(
        json, "dump", One(overwrite=True).save, folder, 1), "No space left", []),
    "a lock is left by one that was killed": (lambda folder, run: (
        (folder / ".lock").write_text("run 0 (host gone, process 1)"), run.save(folder, 4)), "step_00000004", []),
    "the folder is removed while training": (lambda folder, run: (shutil.rmtree(folder), run.save(folder, 4)),
        "step_00000004", ALL),
}


def case(said: str, lost: list[str] = []) -> Callable:  # noqa: B006
    """One more of CASES, which takes more lines."""
    def add(do: Callable) -> Callable:
        CASES[do.__name__] = do, said, lost
        return do

    return add


def without(module: object, name: str, do: Callable, *arguments: object, **named: object) -> str:
    """What `do` raises where this function of the module finds no space."""
    def fail(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, name, fail)
        return said_by(do, *arguments, **named)


# Folders and runs

@case("is saving into")
def two_runs_save_at_once(folder, run):
    lock = Lock(folder / "fresh", run.run)
    lock.take()
    said, slower = said_by(One().save, folder / "fresh", 1), One()
    lock.release()
    One().save(folder / "fresh", 1)
    assert "holds 1 checkpoint of another run" in said_by(slower.save, folder / "fresh", 1)
    return said


@case("which somebody else has written")
def the_same_run_twice_at_once(folder, run):
    one, other = One(), One()
    one.resume(folder), other.resume(folder)
    one.save(folder, 4, keep=9)
    return said_by(other.save, folder, 4, keep=9)


@case("step_00000002-2, and then on from step_00000002-2", lost=[ONE])
def a_run_goes_back_and_keeps_3(folder, run):
    run.resume(folder / ONE)
    return run.save(folder, 2, keep=3).name + ", and then " + One().resume(folder)


@case("on from step_00000001")
def two_runs_from_before_runs_had_names(folder, run):
    for age, name in enumerate(ALL):
        rewrite(folder / name, run=None, written_ns=None)
        for file in (folder / name).iterdir():
            os.utime(file, (1000 - age, 1000 - age))  # the highest step is the oldest
    return One().resume(folder)


@case("on from step_00000003")
def another_run_s_checkpoint_lies_between(folder, run):
    rewrite(folder / TWO, run="another")
    one = One()
    said = one.resume(folder)
    one.save(folder, 4, keep=3)
    return said


# Disks and crashes

@case("the checkpoint could not be written. Rank 0 said: OSError")
def a_full_disk(folder, run):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4000, limits[1]))
    try:
        return said_by(run.save, folder, 4, keep=1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@case("No space left on device; left ['.saving-step_00000004'], then []")
def a_disk_is_full_at_the_manifest(folder, run):
    said = without(json, "dump", run.save, folder, 4, keep=1)
    left = [path.name for path in folder.glob(".saving-*")]
    run.save(folder, 4, keep=9)
    return f"{said}; left {left}, then {[path.name for path in folder.glob('.*-*')]}"


@case("then step_00000005, left []", lost=[ONE])
def a_crash_in_a_prune(folder, run):
    said = without(shutil, "rmtree", run.save, folder, 4, keep=3)
    assert checkpoint.latest(folder).name == "step_00000004"
    return f"{said}; then {run.save(folder, 5, keep=9).name}, left {[path.name for path in folder.glob('.*-*')]}"


# Damage: of single files in test_folders.py

@case("Expected an intact checkpoint", lost=ALL)
def no_checkpoint_is_intact(folder, run):
    for name in ALL:
        cut_short(folder / name / ".metadata")
    return said_by(One().resume, folder)


@case("Expected an intact checkpoint", lost=[THREE])
def the_intact_ones_are_another_run_s(folder, run):
    for name in (ONE, TWO):
        rewrite(folder / name, run="another")
    cut_short(folder / THREE / "__0_0.distcp")
    return said_by(One().resume, folder)


@pytest.mark.parametrize("name", CASES)
def test_a_misuse_is_told_and_loses_no_completed_checkpoint(name, tmp_path):
    do, said, lost = CASES[name]
    assert said in str(do(tmp_path, first_run(tmp_path)))
    there = {path.name for path in checkpoint.complete_checkpoints(tmp_path)}
    lasting = {*ALL} - {*lost}
    assert there >= lasting
    assert [problem for each in lasting for problem in manifest.problems_of(tmp_path / each)] == []
    assert name != "a shorter run overwrites" or there == {"step_00000001-2"}


def mistakes_on_ranks(folder: Path) -> list[str]:
    """What both ranks hear of each mistake."""
    run = runs.trainer("dp2")
    run.train(1, progress=False)
    save_run(run, folder, background=False)
    said = [said_by(save_run, runs.trainer("dp2"), folder)]
    for name, value in (("batch_size", 8), ("seed", 5), ("tokens", torch.arange(5000) % 200)):
        other = runs.trainer("dp2")
        setattr(other, name, value)
        said.append(said_by(resume_run, other, folder))
    other = runs.trainer("dp2")
    resume_run(other, folder, schedule=lambda saved: LearningRate(saved.peak / 2))
    said.append(f"{other.learning_rate.peak}")
    with open(checkpoint.latest(folder) / "__1_0.distcp", "ab") as file:
        file.write(b" ")
    return [*said, said_by(checkpoint.load, folder, run.model), said_by(resume_run, runs.trainer("dp2"), folder)]


def test_all_ranks_hear_the_same(tmp_path):
    first, second = launch(mistakes_on_ranks, tmp_path, world_size=2, timeout=120)
    assert first == second
    for text, expected in zip(first, ("holds 1 checkpoint of another run", "other rows: batch_size differ",
                                      "other rows: seed differ", "other rows: text differ", "0.0015",
                                      "__1_0.distcp has", "__1_0.distcp has"), strict=True):
        assert expected in text
