"""Models, batches and runs that the tests of the pipeline compare. Apart from the tests: ranks import it."""

import functools
import random
from collections import Counter

import torch
import torch.distributed as dist
from torch import nn

from course_lib.pipeline_parallel import Action, PipelineParallel, Schedule, partition
from course_lib.pipeline_parallel.validate import leaves, needs
from course_lib.reference import GPT, GPTConfig
from course_lib.reference.gpt import next_token_loss

WIDTH = 6


class UsedTwice(nn.Module):
    """A layer through which a micro-batch goes twice: two uses of one parameter in one stage."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return self.layer(self.layer(x).tanh())


def sequential(num_layers=8):
    """Layers of all kinds: a parameter used twice, frozen ones, none at all, one that the first and the last share."""
    torch.manual_seed(1)
    layers = [nn.Linear(WIDTH, WIDTH) if index % 3 else nn.Sequential(nn.Tanh(), UsedTwice(), nn.LayerNorm(WIDTH))
              for index in range(num_layers)]
    layers[0] = nn.Linear(WIDTH, WIDTH)
    layers[-1].weight = layers[0].weight
    layers[2].weight.requires_grad_(False)
    layers[4] = nn.Tanh()
    return nn.Sequential(*layers).double()


def gpt(num_layers=6):
    torch.manual_seed(0)
    return GPT(GPTConfig(num_layers=num_layers, hidden_size=16, num_heads=2, vocab_size=24, sequence_length=8)).double()


def case(kind, rows, seed=0):
    """(model, inputs, targets, loss_fn)"""
    own = torch.get_default_device()  # the same numbers on each: drawn on the CPU
    generator = torch.Generator().manual_seed(seed)
    if kind == "gpt":
        tokens = torch.randint(24, (rows, 9), generator=generator, device="cpu").to(own)
        return gpt(), tokens[:, :-1], tokens[:, 1:], next_token_loss
    x = torch.randn(rows, WIDTH, generator=generator, dtype=torch.float64, device="cpu").to(own)
    return sequential(), x, x.flip(0), nn.functional.mse_loss


@functools.cache
def alone(kind, rows, seed=0):
    """Loss and gradients by name of one process on the whole batch."""
    model, inputs, targets, loss_fn = case(kind, rows, seed)
    outputs = model(inputs)
    loss = loss_fn(outputs[0] if isinstance(outputs, tuple) else outputs, targets)
    loss.backward()
    return loss.detach(), {name: p.grad for name, p in model.named_parameters(remove_duplicate=False)}


def my_stages(model, schedule, group=None):
    stages = partition(model, schedule.num_stages)
    return [stages[stage] for stage in schedule.stages[dist.get_rank(group)]]


def pipeline_of(kind, schedule, rows=None, group=None, **options):
    """(pipeline, inputs, targets) of a case."""
    model, inputs, targets, loss_fn = case(kind, rows or schedule.num_microbatches)
    return PipelineParallel(my_stages(model, schedule, group), schedule, group, loss_fn, **options), inputs, targets


def off_from_alone(kind, schedule, rows=None, steps=1, group=None, **options):
    """The largest difference of the loss and of any gradient, after `steps` steps whose gradients add up."""
    rows = rows or schedule.num_microbatches
    pipeline, _, _ = pipeline_of(kind, schedule, rows, group, **options)
    off, expected = 0.0, Counter()
    for step in range(steps):
        _, inputs, targets, _ = case(kind, rows, seed=step)
        loss = pipeline.step(inputs, targets)
        alone_loss, gradients = alone(kind, rows, seed=step)
        assert loss.dtype == alone_loss.dtype, loss.dtype
        off = max(off, (loss - alone_loss).abs().item())
        for name, gradient in gradients.items():
            expected[name] = None if gradient is None else expected[name] + gradient
    for stage in pipeline.stages:
        for name, parameter in stage.named_parameters(remove_duplicate=False):
            assert (parameter.grad is None) == (expected[name] is None), name
            if parameter.grad is not None:
                off = max(off, (parameter.grad - expected[name]).abs().max().item())
    return off


def any_schedule(p, m, num_stages, seed):
    """A legal schedule that nobody would think of: stages anywhere, backward split here and there, any order."""
    source = random.Random(seed)
    holders = [*range(p), *(source.randrange(p) for _ in range(num_stages - p))]
    source.shuffle(holders)
    stages = [[stage for stage in range(num_stages) if holders[stage] == rank] for rank in range(p)]
    for chunks in stages:
        source.shuffle(chunks)
    left = [(kind, i, stage) for stage in range(num_stages) for i in range(m)
            for kind in source.choice(["FB", "FIW"])]
    there, actions = set(), [[] for _ in range(p)]
    while left:
        now = source.choice([(kind, i, stage) for kind, i, stage in left
                             if there.issuperset(needs(Action(kind, i), stage, num_stages))])
        left.remove(now)
        kind, i, stage = now
        actions[holders[stage]].append(Action(kind, i, stages[holders[stage]].index(stage)))
        there.add(leaves(Action(kind, i), stage))
    return Schedule(f"any {seed}", m, tuple(map(tuple, stages)), tuple(map(tuple, actions)))
