"""A table of misuse and accidents: what happens, and that no case loses a completed checkpoint."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from course_lib import checkpoint
from course_lib.checkpoint.folders import problems_of
from course_lib.hybrid_parallel import LearningRate, resume_run, save_run
from course_lib.runtime import launch
from tests.checkpoint import hybrid, misuse
from tests.checkpoint.one_run import first_run


@dataclass(frozen=True)
class Case:
    """`said`: what is in the message. `lost`: what may not be found afterwards, damaged or given up by the case itself.
    """

    do: Callable
    said: str
    lost: frozenset[str] = frozenset()


LAST = frozenset({"step_00000003"})
CASES = {
    "another run saves into the folder": Case(misuse.another_run,
        "holds 3 checkpoints of another run, the last is step_00000003: expected an empty folder, or --resume"),
    "the same in the background": Case(misuse.another_run_in_the_background,
        "or --overwrite to put this one in its place"),
    "checkpoint.save that names no run": Case(misuse.without_a_run, "holds 3 checkpoints of another run"),
    "a shorter run with --overwrite": Case(misuse.a_shorter_run_that_overwrites, "['step_00000001-2']", misuse.ALL),
    "--overwrite, and a crash in the first save": Case(misuse.a_crash_in_the_first_save_that_overwrites,
        "No space left"),
    "two runs save into one empty folder at once": Case(misuse.two_runs_at_once, "is saving into"),
    "two runs save into one empty folder in turn": Case(misuse.the_slower_of_two_runs,
        "holds 1 checkpoint of another run"),
    "two go on with the same run": Case(misuse.the_same_run_twice_at_once, "which somebody else has written"),
    "a lock is left by one that was killed": Case(misuse.the_lock_of_one_that_was_killed, "step_00000004"),
    "a run goes back to step 1 and keeps 3": Case(misuse.a_run_that_goes_back,
        "step_00000002-2, and then on from step_00000002-2; step_00000003 was", frozenset({"step_00000001"})),
    "two runs in one folder, from before runs had ids": Case(misuse.two_runs_of_old_times,
        "on from step_00000001; step_00000003 was written before step_00000001"),
    "another run's checkpoint lies between": Case(misuse.a_run_that_was_not_swept_away, "holds checkpoints of 2 runs"),
    "the same step again": Case(misuse.the_same_step_again, "step_00000003-2"),
    "the disk is full": Case(misuse.a_full_disk, "the checkpoint could not be written. Rank 0 said: OSError"),
    "the disk is full at the manifest": Case(misuse.a_disk_that_is_full_at_the_manifest, "No space left"),
    "the disk is full in a background save": Case(misuse.a_full_disk_in_the_background, "No space left"),
    "the folder is removed while training": Case(misuse.a_folder_that_is_removed, "step_00000004", misuse.ALL),
    "the folder is read-only": Case(misuse.a_read_only_folder, "Read-only file system"),
    "the folder is a file": Case(misuse.a_file_in_the_place_of_the_folder, "file"),
    "a crash in a save": Case(misuse.a_crash_in_a_save, "left ['.saving-step_00000004'], then []"),
    "a crash in a prune": Case(misuse.a_crash_in_a_prune, "then step_00000005, left []", frozenset({"step_00000001"})),
    "the last checkpoint is cut short": Case(misuse.damaged("__0_0.distcp", misuse.cut_short),
        "on from step_00000002; step_00000003 is damaged and is passed over", LAST),
    "a bit of it is flipped": Case(misuse.damaged("__0_0.distcp", misuse.flip), "step 3", LAST),
    "its file is missing": Case(misuse.damaged("__0_0.distcp", Path.unlink), "__0_0.distcp is missing", LAST),
    "its manifest is damaged": Case(misuse.damaged("manifest.json", misuse.flip),
        "on from step_00000002; step_00000003 is damaged", LAST),
    "the same with --strict": Case(misuse.damaged("__0_0.distcp", misuse.cut_short, strict=True),
        "DamagedCheckpoint", LAST),
    "no checkpoint is intact": Case(misuse.nothing_intact, "Expected an intact checkpoint", misuse.ALL),
    "a damaged checkpoint is named itself": Case(misuse.a_damaged_one_by_name, "DamagedCheckpoint", LAST),
    "the intact ones are another run's": Case(misuse.the_last_of_this_run_is_damaged_and_the_others_are_anothers,
                                              "Expected an intact checkpoint", LAST),
    "--resume runs/typo": Case(misuse.a_folder_with_a_typo, "nothing there"),
    "another hidden size": Case(misuse.another_shape, "the checkpoint is one of another model"),
    "another number of layers": Case(misuse.another_depth, "the checkpoint is one of another model: it lacks"),
}


@pytest.mark.parametrize("name", CASES)
def test_a_misuse_is_told_and_loses_no_completed_checkpoint(name, tmp_path):
    case, folder = CASES[name], tmp_path / "run"
    run = first_run(folder)
    said = case.do(folder, run)
    assert case.said in said
    there = {path.name for path in checkpoint.complete_checkpoints(folder)}
    assert there >= misuse.ALL - case.lost
    assert [problem for lasting in misuse.ALL - case.lost for problem in problems_of(folder / lasting)] == []


def test_the_table_has_more_than_thirty_rows():
    assert len(CASES) > 30


# On ranks

AXES = ("tp2", "pp2", "cp2", "dp2,zero1", "dp2,zero3", "dp2")


def resume_under_each_axis(folder: Path) -> list[tuple[str, list[float]]]:
    run = hybrid.trainer("dp2")
    hybrid.losses(run, 2)
    save_run(run, folder, background=False)
    found = [("unbroken", hybrid.losses(run, 1))]
    for layout in AXES:
        other = hybrid.trainer(layout)
        resume_run(other, folder)
        found.append((layout, hybrid.losses(other, 1)))
        assert other.run.id == run.run.id
    return found


def test_a_run_goes_on_under_each_axis_with_its_own_name(tmp_path):
    both = launch(resume_under_each_axis, tmp_path, world_size=2, timeout=120)
    (_, unbroken), *others = both[0]
    assert [layout for layout, _ in others] == list(AXES)
    for layout, losses in others:
        assert losses == pytest.approx(unbroken, rel=1e-4), layout


def mistakes_on_ranks(folder: Path) -> list[str]:
    """What both ranks hear of each mistake."""
    run = hybrid.trainer("dp2")
    hybrid.losses(run, 1)
    save_run(run, folder, background=False)
    said = [misuse.said_by(lambda: save_run(hybrid.trainer("dp2"), folder))]
    for name, value in (("batch_size", 8), ("seed", 5), ("tokens", torch.arange(5000) % 200)):
        other = hybrid.trainer("dp2")
        setattr(other, name, value)
        said.append(misuse.said_by(lambda other=other: resume_run(other, folder)))
    other = hybrid.trainer("dp2")
    resume_run(other, folder, schedule=lambda saved: LearningRate(saved.peak / 2))
    said.append(f"{other.learning_rate.peak}")
    with open(checkpoint.latest(folder) / "__1_0.distcp", "ab") as file:
        file.write(b" ")
    return [*said, misuse.said_by(lambda: resume_run(hybrid.trainer("dp2"), folder))]


def test_all_ranks_hear_the_same(tmp_path):
    first, second = launch(mistakes_on_ranks, tmp_path, world_size=2, timeout=120)
    assert first == second
    for text, expected in zip(first, ("holds 1 checkpoint of another run", "other rows: batch_size differ",
                                      "other rows: seed differ", "other rows: text differ", "0.0015",
                                      "__1_0.distcp has"), strict=True):
        assert expected in text
