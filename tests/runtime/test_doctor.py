"""doctor: one look at the machine, with advice where something is missing."""

import subprocess

import pytest

from course_lib.runtime import backends, doctor
from course_lib.runtime.doctor import Check, DoctorReport, _gpus, _look


def test_this_machine_is_fit_and_two_real_ranks_met():
    report = doctor()
    assert report.ok, str(report)
    ranks = next(check for check in report.checks if check.name == "ranks")
    assert "summed their ranks" in ranks.found and repr(report) == "doctor: everything the course needs is here"


def test_what_is_missing_is_named_with_advice_and_a_check_that_breaks_is_a_finding():
    report = DoctorReport((Check("torch", "2.1", "the course needs torch 2.8"), Check("cores", "2")))
    assert not report.ok and repr(report) == "doctor: look at torch"
    assert "-> the course needs torch 2.8" in str(report)
    assert "<b>the course needs torch 2.8</b>" in report._repr_mimebundle_()["text/html"]

    def _loopback():
        raise OSError("no network at all")

    check = _look(_loopback)
    assert not check.ok and check.found == "OSError: no network at all"


@pytest.mark.parametrize("names, nccl, ok, said", [
    (None, True, True, ["none: ranks compute on the CPU"]),
    (["H200", "H200"], False, True, ["none: nvidia-smi lists H200, H200, but this torch (",
                                     "is built without CUDA, so ranks compute on the CPU"]),
    (["H200"], True, False, ["finds none", "update the driver"]),
], ids=["no GPU", "a torch for CPUs", "an old driver"])
def test_gpus_that_torch_does_not_find_are_named_and_a_fault_only_for_a_torch_for_gpus(names, nccl, ok, said,
                                                                                     monkeypatch):
    answer = subprocess.CompletedProcess([], 0, stdout="".join(f"{name}\n" for name in names or []))
    monkeypatch.setattr("shutil.which", lambda name: "/usr/bin/nvidia-smi" if names else None)
    monkeypatch.setattr("subprocess.run", lambda *_, **__: answer)
    monkeypatch.setattr("torch.distributed.is_nccl_available", lambda: nccl)
    monkeypatch.setattr(backends, "count_gpus", lambda: 0)
    check = _gpus()
    assert check.ok == ok and all(words in f"{check.found} {check.advice}" for words in said), check
