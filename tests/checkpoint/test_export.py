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
    for file in checkpoint.latest(folder / "pp-3").iterdir():  # nothing of ours is pickled
        assert file.name == "manifest.json" or b"course_lib" not in file.read_bytes()


def test_safetensors_are_the_plain_model_with_a_tied_tensor_once(saved, tmp_path):
    theirs = pytest.importorskip("safetensors.torch")
    checkpoint.export_safetensors(saved[0] / "fsdp-3", tmp_path / "model.safetensors")
    plain, back = checkpoint.read_state_dict(saved[0] / "fsdp-3"), theirs.load_file(tmp_path / "model.safetensors")
    assert plain.keys() - back.keys() == {"head.weight"}
    assert all(torch.equal(back[name], plain[name]) for name in back)


def test_our_safetensors_are_everybodys(tmp_path):
    theirs = pytest.importorskip("safetensors.torch")
    contiguous = {name: tensor.contiguous() for name, tensor in MIXED.items()}
    export.write_file(tmp_path / "ours", MIXED)
    read = theirs.load_file(tmp_path / "ours")
    assert read.keys() == MIXED.keys()
    for name, tensor in contiguous.items():
        assert read[name].dtype == tensor.dtype and read[name].shape == tensor.shape
        assert read[name].reshape(-1).view(torch.uint8).equal(tensor.reshape(-1).view(torch.uint8)), name
