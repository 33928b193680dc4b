"""A rank's own device: what lies there without being told to, what arrives there, and what comes back to the CPU."""

import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.distributed._functional_collectives import all_reduce as functional_all_reduce

from course_lib.runtime import RankFailed, backends, device, launcher
from course_lib.runtime.ranks.warm_pool import WarmPool
from tests.pretend.needed import built, on  # noqa: F401  built is a fixture
from tests.ranks import gives
from tests.runtime.zoo import devices, in_plain_words, zoo

pytestmark = pytest.mark.ci

ROOT = Path(__file__).resolve().parents[2]


def where():
    """The rank's device, the default one, that of a new tensor, of the current accelerator; the group's backends."""
    made = torch.ones(2)
    current = torch.accelerator.current_device_index() if torch.accelerator.is_available() else None
    return str(device()), str(torch.get_default_device()), str(made.device), current, dist.get_backend()


CASES = [
    ("nccl", 2, {}, [(f"gpu:{rank}", rank, "cpu:gloo,gpu:nccl") for rank in range(2)]),
    ("laptop", 2, {}, [("cpu", None, "gloo")] * 2),
    ("laptop", 2, {"backend": "gloo-cuda"}, [("gpu:0", 0, "gloo")] * 2),
    *(pytest.param(*case, marks=pytest.mark.ci) for case in [
        ("gloo-cuda", 2, {}, [("gpu:0", 0, "gloo")] * 2),
        ("laptop", 1, {}, [("gpu:0", 0, "cpu:gloo,gpu:nccl")]),
        ("nccl", 2, {"device": "cpu"}, [("cpu", None, "gloo")] * 2),
        ("gloo-cuda", 2, {"device": "cpu"}, [("cpu", None, "gloo")] * 2),
        ("nccl", 2, {"backend": "gloo"}, [("cpu", None, "gloo")] * 2),
    ])]


@pytest.mark.parametrize(("mode", "world_size", "options", "found"), CASES)
def test_a_rank_makes_its_tensors_on_its_own_device(mode, world_size, options, found):
    assert on(mode, where, world_size=world_size, **options) == [(own, own, own, current, backend)
                                                                 for own, current, backend in found]


# What crosses

@pytest.mark.parametrize("mode", ["nccl", pytest.param("gloo-cuda", marks=pytest.mark.ci)])
def test_what_is_sent_arrives_on_the_ranks_device_and_what_it_returns_on_the_cpu_as_it_was_in_whatever_it_is(mode):
    sent = zoo()

    def look(argument):
        here = zoo()
        return (devices(argument), devices(sent), in_plain_words(argument), in_plain_words(sent),
                here, devices(here), in_plain_words(here), argument["module"])

    (*arrived, returned, there, before, model), = on(mode, look, sent, world_size=1)
    assert arrived == [{"gpu"}, {"gpu"}, in_plain_words(sent), in_plain_words(sent)]
    assert there >= {"gpu"} and devices(returned) == {"cpu"}  # an optimiser counts its steps on the CPU
    assert in_plain_words(returned) == before and model.last.weight is model.first.weight, "what was tied stays so"


@pytest.mark.ci
def test_a_collective_that_is_under_way_and_an_exceptions_tensors_come_back_finished():
    def unfinished():
        return functional_all_reduce(torch.ones(1000), "sum", dist.group.WORLD)

    def fail():
        error = ValueError("told")
        error.values = torch.ones(2)
        raise error

    assert all(torch.equal(total, torch.full((1000,), 2.0)) for total in on("nccl", unfinished))
    with pytest.raises(RankFailed) as caught:
        on("nccl", fail)
    assert caught.value.cause.values.device.type == "cpu"


# Random numbers

@pytest.mark.ci
def test_an_equal_seed_gives_all_ranks_equal_numbers_and_a_generator_of_the_cpu_the_cpus():
    generator = torch.Generator().manual_seed(3)

    def draw():
        mine = torch.rand(4).tolist()
        ours = [torch.rand(4, generator=generator), torch.randperm(9, generator=generator),
                torch.randn(2, generator=generator, dtype=torch.float64, requires_grad=True)]
        own = torch.rand(2, generator=torch.Generator(device()).manual_seed(0))
        there = {each.device for each in (*ours, own)} == {device()}
        return mine, there, ours[-1].is_leaf, [each.tolist() for each in ours]

    found = on("nccl", draw, seed=5)
    assert found[0] == found[1]
    _, there, is_leaf, drawn = found[0]
    assert there and is_leaf
    assert drawn == [torch.rand(4, generator=generator).tolist(), torch.randperm(9, generator=generator).tolist(),
                     torch.randn(2, generator=generator, dtype=torch.float64).tolist()]


# Wires

@pytest.mark.ci
def test_a_message_lies_where_one_of_the_groups_backends_takes_it():
    def wires():
        world = dist.group.WORLD
        groups = {"world": world, "sub-group": dist.new_group([0, 1]), "of gloo": dist.new_group(backend="gloo"),
                  "of nccl": dist.new_group(backend="nccl")}
        return {name: [str(backends.wire(group, place)) for place in (torch.device("cpu"), device())]
                for name, group in groups.items()}

    for rank, found in enumerate(on("nccl", wires)):
        own = f"gpu:{rank}"
        assert found == {"world": ["cpu", own], "sub-group": ["cpu", own], "of gloo": ["cpu", "cpu"],
                         "of nccl": [own, own]}
    for found in on("gloo-cuda", lambda: [backends.wire(dist.group.WORLD, place).type for place in
                                          (torch.device("cpu"), device())]):
        assert found == ["cpu", "cpu"]


# Ranks that were not forked

UNDER_TORCHRUN = """
import json, os
import torch
from course_lib.runtime import launch
from tools.harness.pretend import device
from tools.harness.pretend.modes import MODES
from tests.pretend.test_devices import where
device.install(MODES["nccl"], int(os.environ["LOCAL_RANK"]))
made_before = torch.ones(3)
returned = launch(lambda argument: (where(), (made_before + argument).sum()), made_before, world_size=2)
if os.environ["RANK"] == "0":
    print(json.dumps([(*there, str(total.device), total.item()) for there, total in returned]))
"""


@pytest.mark.ci
def test_an_interpreter_kept_warm_goes_back_to_the_cpu_and_to_its_gpu(monkeypatch):
    pool = WarmPool()
    monkeypatch.setattr(launcher, "pool", lambda: pool)
    try:
        there = [on("nccl", where, world_size=1, **options)[0][:3] for options in ({}, {"device": "cpu"}, {})]
    finally:
        pool.close()
    assert there == [("gpu:0",) * 3, ("cpu",) * 3, ("gpu:0",) * 3]


@pytest.mark.ci
def test_torchruns_processes_take_their_gpus_and_the_scripts_tensors_along(tmp_path):
    (tmp_path / "script.py").write_text(UNDER_TORCHRUN)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2",
               str(tmp_path / "script.py")]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=80,
                         env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout.splitlines()[-1]) == [
        [*[f"gpu:{rank}"] * 3, rank, "cpu:gloo,gpu:nccl", "cpu", 6.0] for rank in range(2)]


@pytest.mark.ci
@gives([(True, True)], world_size=1, run=partial(on, "nccl"))
def test_a_module_that_is_moved_keeps_its_parameters():
    with torch.device("cpu"):
        model = torch.nn.ModuleDict({"first": torch.nn.Linear(3, 3), "last": torch.nn.Linear(3, 3)})
    model.last.weight = known = model.first.weight
    model.to(device())
    return model.first.weight is model.last.weight is known, known.device == device()
