"""Which experts see a token, what is kept of that, and the order of rows: against brute force."""

import re

import hypothesis.strategies as st
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from torch.utils.flop_counter import FlopCounterMode

from course_lib import expert_parallel as ep
from course_lib.expert_parallel import experts as module
from course_lib.runtime.torch_private import grouped_mm

choices = st.tuples(st.integers(0, 12), st.integers(1, 6), st.integers(1, 4), st.integers(0, 2**31))


def drawn(num_tokens, num_experts, k, seed):
    """experts (N, k), different ones for each token, and weights (N, k) among which there are equal ones."""
    generator = torch.Generator().manual_seed(seed)
    k = min(k, num_experts)
    experts = torch.rand(num_tokens, num_experts, generator=generator).argsort(-1)[:, :k]
    return experts, torch.randint(4, (num_tokens, k), generator=generator).double()


@settings(max_examples=60)
@given(choices)
def test_rows_lie_by_expert_in_the_order_in_which_they_came_and_come_back(choice):
    experts, weights = drawn(*choice)
    tokens = torch.randn(len(experts), 3, dtype=torch.float64)
    rows, order = ep.permute(tokens, experts)
    k = experts.shape[1]
    by_hand = sorted(range(experts.numel()), key=lambda place: int(experts.flatten()[place]))
    assert order.tolist() == by_hand and torch.equal(rows, tokens[order // k])
    assert torch.allclose(ep.unpermute(rows, order, weights), tokens * weights.sum(-1, keepdim=True), atol=1e-14)
    kept = weights > 1
    rows, order = ep.permute(tokens, experts, kept)
    assert order.tolist() == [place for place in by_hand if kept.flatten()[place]]
    expected = tokens * (weights * kept).sum(-1, keepdim=True)
    assert torch.allclose(ep.unpermute(rows, order, weights), expected, atol=1e-14)
    assert ep.tokens_per_expert(experts, 9, kept).tolist() == [int((experts[kept] == e).sum()) for e in range(9)]


@settings(max_examples=60)
@given(choices, st.integers(0, 6), st.booleans())
def test_an_expert_keeps_its_capacity_slot_after_slot_or_the_heaviest(choice, capacity, by_weight):
    experts, weights = drawn(*choice)
    N, k = experts.shape
    queue = [(token, slot) for slot in range(k) for token in range(N)]
    if by_weight:
        queue.sort(key=lambda place: -float(weights[place]))
    taken, expected = [0] * 9, torch.zeros(N, k, dtype=torch.bool)
    for place in queue:
        expert = int(experts[place])
        expected[place] = taken[expert] < capacity
        taken[expert] += 1
    assert torch.equal(ep.capacity_mask(experts, 9, capacity, weights if by_weight else None), expected)


@pytest.mark.parametrize("scoring", ["softmax", "sigmoid"])
@pytest.mark.parametrize("k", [1, 2, 3, 4])
def test_the_k_best_scores_are_chosen_and_weights_are_scores_or_add_up_to_one(scoring, k):
    logits = torch.randn(20, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(k))
    scores = logits.softmax(-1) if scoring == "softmax" else logits.sigmoid()
    expected = scores.sort(-1, descending=True)
    for normalize in (True, False):
        routing = ep.route(logits, k, scoring, normalize)
        assert torch.equal(routing.experts, expected.indices[:, :k]) and torch.equal(routing.logits, logits)
        weights = expected.values[:, :k]
        if normalize and k > 1:
            weights = weights / weights.sum(-1, keepdim=True)
        assert torch.allclose(routing.weights, weights, atol=1e-15) and torch.equal(routing.scores, scores)


@pytest.mark.parametrize("scoring", ["softmax", "sigmoid"])
def test_a_bias_that_rises_for_idle_experts_and_falls_for_busy_ones_changes_the_choice_and_not_the_weights(scoring):
    logits = torch.tensor([[2.0, 1.0, 0.0]], requires_grad=True)
    routing = ep.route(logits, 1, scoring, bias=torch.tensor([-1.0, 0.0, 1.0]))
    assert routing.experts.tolist() == [[2]] and routing.weights.item() == routing.scores[0, 2]
    routing.weights.sum().backward()
    assert logits.grad.abs().sum() > 0  # Switch: with k = 1 the score is the weight, and so the router learns
    bias = torch.zeros(4)
    assert ep.update_bias(bias, torch.tensor([8, 4, 0, 4]), 0.5).tolist() == [-0.5, 0, 0.5, 0] and not bias.any()


def test_only_the_best_groups_are_considered_by_the_sum_of_their_best():
    scores = torch.tensor([[0.9, 0.1, 0.6, 0.5, 0.2, 0.3, 0.05, 0.04]])
    logits = scores.logit()
    both = {"scoring": "sigmoid", "num_groups": 4}
    assert sorted(ep.route(logits, 2, top_groups=1, **both).experts[0].tolist()) == [2, 3]  # 1.1 against 1.0
    assert sorted(ep.route(logits, 2, top_groups=2, **both).experts[0].tolist()) == [0, 2]
    generator = torch.Generator().manual_seed(0)
    chosen = ep.route(torch.randn(50, 16, generator=generator), 4, num_groups=8, top_groups=2).experts // 2
    assert max(len(set(of_token)) for of_token in chosen.tolist()) == 2


def test_jitter_shakes_tokens_in_training_alone():
    router = ep.TopKRouter(4, 8, k=2, jitter=0.1)
    tokens = torch.randn(5, 4)
    exact = F.linear(tokens, router.weight)
    torch.manual_seed(0)
    shaken = router(tokens).logits
    assert not torch.equal(shaken, exact)
    assert ((shaken - exact).abs() <= 0.1001 * F.linear(tokens.abs(), router.weight.abs()) + 1e-6).all()
    assert torch.equal(router.eval()(tokens).logits, exact)


def test_scores_have_32_bits_at_least():
    router = ep.TopKRouter(4, 8).bfloat16()
    assert router(torch.randn(3, 4, dtype=torch.bfloat16)).scores.dtype == torch.float32
    with torch.autocast("cpu", torch.bfloat16):
        assert ep.TopKRouter(4, 8)(torch.randn(3, 4)).logits.dtype == torch.float32
    assert ep.TopKRouter(4, 8).double()(torch.randn(3, 4).double()).scores.dtype == torch.float64


def test_the_balancing_loss_is_one_when_even_and_e_when_one_expert_does_everything_and_learns_through_the_scores():
    even = torch.arange(8).view(4, 2) % 4
    assert ep.load_balancing_loss(torch.full((4, 4), 0.25), even).item() == 1
    alone = torch.tensor([[1.0, 0, 0, 0]]).expand(4, 4)
    assert ep.load_balancing_loss(alone, torch.zeros(4, 1, dtype=torch.int64)).item() == 4
    scores = torch.rand(6, 4, dtype=torch.float64, requires_grad=True)
    ep.load_balancing_loss(scores, torch.tensor([[0, 1], [0, 2], [0, 1], [0, 3], [1, 0], [0, 1]])).backward()
    assert torch.allclose(scores.grad, (4 * torch.tensor([6, 4, 1, 1]) / 12 / 6).double().expand(6, 4))
    logits = torch.randn(6, 4)
    assert torch.allclose(ep.router_z_loss(logits), logits.exp().sum(-1).log().square().mean())


def naive(layer, tokens):
    """One token after the other, one expert after the other."""
    routing, e = layer.router(tokens), layer.experts
    out = torch.zeros_like(tokens)
    for t, token in enumerate(tokens):
        for expert, weight in zip(routing.experts[t], routing.weights[t]):
            wide = token @ e.w1[expert] + e.b1[expert]
            gate, up = wide.chunk(2) if e.activation == "swiglu" else (wide, None)
            wide = F.gelu(wide, approximate="tanh") if up is None else F.silu(gate) * up
            out[t] += weight * (wide @ e.w2[expert] + e.b2[expert])
    return out


@pytest.mark.parametrize("activation", ["gelu", "swiglu"])
def test_a_layer_is_the_weighted_sum_of_its_experts(activation):
    torch.manual_seed(0)
    layer = ep.MoELayer(6, 10, 5, k=2, activation=activation).double()
    tokens = torch.randn(9, 6, dtype=torch.float64)
    found, expected = layer(tokens), naive(layer, tokens)
    assert torch.allclose(found, expected, atol=1e-12)
    parameters = list(layer.parameters())
    for one, other in zip(torch.autograd.grad(found.square().sum(), parameters),
                          torch.autograd.grad(expected.square().sum(), parameters)):
        assert torch.allclose(one, other, atol=1e-10)


def test_experts_without_tokens_have_gradients_of_zero_and_not_none_and_what_is_dropped_leaves_zeros():
    layer = ep.MoELayer(4, 8, 6, k=1, group=ep.SINGLE)
    layer(torch.randn(1, 4)).sum().backward()
    idle = [e for e in range(6) if e != int(layer.routing.experts)]
    assert all((p.grad[idle] == 0).all() for p in layer.experts.parameters())
    layer.zero_grad()
    layer(torch.randn(0, 4)).sum().backward()
    assert all((p.grad == 0).all() for p in layer.parameters())
    layer = ep.MoELayer(4, 8, 2, k=1, capacity_factor=0.5)
    with torch.no_grad():
        layer.router.weight.copy_(torch.tensor([[1.0, 0, 0, 0], [-1, 0, 0, 0]]))
    out = layer(torch.ones(8, 4))  # all for expert 0, which takes ceil(0.5 x 8 / 2) = 2
    assert (~layer.kept).sum() == 6 and (out[2:] == 0).all() and (out[:2] != 0).any(-1).all()


def test_a_backward_pass_makes_one_product_for_each_gradient_that_is_wanted():
    for of_tokens, of_weights, num_products in ((True, True, 4), (False, True, 3), (True, False, 2)):
        experts = ep.Experts(4, 8, num_here=2).requires_grad_(of_weights)
        y = experts(torch.randn(6, 4, requires_grad=of_tokens), [2, 4]).sum()
        with FlopCounterMode(display=False) as counter:
            y.backward()
        assert counter.get_total_flops() == num_products * 2 * 6 * 4 * 8


@pytest.mark.parametrize("activation, bias", [("gelu", True), ("swiglu", False)])
def test_one_kernel_for_all_experts_gives_what_one_product_for_each_gives(monkeypatch, activation, bias):
    torch.manual_seed(0)
    experts = ep.Experts(16, 24, 5, activation, bias).bfloat16()
    rows, d_out = torch.randn(2, 40, 16).bfloat16()
    wanted = rows.requires_grad_(), *experts.parameters()
    found, calls = [], []
    monkeypatch.setattr(module, "grouped_mm", lambda *given: calls.append(1) or grouped_mm(*given))
    for by_one in (False, True):
        monkeypatch.setattr(module, "has_grouped_mm", lambda x, by_one=by_one: by_one)
        out = experts(rows, [7, 0, 30, 3, 0])
        found.append([out.detach(), *torch.autograd.grad(out, wanted, d_out)])
    assert len(calls) == 2 * (4 if bias else 3)
    for one, other in zip(*found):
        torch.testing.assert_close(one, other, rtol=0.05, atol=0.05)
    experts(rows[:0], [0] * 5)  # nothing to ask a kernel for


@pytest.mark.parametrize("wrong, said", [
    (lambda: ep.route(torch.zeros(2, 4), 5), r"k=5 of 4 experts: expected 1 to 4"),
    (lambda: ep.route(torch.zeros(4), 1), r"logits float32\[4\] on cpu: expected \(tokens, experts\)"),
    (lambda: ep.route(torch.zeros(2, 4), 1, "tanh"), "scoring='tanh': expected one of softmax, sigmoid"),
    (lambda: ep.TopKRouter(4, 8, num_groups=2), "num_groups=2, top_groups=None: expected both or neither"),
    (lambda: ep.TopKRouter(4, 8, num_groups=3, top_groups=1), "expected groups that divide the experts"),
    (lambda: ep.TopKRouter(4, 8, k=3, num_groups=4, top_groups=1), "k=3 experts from 1 groups of 2"),
    (lambda: ep.TopKRouter(4, 8, jitter=1), "jitter=1: expected a number from 0 to below 1"),
    (lambda: ep.TopKRouter(4, 8)(torch.zeros(2, 5)), r"tokens float32\[2, 5\] on cpu: expected \(N, 4\)"),
    (lambda: ep.MoELayer(4, 8, 2)(torch.zeros(2, 5)), r"expected \(\.\.\., 4\)"),
    (lambda: ep.MoELayer(4, 8, 2, activation="relu"), "activation='relu': expected one of gelu, swiglu"),
    (lambda: ep.MoELayer(4, 8, 2, capacity_factor=0), "capacity_factor=0: expected a finite number above 0"),
    (lambda: ep.MoELayer(4, 8, 2).tokens_per_expert(), "has not seen any tokens yet"),
    (lambda: ep.permute(torch.zeros(3, 2), torch.zeros(2, 1, dtype=torch.int64)), r"expected int64\[3, k\]"),
    (lambda: ep.capacity_mask(torch.zeros(2, 1, dtype=torch.int64), 2, -1), "capacity=-1"),
])
def test_what_cannot_be_is_refused_with_what_was_expected(wrong, said):
    with pytest.raises(ValueError) as refused:
        wrong()
    assert re.search(said, str(refused.value)), str(refused.value)
