"""doctor: one look at the machine, with advice where something is missing."""

import subprocess

from course_lib.runtime import backends, doctor
from course_lib.runtime.doctor import Check, DoctorReport, _gpus, _look


def test_this_machine_is_fit_and_two_real_ranks_met():
    report = doctor()
    assert report.ok, str(report)
    ranks = next(check for check in report.checks if check.name == "ranks")
    assert "summed their ranks" in ranks.found
    assert repr(report) == "doctor: everything the course needs is here"


def test_what_is_missing_is_named_with_advice():
    report = DoctorReport((Check("torch", "2.1", "the course needs torch 2.8"), Check("cores", "2")))
    assert not report.ok
    assert repr(report) == "doctor: look at torch"
    assert "-> the course needs torch 2.8" in str(report)
    assert "<b>the course needs torch 2.8</b>" in report._repr_mimebundle_()["text/html"]


def test_a_check_that_breaks_is_a_finding():
    def _loopback():
        raise OSError("no network at all")

    check = _look(_loopback)
    assert not check.ok
    assert check.found == "OSError: no network at all"


# GPUs

def nvidia_smi(monkeypatch, *names, nccl=True):
    """A machine whose driver lists GPUs that torch does not find."""
    answer = subprocess.CompletedProcess([], 0, stdout="".join(f"{name}\n" for name in names))
    monkeypatch.setattr("shutil.which", lambda name: "/usr/bin/nvidia-smi")
    monkeypatch.setattr("subprocess.run", lambda *_, **__: answer)
    monkeypatch.setattr("torch.distributed.is_nccl_available", lambda: nccl)
    monkeypatch.setattr(backends, "count_gpus", lambda: 0)


def test_a_machine_without_a_gpu_is_fit(monkeypatch):
    monkeypatch.setattr("shutil.which", lambda name: None)
    monkeypatch.setattr(backends, "count_gpus", lambda: 0)
    assert _gpus() == Check("GPUs", "none: ranks compute on the CPU")


def test_a_gpu_that_a_torch_for_cpus_cannot_use_is_named_and_no_fault(monkeypatch):
    nvidia_smi(monkeypatch, "H200", "H200", nccl=False)
    check = _gpus()
    assert check.ok
    assert check.found.startswith("none: nvidia-smi lists H200, H200, but this torch (")
    assert check.found.endswith("is built without CUDA, so ranks compute on the CPU")


def test_a_torch_for_gpus_that_finds_none_gets_advice_on_the_driver(monkeypatch):
    nvidia_smi(monkeypatch, "H200")
    check = _gpus()
    assert not check.ok
    assert "finds none" in check.found and "update the driver" in check.advice
