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
from torch import nn
from torch.distributed._functional_collectives import all_reduce as functional_all_reduce
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import DataLoader, DistributedSampler, random_split

from course_lib import checkpoint, data_parallel, expert_parallel, reference
from course_lib.groups.exchange import start_agreement
from course_lib.pipeline_parallel import PipelineParallel, one_f_one_b
from course_lib.runtime import Deadlock, RankFailed, backends, device, launcher, start_ranks
from course_lib.runtime.ranks.pools import WarmPool
from tests.pretend.needed import built, on  # noqa: F401  built is a fixture
from tests.ranks import time_limits
from tests.runtime.zoo import devices, in_plain_words, zoo
from tools.harness.pretend.hook import pretended
from tools.harness.pretend.modes import MODES

pytestmark = pytest.mark.ci

ROOT = Path(__file__).resolve().parents[2]
nccl = partial(on, "nccl", world_size=1)
SHARED, HOST = ("gpu:0", 0, "gloo"), ("cpu", None, "gloo")


def where():
    """The rank's device, the default one, that of a new tensor, of the current accelerator; the group's backends."""
    made = torch.ones(2)
    current = torch.accelerator.current_device_index() if torch.accelerator.is_available() else None
    return str(device()), str(torch.get_default_device()), str(made.device), current, dist.get_backend()


@pytest.mark.parametrize(("mode", "world_size", "options", "found"), [
    ("nccl", 2, {}, [(f"gpu:{rank}", rank, "cpu:gloo,gpu:nccl") for rank in range(2)]),
    ("laptop", 1, {}, [("gpu:0", 0, "cpu:gloo,gpu:nccl")]), ("laptop", 2, {}, [HOST] * 2),
    ("laptop", 2, {"backend": "gloo-cuda"}, [SHARED] * 2), ("gloo-cuda", 2, {}, [SHARED] * 2),
    ("nccl", 2, {"device": "cpu"}, [HOST] * 2), ("gloo-cuda", 2, {"device": "cpu"}, [HOST] * 2),
    ("nccl", 2, {"backend": "gloo"}, [HOST] * 2)])
def test_a_rank_makes_its_tensors_on_its_own_device(mode, world_size, options, found):
    assert on(mode, where, world_size=world_size, **options) == [(own, own, own, current, backend)
                                                                 for own, current, backend in found]


@pytest.mark.parametrize("mode", ["nccl", "gloo-cuda"])
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


def test_a_collective_under_way_and_an_exceptions_tensors_come_back_finished_and_a_moved_module_keeps_its_parameters():
    def unfinished():
        with torch.device("cpu"):
            model = nn.ModuleDict({"first": nn.Linear(3, 3), "last": nn.Linear(3, 3)})
        model.last.weight = known = model.first.weight
        model.to(device())
        assert model.first.weight is model.last.weight is known and known.device == device()
        return functional_all_reduce(torch.ones(1000), "sum", dist.group.WORLD)

    def fail():
        error = ValueError("told")
        error.values = torch.ones(2)
        raise error

    assert all(torch.equal(total, torch.full((1000,), 2.0)) for total in on("nccl", unfinished))
    with pytest.raises(RankFailed) as caught:
        on("nccl", fail)
    assert caught.value.cause.values.device.type == "cpu"


def test_a_message_lies_where_one_of_the_groups_backends_takes_it():
    def wires():
        groups = {"world": dist.group.WORLD, "sub-group": dist.new_group([0, 1])}
        if dist.get_backend() != "gloo":
            groups |= {"of gloo": dist.new_group(backend="gloo"), "of nccl": dist.new_group(backend="nccl")}
        return {name: [str(backends.wire(group, place)) for place in (torch.device("cpu"), device())]
                for name, group in groups.items()}

    for rank, found in enumerate(on("nccl", wires)):
        own = f"gpu:{rank}"
        assert found == {"world": ["cpu", own], "sub-group": ["cpu", own], "of gloo": ["cpu", "cpu"],
                         "of nccl": [own, own]}
    assert on("gloo-cuda", wires) == [dict.fromkeys(("world", "sub-group"), ["cpu", "cpu"])] * 2
    assert on("nccl", time_limits, timeout=50) == [{100.0 + 24 * 3600}] * 2


class Waits(TorchDispatchMode):
    """Operators that end only when the GPU has done all before them: a number, a size or a tensor goes to the host."""

    SIZES = ("nonzero", "_local_scalar_dense", "masked_select", "bincount", "repeat_interleave", "unique", "equal")

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **kwargs or {})
        name, inside = func.overloadpacket.__name__, [each for each in args if isinstance(each, torch.Tensor)]
        on_gpu = any(each.device.type != "cpu" for each in inside)
        masks = [index for index in args[1] if index is not None and index.dtype == torch.bool] if name in (
            "index", "index_put_") else []
        copied = name in ("_to_copy", "copy_") and on_gpu and out.device.type == "cpu"
        if copied or masks or on_gpu and name.startswith(self.SIZES):
            self.seen.append(name + ", not waited for" * (len(args) == 3 and args[2] is True))  # non_blocking
        return out


@pytest.mark.parametrize("mode", ["nccl", "gloo-cuda"])
def test_an_expert_layer_waits_for_the_gpu_once_however_its_rows_travel(mode):
    def waits():
        found, pairs = {}, expert_parallel.make_groups(2)
        for name, options in {"plain": {}, "dropping": {"capacity_factor": 0.7}, "in chunks": {"num_chunks": 2},
                              "dropping, in chunks": {"num_chunks": 2, "capacity_factor": 0.7},
                              "two levels": {"nodes": pairs, "capacity_factor": 0.7}}.items():
            layer = expert_parallel.MoELayer(8, 16, 4, num_shared=1, **options)
            tokens = torch.randn(12, 8, requires_grad=True)
            with Waits() as forward:
                out = layer(tokens)
            with Waits() as backward:
                out.sum().backward()
            # Over gloo the rows themselves go through the host's memory.
            found[name] = (forward.seen, backward.seen) if dist.get_backend() != "gloo" else (
                [wait for wait in forward.seen if not wait.endswith(("_to_copy", "copy_"))], [])
        return found

    one = (["_to_copy"], []) if mode == "nccl" else ([], [])
    # One wait for each level: what arrives on the node says what goes on from there.
    two = (["_to_copy"] * 2, []) if mode == "nccl" else ([], [])
    for found in on(mode, waits):
        assert found == {name: two if name == "two levels" else one for name in found}


def test_a_checkpoint_in_the_background_has_the_numbers_of_the_call_and_the_host_does_not_wait_for_the_gpu(tmp_path):
    def save():
        model, folder = nn.Linear(64, 64), tmp_path / "run"
        optimizer = torch.optim.AdamW(model.parameters())
        model(torch.ones(2, 64)).sum().backward()
        optimizer.step()
        before = {name: value.clone() for name, value in model.state_dict().items()}
        optimizer.state[model.weight]["exp_avg"].fill_(3)
        with Waits() as waits:
            checkpoint.save(folder, model, optimizer, background=True)
        for tensor in (model.weight, *optimizer.state[model.weight].values()):
            tensor.data.fill_(7)
        checkpoint.finish()
        there = checkpoint.read_state_dict(folder)
        assert all(torch.equal(there[name], value.cpu()) for name, value in before.items())
        other = nn.Linear(64, 64)
        again = torch.optim.AdamW(other.parameters())
        checkpoint.load(folder, other, again)
        assert again.state[other.weight]["exp_avg"].eq(3).all()
        return waits.seen

    # Copies that are asked for, of two parameters and their averages
    assert on("nccl", save, world_size=1) == [["copy_, not waited for"] * 6]
    assert on("cpu", save, world_size=1) == [[]]


# Ranks that were not forked, and ranks that stay

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


def test_an_interpreter_kept_warm_goes_back_to_the_cpu_and_to_its_gpu(monkeypatch):
    pool = WarmPool()
    monkeypatch.setattr(launcher, "pool", lambda: pool)
    try:
        there = [nccl(where, **options)[0][:3] for options in ({}, {"device": "cpu"}, {})]
    finally:
        pool.close()
    assert there == [("gpu:0",) * 3, ("cpu",) * 3, ("gpu:0",) * 3]


def test_torchruns_processes_take_their_gpus_and_the_scripts_tensors_along(tmp_path):
    (tmp_path / "script.py").write_text(UNDER_TORCHRUN)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2",
               str(tmp_path / "script.py")]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=80,
                         env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout.splitlines()[-1]) == [
        [*[f"gpu:{rank}"] * 3, rank, "cpu:gloo,gpu:nccl", "cpu", 6.0] for rank in range(2)]


@pytest.mark.parametrize(("mode", "world_size", "lies_on"), [
    ("nccl", 2, "gpu"), ("gloo-cuda", 2, "gpu"), ("laptop", 1, "gpu"), ("laptop", 2, "cpu")])
def test_ranks_that_stay_hold_tensors_of_their_device_and_go_on_after_an_error_or_a_hang(mode, world_size, lies_on):
    add_up = "x = torch.ones(3) + dist.get_rank()\ndist.all_reduce(x)\nx.device.type, x.tolist()"
    total = float(sum(1 + rank for rank in range(world_size)))
    summed = dict.fromkeys(range(world_size), f"('{lies_on}', {[total] * 3})")
    with pretended(MODES[mode]), start_ranks(world_size) as team:
        assert team.run_cell(add_up, scope={"torch": torch, "dist": dist}) == summed
        assert [x.device.type for x in team.pull("x")] == ["cpu"] * world_size
        team.push(pushed=torch.ones(2))
        assert team[world_size - 1].eval("pushed.device.type") == lies_on
        with pytest.raises(RankFailed, match="All ranks live"):
            team.run_cell("if dist.get_rank() == dist.get_world_size() - 1:\n    raise ValueError('no')\n"
                          "dist.all_reduce(x)")
        assert team.run_cell(add_up) == summed
        assert team.snapshot()[0]["by_kind"]["other"] == 20
        if mode != "laptop":
            with pytest.raises(Deadlock, match="All ranks live"):
                team.run_cell("if dist.get_rank():\n    dist.barrier()")
            assert len(team.pull("x")) == world_size and team.run_cell(add_up) == summed


def skips_one():
    total = torch.ones(4)
    for step in range(3):
        if step != 1 or dist.get_rank() != 2:
            dist.all_reduce(total)
    return total.sum().item()


def goes_another_way():
    total = torch.ones(4)
    dist.broadcast(total, 0) if dist.get_rank() == 2 else dist.all_reduce(total)
    torch.accelerator.synchronize()


def receive():
    total = torch.ones(4)
    dist.recv(total, 1 - dist.get_rank())
    return total.tolist()


@pytest.mark.parametrize(("hang", "world_size", "timeout", "ranks", "words"), [
    (skips_one, 3, 60, (0, 1), ["total.sum().item() has called all_reduce 3 times",
                                "rank 2 has returned normally has called all_reduce 2 times",
                                "rank 2 has made one all_reduce fewer than ranks 0 and 1"]),
    (goes_another_way, 3, 60, (0, 1, 2), ["rank 2 has made one all_reduce fewer than ranks 0 and 1",
                                          "ranks 0 and 1 have made one broadcast fewer than rank 2"]),
    (receive, 2, 8, (0, 1), ["return total.tolist() has called recv once", "2 recv and 0 send have been called"])],
    ids=["a call left out", "different calls", "only when time is up: each might still send"])
def test_a_rank_that_hangs_where_it_reads_from_its_gpu_is_a_deadlock_told_by_what_the_ranks_have_called(
        hang, world_size, timeout, ranks, words):
    with pytest.raises(Deadlock) as caught:
        on("nccl", hang, world_size=world_size, timeout=timeout)
    message = " ".join(str(caught.value).split())
    assert caught.value.ranks == ranks and all(each in message for each in words), message


# What a GPU as the default device would break: the CPU's generators, text, and processes that a rank forks

def test_an_equal_seed_gives_all_ranks_equal_numbers_and_a_generator_of_the_cpu_the_cpus():
    def draw(generator):
        ours = [torch.rand(4, generator=generator), torch.randperm(9, generator=generator),
                torch.randn(2, generator=generator, dtype=torch.float64, requires_grad=True)]
        own = torch.rand(2, generator=torch.Generator(device()).manual_seed(0))
        assert {each.device for each in (*ours, own)} == {device()} and ours[-1].is_leaf
        return torch.rand(4).tolist(), [each.tolist() for each in ours]

    generator = torch.Generator().manual_seed(3)
    first, second = on("nccl", draw, generator, seed=5)
    assert first == second and first[1] == draw(generator)[1]


class Squares:
    """A data set of plain numbers, whose batches DataLoader makes with torch.tensor."""

    def __len__(self):
        return 8

    def __getitem__(self, index):
        return index**2, str(torch.ones(1).device)


def test_a_data_loader_shuffles_with_its_own_generator_and_its_workers_touch_no_gpu():
    def seen(num_workers):
        numbers, places = zip(*DataLoader(Squares(), batch_size=4, shuffle=True, num_workers=num_workers))
        return sorted(torch.cat(numbers).tolist()), {place for batch in places for place in batch}

    squares = [n**2 for n in range(8)]
    assert nccl(lambda: [seen(0), seen(2)])[0] == [(squares, {"gpu:0"}), (squares, {"cpu"})]


def test_shuffles_and_first_guesses_that_need_a_seed_are_those_of_the_cpu_and_so_is_a_model_made_with_one():
    def chosen():
        guesses = data_parallel.power_sgd_hook(rank=2).first_guess([torch.ones(3, 4)], 7)
        assert {guess.device for guess in guesses} == {device()}
        parts = random_split(range(10), [7, 3], generator=torch.Generator().manual_seed(0))
        layer = nn.Linear(3, 2)
        layer.weight = nn.Parameter(torch.randn(2, 3, generator=torch.Generator().manual_seed(0)))
        return (list(DistributedSampler(range(10), num_replicas=2, rank=0, seed=1)), [list(part) for part in parts],
                data_parallel.ShardedSampler(10, 0, 2).order(), [guess.tolist() for guess in guesses],
                layer.weight.tolist())

    assert nccl(chosen) == [chosen()]


def test_text_is_cut_on_the_cpu_and_batches_training_and_evaluation_have_the_cpus_numbers_on_the_ranks_device(tmp_path):
    own = tmp_path / "text"
    own.write_text("a reader's own text, long enough. " * 20)

    def read(tokens=None):
        pieces = [*reference.batches(3, 0, 2, batch_size=4, sequence_length=8, tokens=tokens),
                  *reference.held_out_rows(3, 8, tokens)]
        assert {piece.device for piece in pieces} == {device()}
        return [piece.tolist() for piece in pieces]

    def everywhere(mine, gpt, text):
        again = reference.load_text(own, sequence_length=8)
        assert again.device.type == "cpu"
        log = reference.train(gpt, steps=2, batch_size=4, tokens=text, progress=False)
        return [read(), read(mine), read(again)], [
            reference.unigram_entropy(mine), reference.unigram_entropy(reference.load_text()), *log.losses,
            reference.evaluate(gpt, tokens=text), reference.evaluate(gpt)]

    given = (reference.load_text(own, sequence_length=8),
             reference.GPT(reference.GPTConfig(2, 16, 4, 256, 16)).double(), reference.load_text()[:20_000].clone())
    ((there, numbers),), (here, expected) = nccl(everywhere, *given), everywhere(*given)
    assert there == here and numbers == pytest.approx(expected, abs=1e-9)


class CountReads(TorchDispatchMode):
    """Operators for which the host waits for the GPU: a number read, or numbers copied to the host's memory."""

    reads = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        on_gpu = [each for each in args if isinstance(each, torch.Tensor) and each.device.type != "cpu"]
        returned = func(*args, **(kwargs or {}))
        to_host = isinstance(returned, torch.Tensor) and returned.device.type == "cpu"
        self.reads += bool(on_gpu) and (to_host or func is torch.ops.aten._local_scalar_dense.default)
        return returned


@pytest.mark.parametrize("optimizer_class", [torch.optim.AdamW, torch.optim.SGD, torch.optim.Adagrad])
def test_from_its_second_step_on_an_optimiser_reads_nothing_from_the_gpu(optimizer_class):
    def read():
        model, found = nn.Linear(2, 2), []
        optimizer = optimizer_class(model.parameters(), lr=0.1)
        for _ in range(3):
            with CountReads() as counts:
                model(torch.ones(1, 2)).sum().backward()
                optimizer.step()
            found.append(counts.reads)
        return found[1:]

    assert on("nccl", read, world_size=1) == [[0, 0]]


def test_from_its_second_step_on_a_pipeline_and_what_ranks_agree_on_read_nothing_from_the_gpu():
    def read():
        stages, found = [nn.Linear(2, 2)], []
        pipeline = PipelineParallel(stages, one_f_one_b(2, 4), None, nn.functional.mse_loss)
        for _ in range(3):
            with CountReads() as counts:
                loss = pipeline.step(torch.ones(4, 2), torch.ones(4, 2))
                start_agreement(None, [1])()
            found.append(counts.reads)
        assert loss.device == device()
        return found[0] > 0, found[1:]  # the first step goes through the hosts' memory

    assert on("nccl", read) == [(True, [0, 0])] * 2
