"""doctor where there are GPUs; gpu_day's cheap steps, each of them run."""

import json

import pytest

from course_lib.runtime.doctor import _backends, _gpus
from tests.pretend.needed import built  # noqa: F401  a fixture
from tools.gpu_day import __main__ as command
from tools.gpu_day.operations import OPERATIONS
from tools.gpu_day.runner import planned
from tools.harness.pretend.hook import pretended
from tools.harness.pretend.modes import MODES

pytestmark = pytest.mark.ci


@pytest.mark.parametrize("mode, num_gpus, backend", [
    ("nccl", 4, "NCCL on GPUs"), ("laptop", 1, "NCCL on GPUs for 1 rank and gloo on the CPU for 4 ranks")])
def test_a_rank_tries_a_gpu_whose_failure_has_advice_and_the_backends_of_one_and_four_ranks_are_named(
        mode, num_gpus, backend, monkeypatch):
    def fails():
        raise RuntimeError("CUDA error: no kernel image is available")

    with pretended(MODES[mode]):
        gpus, used = _gpus(), _backends()
        monkeypatch.setitem(_gpus.__globals__, "_sum_on_own_device", fails)  # the package's `doctor` is the function
        broken = _gpus()
    assert gpus.ok and used.found.endswith(f"launch uses {backend}")
    assert gpus.found.startswith(f"{num_gpus}, and one rank added two tensors on its own. The course has been run")
    assert "no kernel image" in broken.found and "device='cpu'" in broken.advice


def test_cheap_steps_pass_on_pretended_gpus_and_the_rows_are_stored(tmp_path, capsys):
    modules = ["tools.gpu_day.machine", "tools.gpu_day.operations"]
    chosen = ["fork", "default device", "nccl 1: all_reduce", "nccl 4: pipeline", "gloo-cuda 4: all_gather"]
    stored = tmp_path / "rows.json"
    assert command.main([*chosen, "--mode", "pretended", "--json", str(stored)], modules) == 0
    found = json.loads(stored.read_text(encoding="utf-8"))
    assert all(any(row["step"].startswith(name) for row in found) for name in chosen)
    assert {row["result"] for row in found} == {"passed"}, found
    assert found[0].keys() == {"step", "ran", "result", "figure", "seconds"}
    assert "nothing here says what a real one does" in capsys.readouterr().out


def test_every_operation_is_a_step_under_gloo_cuda_and_under_nccl_on_one_and_on_all_gpus():
    names = {step.name for step in planned(["tools.gpu_day.operations"], "pretended")["tools.gpu_day.operations"]}
    for world, least in (("nccl 1", 1), ("nccl 4", 4), ("gloo-cuda 4", 4)):
        assert {name for name in names if name.startswith(world)} == {
            f"{world}: {name}" for name, each in OPERATIONS.items()
            if each.least <= least and world.startswith(each.only or "")}
