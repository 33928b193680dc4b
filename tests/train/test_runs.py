"""The command from save to resume: a run keeps what it has, its schedule too, and what a checkpoint is good for."""

import re

import pytest
import torch

from course_lib import checkpoint
from course_lib.hybrid_parallel import LearningRate
from course_lib.train import main
from course_lib.train.results import plain_model

SMALL = ["--layers", "2", "--hidden-size", "16", "--heads", "2", "--sequence-length", "16", "--batch-size", "8"]


@pytest.fixture
def command(monkeypatch, tmp_path, capfd):
    """command(words) -> the report; .said() is what was printed since."""
    monkeypatch.setenv("COURSE_LIB_STABLE_OUTPUT", "1")
    monkeypatch.chdir(tmp_path)

    def run(words):
        return main([*SMALL, *words.split()])

    def said():
        out, err = capfd.readouterr()
        return out + err

    run.said = said
    return run


def names(folder="a"):
    return [path.name for path in checkpoint.complete_checkpoints(folder)]


def run_of(path):
    return checkpoint.read_manifest(path)["run"]


def refused(command, words):
    with pytest.raises(SystemExit):
        command(words)
    return command.said()


def test_what_cannot_go_on_is_refused_in_the_options_words_with_both_ways_out_and_each_of_them_works(command):
    command("--steps 4 --save a --save-every 2")
    said = refused(command, "--steps 2 --save a --learning-rate 0.01 --keep 1")
    assert "--save a: it holds 2 checkpoints of another run" in said and "--resume a" in said and "--overwrite" in said
    assert "of another model: --layers 2, and here 3" in refused(command, "--steps 5 --resume a --layers 3")
    assert "--experts None, and here 4" in refused(command, "--steps 5 --resume a --experts 4")
    assert "has taken 4 steps already" in refused(command, "--steps 4 --resume a")
    assert names() == ["step_00000002", "step_00000004"]
    first = run_of(checkpoint.latest("a"))
    command("--steps 5 --save a --resume a")
    assert names() == ["step_00000002", "step_00000004", "step_00000005"] and run_of(checkpoint.latest("a")) == first
    command("--steps 2 --save a --overwrite --save-every 1")
    assert names() == ["step_00000001", "step_00000002"] and run_of(checkpoint.latest("a")) != first


def cut_short(path):
    path.write_bytes(path.read_bytes()[:-1])


def test_a_damaged_checkpoint_is_passed_over_aloud(command):
    unbroken = command("--layout dp2 --steps 6 --save a --save-every 2 --keep 9").losses
    cut_short(checkpoint.latest("a") / "__1_0.distcp")
    (checkpoint.complete_checkpoints("a")[1] / "manifest.json").write_text("nonsense")
    again = command("--steps 6 --decay-steps 6 --resume a --layout dp2").losses
    said = command.said()
    assert "WARNING: step_00000006 is damaged and is passed over" in said and "__1_0.distcp has" in said
    assert "WARNING: step_00000004 is damaged" in said and "steps 3 to 6 are lost and will be taken again" in said
    assert again == unbroken[2:]
    cut_short(checkpoint.complete_checkpoints("a")[0] / ".metadata")
    assert "Expected an intact checkpoint" in refused(command, "--steps 8 --resume a")


def test_the_schedule_is_the_runs_and_another_one_is_said_aloud(command):
    unbroken = command("--steps 8 --learning-rate 0.004 --warmup 2")
    command("--steps 4 --decay-steps 8 --learning-rate 0.004 --warmup 2 --save a")
    gone_on = command("--steps 8 --resume a")
    assert [step.learning_rate for step in gone_on.steps] == [step.learning_rate for step in unbroken.steps][4:]
    assert gone_on.losses == unbroken.losses[4:] and "WARNING" not in command.said()
    longer = command("--steps 6 --resume a --decay-steps 20 --learning-rate 0.002")
    old, new = LearningRate(0.004, 2, 8)(4), LearningRate(0.002, 2, 20)(4)
    said = command.said()
    assert f"WARNING: the learning rate goes from {old:.3g} to {new:.3g} at step 4" in said
    assert "peak 0.004 -> 0.002, total_steps 8 -> 20" in said and longer.steps[0].learning_rate == new
    command("--steps 9 --resume a")
    assert "ends its cosine at step 8 of 9 and stays 0.0004: --decay-steps 9" in command.said()


@pytest.mark.parametrize("balance", ["auxiliary", "bias", "none"])
def test_experts_train_under_ep_as_in_one_process_and_go_on_without_it(command, balance):
    words = f"--experts 4 --top-k 2 --balance {balance} --steps 3 --decay-steps 4"
    one = command(words).losses
    dealt_out = command(f"{words} --layout dp2,ep2 --save a").losses
    assert dealt_out == pytest.approx(one, rel=1e-4)
    bias = plain_model("a").blocks[0].mlp.router.bias
    assert bool(bias.abs().sum() > 0) == (balance == "bias") and float(bias.abs().max()) <= 3.001e-3
    unbroken = command(words.replace("--steps 3", "--steps 4")).losses
    gone_on = command(f"{words.replace('--steps 3', '--steps 4')} --layout pp2 --resume a --save b").losses
    assert gone_on == pytest.approx(unbroken[3:], rel=1e-4)


def test_inspect_evaluate_sample_and_export_of_a_run_of_any_layout(command, tmp_path):
    command("--steps 4 --layout dp2,tp2 --save a --save-every 2 --learning-rate 0.01")
    cut_short(checkpoint.complete_checkpoints("a")[0] / ".metadata")
    command.said()
    main(["inspect", "a"])
    said = command.said()
    assert "a: 2 checkpoints of 1 run" in said and re.search(r"step_00000002 .*DAMAGED: .*\.metadata has", said)
    assert re.search(r"step_00000004  step 4  run \w{8}  .* dp2,tp2 on 4 ranks  intact", said)
    size = sum(path.stat().st_size for path in checkpoint.latest("a").iterdir() if path.name != "manifest.json")
    assert f"{size:,} bytes in 5 files" in said
    main(["evaluate", "a", "--rows", "64"])
    assert 4 < float(re.search(r"loss ([\d.]+) nats", command.said())[1]) < 6
    main(["sample", "a", "def ", "--tokens", "5"])
    assert command.said().startswith("def ")
    main(["export", "a", "m.safetensors"])
    found = pytest.importorskip("safetensors.torch").load_file(tmp_path / "m.safetensors")
    assert "2 checkpoints" not in command.said() and torch.equal(found["norm.weight"], plain_model("a").norm.weight)
