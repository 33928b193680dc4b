"""A checkpoint is a folder with a name: complete, or not there; intact, or refused by the name of the file."""

import json

import pytest
import torch

from course_lib import checkpoint
from course_lib.checkpoint import DamagedCheckpoint, folders, saving
from course_lib.reference import GPT, GPTConfig
from course_lib.runtime import launch

TINY = GPTConfig(num_layers=1, hidden_size=8, num_heads=2, vocab_size=11, sequence_length=4)


def one(seed=0, **changed):
    torch.manual_seed(seed)
    model = GPT(GPTConfig(**{**vars(TINY), **changed}))
    return model, torch.optim.AdamW(model.parameters(), lr=1e-2)


def take_a_step(model, optimizer):
    tokens = torch.arange(8).view(2, 4)
    optimizer.zero_grad()
    model(tokens, tokens)[1].backward()
    optimizer.step()


def steps_in(folder):
    return [folders.read_manifest(path)["step"] for path in checkpoint.complete_checkpoints(folder)]


@pytest.fixture
def saved(tmp_path):
    """A folder with the checkpoints of steps 1 to 3."""
    model, optimizer = one()
    for step in (1, 2, 3):
        take_a_step(model, optimizer)
        checkpoint.save(tmp_path, model, optimizer, step)
    return tmp_path


# Which there are

def test_the_last_complete_one_is_the_latest_and_an_incomplete_one_is_never_chosen(saved):
    (saved / ".saving-step_00000009").mkdir()
    (saved / "step_00000010").mkdir()  # without a manifest
    (saved / "step_ten").mkdir()
    assert checkpoint.latest(saved) == saved / "step_00000003"
    assert steps_in(saved) == [1, 2, 3]
    assert checkpoint.load(saved, *one(1)).step == 3
    assert checkpoint.load(saved / "step_00000002", *one(1)).step == 2


def test_where_there_is_none_the_error_says_what_there_is(tmp_path):
    assert checkpoint.latest(tmp_path) is None and checkpoint.complete_checkpoints(tmp_path / "nowhere") == []
    (tmp_path / "notes.txt").write_text("no checkpoint")
    with pytest.raises(ValueError, match=r"it holds \['notes.txt'\]"):
        checkpoint.load(tmp_path, *one())
    with pytest.raises(ValueError, match="no such folder"):
        checkpoint.load(tmp_path / "nowhere", *one())


def test_the_oldest_go_and_keep_many_stay(saved):
    checkpoint.save(saved, *one(), 4, keep=2)
    assert steps_in(saved) == [3, 4] and not list(saved.glob(".*"))
    for keep in (0, -1, True, 1.5):
        with pytest.raises(ValueError, match="keep="):
            checkpoint.save(saved, *one(), 5, keep=keep)
    with pytest.raises(ValueError, match="step=-1"):
        checkpoint.save(saved, *one(), -1)


def test_a_step_that_is_saved_again_is_a_second_one_and_the_newer(saved):
    again = checkpoint.save(saved, *one(5), 3)
    assert again.name == "step_00000003-2" and checkpoint.latest(saved) == again and steps_in(saved) == [1, 2, 3, 3]
    assert checkpoint.save(saved, *one(5), 3).name == "step_00000003-3"


# Whether it is intact

def cut_short(path):
    path.write_bytes(path.read_bytes()[:-1])


def alter(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))


def change_the_step(path):
    manifest = json.loads(path.read_text())
    path.write_text(json.dumps({**manifest, "step": 30}))


@pytest.mark.parametrize(("name", "damage", "said"), [
    ("__0_0.distcp", cut_short, r"__0_0.distcp has [\d,]+ bytes: expected"),
    ("__0_0.distcp", alter, "__0_0.distcp is not what was written"),
    (".metadata", alter, ".metadata is not what was written"),
    ("__0_0.distcp", lambda path: path.unlink(), "__0_0.distcp is missing"),
    ("manifest.json", cut_short, "manifest.json cannot be read"),
    ("manifest.json", change_the_step, "manifest.json is not what was written"),
], ids=["cut short", "altered", "metadata", "missing", "manifest cut short", "manifest altered"])
def test_a_damaged_file_is_refused_by_name_and_the_one_before_is_intact(saved, name, damage, said):
    damage(checkpoint.latest(saved) / name)
    model, optimizer = one(1)
    before = [p.clone() for p in model.parameters()]
    with pytest.raises(DamagedCheckpoint, match=said):
        checkpoint.load(saved, model, optimizer)
    with pytest.raises(DamagedCheckpoint, match=said):
        checkpoint.read_state_dict(saved)
    assert all(map(torch.equal, before, model.parameters())) and not optimizer.state
    assert checkpoint.load(checkpoint.latest(saved, intact=True), model, optimizer).step == 2


def load_damaged(folder):
    with pytest.raises(DamagedCheckpoint) as raised:
        checkpoint.load(folder, *one())
    return str(raised.value)


def test_every_rank_is_told_of_the_file_that_one_rank_has_looked_at(tmp_path):
    launch(checkpoint.save, tmp_path, *one(), 1, world_size=3)
    cut_short(checkpoint.latest(tmp_path) / "__2_0.distcp")
    said = launch(load_damaged, tmp_path, world_size=2)
    assert said[0] == said[1] and "__2_0.distcp has" in said[0]


# The same model

@pytest.mark.parametrize(("changed", "said"), [
    ({"num_layers": 2}, r"it lacks blocks\.1\.attention\.output\.bias.* and \d+ more"),
    ({"hidden_size": 16}, r"blocks\.0\..* has shape \[8\] and the model's \[16\]"),
    ({"vocab_size": 12}, r"embedding\.token\.weight has shape \[11, 8\] and the model's \[12, 8\]"),
])
def test_a_checkpoint_of_another_model_is_refused_with_the_names_that_differ(saved, changed, said):
    model, optimizer = one(**changed)
    before = [p.clone() for p in model.parameters()]
    with pytest.raises(ValueError, match=said):
        checkpoint.load(saved, model, optimizer)
    assert all(map(torch.equal, before, model.parameters()))


def test_names_that_the_model_has_not_are_told(tmp_path):
    checkpoint.save(tmp_path, *one(num_layers=2), 1)
    with pytest.raises(ValueError, match=r"it has blocks\.1\.\S+, .* which the model has not"):
        checkpoint.load(tmp_path, *one())


def test_groups_of_parameters_that_were_saved_otherwise_are_refused(tmp_path):
    model, _ = one()
    first, *others = model.parameters()
    optimizer = torch.optim.AdamW([{"params": [first], "lr": 1.0}, {"params": others, "lr": 2.0}])
    take_a_step(model, optimizer)
    checkpoint.save(tmp_path, model, optimizer, 1)
    with pytest.raises(ValueError, match="1 groups of parameters, and 2 with different options"):
        checkpoint.load(tmp_path, *one())


# What is in it

def test_learning_rates_random_numbers_and_what_the_run_remembers_come_back(tmp_path):
    model, optimizer = one()
    take_a_step(model, optimizer)
    optimizer.param_groups[0].update(lr=0.125, betas=(0.5, 0.75))
    checkpoint.save(tmp_path, model, optimizer, 1, extra={"row": 12, "text": "a.txt"})
    drawn = torch.rand(3)
    other, fresh = one(1)
    loaded = checkpoint.load(tmp_path, other, fresh)
    assert loaded.extra == {"row": 12, "text": "a.txt"} and torch.equal(torch.rand(3), drawn)
    assert fresh.param_groups[0]["lr"] == 0.125 and fresh.param_groups[0]["betas"] == (0.5, 0.75)


def test_a_checkpoint_of_the_beginning_has_no_state_and_is_loaded_all_the_same(tmp_path):
    checkpoint.save(tmp_path, *one(), 0)
    model, optimizer = one(1)
    assert checkpoint.load(tmp_path, model, optimizer).step == 0 and not optimizer.state
    assert all(map(torch.equal, one()[0].parameters(), model.parameters()))


def test_what_no_step_had_touched_begins_from_nothing(tmp_path):
    model, optimizer = one()
    model.blocks[0].mlp.input.weight.requires_grad_(False)
    take_a_step(model, optimizer)
    checkpoint.save(tmp_path, model, optimizer, 1)
    other, fresh = one(1)
    checkpoint.load(tmp_path, other, fresh)
    state = fresh.state[other.blocks[0].mlp.input.weight]
    assert all(value.eq(0).all() for value in state.values())


def test_loading_keeps_gradients_and_changes_nothing_before_it_reads(tmp_path):
    model, optimizer = one()
    take_a_step(model, optimizer)
    checkpoint.save(tmp_path, model, optimizer, 1)
    other, fresh = one(1)
    gradient = other.norm.weight.grad = torch.ones(8)
    checkpoint.load(tmp_path, other, fresh)
    assert other.norm.weight.grad is gradient and gradient.eq(1).all() and fresh.param_groups[0]["lr"] == 1e-2


# While the step goes on

def test_a_save_in_the_background_holds_the_numbers_of_when_it_was_asked_for(tmp_path):
    model, optimizer = one()
    take_a_step(model, optimizer)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    pending = checkpoint.save(tmp_path, model, optimizer, 1, background=True)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(7)
    assert pending.wait() == checkpoint.latest(tmp_path) and pending.done
    found = checkpoint.read_state_dict(tmp_path)
    assert all(torch.equal(found[name], before[name]) for name in before)


def test_saves_follow_each_other_and_what_went_wrong_is_said_by_the_next(tmp_path):
    model, optimizer = one()
    for step in range(4):
        checkpoint.save(tmp_path, model, optimizer, step, background=True)
    checkpoint.finish()
    assert steps_in(tmp_path) == [0, 1, 2, 3]
    blocked = tmp_path / "a file"
    blocked.write_text("in the way")
    checkpoint.save(blocked, model, optimizer, 4, background=True)
    with pytest.raises(OSError, match="a file"):
        checkpoint.save(tmp_path, model, optimizer, 5)
    assert saving._under_way == [] and steps_in(tmp_path) == [0, 1, 2, 3]
