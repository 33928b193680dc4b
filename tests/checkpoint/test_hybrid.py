"""Saved under one layout, gone on with under another, with the losses of the unbroken run: layouts of single chapters,
and those of chapter 9, with numbers in their names. LAYOUT-WORLD is where a checkpoint comes from.
"""

import pytest

from course_lib import checkpoint
from course_lib.runtime import launch
from course_lib.train import main
from tests.checkpoint import runs

SAVED = {
    1: ("plain", "zero1", "dp1", "dp1/experts"),
    2: ("ddp", "zero1", "zero2", "fsdp", "tp", "sp", "pp"),
    3: ("zero1", "fsdp"),
    4: ("tp", "zero2", "fsdp", "dp2,pp2,zero2", "pp2,tp2/zb-v", "dp4,zero3", "dp4,ep2,zero1/experts",
        "dp2,tp2,ep4/experts", "dp2,tp2,etp2,zero3/experts"),
    8: ("dp2,pp2,tp2", "dp2,cp2,tp2,zero1"),
}
INTO = [  # world size, (from, to)
    (1, (("fsdp-2", "plain"), ("tp-2", "zero1"), ("zero1-3", "plain"), ("zero2-4", "zero1"), ("pp-2", "plain"),
        ("dp2,pp2,tp2-8", "dp1"), ("dp4,zero3-4", "dp1"))),
    (2, (("plain-1", "tp"), ("tp-4", "fsdp"), ("fsdp-3", "zero1"), ("zero2-4", "pp"), ("sp-2", "zero2"),
        ("dp2,cp2,tp2,zero1-8", "pp2"), ("dp2,pp2,zero2-4", "tp2"), ("pp2,tp2/zb-v-4", "dp2,zero3"), ("dp1-1", "cp2"),
        ("dp4,ep2,zero1/experts-4", "dp2,ep2/experts"), ("dp1/experts-1", "tp2/experts"))),
    (3, (("zero1-2", "fsdp"), ("tp-4", "zero2"), ("pp-2", "pp"), ("fsdp-4", "tp"))),
    (4, (("zero1-3", "tp"), ("tp-2", "fsdp"), ("pp-2", "zero1"), ("plain-1", "sp"), ("fsdp-2", "pp"))),
    (4, (("dp2,pp2,tp2-8", "dp4,zero3"), ("dp2,pp2,tp2-8", "cp2,tp2"), ("dp2,cp2,tp2,zero1-8", "dp2,pp2,zero2"),
        ("dp4,zero3-4", "pp2,tp2/zb-v"), ("pp2,tp2/zb-v-4", "dp4,zero1"), ("dp1-1", "dp2,tp2,zero2"),
        ("dp1/experts-1", "dp2,pp2,ep2/experts"), ("dp2,tp2,ep4/experts-4", "dp4,ep2/experts"),
        ("dp2,tp2,etp2,zero3/experts-4", "pp2,tp2,ep2/experts"))),
    (8, (("dp4,zero3-4", "dp2,pp2,tp2"), ("pp2,tp2/zb-v-4", "dp2,cp2,tp2,zero1"), ("dp1-1", "pp4,tp2"))),
]


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A folder with a checkpoint of each layout, and the losses of the runs that made them, from there on."""
    folder, losses = tmp_path_factory.mktemp("layouts"), {}
    alone = runs.Run("plain").train(0, runs.BEFORE + runs.AFTER)[runs.BEFORE:]
    for n, layouts in SAVED.items():
        losses |= launch(runs.save_in, layouts, folder, world_size=n, timeout=240)[0]
    return folder, losses, alone


def unbroken(saved, layout):
    """What a run in this layout has to lose: a chapter's in 64 bits."""
    if layout in runs.LAYOUTS:
        return pytest.approx(saved[2], rel=1e-9)
    return pytest.approx(saved[1]["dp1/experts-1" if "experts" in layout else "dp1-1"], rel=1e-4)


def test_saving_changes_nothing(saved):
    for layout, losses in saved[1].items():
        assert losses == unbroken(saved, layout.rpartition("-")[0]), layout


@pytest.mark.sweep("into", few=INTO[:-1], all=INTO, ids=lambda into: f"{into[0]} {into[1][0][1]}",
                   words="into worlds of 1 to 4 of 8")
def test_a_run_goes_on_under_another_layout_with_the_losses_of_the_unbroken_one(saved, into):
    n, pairs = into
    for found in launch(runs.load_in, pairs, saved[0], world_size=n, timeout=240):
        for pair, (losses, same) in zip(pairs, found):
            assert losses == unbroken(saved, pair[1]) and not same, pair


@pytest.mark.parametrize("n", [n if n < 8 else pytest.param(n, marks=pytest.mark.ci) for n in SAVED])
def test_a_run_goes_on_under_the_same_layout_bit_by_bit(saved, n):
    pairs = tuple((f"{layout}-{n}", layout) for layout in SAVED[n])
    for found in launch(runs.load_in, pairs, saved[0], world_size=n, timeout=240):
        for (source, _), (losses, same) in zip(pairs, found):
            assert losses == saved[1][source] and same, source


def test_32_bit_copies_of_16_bit_parameters_come_along_and_are_what_a_run_in_32_bits_begins_with(tmp_path):
    assert launch(runs.of_16_bits, tmp_path, world_size=3) == [(True, True)] * 3


# The command line

SMALL = ["--layers", "2", "--hidden-size", "16", "--heads", "2", "--sequence-length", "16", "--batch-size", "8"]


@pytest.fixture
def command(monkeypatch):
    monkeypatch.setenv("COURSE_LIB_STABLE_OUTPUT", "1")
    return lambda *words: main([*SMALL, *words])


def test_the_command_line_saves_prunes_and_goes_on_under_another_layout(command, tmp_path, capfd):
    folder = tmp_path / "run"
    unbroken = command("--steps", "5", "--layout", "dp2", "--save", str(folder), "--save-every", "2", "--keep", "2",
                       "--resume", str(folder))
    assert "from the beginning" in capfd.readouterr().out
    found = checkpoint.complete_checkpoints(folder)
    assert [path.name for path in found] == ["step_00000004", "step_00000005"]
    gone_on = command("--steps", "5", "--layout", "tp2", "--resume", str(found[0]))
    assert "saved under dp2 after 4 steps" in capfd.readouterr().out
    assert gone_on.losses == pytest.approx(unbroken.losses[4:], rel=1e-4)


def test_a_run_on_other_rows_is_not_gone_on_with(command, tmp_path, capsys):
    command("--steps", "1", "--save", str(tmp_path))
    assert [path.name for path in checkpoint.complete_checkpoints(tmp_path)] == ["step_00000001"]
    with pytest.raises(SystemExit):
        command("--steps", "2", "--batch-size", "4", "--seed", "1", "--resume", str(tmp_path))
    assert "on other rows: --batch-size, seed differ (--batch-size 8, and here 4" in capsys.readouterr().err
