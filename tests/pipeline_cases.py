"""Models, batches and runs that the tests of the pipeline compare. Apart from the tests: ranks import it."""

import copy

import torch
import torch.distributed as dist
from torch import nn

from course_lib.pipeline_parallel import (
    PipelineParallel,
    dualpipe_v,
    gpipe,
    interleaved_1f1b,
    naive,
    one_f_one_b,
    partition,
    zb_h1,
    zb_h2,
    zb_v,
)
from course_lib.reference import GPT, GPTConfig
from course_lib.reference.gpt import next_token_loss

GENERATORS = {"naive": naive, "gpipe": gpipe, "1f1b": one_f_one_b, "zb_h1": zb_h1, "zb_h2": zb_h2, "zb_v": zb_v,
              "dualpipe_v": dualpipe_v, "interleaved": lambda p, m: interleaved_1f1b(p, m, 2)}
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
    generator = torch.Generator().manual_seed(seed)
    if kind == "gpt":
        tokens = torch.randint(24, (rows, 9), generator=generator)
        return gpt(), tokens[:, :-1], tokens[:, 1:], next_token_loss
    x = torch.randn(rows, WIDTH, generator=generator, dtype=torch.float64)
    return sequential(), x, x.flip(0), nn.functional.mse_loss


def alone(model, inputs, targets, loss_fn):
    """Loss and gradients by name of one process on the whole batch."""
    model = copy.deepcopy(model)
    outputs = model(inputs)
    loss = loss_fn(outputs[0] if isinstance(outputs, tuple) else outputs, targets)
    loss.backward()
    return loss.detach(), {name: p.grad for name, p in model.named_parameters(remove_duplicate=False)}


def my_stages(model, schedule):
    stages = partition(model, schedule.num_stages)
    return [stages[stage] for stage in schedule.stages[dist.get_rank()]]


def off_from_alone(kind, schedule, rows=None, steps=1, **options):
    """The largest difference of the loss and of any gradient, after `steps` steps whose gradients add up."""
    rows = rows or 2 * schedule.num_microbatches
    model, *_ = case(kind, rows)
    stages = my_stages(copy.deepcopy(model), schedule)
    loss_fn = case(kind, rows)[3]
    pipeline = PipelineParallel(stages, schedule, None, loss_fn, **options)
    off, expected = 0.0, {}
    for step in range(steps):
        _, inputs, targets, _ = case(kind, rows, seed=step)
        loss = pipeline.step(inputs, targets)
        alone_loss, gradients = alone(model, inputs, targets, loss_fn)
        assert loss.dtype == alone_loss.dtype, loss.dtype
        off = max(off, (loss - alone_loss).abs().item())
        for name, gradient in gradients.items():
            expected[name] = gradient if expected.get(name) is None else expected[name] + gradient
    compared = 0
    for stage in stages:
        for name, parameter in stage.named_parameters(remove_duplicate=False):
            if expected[name] is None:
                assert parameter.grad is None, name
                continue
            assert parameter.grad is not None, name
            compared += 1
            off = max(off, (parameter.grad - expected[name]).abs().max().item())
    return off
