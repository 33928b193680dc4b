"""Which backend a launch takes, where messages lie, what the CPU's ranks see of GPUs, and what doctor says of them."""

import os
import subprocess

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from course_lib.reference import GPT, GPTConfig
from course_lib.runtime import backends, context, doctor, launch
from course_lib.runtime.doctor import Check, DoctorReport, _gpus, _look
from tests.ranks import gives, time_limits

GPU, CPU = torch.device("cuda", 0), torch.device("cpu")


@pytest.mark.parametrize(("gpus", "backend", "device", "ranks", "chosen"), [
    (4, "auto", "auto", 4, "nccl"),
    (4, "auto", "auto", 5, "gloo"),
    (0, "auto", "auto", 1, "gloo"),
    (4, "auto", "cpu", 4, "gloo"),
    (4, "gloo", "auto", 4, "gloo"),
    (4, "gloo", "cpu", 4, "gloo"),
    (1, "gloo-cuda", "auto", 4, "gloo-cuda"),
    (4, "nccl", "auto", 4, "nccl"),
    (4, "nccl", "cpu", 2, ValueError("backend='nccl' is for GPUs, and device='cpu' keeps to the CPU")),
    (4, "gloo-cuda", "cpu", 2, ValueError("backend='gloo-cuda' is for GPUs, and device='cpu' keeps to the CPU")),
    (4, "auto", "cuda", 2, ValueError("unknown device 'cuda': expected one of 'auto', 'cpu'")),
    (4, "auto", CPU, 2, ValueError("unknown device")),
    (4, "mpi", "auto", 2, ValueError("unknown backend 'mpi'")),
    (1, "nccl", "auto", 2, ValueError("needs one GPU per rank: 2 ranks were asked for and this machine has 1")),
    (0, "nccl", "auto", 2, ValueError("needs a torch built with CUDA")),
    (0, "gloo-cuda", "auto", 2, ValueError("this machine has none")),
])
def test_nccl_where_there_is_a_gpu_for_each_rank_and_what_does_not_fit_together_is_refused_in_words(
        gpus, backend, device, ranks, chosen, monkeypatch):
    monkeypatch.setattr(backends, "count_gpus", lambda: gpus)
    monkeypatch.setattr(dist, "is_nccl_available", lambda: gpus > 0)
    if isinstance(chosen, str):
        assert backends.choose(backend, device, ranks) == chosen
    else:
        with pytest.raises(ValueError, match=str(chosen)):
            backends.choose(backend, device, ranks)


def test_counting_gpus_initialises_no_driver(monkeypatch):
    """As on a machine with three GPUs: NVML counts them, and what would initialise CUDA raises here."""
    def refuse(*_):
        raise AssertionError("the driver was initialised")

    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("cuda"))
    monkeypatch.setattr(torch.cuda, "_is_compiled", lambda: True)
    monkeypatch.setattr(torch.cuda, "_device_count_nvml", lambda: 3)
    monkeypatch.setattr(torch.cuda, "_cached_device_count", None)
    monkeypatch.setattr(torch.cuda, "_lazy_init", refuse)
    for name in ("_cuda_getDeviceCount", "_cuda_init"):
        monkeypatch.setattr(torch._C, name, refuse, raising=False)
    assert backends.count_gpus() == 3


def visible_gpus():
    return os.environ.get("CUDA_VISIBLE_DEVICES"), torch.cuda.device_count()


@pytest.mark.parametrize("options", [{}, {"device": "cpu"}])
def test_a_rank_on_the_cpu_sees_no_gpu_unless_the_readers_own_env_says_so(options, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    assert launch(visible_gpus, world_size=1, **options) == [("", 0)]
    assert launch(visible_gpus, world_size=1, env={"CUDA_VISIBLE_DEVICES": "1"}, **options)[0][0] == "1"
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "0,1"


@gives([(0, CPU, CPU, {CPU})] * 2, device="cpu")
def test_on_the_cpu_no_default_device_is_set_and_gloos_messages_lie_in_the_hosts_memory_whatever_they_are_about():
    groups = dist.group.WORLD, dist.new_group([0, 1]), dist.new_group(backend="cpu:gloo")
    wires = {backends.wire(group, place) for group in groups for place in (CPU, GPU)}
    return torch._C._len_torch_function_stack(), torch.get_default_device(), context.device(), wires


@pytest.mark.parametrize("timeout", [60.0, 1e9])
def test_every_group_waits_longer_than_a_reader_stays_at_a_breakpoint_and_than_launch_does(timeout):
    a_day, most = 24 * 3600, 7 * 24 * 3600
    assert launch(time_limits, world_size=2, timeout=timeout) == [{min(2 * timeout + a_day, most)}] * 2


# doctor: one look at the machine, with advice where something is missing

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


class ManyMethods(nn.Module):
    """What a model may do that is Python in torch, or makes a tensor."""

    def __init__(self):
        super().__init__()
        self.linear, self.dropout, self.unflatten = nn.Linear(8, 8), nn.Dropout(0.1), nn.Unflatten(1, (2, 4))

    def forward(self, x):
        first, second = self.linear(x).split(4, -1)
        y = self.unflatten(self.dropout(torch.cat([first, second], -1))).flatten(1) + torch.arange(8) + torch.randn(8)
        heads = y.unflatten(-1, [2, -1]).transpose(0, 1)
        return F.scaled_dot_product_attention(heads, heads, heads).norm() + (1 - y).sum() + y.norm(dim=-1).sum()


def test_torch_compile_makes_one_graph_of_a_model_also_under_a_ranks_default_device():
    """A default device of the CPU is a mode like any other: without one, torch.compile sees none."""
    backends.set_default_device(torch.device("cpu"))
    try:
        tokens = torch.zeros(2, 8, dtype=torch.int64)
        for model, given in ((GPT(GPTConfig()), tokens), (ManyMethods(), torch.ones(4, 8))):
            found = torch._dynamo.explain(model)(given)
            assert (found.graph_count, found.graph_break_count) == (1, 0), found.break_reasons
        compiled = torch.compile(lambda x: x.unflatten(-1, (2, 4)) * torch.arange(4), backend="eager", fullgraph=True)
        assert torch.equal(compiled(torch.ones(3, 8)), torch.arange(4.0).expand(3, 2, 4))
    finally:
        backends.unset_default_device()
