"""Every axis at once: saved under one layout, gone on with under another, with the losses of the unbroken run."""

import pytest

from course_lib import checkpoint
from course_lib.runtime import launch
from course_lib.train import main
from tests.checkpoint import hybrid

SAVED = {
    1: ("dp1", "dp1/experts"),
    4: ("dp2,pp2,zero2", "pp2,tp2/zb-v", "dp4,zero3", "dp4,ep2,zero1/experts",
        "dp2,tp2,ep4/experts", "dp2,tp2,etp2,zero3/experts"),
    8: ("dp2,pp2,tp2", "dp2,cp2,tp2,zero1"),
}
INTO = {
    1: (("dp2,pp2,tp2", "dp1"), ("dp4,zero3", "dp1")),
    2: (("dp2,cp2,tp2,zero1", "pp2"), ("dp2,pp2,zero2", "tp2"), ("pp2,tp2/zb-v", "dp2,zero3"), ("dp1", "cp2"),
        ("dp4,ep2,zero1/experts", "dp2,ep2/experts"), ("dp1/experts", "tp2/experts")),
    4: (("dp2,pp2,tp2", "dp4,zero3"), ("dp2,pp2,tp2", "cp2,tp2"), ("dp2,cp2,tp2,zero1", "dp2,pp2,zero2"),
        ("dp4,zero3", "pp2,tp2/zb-v"), ("pp2,tp2/zb-v", "dp4,zero1"), ("dp1", "dp2,tp2,zero2"),
        ("dp1/experts", "dp2,pp2,ep2/experts"), ("dp2,tp2,ep4/experts", "dp4,ep2/experts"),
        ("dp2,tp2,etp2,zero3/experts", "pp2,tp2,ep2/experts")),
    8: (("dp4,zero3", "dp2,pp2,tp2"), ("pp2,tp2/zb-v", "dp2,cp2,tp2,zero1"), ("dp1", "pp4,tp2")),
}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A folder with a checkpoint of each layout, and the losses of the runs that made them, from there on."""
    folder, losses = tmp_path_factory.mktemp("hybrid"), {}
    for n, layouts in SAVED.items():
        losses |= launch(hybrid.save_in, layouts, folder, world_size=n, timeout=240)[0]
    return folder, losses


@pytest.mark.sweep("n", few=[1, 4], all=INTO, words=f"from checkpoints into 2 worlds of {len(INTO)}")
def test_a_run_goes_on_under_another_layout_with_the_losses_of_the_unbroken_one(saved, n):
    for found in launch(hybrid.load_in, INTO[n], saved[0], world_size=n, timeout=240):
        for pair, (losses, same) in zip(INTO[n], found):
            plain = "dp1/experts" if "experts" in pair[1] else "dp1"
            assert losses == pytest.approx(saved[1][plain], rel=1e-4) and not same, pair


@pytest.mark.parametrize("n", [n if n < 8 else pytest.param(n, marks=pytest.mark.ci) for n in SAVED])
def test_a_run_goes_on_under_the_same_layout_bit_by_bit(saved, n):
    pairs = tuple((layout, layout) for layout in SAVED[n])
    for found in launch(hybrid.load_in, pairs, saved[0], world_size=n, timeout=240):
        for (layout, _), (losses, same) in zip(pairs, found):
            assert losses == saved[1][layout] and same, layout


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
