"""The pretended GPU itself: what it refuses, what waits for what, and that its numbers are the CPU's.

Everything happens in ranks, so that the process of the tests keeps no device.
"""

import os
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
