"""A GPT on dealt-out tokens: logits, loss and gradients of one process that has the whole row."""

from functools import partial

import pytest
import torch
import torch.distributed as dist

from course_lib import sequence_parallel as sp
from course_lib.data_parallel import DistributedDataParallel
from course_lib.reference import GPT, GPTConfig
from course_lib.runtime import record_memory
from course_lib.why_distribute import shape_of
from tests.ranks import on_ranks

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


def steps(model, run, padded):
    """Losses of five steps of AdamW, the gradients of the first and parameters after the last."""
    optimizer, losses = torch.optim.AdamW(model.parameters(), lr=1e-2), []
    for number in range(5):
        optimizer.zero_grad()
        loss = run(model, *batch(number, padded))
        loss.backward()
        losses.append(loss.detach())
        if number == 0:
            gradients = [p.grad.clone() for p in model.parameters()]
        optimizer.step()
    return losses + gradients, [p.detach() for p in model.parameters()]


def alone(model, tokens, targets):
    logits, _ = model(tokens)
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-100)


@on_ranks(1, 2, 3, 4)
def test_five_steps_of_a_gpt_are_those_of_one_process_and_logits_come_back_in_the_order_of_the_row():
    for layout, dtype, padded, recomputed in {
            1: [("zigzag", torch.float64, False, None)], 2: [("zigzag", torch.float64, True, "full")],
            3: [("striped", torch.float64, False, "selective"), ("zigzag", torch.float32, False, None)],
            4: [(layout, torch.float64, True, None) for layout in ("zigzag", "contiguous", "ulysses")],
    }[dist.get_world_size()]:
        of_ring = "contiguous" if layout == "ulysses" else layout
        positions = sp.local_positions(48, None, of_ring)
        attention = sp.ulysses_attention if layout == "ulysses" else partial(sp.ring_attention, layout=layout)

        def run(model, tokens, targets, positions=positions):
            return sp.context_parallel_loss(model(tokens[:, positions])[0], targets[:, positions])

        model = start(dtype)
        for block in model.blocks if recomputed else ():
            block.forward = sp.recompute(block.forward, recomputed)
        model = sp.context_parallel(model, attention, positions)
        limit = {"rtol": 1e-10, "atol": 1e-10} if dtype == torch.float64 else {"rtol": 1e-5, "atol": 1e-5}
        logits = sp.gather_tokens(model(batch(0)[0][:, positions])[0].detach(), 1, None, of_ring)
        torch.testing.assert_close(logits, start(dtype)(batch(0)[0])[0].detach(), **limit)
        found, parameters = steps(DistributedDataParallel(model), run, padded)
        expected, parameters_alone = steps(start(dtype), alone, padded)
        torch.testing.assert_close(found, expected, **limit)
        if dtype == torch.float64:
            torch.testing.assert_close(parameters, parameters_alone, rtol=1e-8, atol=1e-8)


def test_a_gpt_that_cannot_be_context_parallel_is_refused():
    with pytest.raises(ValueError, match="dropout=0.1: expected 0"):
        sp.context_parallel(GPT(GPTConfig(dropout=0.1)), sp.ring_attention, torch.arange(4))
    with pytest.raises(ValueError, match="positions from 60 to 67: expected them within the model's .*=64"):
        sp.context_parallel(GPT(GPTConfig()), sp.ring_attention, torch.arange(60, 68))
    model = sp.context_parallel(GPT(GPTConfig()), sp.ring_attention, torch.arange(8))
    with pytest.raises(ValueError, match="4 tokens in a row: expected 8, one for each position"):
        model(torch.zeros(1, 4, dtype=torch.int64))


@on_ranks(1, 2, 4)
def test_a_rank_keeps_what_the_formula_says_of_its_part_of_the_tokens_and_no_scores():
    n, positions = dist.get_world_size(), sp.local_positions(48)
    model = sp.context_parallel(start(torch.float32), sp.ring_attention, positions)
    tokens = batch(0)[0][:, positions]
    with record_memory(model=model) as log:
        logits, _ = model(tokens)
        kept = log.by_kind["activations"]
    layer = sp.activation_bytes_per_layer(shape_of(CONFIG), 2, 48 // n, recompute="selective", bytes_per_number=4)
    sums = 4 * CONFIG.num_heads * 2 * 48 // n  # of exp(score), for each head of each token
    expected = CONFIG.num_layers * (layer + sums) + 2 * 4 * CONFIG.hidden_size * 2 * 48 // n
    assert expected < kept < 1.02 * expected and logits.requires_grad
