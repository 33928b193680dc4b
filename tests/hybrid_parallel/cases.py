"""One small GPT, what one process does with it, and what ranks do under a layout.

Apart from the tests, since ranks import it in every launch: pytest would cost them a second.
"""

import functools
from dataclasses import replace

import torch

from course_lib import hybrid_parallel as hp
from course_lib.expert_parallel import SINGLE, moe_gpt
from course_lib.reference import GPT, GPTConfig, batches
from course_lib.reference.gpt import next_token_loss

CONFIG = GPTConfig(num_layers=2, hidden_size=16, num_heads=4, vocab_size=256, sequence_length=16)
BATCH = 12
ADAMW = {"lr": 3e-3, "betas": (0.9, 0.95)}
MAX_NORM = 1.0


def plain(experts=0, balance=0.0, layers=2):
    """A GPT, or one with experts."""
    torch.manual_seed(0)
    model = GPT(replace(CONFIG, num_layers=layers))
    return model if not experts else moe_gpt(model, experts, balance=balance, z=balance / 10, group=SINGLE,
                                             tokens_group=SINGLE)


def batch(step, place=0, n=1, rows=BATCH):
    return batches(step, place, n, batch_size=rows, sequence_length=CONFIG.sequence_length)


@functools.cache
def alone(steps, rows=BATCH, **model):
    """Of one process: losses (without auxiliary ones), norms, the first gradients, and the parameters in the end."""
    model = plain(**model)
    optimizer = torch.optim.AdamW(model.parameters(), **ADAMW)
    losses, norms, first = [], [], {}
    for step in range(steps):
        inputs, targets = batch(step, rows=rows)
        logits, loss = model(inputs, targets)
        loss.backward()
        loss = next_token_loss(logits, targets)
        first = first or {name: p.grad.clone() for name, p in model.named_parameters()}
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM).item())
        losses.append(loss.item())
        optimizer.step()
        optimizer.zero_grad()
    return losses, norms, first, {name: p.detach() for name, p in model.named_parameters()}


def laid_out(layout, options, **model):
    model = hp.parallelize(plain(**model), hp.ParallelLayout.from_string(layout), **options)
    return model, hp.HybridOptimizer(model, torch.optim.AdamW, **ADAMW)


def together(layout, options, steps, rows=BATCH, **model):
    """Of ranks under a layout: the same as `alone`, on rank 0."""
    model, optimizer = laid_out(layout, options, **model)
    losses, norms, first = [], [], {}
    for step in range(steps):
        losses.append(model.forward_backward(*batch(step, model.dp.r, model.dp.n, rows)).item())
        first = first or hp.gather_whole(hp.gradient_pieces(model))
        norms.append(hp.clip_grad_norm_(model, MAX_NORM).item())
        optimizer.step()
        optimizer.zero_grad()
    return losses, norms, first, hp.gather_whole(hp.pieces(model))


def off(numbers, expected):
    """The largest difference of two lists, relative to what was expected."""
    return max(abs(a - b) / abs(b) for a, b in zip(numbers, expected, strict=True))


def off_by_name(tensors, expected):
    """The largest difference of two dicts of tensors, relative to the largest number of each tensor."""
    assert tensors.keys() == expected.keys(), tensors.keys() ^ expected.keys()
    return max(((tensors[name] - value).abs().max() / value.abs().max().clamp(min=1e-12)).item()
               for name, value in expected.items())
