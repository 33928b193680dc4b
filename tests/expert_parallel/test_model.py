"""A GPT with experts learns on many ranks what it learns on one, and bias or loss keep its experts busy."""

import pytest
import torch
import torch.distributed as dist

from course_lib import expert_parallel as ep
from course_lib.reference import GPT, GPTConfig, batches
from course_lib.runtime import launch, record_communication
from tests.ranks import on_ranks

CONFIG = GPTConfig(num_layers=2, hidden_size=16, num_heads=2, vocab_size=256, sequence_length=12)


def gpt(seed=0):
    torch.manual_seed(seed)
    return GPT(CONFIG).double()


def train(ranks_per_group, steps=4, rate=0.0, **options):
    """On a rank, or outside: (state, losses, biases) after some steps with AdamW on 8 rows."""
    W, rank = (dist.get_world_size(), dist.get_rank()) if dist.is_initialized() else (1, 0)
    groups = ep.make_groups(ranks_per_group) if dist.is_initialized() else (None, None)
    model = ep.moe_gpt(gpt(seed=rank), 4, group=groups[0], **options)
    balancer = ep.BiasBalancer(model, rate)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, eps=1e-5)
    losses = []
    for step in range(steps):
        inputs, targets = batches(step, rank, W, batch_size=8, sequence_length=12)
        optimizer.zero_grad()
        loss = model(inputs, targets)[1]
        loss.backward()
        ep.average_gradients(model, None, groups[1])
        optimizer.step()
        balancer.step()
        losses.append(loss.detach())
    return ep.full_state_dict(model), losses, torch.stack([layer.router.bias for layer in ep.moe_layers(model)])


@pytest.mark.parametrize("world_size, ranks_per_group, options", [
    (2, 2, {"balance": 0.1, "z": 0.01, "num_shared": 1}),
    (4, 2, {"balance": 0.1, "num_chunks": 2}),
    (4, 4, {"balance": 0.0, "scoring": "sigmoid", "rate": 0.1, "blocks": [1]}),
])
def test_steps_equal_those_of_one_process(world_size, ranks_per_group, options):
    state, losses, biases = train(1, **options)
    assert state["head.weight"] is state["embedding.token.weight"]  # one matrix, gathered once
    states, of_ranks, all_biases = zip(*launch(train, ranks_per_group, **options, world_size=world_size))
    for of_rank, its_biases in zip(states, all_biases):
        torch.testing.assert_close(of_rank, state, rtol=1e-5, atol=1e-9)
        assert torch.equal(its_biases, biases)
    means = torch.stack([torch.stack(its_losses) for its_losses in of_ranks]).mean(0)
    assert torch.allclose(means, torch.stack(losses), atol=1e-10)


def test_experts_compute_as_much_as_the_mlps_they_replace_and_are_counted_once_each():
    model = ep.moe_gpt(gpt(), 4, k=2)
    mlp = 2 * 16 * 64
    for layer in ep.moe_layers(model):
        assert 2 * sum(p[0].numel() for p in (layer.experts.w1, layer.experts.w2)) == mlp
        assert layer.experts.w2.std() < layer.experts.w1.std()
    assert all(module.training for module in model.modules())
    assert not any(module.training for module in ep.moe_gpt(gpt().eval(), 4).modules())  # or they would be counted
    assert isinstance(model, ep.MoEGPT) and sum("router" in name for name, _ in model.named_parameters()) == 2


def test_the_auxiliary_loss_is_in_the_loss_of_training_and_not_of_evaluation():
    model = ep.moe_gpt(gpt(), 4, balance=0.5, z=0.25)
    inputs, targets = batches(0, 0, 1, batch_size=4, sequence_length=12)
    training, evaluation = model(inputs, targets)[1], model.eval()(inputs, targets)[1]
    assert torch.allclose(training - evaluation, ep.auxiliary_loss(model, 0.5, 0.25))
    assert ep.auxiliary_loss(model, 0.5) >= 0.5 * 2 * (1 - 1e-9)  # two layers, each 1 at least about evenly


@on_ranks(2)
def test_one_message_counts_for_all_layers_every_choice_of_training_and_none_of_an_evaluation():
    model = ep.moe_gpt(gpt(), 4, balance=0.5)
    balancer = ep.BiasBalancer(model)
    rows = batches(0, dist.get_rank(), 2, batch_size=4, sequence_length=12)
    with record_communication() as log:
        model(*rows)
    model(*rows)  # another micro-batch
    with torch.no_grad():
        model.eval()(*rows)
    with record_communication() as of_bias:
        balancer.step()
    # counts, there and back: for each of two layers
    assert (log.calls("all_reduce"), of_bias.calls(), log.calls("all_to_all")) == (1, 1, 6)
    assert balancer.tokens_per_expert.sum(1).tolist() == [2 * 4 * 12 * 2] * 2


def test_the_bias_brings_idle_experts_back():
    torch.manual_seed(0)
    model = ep.moe_gpt(gpt(), 4, k=1, balance=0.0)
    balancer, router = ep.BiasBalancer(model, rate=0.1), model.blocks[0].mlp.router
    with torch.no_grad():
        router.bias[0] = 2.0  # everything goes to expert 0
    for step in range(30):
        model(*batches(step, 0, 1, batch_size=8, sequence_length=12))
        balancer.step()
    assert balancer.tokens_per_expert[0, 0] < 96 and router.bias.grad is None


@pytest.mark.parametrize("wrong, said", [
    (lambda: ep.moe_gpt(ep.moe_gpt(gpt(), 4), 4), "model is a MoEGPT: expected a GPT"),
    (lambda: ep.moe_gpt(gpt(), 4, blocks=[2]), r"blocks=\[2\] of 2: expected numbers from 0 on"),
    (lambda: ep.moe_layers(gpt()), "this GPT has no MoELayer"),
    (lambda: ep.BiasBalancer(ep.moe_gpt(gpt(), 4)).step(), "nothing was counted since the last step"),
    (lambda: made_before(gpt()).step(), "made before moe_gpt cut the parameters"),
])
def test_what_cannot_be_is_refused_with_what_was_expected(wrong, said):
    with pytest.raises(ValueError, match=said):
        wrong()


def made_before(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    ep.moe_gpt(model, 4)
    return optimizer
