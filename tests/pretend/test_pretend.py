"""The pretended GPU itself: what it refuses, what waits for what, and that its numbers are the CPU's.

Everything happens in ranks, so that the process of the tests keeps no device.
"""

import os
import time
from functools import partial

import pytest
import torch
import torch.distributed as dist

from course_lib.runtime import staging
from tests.pretend.needed import built, on  # noqa: F401  built is a fixture
from tests.ranks import gives
from tools.harness.pretend.modes import REFUSED_BY_GLOO

pytestmark = pytest.mark.ci

nccl = partial(gives, run=partial(on, "nccl"))
STORE = dist.distributed_c10d._get_default_store


def gpu():
    return torch.device("gpu", torch.accelerator.current_device_index())


def refusals(attempts):
    """name -> the first words of the RuntimeError, for functions of a pretended and a host tensor."""
    said = {}
    for name, attempt in attempts.items():
        try:
            attempt(torch.arange(4.0, device=gpu()), torch.arange(4.0, device="cpu"))
            said[name] = None
        except RuntimeError as error:
            said[name] = str(error).split(",")[0].split(" (")[0]
    return said


# Arithmetic

def test_tensors_of_two_devices_do_not_mix_but_for_host_scalars_indices_and_copies():
    def mixed():
        return refusals({
            "add": lambda a, b: a + b,
            "add in place": lambda a, b: b.add_(a),
            "cat": lambda a, b: torch.cat([a, b]),
            "matmul": lambda a, b: a @ b,
            "another GPU": lambda a, b: a + torch.arange(4.0, device="gpu:1" if gpu().index == 0 else "gpu:0"),
            "loss": lambda a, b: torch.nn.functional.mse_loss(a, b),
            "select by host": lambda a, b: a.index_select(0, b.long()),
            "host scalar": lambda a, b: a * b[2] + 1.0,
            "index from the host": lambda a, b: a[b.long()],
            "copy": lambda a, b: a.copy_(b),
        })

    said = on("nccl", mixed)[0]
    assert [name for name, words in said.items() if words is None] == ["host scalar", "index from the host", "copy"]
    assert {words for words in said.values() if words} == {"Expected all tensors to be on the same device"}


OPERATORS = {
    "out= that grows": lambda x, y: torch.add(x, y, out=x.new_empty(0)),
    "out= as it is": lambda x, y: torch.mul(x, y, out=torch.zeros_like(x)),
    "out= across strides": lambda x, y: torch.add(x, y, out=torch.zeros_like(x).t()),
    "two out=": lambda x, y: torch.max(x, 1, out=(x.new_empty(0), x.new_empty(0, dtype=torch.int64))),
    "several results": lambda x, y: torch.topk(x, 2),
    "in place on a view": lambda x, y: (x[1:, ::2].mul_(y[1:, ::2]), x),
    "a list in place": lambda x, y: (torch._foreach_add_([x, x[0]], [y, y[0]]), x),
    "a list of results": lambda x, y: torch._foreach_mul([x, y], 2.0),
    "expanded": lambda x, y: x[:1].expand(3, 4) @ y,
    "put by index": lambda x, y: x.index_put_((torch.tensor([0, 2]), ), y[0], accumulate=True),
    "take by mask": lambda x, y: x[x > 5],
    "of another kind": lambda x, y: (x.to(torch.bfloat16) @ y.to(torch.bfloat16)).float().sum(0, dtype=torch.float64),
    "a choice": lambda x, y: torch.where(x > y, x, 0.0).cumsum(0).sort(descending=True).values,
    "complex": lambda x, y: torch.fft.fft(x).abs() * y,
    "nothing": lambda x, y: torch.cat([x[:0], y[:0]]).sum(),
    "made there": lambda x, y: torch.arange(3, 9, 2, device=x.device) + torch.ones(3, dtype=x.dtype, device=x.device),
}


def test_operators_give_the_same_numbers_shapes_and_strides_as_on_the_host():
    def results(device):
        found = {}
        for name, operator in OPERATORS.items():
            x = torch.arange(16.0, device=device).reshape(4, 4)
            y = (torch.arange(16.0, device=device) % 5).reshape(4, 4)
            given = operator(x, y[:3].t() if name == "expanded" else y)
            found[name] = [(each.tolist(), each.stride()) for each in
                           torch.utils._pytree.tree_leaves(given) if each is not None]
        return found

    there, here = on("nccl", lambda: (results(gpu()), results("cpu")))[0]
    assert there == here and len(here) == len(OPERATORS)


@pytest.mark.ci
def test_a_generator_of_the_host_draws_nothing_on_the_gpu_and_an_equal_seed_gives_other_numbers():
    def drawn():
        host, own = torch.Generator(), torch.Generator(device=gpu())
        said = refusals({
            "host's on the GPU": lambda a, b: torch.rand(3, device=gpu(), generator=host),
            "host's permutation": lambda a, b: torch.randperm(3, device=gpu(), generator=host),
            "GPU's on the host": lambda a, b: torch.rand(3, device="cpu", generator=own),
            "GPU's on the GPU": lambda a, b: torch.rand(3, device=gpu(), generator=own),
        })
        torch.manual_seed(7)
        first, host_first = torch.rand(8, device=gpu()), torch.rand(8, device="cpu")
        torch.manual_seed(7)
        state = torch.gpu.get_rng_state()
        again = torch.rand(8, device=gpu())
        torch.gpu.set_rng_state(state)
        restored = torch.equal(torch.rand(8, device=gpu()), again)
        return said, torch.equal(first, again), restored, torch.equal(first.cpu(), host_first)

    said, *equal = on("nccl", drawn)[0]
    assert said.pop("GPU's on the GPU") is None
    assert all("device type for generator but found" in words for words in said.values())
    assert equal == [True, True, False]


# Wires

def peer():
    return 1 - dist.get_rank()


OPERATIONS = {
    "send": lambda t: [work.wait() for work in (dist.isend(t, peer()), dist.irecv(t.clone(), peer()))],
    "recv": lambda t: [work.wait() for work in (dist.irecv(t.clone(), peer()), dist.isend(t, peer()))],
    "broadcast": lambda t: dist.broadcast(t, 0),
    "all_reduce": lambda t: dist.all_reduce(t),
    "reduce": lambda t: dist.reduce(t, 0),
    "all_gather": lambda t: dist.all_gather([torch.empty_like(t) for _ in range(2)], t),
    "gather": lambda t: dist.gather(t, [torch.empty_like(t) for _ in range(2)] if dist.get_rank() == 0 else None, 0),
    "scatter": lambda t: dist.scatter(t, [t.clone(), t.clone()] if dist.get_rank() == 0 else None, 0),
    "reduce_scatter": lambda t: dist.reduce_scatter_tensor(torch.empty_like(t[:2]), t),
    "all_to_all": lambda t: dist.all_to_all_single(torch.empty_like(t), t),
}


def refused():
    """The backend's name, and for tensors of the host and of the GPU: operation -> why it is refused."""
    refusing = {"cpu": {}, "gpu": {}}
    for kind, device in (("cpu", torch.device("cpu")), ("gpu", gpu())):
        for name, operation in OPERATIONS.items():
            if kind == "gpu" and dist.get_backend() == "nccl" and name in ("send", "recv"):
                continue  # one at a time they wait for each other: below
            try:
                operation(torch.arange(4.0, device=device))
            except RuntimeError as error:
                refusing[kind][name] = str(error)
    return dist.get_backend(), refusing


def test_plain_nccl_refuses_every_host_tensor_with_torchs_own_words():
    def plain_nccl():
        store = STORE()
        dist.destroy_process_group()
        dist.init_process_group("nccl", store=dist.PrefixStore("again", store), device_id=gpu(),
                                rank=int(os.environ["RANK"]), world_size=int(os.environ["WORLD_SIZE"]))
        return refused()

    host = dict.fromkeys(OPERATIONS, "No backend type associated with device type cpu")
    assert on("nccl", plain_nccl)[1] == ("nccl", {"cpu": host, "gpu": {}})


def test_a_gpu_under_gloo_refuses_what_its_documentation_does_not_promise():
    def unstaged():
        staging.uninstall()
        return refused()

    backend, refusing = on("gloo-cuda", unstaged)[1]
    assert backend == "gloo" and refusing["cpu"] == {}
    assert refusing["gpu"].keys() == set(REFUSED_BY_GLOO) - {"recv from any rank"}


@nccl([("cpu:gloo,gpu:nccl", "cpu:gloo,gpu:nccl", [2.0, 2.0], [2.0, 2.0])] * 2)
def test_a_composite_group_takes_both_and_says_its_composite_name():
    host, own = torch.ones(2, device="cpu"), torch.ones(2, device=gpu())
    dist.all_reduce(host)
    dist.all_reduce(own, dist.ReduceOp.AVG)
    subgroup = dist.new_group([0, 1])
    dist.all_reduce(own, group=subgroup)
    return dist.get_backend(), dist.get_backend(subgroup), host.tolist(), own.tolist()


# What waits for what

def test_a_collective_returns_to_the_host_at_once_and_a_copy_or_an_event_waits_for_it():
    """Rank 1 comes late; rank 0 measures with events how long its all-reduce takes, and on the host how long at least.
    """
    def runs_ahead():
        values, store = torch.ones(4, device=gpu()), STORE()
        start, end = (torch.Event("gpu", enable_timing=True) for _ in range(2))
        if dist.get_rank() == 1:
            store.get("rank 0 has called")  # blocks until it is there
        start.record()
        began_s = time.monotonic()
        dist.all_reduce(values)
        end.record()
        finished_at_once = end.query()
        late_s = time.monotonic() - began_s
        if dist.get_rank() == 0:
            store.set("rank 0 has called", "")
        total = values.tolist()  # a copy waits
        return finished_at_once, total, start.elapsed_time(end) - 1e3 * late_s

    (at_once, total, longer_than_rank_1_was_late_ms), _ = on("nccl", runs_ahead)
    assert not at_once and total == [2.0] * 4 and longer_than_rank_1_was_late_ms > 0


def batched_ring(group=None):
    rank, n = dist.get_rank(), dist.get_world_size()
    mine, theirs = torch.full((3,), float(rank), device=gpu()), torch.empty(3, device=gpu())
    messages = [dist.P2POp(dist.isend, mine, (rank + 1) % n, group),
                dist.P2POp(dist.irecv, theirs, (rank - 1) % n, group)]
    for work in dist.batch_isend_irecv(messages):
        work.wait()
    return theirs.tolist()


def unbatched_ring():
    """Whether the message is there when a batched ring, begun when all ranks had asked for both, has gone round."""
    rank, n = dist.get_rank(), dist.get_world_size()
    others = dist.new_group()
    mine, theirs = torch.full((3,), float(rank), device=gpu()), torch.empty(3, device=gpu())
    dist.isend(mine, (rank + 1) % n)
    work = dist.irecv(theirs, (rank - 1) % n)
    store = STORE()
    store.set(f"rank {rank} has asked for both", "")
    store.wait([f"rank {other} has asked for both" for other in range(n)])
    batched_ring(others)
    return work.is_completed()


@pytest.mark.ci
def test_batched_messages_go_round_a_ring_that_unbatched_ones_block_where_the_group_is_bound_to_a_device():
    assert on("nccl", batched_ring, world_size=3) == [[float((rank - 1) % 3)] * 3 for rank in range(3)]
    assert on("nccl", unbatched_ring, world_size=3) == [False] * 3


# What the ranks of launch find

def found():
    return torch.accelerator.is_available()


@pytest.mark.ci
@pytest.mark.parametrize(("mode", "options", "there"), [
    ("nccl", {}, True), ("nccl", {"device": "cpu"}, False), ("laptop", {}, False),
    ("laptop", {"env": {"CUDA_VISIBLE_DEVICES": "0"}}, True), ("cpu", {}, False)])
def test_a_rank_finds_the_modes_gpus_unless_they_are_hidden_from_it_and_its_caller_keeps_none(mode, options, there):
    built_with_nccl = dist.is_nccl_available()
    assert on(mode, found, **options) == [there] * 2
    assert not torch.accelerator.is_available() and dist.is_nccl_available() == built_with_nccl
