"""What a reader may do between backward and step, in each stage: as in one process, or refused."""

import pytest
import torch
import torch.distributed as dist
from torch import nn

from course_lib.runtime import launch
from course_lib.zero import ZeroOptimizer
from tests.data_parallel.cases import batch, difference, make, mine

SMALL_BUCKETS_MB = 2e-4


def train(stage, rows, clear=None, between=None, steps=3, offload=False):
    """`steps` steps of SGD in `stage` (None: one process); `between(model, optimizer, loss)` before each step()."""
    model = make("Tied")
    if stage is None:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        optimizer.clip_grad_norm_ = lambda to: nn.utils.clip_grad_norm_(model.parameters(), to)
    else:
        optimizer = ZeroOptimizer(model.parameters(), torch.optim.SGD, stage, bucket_cap_mb=SMALL_BUCKETS_MB,
                                  offload=offload, lr=0.1, momentum=0.9)
    for step in range(steps):
        (clear or (lambda model, optimizer: optimizer.zero_grad()))(model, optimizer)
        model(*rows(batch("Tied", step))).backward()
        if between:
            between(model, optimizer, lambda step=step: model(*rows(batch("Tied", step + 10))))
        optimizer.step()
    return model


def halve_by_hand(model, *_):
    for parameter in model.parameters():
        parameter.grad = parameter.grad / 2


@torch.no_grad()
def shrink_weights(model, *_):
    for parameter in model.parameters():
        parameter.mul_(0.9)


def drop_one(model, *_):
    model.last.bias.grad = None


def clip_and_go_on(model, optimizer, loss):
    optimizer.clip_grad_norm_(0.1)
    loss().backward()


CASES = {
    "module.zero_grad": (1, {"clear": lambda model, _: model.zero_grad()}),
    "zeros stay": (1, {"clear": lambda _, optimizer: optimizer.zero_grad(set_to_none=False)}),
    "changed by hand": (1, {"between": halve_by_hand}),
    "dropped by hand": (1, {"between": drop_one}),
    "weights changed by hand": (1, {"between": shrink_weights}),
    "weights changed by hand, masters follow": (2, {"between": shrink_weights, "offload": True}),
    "backward after clipping": (2, {"between": clip_and_go_on}),
    "zeros": (2, {"clear": lambda _, optimizer: optimizer.zero_grad(set_to_none=False)}),
}


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_it_ends_where_one_process_ends_that_does_the_same(world_size):
    def body():
        return {case: difference(train(stage, mine, **how), train(None, lambda whole: whole, **how))
                for case, (stage, how) in CASES.items()}

    for of_rank in launch(body, world_size=world_size):
        assert {case: off for case, off in of_rank.items() if off > 1e-12} == {}


class Breaks(torch.autograd.Function):
    """The identity, whose backward pass raises."""

    @staticmethod
    def forward(context, x):
        return x.clone()

    @staticmethod
    def backward(context, gradient):
        raise OSError("no such file")


@pytest.mark.parametrize("stage", [1, 2])
def test_a_backward_pass_that_broke_off_costs_stage_1_nothing_and_stage_2_its_place_among_the_others(stage):
    def body():
        layers = nn.Sequential(*[nn.Linear(4, 4) for _ in range(3)])
        optimizer = ZeroOptimizer(layers.parameters(), torch.optim.SGD, stage, bucket_cap_mb=1e-5)
        said = []
        try:
            layers[1:](Breaks.apply(layers[0](torch.ones(1, 4)))).sum().backward()
        except OSError as error:
            said.append(str(error))
        for attempt in (optimizer.zero_grad, optimizer.step):
            try:
                attempt()
            except RuntimeError as error:
                said.append(str(error))
        dist.barrier()
        return said

    for broken, *others in launch(body, world_size=2):
        assert broken == "no such file" and len(others) == (0 if stage == 1 else 2)
        assert all("out of step with the others" in words for words in others)
