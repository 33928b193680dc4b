"""Whoever dies, and whenever: the last complete checkpoint is there, whole, and is what the run goes on from."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from course_lib import checkpoint
from course_lib.checkpoint.chaos import Kill, draw_kills, survive
from course_lib.runtime import RankDied, RankFailed
from tests.checkpoint import runs

ROOT = Path(__file__).resolve().parents[2]
@pytest.mark.ci
@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks its ranks")
@pytest.mark.sweep("kills", few=[4], all=[50], words="4 kills of 50")
def test_kills_under_three_axes_lose_nothing_that_was_complete_and_every_step_is_one_process_s(tmp_path, kills):
    """dp2,pp2,tp2 mostly, pp2,tp2 and tp2 between; one rank is killed at a random line of saving or loading. A loss of
    another checkpoint than the last, or of a damaged one, would not be one process's.
    """
    command = [sys.executable, "-m", "tests.checkpoint.crashes", str(tmp_path), "0", str(kills)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT, timeout=50 * kills)
    found = json.loads(done.stdout)
    attempts = found["attempts"]
    assert len(attempts) == kills and all(attempt["killed"] for attempt in attempts)
    steps = [attempt["latest"] for attempt in attempts]
    assert steps == sorted(steps) and steps[-1] >= kills / 2
    for attempt in attempts:
        assert attempt["problems"] == [] and attempt["kept"] <= 3
        assert attempt["completed"] <= attempt["latest"] <= attempt["completed"] + 1
    assert sum(bool(attempt["left"]) for attempt in attempts) > kills / 4  # killed in the midst of a save
    assert {step for step, _ in found["losses"]} >= set(range(steps[-1]))
    for step, loss in found["losses"]:
        assert loss == pytest.approx(found["unbroken"][step], rel=1e-9), step


def test_a_run_whose_ranks_are_killed_ends_as_the_unbroken_one_on_ever_fewer_ranks(tmp_path):
    unbroken = runs.Run("plain").train(0, 8)
    kills = [Kill(1, 3), Kill(0, 5, line=400)]
    attempts = survive(runs.train_on, tmp_path, 8, kills=kills, world_sizes=(3, 2, 1), timeout=120)
    assert [attempt.world_size for attempt in attempts] == [3, 2, 1]
    assert [type(attempt.error) for attempt in attempts] == [RankDied, RankDied, type(None)]
    assert [attempt.error.rank for attempt in attempts[:2]] == [1, 0]
    first, losses = attempts[-1].results[0]
    assert first == 4 and losses == pytest.approx(unbroken[first:], rel=1e-9)
    assert [path.name for path in checkpoint.complete_checkpoints(tmp_path)] == ["step_00000006", "step_00000008"]


@pytest.mark.ci
def test_torchrun_starts_a_run_again_that_goes_on_from_its_checkpoint(tmp_path):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
               "--max-restarts", "2", "-m", "tests.checkpoint.elastic", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=200)
    assert done.returncode == 0, done.stderr[-2000:]
    ended = json.loads((tmp_path / "ended.json").read_text())
    first = ended["first"]
    assert ended["starts"] == 2 and first in (2, 4)  # the save after step 3 was perhaps still under way
    assert ended["losses"] == pytest.approx(runs.Run("plain").train(0, 6)[first:], rel=1e-9)
    threads = [json.loads((tmp_path / f"threads_{rank}.json").read_text()) for rank in range(2)]
    assert [name for names in threads for name in names if "gloo" in name] == []  # one may crash at the exit of Python


def test_an_error_that_is_no_death_is_not_survived(tmp_path):
    with pytest.raises(RankFailed, match="a mistake of the reader's"):
        survive(runs.make_a_mistake, kills=[Kill(0, 1)], world_sizes=(1,))


def test_kills_are_drawn_from_a_seed_and_let_the_run_get_on():
    kills = draw_kills(5, 40, 4, 4, seed=3)
    assert kills == draw_kills(5, 40, 4, 4, seed=3) != draw_kills(5, 40, 4, 4, seed=4)
    saves = [kill.step // 4 for kill in kills]
    assert saves == sorted(set(saves)) and all(0 <= kill.rank < 4 for kill in kills)
    assert [kill.line is not None for kill in kills] == [False, True, False, True, False]
    with pytest.raises(ValueError, match="expected 1 to 10"):
        draw_kills(11, 40, 4, 4)
