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
from tests.pretend.needed import OPERATIONS, built, on  # noqa: F401  built is a fixture
from tests.ranks import gives
from tools.harness.pretend.modes import REFUSED_BY_GLOO

pytestmark = pytest.mark.ci

nccl = partial(gives, run=partial(on, "nccl"))
STORE = dist.distributed_c10d._get_default_store


def gpu():
    return torch.device("gpu", torch.accelerator.current_device_index())


# Arithmetic

MIXED = {  # of a pretended and a host tensor -> whether it is refused
    "add": (True, lambda a, b: a + b),
    "add in place": (True, lambda a, b: b.add_(a)),
    "cat": (True, lambda a, b: torch.cat([a, b])),
    "matmul": (True, lambda a, b: a @ b),
    "another GPU": (True, lambda a, b: a + torch.arange(4.0, device="gpu:1" if gpu().index == 0 else "gpu:0")),
    "loss": (True, lambda a, b: torch.nn.functional.mse_loss(a, b)),
    "select by host": (True, lambda a, b: a.index_select(0, b.long())),
    "generator of the host": (True, lambda a, b: torch.rand(3, device=gpu(), generator=torch.Generator())),
    "permutation by the host's": (True, lambda a, b: torch.randperm(3, device=gpu(), generator=torch.Generator())),
    "generator of the GPU": (True, lambda a, b: torch.rand(3, device="cpu", generator=torch.Generator(device=gpu()))),
    "GPU's on the GPU": (False, lambda a, b: torch.rand(3, device=gpu(), generator=torch.Generator(device=gpu()))),
    "host scalar": (False, lambda a, b: a * b[2] + 1.0),
    "index from the host": (False, lambda a, b: a[b.long()]),
    "copy": (False, lambda a, b: a.copy_(b)),
}


def test_tensors_and_generators_of_two_devices_do_not_mix_but_for_host_scalars_indices_and_copies():
    def words():
        said = {}
        for name, (_, attempt) in MIXED.items():
            try:
                attempt(torch.arange(4.0, device=gpu()), torch.arange(4.0, device="cpu"))
            except RuntimeError as error:
                said[name] = str(error)
        return said

    said = on("nccl", words)[0]
    assert said.keys() == {name for name, (refused, _) in MIXED.items() if refused}
    for name, text in said.items():
        assert ("device type for generator but found" if "generator" in name or "permutation" in name else
                "Expected all tensors to be on the same device") in text, name


OPERATORS = {
    "out= that grows": lambda x, y: torch.add(x, y, out=x.new_empty(0)),
    "out= as it is": lambda x, y: torch.mul(x, y, out=torch.zeros_like(x)),
    "out= across strides": lambda x, y: torch.add(x, y, out=torch.zeros_like(x).t()),
    "two out=": lambda x, y: torch.max(x, 1, out=(x.new_empty(0), x.new_empty(0, dtype=torch.int64))),
    "several results": lambda x, y: torch.topk(x, 2),
    "in place on a view": lambda x, y: (x[1:, ::2].mul_(y[1:, ::2]), x),
    "a list in place": lambda x, y: (torch._foreach_add_([x, x[0]], [y, y[0]]), x),
    "a list of results": lambda x, y: torch._foreach_mul([x, y], 2.0),
    "expanded": lambda x, y: x[:1].expand(3, 4) @ y[:3].t(),
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
            given = torch.utils._pytree.tree_leaves(operator(x, (torch.arange(16.0, device=device) % 5).reshape(4, 4)))
            found[name] = [(each.tolist(), each.stride()) for each in given if each is not None]
        return found

    there, here = on("nccl", lambda: (results(gpu()), results("cpu")))[0]
    assert there == here and len(here) == len(OPERATORS)


@nccl([[True, True, False]], world_size=1)
def test_an_equal_seed_gives_equal_numbers_and_others_than_on_the_host_and_a_state_can_be_restored():
    torch.manual_seed(7)
    first, host_first = torch.rand(8, device=gpu()), torch.rand(8, device="cpu")
    torch.manual_seed(7)
    state = torch.gpu.get_rng_state()
    again = torch.rand(8, device=gpu())
    torch.gpu.set_rng_state(state)
    restored = torch.rand(8, device=gpu())
    return [torch.equal(first, again), torch.equal(restored, again), torch.equal(first.cpu(), host_first)]


# Wires

def refused(renew=None):
    """The backend's name, and for tensors of the host and of the GPU: operation -> why it is refused."""
    if renew == "nccl":
        store = STORE()
        dist.destroy_process_group()
        dist.init_process_group("nccl", store=dist.PrefixStore("again", store), device_id=gpu(),
                                rank=int(os.environ["RANK"]), world_size=int(os.environ["WORLD_SIZE"]))
    else:
        staging.uninstall()
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


def test_plain_nccl_refuses_every_host_tensor_and_gloo_on_a_gpu_what_its_documentation_does_not_promise():
    host = dict.fromkeys(OPERATIONS, "No backend type associated with device type cpu")
    assert on("nccl", refused, "nccl")[1] == ("nccl", {"cpu": host, "gpu": {}})
    backend, refusing = on("gloo-cuda", refused)[1]
    assert backend == "gloo" and refusing["cpu"] == {}
    assert refusing["gpu"].keys() == set(REFUSED_BY_GLOO) - {"recv from any rank"}


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


@nccl([([2.0] * 3, False), ([0.0] * 3, False), ([1.0] * 3, False)], world_size=3)
def test_batched_messages_go_round_a_ring_that_unbatched_ones_block_where_the_group_is_bound_to_a_device():
    """Unbatched: whether the message is there when a batched ring, begun when all ranks had asked for both, has gone
    round.
    """
    rank, n, others, store = dist.get_rank(), dist.get_world_size(), dist.new_group(), STORE()
    mine, theirs = torch.full((3,), float(rank), device=gpu()), torch.empty(3, device=gpu())
    dist.isend(mine, (rank + 1) % n)
    work = dist.irecv(torch.empty(3, device=gpu()), (rank - 1) % n)
    store.set(f"rank {rank} has asked for both", "")
    store.wait([f"rank {other} has asked for both" for other in range(n)])
    for each in dist.batch_isend_irecv([dist.P2POp(dist.isend, mine, (rank + 1) % n, others),
                                        dist.P2POp(dist.irecv, theirs, (rank - 1) % n, others)]):
        each.wait()
    return theirs.tolist(), work.is_completed()


def test_gpus_that_are_hidden_from_a_rank_can_be_shown_to_it_and_its_caller_keeps_none():
    built_with_nccl = dist.is_nccl_available()
    assert on("laptop", torch.accelerator.is_available, env={"CUDA_VISIBLE_DEVICES": "0"}) == [True, True]
    assert not torch.accelerator.is_available() and dist.is_nccl_available() == built_with_nccl
