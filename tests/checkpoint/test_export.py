"""What was saved on ranks is for anybody: torch alone reads it, and so does who knows safetensors."""

import subprocess
import sys

import pytest
import torch

from course_lib import checkpoint
from course_lib.checkpoint import export
from course_lib.reference import GPT
from course_lib.runtime import launch
from tests.checkpoint import runs

WITH_TORCH_ALONE = """
import sys
from pathlib import Path
class Nobody:
    def find_spec(self, name, *_):
        if name.partition(".")[0] in ("course_lib", "tests"):
            raise ImportError(name)
sys.meta_path.insert(0, Nobody())
import torch
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
dcp_to_torch_save(sys.argv[1], sys.argv[2])
state = torch.load(sys.argv[2], weights_only=True)
assert not any(name.startswith("course_lib") for name in sys.modules)
assert all(isinstance(value, torch.Tensor) for value in state.values())
"""
MIXED = {
    "bf16": torch.randn(3, 5).bfloat16(), "int64": torch.arange(7), "a bool": torch.tensor([True, False]),
    "number": torch.tensor(3.5), "nothing": torch.zeros(0, 4), "not contiguous": torch.arange(6.0).view(2, 3).t(),
    "float8": torch.randn(4).to(torch.float8_e4m3fn), "uint8": torch.arange(5, dtype=torch.uint8),
}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A checkpoint of 3 ranks in stages with ZeRO's state beside, and the same of one process."""
    folder = tmp_path_factory.mktemp("export")
    launch(runs.save_in, ("pp", "fsdp", "zero1"), folder, world_size=3)
    alone = runs.Run("plain")
    alone.train(0, runs.BEFORE)
    return folder, alone


def plain_optimizer_state(alone):
    names = {parameter: name for name, parameter in alone.model.named_parameters()}
    return {f"{names[parameter]}.{key}": value for parameter, of_one in alone.optimizer.state.items()
            for key, value in of_one.items()}


@pytest.mark.sweep("layout", few=["fsdp-3"], all=["pp-3", "fsdp-3", "zero1-3"], words="1 layout of 3")
def test_torch_alone_reads_plain_names_full_shapes_and_optimiser_state(saved, layout, tmp_path):
    folder, alone = saved
    path, file = checkpoint.latest(folder / layout), tmp_path / "plain.pt"
    subprocess.run([sys.executable, "-c", WITH_TORCH_ALONE, str(path), str(file)], check=True, cwd=tmp_path,
                   timeout=120)
    found = torch.load(file, weights_only=True)
    wanted = {**dict(alone.model.named_parameters()), **plain_optimizer_state(alone)}
    assert {name for name in found if not name.startswith("random_state.")} == wanted.keys()
    for name, tensor in wanted.items():
        torch.testing.assert_close(found[name], tensor.detach(), rtol=1e-9, atol=1e-9)


def test_the_plain_model_takes_the_state_dict_of_any_layout_and_a_checkpoint_without_an_optimiser(saved):
    folder, alone = saved
    for layout in ("pp-3", "fsdp-3", "zero1-3"):
        model, loaded = GPT(runs.CONFIG).double(), GPT(runs.CONFIG).double()
        state = checkpoint.read_state_dict(folder / layout)
        assert state["head.weight"] is state["embedding.token.weight"]
        model.load_state_dict(state)  # strict: with the tied name
        checkpoint.load(folder / layout, loaded)
        for name, parameter in alone.model.named_parameters():
            for one in (model, loaded):
                torch.testing.assert_close(one.get_parameter(name), parameter, rtol=1e-9, atol=1e-9)
    assert plain_optimizer_state(alone).keys() <= checkpoint.read_state_dict(folder / "pp-3", True).keys()
    for file in checkpoint.latest(folder / "pp-3").iterdir():  # nothing of ours is pickled
        assert file.name == "manifest.json" or b"course_lib" not in file.read_bytes()


def test_a_plain_state_dict_of_any_dtype_becomes_a_checkpoint_and_comes_back(saved, tmp_path):
    state = saved[1].model.state_dict() | {name: tensor for name, tensor in MIXED.items() if name != "float8"}
    back = checkpoint.read_state_dict(checkpoint.import_state_dict(tmp_path, state))
    assert back.keys() == state.keys()
    for name, tensor in state.items():
        assert back[name].dtype == tensor.dtype and torch.equal(back[name], tensor), name
    checkpoint.import_state_dict(tmp_path / "plain", saved[1].model.state_dict(), step=7)
    model = GPT(runs.CONFIG).double()
    assert checkpoint.load(tmp_path / "plain", model).step == 7
    assert all(torch.equal(model.state_dict()[name], state[name]) for name in model.state_dict())


def test_safetensors_go_out_and_come_in(saved, tmp_path):
    checkpoint.export_safetensors(saved[0] / "fsdp-3", tmp_path / "model.safetensors")
    plain = checkpoint.read_state_dict(saved[0] / "fsdp-3")
    back = checkpoint.read_state_dict(checkpoint.import_safetensors(tmp_path, tmp_path / "model.safetensors"))
    assert plain.keys() - back.keys() == {"head.weight"}
    assert all(torch.equal(back[name], plain[name]) for name in back)


def test_our_safetensors_are_everybodys(tmp_path):
    theirs = pytest.importorskip("safetensors.torch")
    contiguous = {name: tensor.contiguous() for name, tensor in MIXED.items()}
    export.write_file(tmp_path / "ours", MIXED, {"format": "pt"})
    theirs.save_file(contiguous, tmp_path / "theirs")
    for read in (theirs.load_file(tmp_path / "ours"), export.read_file(tmp_path / "theirs")):
        assert read.keys() == MIXED.keys()
        for name, tensor in contiguous.items():
            assert read[name].dtype == tensor.dtype and read[name].shape == tensor.shape
            assert read[name].reshape(-1).view(torch.uint8).equal(tensor.reshape(-1).view(torch.uint8)), name


@pytest.mark.parametrize("cut", [lambda whole: whole[:4], lambda whole: whole[:-1], lambda whole: b"x" * len(whole)],
                         ids=["the length", "the last number", "another file"])
def test_a_safetensors_file_that_is_cut_short_is_refused_by_name(tmp_path, cut):
    file = tmp_path / "model.safetensors"
    export.write_file(file, {"a": torch.arange(5.0)})
    file.write_bytes(cut(file.read_bytes()))
    with pytest.raises(ValueError, match=r"model\.safetensors is no whole safetensors file"):
        export.read_file(file)
