"""record_memory: parameters, gradients and optimiser state to the byte, activations as autograd saves."""

import gc
import weakref

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from course_lib.reference import GPT, GPTConfig, batches
from course_lib.runtime import MemoryLog, record_memory, span
from course_lib.runtime.instruments.memory_track import OTHER, Track

FLOAT = 4  # bytes


@pytest.fixture(autouse=True)
def seed_torch():
    torch.manual_seed(0)


def gpt():
    return GPT(GPTConfig(num_layers=2, hidden_size=32, num_heads=4, sequence_length=16))


def parameter_bytes(model):
    return sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())


class Oddities(nn.Module):
    """A tied, a frozen and an unused parameter, and a buffer."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(10, 8)
        self.head = nn.Linear(8, 10, bias=False)
        self.head.weight = self.embed.weight
        self.frozen = nn.Parameter(torch.ones(8), requires_grad=False)
        self.unused = nn.Parameter(torch.ones(100))
        self.register_buffer("steps", torch.ones(5))

    def forward(self, tokens):
        return self.head(self.embed(tokens) * self.frozen).sum()


def test_a_step_with_adamw_holds_twice_the_parameters_and_a_scalar_for_each_as_state():
    model = gpt()
    optimizer = torch.optim.AdamW(model.parameters())
    with record_memory(model=model, optimizer=optimizer) as log:
        assert log.current == parameter_bytes(model)
        model(*batches(0, batch_size=4, sequence_length=16))[1].backward()
        assert log.by_kind["gradients"] == parameter_bytes(model)
        optimizer.step()
    num_parameters = len(list(model.parameters()))
    state = 2 * parameter_bytes(model) + num_parameters * FLOAT  # two moments; the step count is a tensor
    assert log.by_kind["parameters"] == log.by_kind["gradients"] == parameter_bytes(model)
    assert log.by_kind["optimizer_state"] == state == log.peak_by_kind["optimizer_state"]
    with record_memory(model=model, optimizer=optimizer) as second:
        optimizer.zero_grad()
    assert second.over_time()[-1] == second.current == parameter_bytes(model) + state
    assert second.peak_by_kind["gradients"] == parameter_bytes(model)


def test_tied_parameters_count_once_frozen_and_unused_ones_have_no_gradient_and_no_momentum():
    model = Oddities()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    with record_memory(model=model, optimizer=optimizer) as log:
        model(torch.tensor([1, 2])).backward()
        optimizer.step()
    tied, frozen, unused, buffer = 10 * 8 * FLOAT, 8 * FLOAT, 100 * FLOAT, 5 * FLOAT
    assert log.by_kind == {"parameters": tied + frozen + unused, "gradients": tied, "optimizer_state": tied,
                           "activations": 0, "other": buffer}


def test_a_model_counts_that_is_built_inside_the_block_or_named_and_not_one_that_was_there_before():
    with record_memory() as log:
        model = nn.Linear(10, 10)
        optimizer = torch.optim.AdamW(model.parameters())
        model(torch.randn(3, 10)).sum().backward()
        optimizer.step()
    assert log.by_kind == {"parameters": 440, "gradients": 440, "optimizer_state": 2 * 440 + 2 * FLOAT,
                           "activations": 0, "other": 0}
    model, batch = nn.Linear(10, 10), torch.randn(3, 10)
    with record_memory() as log:
        model(batch).sum().backward()
        batch.add_(1)
    assert log.peak_by_kind["parameters"] == 0 and log.by_kind["gradients"] == 440
    assert log.peak_by_kind["activations"] == batch.numel() * FLOAT  # but autograd saved the batch


def saved_by_autograd(model, tokens, targets):
    """Bytes of the storages that autograd saves in a forward pass, the parameters' not counted."""
    saved = {}
    own = {parameter.untyped_storage()._cdata for parameter in model.parameters()}

    def pack(tensor):
        if tensor.untyped_storage()._cdata not in own:
            saved[tensor.untyped_storage()._cdata] = tensor.detach()
        return tensor.detach()

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        model(tokens, targets)
    return sum(tensor.untyped_storage().nbytes() for tensor in saved.values())


def test_activations_of_the_gpt_are_what_autograd_saved():
    model, (tokens, targets) = gpt(), batches(0, batch_size=4, sequence_length=16)
    with record_memory(model=model) as log:
        _, loss = model(tokens, targets)
        after_forward = log.by_kind["activations"]
        loss.backward()
    assert after_forward == log.peak_by_kind["activations"] == saved_by_autograd(model, tokens, targets)
    given = sum(tensor.untyped_storage().nbytes() for tensor in (tokens, targets))
    assert log.by_kind["activations"] == given  # autograd lets go of all; the batch is still in our hands


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
    assert log.at_peak == {"parameters": D * D * FLOAT, "gradients": D * D * FLOAT, "optimizer_state": 0,
                           "activations": rows, "other": rows + 2 * FLOAT}
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
    blocks = nn.ModuleList(nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 16)) for _ in range(4))
    x = torch.randn(8, 16, requires_grad=True)
    with record_memory(model=blocks) as log:
        y = x
        for block in blocks:
            y = checkpoint(block, y, use_reentrant=False)
        assert log.by_kind["activations"] == 4 * 8 * 16 * FLOAT
        y.sum().backward()
    assert log.peak_by_kind["activations"] == 4 * 8 * 16 * FLOAT + 2 * 8 * 64 * FLOAT
    recorded = blocks[0][0].weight.grad.clone()
    blocks.zero_grad()
    y = x
    for block in blocks:
        y = block(y)
    y.sum().backward()
    assert torch.equal(recorded, blocks[0][0].weight.grad)


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
    assert torch._C._autograd._push_saved_tensors_default_hooks is push
    assert torch.UntypedStorage.resize_ is resize
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

def test_tensors_are_named_by_their_kind_and_functions_are_asked_again():
    shards = []
    master = [torch.zeros(10)]
    half = nn.Linear(10, 10, bias=False).bfloat16()
    optimizer = torch.optim.AdamW(master)
    with record_memory(model=half, optimizer=optimizer, optimizer_state=lambda: {"shards": shards},
                       activations=iter([torch.zeros(3)])) as log:
        shards.append(torch.zeros(7))
    assert log.by_kind == {"parameters": 200, "gradients": 0, "optimizer_state": 40 + 28, "activations": 12,
                           "other": 0}


def test_anything_else_is_refused_with_what_was_given_and_what_was_expected(snapshot):
    said = []
    for named in ({"batch": torch.ones(2)}, {"model": 3}, {"parameters": ["w"]}, {"gradients": lambda: 1.5}):
        with pytest.raises(ValueError) as refused, record_memory(**named):
            pass
        said.append(str(refused.value))
    assert "\n".join(said) == snapshot


# The log

def test_spans_become_phases_counted_in_torch_operations():
    with record_memory() as log:
        with span("outer"):
            a = torch.ones(2)
            with span("inner"):
                b = a + 1
        b + a
    assert [(phase.name, phase.start, phase.end, phase.depth) for phase in log.phases] == [
        ("inner", 1, 2, 1), ("outer", 0, 2, 0)]


def test_an_empty_log_says_what_to_do():
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
