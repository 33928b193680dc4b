"""record_memory: parameters, gradients and optimiser state to the byte, activations as autograd saves."""

import gc
import pickle
import weakref

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.utils.checkpoint import checkpoint

from course_lib.reference import GPT, GPTConfig, batches
from course_lib.runtime import MemoryLog, launch, record_memory, span
from course_lib.runtime.instruments.storage_book import OTHER, Track
from tests.runtime.zoo import Tied

FLOAT = 4  # bytes
KINDS = ("parameters", "gradients", "optimizer_state", "activations", "other")


@pytest.fixture(autouse=True)
def seed_torch():
    torch.manual_seed(0)


def gpt():
    return GPT(GPTConfig(num_layers=2, hidden_size=32, num_heads=4, sequence_length=16))


def parameter_bytes(model):
    return sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())


def adamw_bytes(of_parameters):
    """Two moments, and a step count for each parameter of the GPT that is a scalar tensor."""
    return 2 * of_parameters + len(list(gpt().parameters())) * FLOAT


def storage_bytes(tensors):
    return sum({t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in tensors}.values())


def saved_by_autograd(model, tokens, targets):
    """Bytes of the storages that autograd saves in a forward pass, the parameters' not counted."""
    saved, own = [], {parameter.untyped_storage()._cdata for parameter in model.parameters()}
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: saved.append(tensor.detach()) or tensor.detach(),
                                                  lambda tensor: tensor):
        model(tokens, targets)
    return storage_bytes(tensor for tensor in saved if tensor.untyped_storage()._cdata not in own)


def test_a_step_of_the_gpt_holds_twice_its_parameters_as_state_and_the_activations_that_autograd_saved():
    model, (tokens, targets) = gpt(), batches(0, batch_size=4, sequence_length=16)
    optimizer, weights = torch.optim.AdamW(model.parameters()), parameter_bytes(model)
    with record_memory(model=model, optimizer=optimizer) as log:
        assert log.current == weights
        _, loss = model(tokens, targets)
        after_forward = log.by_kind["activations"]
        loss.backward()
        optimizer.step()
    assert after_forward == log.peak_by_kind["activations"] == saved_by_autograd(model, tokens, targets)
    assert log.by_kind["activations"] == storage_bytes([tokens, targets])  # autograd lets go of all but our batch
    assert log.by_kind["parameters"] == log.by_kind["gradients"] == weights
    assert log.by_kind["optimizer_state"] == adamw_bytes(weights) == log.peak_by_kind["optimizer_state"]
    with record_memory(model=model, optimizer=optimizer) as second:
        optimizer.zero_grad()
    assert second.over_time()[-1] == second.current == weights + adamw_bytes(weights)
    assert second.peak_by_kind["gradients"] == weights


def test_tied_parameters_count_once_frozen_and_unused_ones_have_no_gradient_and_no_momentum():
    model = Tied()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    with record_memory(model=model, optimizer=optimizer) as log:
        model.last(model.first(torch.ones(1, 3))).sum().backward()
        optimizer.step()
    tied, frozen, unused, buffer = 9 * FLOAT, 3 * FLOAT, 100 * FLOAT, 3
    assert log.by_kind == dict(zip(KINDS, (tied + frozen + unused, tied, tied, 0, buffer)))


def test_a_model_counts_that_is_built_inside_the_block_or_named_and_not_one_that_was_there_before():
    with record_memory() as log:
        model = nn.Linear(10, 10)
        optimizer = torch.optim.AdamW(model.parameters())
        model(torch.randn(3, 10)).sum().backward()
        optimizer.step()
    assert log.by_kind == dict(zip(KINDS, (440, 440, 2 * 440 + 2 * FLOAT, 0, 0)))
    model, batch = nn.Linear(10, 10), torch.randn(3, 10)
    with record_memory() as log:
        model(batch).sum().backward()
        batch.add_(1)
    assert log.peak_by_kind["parameters"] == 0 and log.by_kind["gradients"] == 440
    assert log.peak_by_kind["activations"] == batch.numel() * FLOAT  # but autograd saved the batch


def test_the_peak_of_a_step_is_the_one_computed_by_hand():
    B, D = 8, 64
    weight, x = nn.Parameter(torch.randn(D, D)), torch.randn(B, D)
    with record_memory(parameters=[weight]) as log:
        loss = (x @ weight).relu().sum()
        forward_peak = log.peak
        loss.backward()
    rows = B * D * FLOAT
    # forward: the weight; x, saved; x @ weight, which relu does not save; relu's output, saved
    assert forward_peak == D * D * FLOAT + 3 * rows
    # backward at the matmul: the weight, its gradient; x; the gradient of x @ weight, the loss, its gradient
    assert log.at_peak == dict(zip(KINDS, (D * D * FLOAT, D * D * FLOAT, 0, rows, rows + 2 * FLOAT)))
    assert log.peak == sum(log.at_peak.values())


def test_views_share_a_storage_and_one_that_is_freed_or_emptied_is_gone_at_once_and_can_come_back():
    before = torch.zeros(50)
    before.untyped_storage().resize_(0)
    with record_memory() as log:
        a = torch.zeros(100)
        views = [a[10:], a.view(10, 10).t(), a.expand(5, 100)]
        a.add_(1)
        b = a + 1
        assert log.current == 800
        del b, a, views
        a = torch.zeros(100)
        a.untyped_storage().resize_(0)
        assert log.current == 0
        a.untyped_storage().resize_(400)
        before.untyped_storage().resize_(200)
    assert log.over_time() == [400, 800, 400, 0, 400, 0, 400, 600] and log.peak == 800


def test_under_checkpointing_only_the_inputs_of_the_blocks_stay_and_one_block_is_recomputed_at_a_time():
    blocks = nn.Sequential(*(nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 16)) for _ in range(4)))
    x = torch.randn(8, 16, requires_grad=True)
    with record_memory(model=blocks) as log:
        y = x
        for block in blocks:
            y = checkpoint(block, y, use_reentrant=False)
        assert log.by_kind["activations"] == 4 * 8 * 16 * FLOAT
        y.sum().backward()
    assert log.peak_by_kind["activations"] == 4 * 8 * 16 * FLOAT + 2 * 8 * 64 * FLOAT
    plain, = torch.autograd.grad(blocks(x).sum(), blocks[0][0].weight)
    assert torch.equal(plain, blocks[0][0].weight.grad)


# Recording changes nothing about the program

def test_while_recording_double_backward_works_and_changing_a_saved_tensor_in_place_is_still_an_error():
    x = torch.randn(4, dtype=torch.double, requires_grad=True)
    with record_memory(parameters=x):
        assert torch.autograd.gradgradcheck(lambda x: (x.exp() * x.sin()).tanh(), x)
        y = torch.ones(3, requires_grad=True).exp()
        y.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.sum().backward()


def test_a_saved_output_is_freed_without_the_garbage_collector():
    gc.disable()
    try:
        with record_memory() as log:
            x = torch.ones(10, requires_grad=True)
            y = x.exp()  # exp saves its own output
            storage = weakref.ref(y.untyped_storage())
            del y
            assert storage() is None and log.current == 40
    finally:
        gc.enable()


def test_every_hook_is_gone_after_the_block_even_after_an_exception():
    model = nn.Linear(4, 4)
    push, resize = torch._C._autograd._push_saved_tensors_default_hooks, torch.UntypedStorage.resize_
    with pytest.raises(RuntimeError, match="halfway"), record_memory(model=model) as log:
        model(torch.ones(2, 4)).sum().backward()
        raise RuntimeError("halfway")
    assert torch._C._autograd._push_saved_tensors_default_hooks is push and torch.UntypedStorage.resize_ is resize
    assert not any(parameter._post_accumulate_grad_hooks for parameter in model.parameters())
    num_changes = len(log.over_time())
    model(torch.ones(2, 4)).sum().backward()
    assert len(log.over_time()) == num_changes and log.by_kind["gradients"] == 80


def test_nested_recorders_see_the_same():
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh())
    with record_memory(model=model) as outer, record_memory(model=model) as inner:
        checkpoint(model, torch.ones(2, 8), use_reentrant=False).sum().backward()
        assert outer.peak_by_kind == inner.peak_by_kind and outer.over_time() == inner.over_time()


# What may be named

def test_tensors_are_named_by_their_kind_functions_are_asked_again_and_anything_else_is_refused(snapshot):
    shards, master = [], [torch.zeros(10)]
    half = nn.Linear(10, 10, bias=False).bfloat16()
    with record_memory(model=half, optimizer=torch.optim.AdamW(master), optimizer_state=lambda: {"shards": shards},
                       activations=iter([torch.zeros(3)])) as log:
        shards.append(torch.zeros(7))
    assert log.by_kind == dict(zip(KINDS, (200, 0, 40 + 28, 12, 0)))
    said = []
    for named in ({"batch": torch.ones(2)}, {"model": 3}, {"parameters": ["w"]}, {"gradients": lambda: 1.5}):
        with pytest.raises(ValueError) as refused, record_memory(**named):
            pass
        said.append(str(refused.value))
    assert "\n".join(said) == snapshot


# The log

def test_spans_become_phases_counted_in_torch_operations_and_an_empty_log_says_what_to_do():
    with record_memory() as log:
        with span("outer"):
            a = torch.ones(2)
            with span("inner"):
                b = a + 1
        b + a
    assert [(phase.name, phase.start, phase.end, phase.depth) for phase in log.phases] == [
        ("inner", 1, 2, 1), ("outer", 0, 2, 0)]
    assert "record_memory(model=model)" in repr(MemoryLog.merge([]))
    with record_memory() as log:
        pass
    assert repr(log) == "MemoryLog: rank 0 peaks at 0 B: nothing was allocated"
    assert set(log._repr_mimebundle_()) == {"text/plain"}
    assert log.allocator_peak is None and log.peak_on_gpu is None  # the CPU has no allocator to ask


def test_the_peak_on_a_gpu_leaves_out_what_lies_on_the_host_and_recordings_of_a_rank_keep_the_larger_one():
    first = Track(0, [(1, 0, 100), (2, 1, 500), (3, 0, -100)], [OTHER, OTHER], on_host={1}, allocator_peak=512)
    second = Track(0, [(1, 0, 30), (2, 1, 60)], [OTHER, OTHER], on_host={0}, allocator_peak=1024)
    assert (first.peak(), first.peak_on_gpu(), second.peak(), second.peak_on_gpu()) == (600, 100, 90, 60)
    both = first.followed_by(second)
    assert (both.peak(), both.peak_on_gpu(), both.allocator_peak, both.on_host) == (600, 100, 1024, {1, 2})
    assert Track(0).followed_by(second).allocator_peak == 1024


# On real ranks

def parallel_step(how):
    model, mesh = gpt(), init_device_mesh("cpu", (dist.get_world_size(),))
    if how == "fsdp":
        for part in (*model.blocks, model):
            fully_shard(part, mesh=mesh)
    elif how == "ddp":
        model = nn.parallel.DistributedDataParallel(model)
    else:
        for block in model.blocks:
            parallelize_module(block.mlp, mesh, {"input": ColwiseParallel(), "output": RowwiseParallel()})
    optimizer = torch.optim.AdamW(model.parameters())
    with record_memory(model=model, optimizer=optimizer) as log:
        model(*batches(0, batch_size=2, sequence_length=16))[1].backward()
        optimizer.step()
    return log


SPLIT = (32 * 128 + 128 + 128 * 32) * FLOAT  # in each of two MLPs both matrices and the first bias


@pytest.mark.parametrize("how, world_size", [("ddp", 2), ("tensor parallel", 2), ("fsdp", 1), ("fsdp", 2), ("fsdp", 4)])
def test_ddp_replicates_everything_fsdp2_shards_it_and_of_a_dtensor_the_local_shard_counts(how, world_size):
    whole, block = parameter_bytes(gpt()), parameter_bytes(gpt().blocks[0])  # every parameter divides by 4
    local = {"ddp": whole, "tensor parallel": whole - 2 * SPLIT // 2, "fsdp": whole // world_size}[how]
    results = launch(parallel_step, how, world_size=world_size)
    for log in results:
        assert log.by_kind["parameters"] == log.by_kind["gradients"] == local
        assert log.by_kind["optimizer_state"] == adamw_bytes(local)
        if how == "fsdp" and world_size > 1:  # the root keeps its own parameters gathered; then one of two blocks
            assert log.peak_by_kind["parameters"] == local + (whole - 2 * block) + block
    assert results.memory.ranks == tuple(range(world_size))


def step_of_growing_batches():
    model = nn.Linear(100, 100, bias=False)
    for size in (1, 100):
        with record_memory(model=model), span("forward"):
            model(torch.ones(size * (dist.get_rank() + 1), 100)).sum()


def test_a_merged_log_answers_for_its_fullest_rank_and_keeps_the_others(snapshot):
    merged = launch(step_of_growing_batches, world_size=4).memory
    weight, rows = 40_000, 100 * 100 * FLOAT
    peaks = [weight + 2 * (rank + 1) * rows + FLOAT for rank in range(4)]
    assert [merged.by_rank(rank).peak for rank in merged.ranks] == peaks and merged.peak == peaks[3]
    assert merged.by_rank(0).phases[-1].name == "forward"
    drawn = pickle.loads(pickle.dumps(merged))._repr_mimebundle_()
    assert drawn["text/plain"] == repr(merged) == snapshot and drawn["image/png"].startswith(b"\x89PNG")
    with pytest.raises(ValueError, match="rank 9 recorded no memory"):
        merged.by_rank(9)
    with pytest.raises(ValueError, match="unknown kind 'weights'; the kinds are parameters, "):
        merged.over_time("weights")
