"""Recomputed is stored: the same losses, gradients and random numbers, and the memory of torch.utils.checkpoint; for
arguments of every kind, with dropout and autocast, nested, and run backward twice."""

import copy
import gc
import weakref
from functools import partial

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from course_lib.reference import GPT, GPTConfig
from course_lib.runtime import record_memory
from course_lib.sequence_parallel import recompute, recomputed_flops
from course_lib.sequence_parallel.recompute import RecomputedFunction
from course_lib.why_distribute import shape_of

CONFIG = GPTConfig(num_layers=3, hidden_size=32, num_heads=4, vocab_size=64, sequence_length=32, dropout=0.2)
torchs = partial(partial, checkpoint, use_reentrant=False)


def gpt(kind, config=CONFIG):
    torch.manual_seed(0)
    model = GPT(config)
    for block in model.blocks:
        if kind in ("full", "selective"):
            block.forward = recompute(block.forward, kind)
        if kind == "torch full":
            block.forward = torchs(block.forward)
        if kind == "torch selective":
            block.attention.attend = torchs(block.attention.attend)
        if kind in ("nested", "torch nested"):
            wrap = recompute if kind == "nested" else torchs
            block.attention.forward = wrap(block.attention.forward)
            block.forward = wrap(block.forward)
    return model


def step(model, autocast=False):
    """(loss, gradients, the next random number) of a forward and backward pass that begins with the same seed."""
    tokens = torch.randint(0, model.config.vocab_size, (2, model.config.sequence_length))
    torch.manual_seed(1)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        loss = model(tokens, tokens)[1]
    loss.backward()
    return loss, [p.grad for p in model.parameters()], torch.rand(3)


def equal(first, second):
    torch.testing.assert_close(first, second, rtol=0, atol=0)


@pytest.mark.parametrize("kind", ["full", "selective", "nested", "torch full"])
@pytest.mark.parametrize("autocast", [False, True])
def test_a_recomputed_gpt_with_dropout_gives_the_numbers_of_a_stored_one_to_the_bit(kind, autocast):
    torch.manual_seed(2)
    expected = step(gpt("none"), autocast)
    torch.manual_seed(2)
    equal(step(gpt(kind), autocast), expected)


@pytest.mark.parametrize("kind", ["full", "selective", "nested"])
def test_memory_is_that_of_torchs_checkpoint_at_every_moment(kind):
    def over_time(which):
        model = gpt(which)
        with record_memory(model=model) as log:
            step(model)
        return log.over_time("activations")

    assert max(over_time(kind)) == max(over_time(f"torch {kind}")) < max(over_time("none"))


@pytest.mark.parametrize("policy", ["full", "selective"])
def test_the_flops_paid_are_the_formulas_and_torchs(policy):
    for dropout in (0.0, 0.2):
        config = GPTConfig(num_layers=2, hidden_size=32, num_heads=2, vocab_size=64, sequence_length=16,
                           dropout=dropout)
        counted = {}
        for kind in ("none", policy, f"torch {policy}"):
            with FlopCounterMode(display=False) as counter:
                step(gpt(kind, config))
            counted[kind] = counter.get_total_flops()
        paid = counted[policy] - counted["none"]
        assert paid == counted[f"torch {policy}"] - counted["none"]
        assert paid == recomputed_flops(shape_of(config), 2, policy=policy, dropout=dropout > 0)


class Layer:
    """tanh(x W), with leaves of its own."""

    def __init__(self):
        torch.manual_seed(0)
        self.x, self.W = torch.randn(8, 8, requires_grad=True), torch.randn(8, 8, requires_grad=True)

    def __call__(self, x, gain=1.0):
        return torch.tanh(x @ self.W) * gain

    def gradients(self, y):
        y.float().sum().backward()
        return self.x.grad, self.W.grad


def no_input_gradient(layer, wrap):
    return layer.gradients(wrap(layer)(layer.x.detach()))


def gradient_of_a_weight(layer, wrap):
    return torch.autograd.grad(wrap(layer)(layer.x).sum(), layer.W), layer.W.grad


def changed_in_place(layer, wrap):
    h = layer.x * 1
    y = wrap(layer)(h)
    h.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        layer.gradients(y)


def backward_for_one_result_and_then_for_both(layer, wrap):
    y, z = wrap(lambda x: (layer(x), x.exp()))(layer.x)
    first, = torch.autograd.grad(z.sum(), layer.x, retain_graph=True)
    return first, torch.autograd.grad(y.sum() + z.sum(), (layer.x, layer.W))


def arguments_and_results_of_every_kind(layer, wrap):
    def of_everything(x, pair, *, options, scale, names=()):
        hidden = layer(x * pair[0] + pair[1] * options["bias"], gain=scale)
        return {"hidden": hidden, "sum": [hidden.sin().sum(), len(names)], "x": x}

    out = wrap(of_everything)(layer.x, (layer.W[0], torch.ones(8)), options={"bias": 2.0}, scale=torch.tensor(3.0),
                              names=("a", "b"))
    assert out["sum"][1] == 2 and out["x"] is layer.x
    return layer.gradients(out["hidden"].cos().sum() + out["sum"][0]), out["hidden"]


def second_derivatives_inside(layer, wrap):
    def energy(x):
        with torch.enable_grad():
            return torch.autograd.grad((layer(x) ** 3).sum(), x, create_graph=True)[0] * x

    return layer.gradients(wrap(energy)(layer.x))


@pytest.mark.parametrize("situation", [
    no_input_gradient, gradient_of_a_weight, changed_in_place, backward_for_one_result_and_then_for_both,
    arguments_and_results_of_every_kind, second_derivatives_inside])
def test_recompute_does_what_autograd_alone_does(situation):
    """Notebook 7 shows what two short forms do in such situations instead."""
    equal(situation(Layer(), recompute), situation(Layer(), lambda function: function))


def test_the_function_runs_once_more_for_each_backward_pass_and_stops_where_the_last_tensor_is_saved():
    calls, ends, inner, layer = [], [], [], Layer()

    def function(x):
        calls.append(1)
        h = x.exp() * 2
        inner.append(weakref.ref(h))
        y = recompute(layer)(h).exp() + 1  # exp saves its result, and the addition nothing
        ends.append(1)
        return y

    out = recompute(function)(layer.x).sum()
    assert inner[0]() is None  # a recomputation inside another keeps none of its input
    for passes in (1, 2, 3):
        assert (len(calls), len(ends)) == (passes, 1)
        torch.autograd.grad(out, layer.x, retain_graph=True)
    with torch.no_grad():
        assert not recompute(function)(layer.x).requires_grad
    assert recompute(lambda x: x.exp())(torch.ones(2)).requires_grad is False and len(calls) == 5


def test_an_error_inside_is_the_readers_own_and_leaves_everything_as_it_was():
    def fails(x):
        x.exp()
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        recompute(fails)(torch.ones(2, requires_grad=True))
    x = torch.ones(2, requires_grad=True)
    assert x.exp().grad_fn._saved_result.tolist() == x.exp().tolist()  # nobody packs any more


def test_nothing_is_held_once_the_graph_is_gone():
    def tensors_alive():
        gc.collect()
        return sum(issubclass(type(each), torch.Tensor) for each in gc.get_objects())

    model = gpt("nested")
    before = tensors_alive()
    step(model)
    model.zero_grad()
    assert tensors_alive() <= before


def test_another_number_or_another_shape_the_second_time_is_said():
    sizes = iter((2, 2, 3, 1, 4, 5))

    def shrinks(x):
        for _ in range(next(sizes)):
            x = x.exp()
        return x

    def changes(x):
        return x[:next(sizes)].exp()

    x = torch.ones(6, requires_grad=True)
    out = recompute(shrinks)(x)
    assert out.sum().backward() is None
    with pytest.raises(ValueError, match="shrinks saved 3 tensors for the backward pass, and 1 when it was run again"):
        recompute(shrinks)(x).sum().backward()
    with pytest.raises(ValueError, match=r"changes saved .*\[4\].* as tensor 0 .*\[5\].*: expected the same"):
        recompute(changes)(x).sum().backward()


@pytest.mark.parametrize("mistake, said", [
    (lambda: recompute(torch.sin, "some"), "policy='some': expected one of full, selective"),
    (lambda: recompute(3), "module_or_fn=3: expected a module or a function"),
    (lambda: recompute(nn.Linear(2, 2), "selective"), "policy='selective' of Linear: expected a module, or a method"),
    (lambda: recompute(torch.sin, "selective"), "for any other function use policy='full'"),
])
def test_a_mistake_is_answered_with_what_was_expected(mistake, said):
    with pytest.raises(ValueError, match=said):
        mistake()


def test_selective_leaves_attention_as_it_was_whatever_happens():
    block = gpt("none").blocks[0]
    before = block.attention.attend
    recompute(block, "selective")(torch.randn(1, 4, 32)).sum().backward()
    with pytest.raises(RuntimeError):
        recompute(block, "selective")(torch.randn(1, 4, 31))
    assert block.attention.attend is before


class Core(nn.Module):
    def forward(self, x):
        return (x @ x.mT).softmax(-1) @ x


class ByMethod(nn.Module):
    def attend(self, x):
        return Core.forward(self, x)

    def forward(self, x):
        return self.attend(x)


class ByModule(nn.Module):
    forward = ByMethod.forward

    def __init__(self):
        super().__init__()
        self.attend = Core()


@pytest.mark.parametrize("kind", [ByMethod, ByModule])
def test_the_core_may_be_a_module_or_a_method(kind):
    model, x, kept, gradients = kind(), torch.randn(2, 6, 3, requires_grad=True), [], []
    for call in (model, recompute(model, "selective")):
        with record_memory() as log:
            out = call(x)
            kept.append(log.by_kind["activations"])
            gradients.append(torch.autograd.grad(out.sum(), x))
    equal(*gradients)
    assert kept[0] - kept[1] >= 2 * 6 * 6 * 4 and (kind is ByModule or "attend" not in vars(model))


def test_a_copy_of_a_model_recomputes_its_own_blocks():
    model = gpt("full")
    twin = copy.deepcopy(model)
    assert isinstance(twin.blocks[0].forward, RecomputedFunction)
    assert twin.blocks[0].forward.function.__self__ is twin.blocks[0]
