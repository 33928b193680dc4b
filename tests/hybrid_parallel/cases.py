"""One small GPT, what one process does with it, and what ranks do under a layout.

Apart from the tests, since ranks import it in every launch: pytest would cost them a second.
"""

import functools

import torch

from course_lib.expert_parallel import SINGLE, moe_gpt
from course_lib.reference import GPT, GPTConfig, batches
from course_lib.reference.gpt import next_token_loss

CONFIG = GPTConfig(num_layers=3, hidden_size=16, num_heads=4, vocab_size=256, sequence_length=16)
BATCH, STEPS = 12, 20
ADAMW = {"lr": 3e-3, "betas": (0.9, 0.95)}
MAX_NORM = 1.0


def plain(experts=0, balance=0.0):
    """A GPT, or one with experts."""
    torch.manual_seed(0)
    model = GPT(CONFIG)
    return moe_gpt(model, experts, balance=balance, z=balance / 10, group=SINGLE, tokens_group=SINGLE) if experts else \
        model


def batch(step, place=0, n=1):
    return batches(step, place, n, batch_size=BATCH, sequence_length=CONFIG.sequence_length)


@functools.cache
def alone(steps=STEPS, experts=0, balance=0.0):
    """Of one process: losses (without auxiliary ones), norms, the first gradients, and the parameters in the end."""
    model = plain(experts, balance)
    optimizer = torch.optim.AdamW(model.parameters(), **ADAMW)
    losses, norms, first = [], [], {}
    for step in range(steps):
        inputs, targets = batch(step)
        logits, loss = model(inputs, targets)
        loss.backward()
        loss = next_token_loss(logits, targets)
        first = first or {name: p.grad.clone() for name, p in model.named_parameters()}
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM).item())
        losses.append(loss.item())
        optimizer.step()
        optimizer.zero_grad()
    return losses, norms, first, {name: p.detach() for name, p in model.named_parameters()}


def fill(wholes, found):
    """Into `wholes`, by name: those pieces of this rank's that it writes; and how often each number was written."""
    for name, some in found.items():
        for piece in some:
            whole, times = wholes.setdefault(name, (torch.zeros(piece.shape), torch.zeros(piece.shape)))
            if piece.writes:
                box = tuple(slice(a, a + n) for a, n in zip(piece.offsets, piece.tensor.shape))
                whole[box] = piece.tensor.float()
                times[box] += 1
    return wholes
