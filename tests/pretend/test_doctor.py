"""doctor where there are GPUs."""

import pytest

from course_lib.runtime.doctor import _backends, _gpus
from tests.pretend.needed import built  # noqa: F401  a fixture
from tools.harness.pretend.hook import pretended
from tools.harness.pretend.modes import MODES


@pytest.mark.parametrize("mode, num_gpus, backend", [
    ("nccl", 4, "NCCL on GPUs"), ("laptop", 1, "NCCL on GPUs for 1 rank and gloo on the CPU for 4 ranks")])
def test_a_rank_tries_a_gpu_and_the_backends_of_one_and_of_four_ranks_are_named(mode, num_gpus, backend):
    with pretended(MODES[mode]):
        gpus, used = _gpus(), _backends()
    assert gpus.ok
    assert gpus.found.startswith(f"{num_gpus}, and one rank added two tensors on its own. The course has been run")
    assert used.found.endswith(f"launch uses {backend}")


def test_a_gpu_on_which_a_rank_fails_is_a_finding_with_advice(monkeypatch):
    def fails():
        raise RuntimeError("CUDA error: no kernel image is available")

    monkeypatch.setitem(_gpus.__globals__, "_sum_on_own_device", fails)  # the package's `doctor` is the function
    with pretended(MODES["laptop"]):
        check = _gpus()
    assert "no kernel image" in check.found and "device='cpu'" in check.advice
