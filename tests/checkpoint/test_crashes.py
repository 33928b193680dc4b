"""Whoever dies, and whenever: the last complete checkpoint is there, whole, and is what the run goes on from; and who
hangs is named.
"""

import random
from contextlib import nullcontext

import pytest
import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

from course_lib import checkpoint
from course_lib.checkpoint import accidents
from course_lib.checkpoint.accidents import Kill, draw_kills, dying_at, survive
from course_lib.checkpoint.manifest import problems_of, read_manifest
from course_lib.hybrid_parallel import HybridTrainer, ParallelLayout, resume_run, save_run
from course_lib.reference import GPT, GPTConfig
from course_lib.runtime import Deadlock, RankDied, RankFailed, launch
from tests.checkpoint import runs

CONFIG = GPTConfig(num_layers=2, hidden_size=8, num_heads=2, vocab_size=256, sequence_length=8)
LAYOUTS = ("dp1", "dp2", "tp2", "pp2", "cp2", "dp2,zero1", "dp2,zero2", "dp2,zero3", "cp2,zero1", "dp2,tp2", "pp2,tp2",
           "dp2,cp2", "dp2,pp2,zero1", "cp2,tp2", "dp2,tp2,zero2", "dp2,cp2,zero3")
MOST_LINES = 30_000  # of what saves and loads, before a rank dies


def trainer(layout):
    """In 64 bits: the losses under all layouts are one process's to 1e-9, so that a step of another state is seen."""
    layout = ParallelLayout.from_string(layout)
    return HybridTrainer(CONFIG, layout, batch_size=8, num_microbatches=2 if layout.pp > 1 else 1,
                         make_model=lambda: GPT(CONFIG).double())


def note(path, text):
    if dist.get_rank() == 0:
        with open(path, "a", encoding="utf-8") as file:
            file.write(f"{text}\n")


def train_until_killed(kill, layout, folder, background):
    """Go on, and save after each step, until `kill.line` lines of what saves and loads have run on its rank."""
    with dying_at(kill.line) if dist.get_rank() == kill.rank else nullcontext():
        run = trainer(layout)
        resume_run(run, folder)
        while True:
            note(folder / "losses", f"{run.step_number} {run.step().loss!r}")
            saving = save_run(run, folder, keep=2, background=background)
            if background:
                saving.wait()
            note(folder / "completed", run.step_number)


@pytest.mark.ci
@pytest.mark.sweep("kills", few=[(4, 43)], all=[(60, 0)], words="4 kills of 60")
def test_kills_with_a_layout_drawn_for_each_resume_lose_no_complete_checkpoint(tmp_path, kills):
    """A loss of another checkpoint than the last, or of a damaged one, would not be one process's."""
    (kills, seed), latest, in_a_save = kills, 0, 0
    chance = random.Random(seed)
    for _ in range(kills):
        layout = chance.choice(LAYOUTS)
        n = ParallelLayout.from_string(layout).world_size
        kill = Kill(chance.randrange(n), 0, chance.randrange(MOST_LINES))
        with pytest.raises(RankDied) as died:
            launch(train_until_killed, kill, layout, tmp_path, chance.random() < 0.5, world_size=n, timeout=120)
        assert died.value.rank == kill.rank
        path, before = checkpoint.latest(tmp_path), latest
        latest = read_manifest(path)["step"] if path else 0
        completed = (tmp_path / "completed").read_text().split() if latest > 1 else [0]
        assert before <= latest and int(completed[-1]) <= latest <= int(completed[-1]) + 1
        assert not path or problems_of(path) == []
        assert len(checkpoint.complete_checkpoints(tmp_path)) <= 3
        in_a_save += any(tmp_path.glob(".saving-*"))
    losses = [(int(step), float(loss)) for step, loss in map(str.split, (tmp_path / "losses").read_text().splitlines())]
    unbroken = launch(lambda: trainer("dp1").train(1 + max(losses)[0], progress=False).losses, world_size=1)[0]
    assert {step for step, _ in losses} >= set(range(latest))
    for step, loss in losses:
        assert loss == pytest.approx(unbroken[step], rel=1e-9), step
    assert latest >= kills / 2 and in_a_save > kills / 4


def take_steps(layout, folder, steps):
    run = trainer(layout)
    resume_run(run, folder)
    losses = [run.step().loss for _ in range(run.step_number, steps)]
    save_run(run, folder, background=False)
    return losses


@pytest.mark.ci
@pytest.mark.parametrize("layout", ["dp2,pp2,zero1", "dp2,pp2,zero3"])
def test_a_tied_tensor_that_zero_cuts_otherwise_on_two_stages_is_saved_once(tmp_path, layout):
    """With 8 numbers in a row, the state of the embedding is cut in row 14 on the first stage, and in row 128 on the
    last.
    """
    first = launch(take_steps, layout, tmp_path, 2, world_size=4)[0]
    (then, unbroken), = launch(lambda: [take_steps("dp1", folder, 4) for folder in (tmp_path, tmp_path / "unbroken")],
                               world_size=1)
    assert first + then == pytest.approx(unbroken, rel=1e-9)


def test_a_run_whose_ranks_are_killed_ends_as_the_unbroken_one_on_ever_fewer_ranks(tmp_path):
    kills = [Kill(1, 3), Kill(0, 5, line=400)]
    attempts = survive(runs.train_on, tmp_path, 8, kills=kills, world_sizes=(3, 2, 1), timeout=120)
    assert [(attempt.world_size, type(attempt.error)) for attempt in attempts] == [
        (3, RankDied), (2, RankDied), (1, type(None))]
    assert [attempt.error.rank for attempt in attempts[:2]] == [1, 0]
    first, losses = attempts[-1].results[0]
    assert first == 4 and losses == pytest.approx(runs.Run("plain").train(0, 8)[first:], rel=1e-9)
    assert [path.name for path in checkpoint.complete_checkpoints(tmp_path)] == ["step_00000006", "step_00000008"]


def test_an_error_that_is_no_death_is_not_survived():
    def make_a_mistake(kill):
        raise ValueError("a mistake of the reader's")

    with pytest.raises(RankFailed, match="a mistake of the reader's"):
        survive(make_a_mistake, kills=[Kill(0, 1)], world_sizes=(1,))


def test_kills_are_drawn_from_a_seed_and_let_the_run_get_on():
    kills = draw_kills(5, 40, 4, 4, seed=3)
    assert kills == draw_kills(5, 40, 4, 4, seed=3) != draw_kills(5, 40, 4, 4, seed=4)
    saves = [kill.step // 4 for kill in kills]
    assert saves == sorted(set(saves)) and all(0 <= kill.rank < 4 for kill in kills)
    assert [kill.line is not None for kill in kills] == [False, True, False, True, False]
    with pytest.raises(ValueError, match="expected 1 to 10"):
        draw_kills(11, 40, 4, 4)


# A rank leaves out a collective: torch's Flight Recorder and stacks say who; @record says who raised

RAISES = """
import os
from torch.distributed.elastic.multiprocessing.errors import record

@record
def main():
    if os.environ["RANK"] == "1":
        raise ValueError("no text")

main()
"""


def leave_one_out(folder):
    accidents.write_later(folder)
    for step in range(3):
        if dist.get_rank() != 1 or step != 1:
            dist.all_reduce(torch.ones(7))


@pytest.mark.skipif(not hasattr(c10d, "_dump_fr_trace"), reason="an older torch records under NCCL alone")
def test_flight_recorder_names_the_rank_and_the_collective_that_it_has_not_called(tmp_path):
    with pytest.raises(Deadlock, match="number 3 of this launch, and rank 1 has called it only 2"):
        launch(leave_one_out, tmp_path, world_size=3)
    lines = accidents.compare_traces(tmp_path)
    for line in ("Not all ranks joining collective, sequence number: 3", "missing ranks: {1}", "input sizes: [[7]]",
                 "collective: gloo:all_reduce"):
        assert line in lines
    stands = ["in leave_one_out" in (tmp_path / f"stack_{rank}").read_text() for rank in range(3)]
    assert stands == [True, False, True]


def test_the_message_of_the_rank_that_raised_is_read_back_and_other_errors_go_up(tmp_path):
    assert accidents.first_error(RAISES) == "ValueError: no text"
    for call, said in ((lambda: accidents.compare_traces(tmp_path / "nothing"), "fr_trace"),
                       (lambda: accidents.first_error("", num_ranks=1), "ended with 0 and left no error")):
        with pytest.raises(ValueError, match=said):
            call()
