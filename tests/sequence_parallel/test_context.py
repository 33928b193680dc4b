"""A GPT on dealt-out tokens: logits, loss and gradients of one process that has the whole row."""

from functools import partial

import pytest
import torch
import torch.distributed as dist

from course_lib.data_parallel import DistributedDataParallel
from course_lib.reference import GPT, GPTConfig
from course_lib.runtime import launch, record_memory
from course_lib.sequence_parallel import (
    activation_bytes_per_layer,
    context_parallel,
    context_parallel_loss,
    gather_tokens,
    local_positions,
    recompute,
    ring_attention,
    ulysses_attention,
)
from course_lib.why_distribute import shape_of

CONFIG = GPTConfig(num_layers=2, hidden_size=24, num_heads=12, vocab_size=29, sequence_length=48)


def start(dtype):
    torch.manual_seed(0)
    return GPT(CONFIG).to(dtype)


def batch(number, padded=False):
    """tokens and targets (2, 48); padded: the first 31 targets of each row do not count, a prompt's."""
    generator = torch.Generator().manual_seed(number)
    tokens, targets = torch.randint(0, CONFIG.vocab_size, (2, 2, 48), generator=generator)
    if padded:
        targets[:, :31] = -100
    return tokens, targets


def steps(model, run, num_steps, padded):
    """Losses of some steps of AdamW, and the gradients of the first and parameters after the last."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for number in range(num_steps):
        optimizer.zero_grad()
        loss = run(model, *batch(number, padded))
        loss.backward()
        losses.append(loss.item())
        if number == 0:
            gradients = [p.grad.clone() for p in model.parameters()]
        optimizer.step()
    return losses, gradients, [p.detach() for p in model.parameters()]


def alone(model, tokens, targets):
    logits, _ = model(tokens)
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-100)


def on_ranks(layout, dtype, padded, recomputed):
    positions = local_positions(48, None, "contiguous" if layout == "ulysses" else layout)
    attention = ulysses_attention if layout == "ulysses" else partial(ring_attention, layout=layout)
    model = start(dtype)
    if recomputed:
        for block in model.blocks:
            block.forward = recompute(block.forward, recomputed)
    model = DistributedDataParallel(context_parallel(model, attention, positions))

    def run(model, tokens, targets):
        return context_parallel_loss(model(tokens[:, positions])[0], targets[:, positions])

    return steps(model, run, 5, padded)


@pytest.mark.parametrize("layout, world_size, dtype, padded, recomputed", [
    ("zigzag", 1, torch.float64, False, None), ("zigzag", 2, torch.float64, True, "full"),
    ("zigzag", 4, torch.float64, True, None), ("striped", 3, torch.float64, False, "selective"),
    ("contiguous", 4, torch.float64, True, None), ("ulysses", 4, torch.float64, True, None),
    ("zigzag", 3, torch.float32, False, None)])
def test_five_steps_of_a_gpt_are_those_of_one_process(layout, world_size, dtype, padded, recomputed):
    losses, gradients, parameters = steps(start(dtype), alone, 5, padded)
    limit = 1e-10 if dtype == torch.float64 else 1e-5
    for of_losses, of_gradients, of_parameters in launch(on_ranks, layout, dtype, padded, recomputed,
                                                         world_size=world_size):
        assert of_losses == pytest.approx(losses, rel=limit)
        torch.testing.assert_close(of_gradients, gradients, rtol=limit, atol=limit)
        if dtype == torch.float64:
            torch.testing.assert_close(of_parameters, parameters, rtol=1e-8, atol=1e-8)


def test_logits_come_back_in_the_order_of_the_row():
    def body():
        positions = local_positions(48)
        model = context_parallel(start(torch.float64), ring_attention, positions)
        return gather_tokens(model(batch(0)[0][:, positions])[0].detach(), 1)

    expected = start(torch.float64)(batch(0)[0])[0]
    for logits in launch(body, world_size=2):
        torch.testing.assert_close(logits, expected, rtol=1e-10, atol=1e-10)


def test_a_mean_over_the_ranks_means_is_wrong_where_tokens_that_count_are_unequally_many():
    def body(padded):
        positions, (_, targets) = local_positions(48), batch(0, padded)
        logits = torch.randn(2, 48, CONFIG.vocab_size, generator=torch.Generator().manual_seed(3))
        mine = targets[:, positions]
        naive = torch.nn.functional.cross_entropy(logits[:, positions].flatten(0, 1), mine.flatten())
        dist.all_reduce(naive, dist.ReduceOp.SUM)
        right = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
        loss = context_parallel_loss(logits[:, positions], mine)
        return (naive / dist.get_world_size() - right).abs().item(), (loss - right).abs().item()

    assert all(naive < 1e-6 and ours < 1e-6 for naive, ours in launch(body, False, world_size=2))
    assert all(naive > 1e-3 and ours < 1e-6 for naive, ours in launch(body, True, world_size=2))


def test_a_rank_without_a_token_that_counts_adds_nothing():
    def body():
        targets = torch.full((1, 4), -100 if dist.get_rank() == 0 else 1)
        logits = torch.zeros(1, 4, 2, requires_grad=True)
        loss = context_parallel_loss(logits, targets)
        loss.backward()
        return loss.item(), logits.grad.abs().sum().item()

    (first, nothing), (second, something) = launch(body, world_size=2)
    assert first == second == pytest.approx(0.6931472) and nothing == 0 and something == pytest.approx(2.0)


def test_a_gpt_that_cannot_be_context_parallel_is_refused():
    with pytest.raises(ValueError, match="dropout=0.1: expected 0"):
        context_parallel(GPT(GPTConfig(dropout=0.1)), ring_attention, torch.arange(4))
    with pytest.raises(ValueError, match="positions from 60 to 67: expected them within the model's .*=64"):
        context_parallel(GPT(GPTConfig()), ring_attention, torch.arange(60, 68))
    model = context_parallel(GPT(GPTConfig()), ring_attention, torch.arange(8))
    with pytest.raises(ValueError, match="4 tokens in a row: expected 8, one for each position"):
        model(torch.zeros(1, 4, dtype=torch.int64))


def test_a_rank_keeps_what_the_formula_says_of_its_part_of_the_tokens_and_no_scores():
    def body():
        positions = local_positions(48)
        model = context_parallel(start(torch.float32), ring_attention, positions)
        tokens = batch(0)[0][:, positions]
        with record_memory(model=model) as log:
            logits, _ = model(tokens)
            return log.by_kind["activations"], logits.sum().item()

    for n in (1, 2, 4):
        layers = CONFIG.num_layers * activation_bytes_per_layer(shape_of(CONFIG), 2, 48 // n, recompute="selective",
                                                                bytes_per_number=4)
        sums = CONFIG.num_layers * 4 * CONFIG.num_heads * 2 * 48 // n  # of exp(score), for each head of each token
        ends = 2 * 4 * CONFIG.hidden_size * 2 * 48 // n
        for kept, _ in launch(body, world_size=n):
            assert layers + sums + ends < kept < 1.02 * (layers + sums + ends), (n, kept, layers, sums, ends)
