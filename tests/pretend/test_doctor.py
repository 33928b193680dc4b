"""doctor where there are GPUs; gpu_day's cheap steps, each of them run."""

import json
from functools import partial

import pytest
import torch.distributed as dist

from course_lib.runtime.doctor import _backends, _gpus
from tests.pretend.needed import built  # noqa: F401  a fixture
from tools.gpu_day import __main__ as command
from tools.gpu_day import operations
from tools.gpu_day.steps import Step
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
    modules = ["tools.gpu_day.checks", "tools.gpu_day.operations"]
    chosen = ["fork", "default device", "nccl 1: all_reduce", "nccl 4: pipeline", "gloo-cuda 4: all_gather"]
    stored = tmp_path / "rows.json"
    assert command.main([*chosen, "--mode", "pretended", "--json", str(stored)], modules) == 0
    found = json.loads(stored.read_text(encoding="utf-8"))
    assert all(any(row["step"].startswith(name) for row in found) for name in chosen)
    assert {row["result"] for row in found} == {"passed"}, found
    assert found[0].keys() == {"step", "ran", "result", "figure", "seconds", "numbers"}
    assert "nothing here says what a real one does" in capsys.readouterr().out


def test_every_operation_is_a_step_under_gloo_cuda_and_under_nccl_on_one_and_on_all_gpus():
    with pretended(MODES["nccl"]):
        names = [step.name for step in operations.steps("pretended")]
    for world, least in (("nccl 1", 1), ("nccl 4", 4), ("gloo-cuda 4", 4)):
        expected = {f"{world}: {name}" for name, each in operations.OPERATIONS.items()
                    if each.least <= least and world.startswith(each.only or "")}
        assert {name for name in names if name.startswith(world)} == expected


def test_an_operation_that_fails_or_hangs_names_itself_and_the_next_one_has_other_ranks(monkeypatch, capsys):
    def made_up(name):
        while name == "hangs" and dist.get_rank() == 1:
            pass
        assert name != "raises" or dist.get_rank() != 2, "a wire is loose"
        dist.barrier()
        return 0.001

    monkeypatch.setattr(operations, "TIMEOUT_S", 3.0)
    monkeypatch.setattr(operations, "right_and_timed", made_up)
    monkeypatch.setattr(operations, "steps", lambda mode: [
        Step(name, "made up", partial(operations.try_it, "nccl", 4, name)) for name in ("hangs", "raises", "passes")])
    assert command.main(["--mode", "pretended"], ["tools.gpu_day.operations"]) == 1
    hung, raised, passed = [line for line in capsys.readouterr().out.splitlines() if "made up" in line]
    assert "FAILED" in hung and "rank 1" in hung, hung
    assert "FAILED" in raised and "a wire is loose" in raised, raised
    assert "passed" in passed, passed
