"""A checkpoint is a folder with a name: complete, or not there; intact, or refused by the name of the file."""

import json
import os
import sys
from pathlib import Path

import pytest
import torch

from course_lib import checkpoint
from course_lib.checkpoint import DamagedCheckpoint, manifest, saving
from tests.checkpoint.one_run import One, cut_short, first_run, flip


def steps_in(folder):
    return [manifest.read_manifest(path)["step"] for path in checkpoint.complete_checkpoints(folder)]


def same(some, others):
    return all(map(torch.equal, some, others))


@pytest.fixture
def saved(tmp_path):
    """A folder with the checkpoints of steps 1 to 3."""
    first_run(tmp_path)
    return tmp_path


@pytest.fixture
def unnamed(tmp_path):
    """A run after a step, and a function that saves it into an empty folder, as nobody's run."""
    one = One()
    one.step()
    return one, lambda step=1, **how: checkpoint.save(tmp_path, *one.both, step, **how)


# Which there are

def test_the_last_complete_one_is_the_latest_and_an_incomplete_one_is_never_chosen(saved):
    (saved / ".saving-step_00000009").mkdir()
    (saved / "step_00000010").mkdir()  # without a manifest
    (saved / "step_ten").mkdir()
    assert checkpoint.latest(saved) == saved / "step_00000003"
    assert steps_in(saved) == [1, 2, 3]
    assert checkpoint.load(saved, *One(1).both).step == 3
    assert checkpoint.load(saved / "step_00000002", *One(1).both).step == 2


@pytest.mark.skipif(sys.platform != "linux", reason="asks /proc which file a descriptor is")
def test_every_file_and_the_manifest_are_on_the_disk_before_the_name_is_there(tmp_path, unnamed, monkeypatch):
    done, sync, rename = [], os.fsync, os.rename
    monkeypatch.setattr(os, "fsync", lambda number: done.append(Path(os.readlink(f"/proc/self/fd/{number}")).name)
                        or sync(number))
    monkeypatch.setattr(os, "rename", lambda old, new: done.append(Path(new)) or rename(old, new))
    unnamed[1]()
    named = done.index(tmp_path / "step_00000001")
    assert done[named - 2:] == ["manifest.json", ".saving-step_00000001", done[named], tmp_path.name]
    files = {path.name for path in done[named].iterdir()}
    assert len(files) > 2 and files <= {str(each).removesuffix(".tmp") for each in done[:named]}


def test_where_there_is_none_the_error_says_what_there_is(tmp_path):
    assert checkpoint.latest(tmp_path) is None and checkpoint.complete_checkpoints(tmp_path / "nowhere") == []
    (tmp_path / "notes.txt").write_text("no checkpoint")
    for folder, said in ((tmp_path, r"it holds \['notes.txt'\]"), (tmp_path / "nowhere", "no such folder")):
        with pytest.raises(ValueError, match=said):
            checkpoint.load(folder, *One().both)


def test_a_step_saved_again_is_a_second_one_and_the_newer_and_the_oldest_go(tmp_path, unnamed):
    _, save = unnamed
    names = [save(step).name for step in (1, 2, 3, 3, 3)]
    assert names[2:] == ["step_00000003", "step_00000003-2", "step_00000003-3"]
    assert checkpoint.latest(tmp_path).name == names[-1] and steps_in(tmp_path) == [1, 2, 3, 3, 3]
    save(4, keep=2)
    assert steps_in(tmp_path) == [3, 4] and not list(tmp_path.glob(".*-*"))
    for wrong in ({"keep": 0}, {"keep": -1}, {"keep": True}, {"keep": 1.5}, {"step": -1}):
        (name, value), = wrong.items()
        with pytest.raises(ValueError, match=f"{name}={value}"):
            save(**wrong)


# Whether it is intact

def change_the_step(path):
    path.write_text(json.dumps({**json.loads(path.read_text()), "step": 30}))


@pytest.mark.parametrize(("name", "damage", "said"), [
    ("__0_0.distcp", cut_short, r"__0_0.distcp has [\d,]+ bytes: expected"),
    ("__0_0.distcp", flip, "__0_0.distcp is not what was written"),
    (".metadata", flip, ".metadata is not what was written"),
    ("__0_0.distcp", Path.unlink, "__0_0.distcp is missing"),
    ("manifest.json", cut_short, "manifest.json cannot be read"),
    ("manifest.json", change_the_step, "manifest.json is not what was written"),
], ids=["cut short", "altered", "metadata", "missing", "manifest cut short", "manifest altered"])
def test_a_damaged_file_is_refused_by_name_and_a_run_goes_on_from_the_one_before(saved, name, damage, said):
    damage(checkpoint.latest(saved) / name)
    run = One(1)
    before = [p.clone() for p in run.model.parameters()]
    for read in (lambda: checkpoint.load(saved, *run.both), lambda: checkpoint.read_state_dict(saved)):
        with pytest.raises(DamagedCheckpoint, match=said):
            read()
    assert same(before, run.model.parameters()) and not run.optimizer.state
    told = run.resume(saved)
    assert told.startswith("on from step_00000002; step_00000003 is damaged and is passed over: ")
    assert "step 3 is lost and will be taken again" in told or name == "manifest.json"
    assert checkpoint.load(saved / "step_00000002", *run.both).step == 2


# The same model

@pytest.mark.parametrize(("here", "there", "said"), [
    ({"num_layers": 2}, {}, r"it lacks blocks\.1\.attention\.output\.bias.* and \d+ more"),
    ({}, {"num_layers": 2}, r"it has blocks\.1\.\S+, .* which the model has not"),
    ({"hidden_size": 16}, {}, r"blocks\.0\..* has shape \[8\] and the model's \[16\]"),
    ({"vocab_size": 12}, {}, r"embedding\.token\.weight has shape \[11, 8\] and the model's \[12, 8\]"),
])
def test_a_checkpoint_of_another_model_is_refused_with_the_names_that_differ(tmp_path, here, there, said):
    other = One(**there)
    other.step()
    other.save(tmp_path, 1)
    run = One(1, **here)
    before = [p.clone() for p in run.model.parameters()]
    with pytest.raises(ValueError, match=f"the checkpoint is one of another model: .*{said}"):
        checkpoint.load(tmp_path, *run.both)
    assert same(before, run.model.parameters())


def test_groups_of_parameters_that_were_saved_otherwise_are_refused(tmp_path, unnamed):
    one, save = unnamed
    first, *others = one.model.parameters()
    one.optimizer = torch.optim.AdamW([{"params": [first], "lr": 1.0}, {"params": others, "lr": 2.0}])
    one.step()
    save()
    with pytest.raises(ValueError, match="1 groups of parameters, and 2 with different options"):
        checkpoint.load(tmp_path, *One().both)


# What is in it

def test_learning_rates_random_numbers_and_what_the_run_remembers_come_back_and_gradients_stay(tmp_path, unnamed):
    one, save = unnamed
    one.optimizer.param_groups[0].update(lr=0.125, betas=(0.5, 0.75))
    save(extra={"row": 12, "text": "a.txt"})
    drawn = torch.rand(3)
    other = One(1)
    gradient = other.model.norm.weight.grad = torch.ones(8)
    loaded = checkpoint.load(tmp_path, *other.both)
    assert loaded.extra == {"row": 12, "text": "a.txt"} and torch.equal(torch.rand(3), drawn)
    assert other.optimizer.param_groups[0]["lr"] == 0.125 and other.optimizer.param_groups[0]["betas"] == (0.5, 0.75)
    assert other.model.norm.weight.grad is gradient and gradient.eq(1).all()


def test_a_checkpoint_of_the_beginning_has_no_state_and_is_loaded_all_the_same(tmp_path):
    checkpoint.save(tmp_path, *One().both, 0)
    other = One(1)
    assert checkpoint.load(tmp_path, *other.both).step == 0 and not other.optimizer.state
    assert same(One().model.parameters(), other.model.parameters())


def test_what_no_step_had_touched_begins_from_nothing(tmp_path):
    one, other = One(), One(1)
    one.model.blocks[0].mlp.input.weight.requires_grad_(False)
    one.step()
    one.save(tmp_path, 1)
    checkpoint.load(tmp_path, *other.both)
    state = other.optimizer.state[other.model.blocks[0].mlp.input.weight]
    assert all(value.eq(0).all() for value in state.values())


# While the step goes on

def test_a_save_in_the_background_holds_the_numbers_of_when_it_was_asked_for(tmp_path, unnamed):
    one, save = unnamed
    before = {name: tensor.clone() for name, tensor in one.model.state_dict().items()}
    pending = save(background=True)
    with torch.no_grad():
        for parameter in one.model.parameters():
            parameter.fill_(7)
    assert pending.wait() == checkpoint.latest(tmp_path)
    found = checkpoint.read_state_dict(tmp_path)
    assert all(torch.equal(found[name], before[name]) for name in before)


def test_saves_follow_each_other_and_what_went_wrong_is_said_by_the_next(tmp_path, unnamed):
    one, save = unnamed
    for step in range(4):
        save(step, background=True)
    checkpoint.finish()
    assert steps_in(tmp_path) == [0, 1, 2, 3]
    blocked = tmp_path / "a file"
    blocked.write_text("in the way")
    checkpoint.save(blocked, *one.both, 4, background=True)
    with pytest.raises(OSError, match="a file"):
        save(5)
    assert saving._under_way == [] and steps_in(tmp_path) == [0, 1, 2, 3]
