"""What sharding cannot work with is said, with what was given and what was expected."""

import re

import torch
import torch.distributed as dist
from torch import nn

from course_lib.runtime import launch
from course_lib.zero import FullyShardedDataParallel, ZeroOptimizer


def said(attempt):
    try:
        attempt()
    except (ValueError, RuntimeError) as error:
        return str(error)
    return "nothing"


def test_a_mistake_is_answered_with_what_was_given_and_what_was_expected():
    def body():
        r, linear, x = dist.get_rank(), nn.Linear(4, 4), torch.ones(1, 4)
        SGD, AdamW = torch.optim.SGD, torch.optim.AdamW

        def zero(optimizer=SGD, stage=1, module=None, **options):
            module = module or nn.Linear(4, 4)
            return module, ZeroOptimizer(module.parameters(), optimizer, stage, **options)

        def backward_twice(stage):
            module, optimizer = zero(stage=stage)
            for _ in range(2):
                module(x).sum().backward()
                optimizer.step()

        def by_hand():
            module, optimizer = zero(stage=2)
            module.weight.grad = torch.ones(4, 4)
            optimizer.step()

        def thawed():
            module = nn.Linear(4, 4)
            module.bias.requires_grad_(False)
            _, optimizer = zero(module=module)
            module.bias.requires_grad_(True)
            module(x).sum().backward()
            optimizer.step()

        def built_before_sharding():
            module = nn.Linear(4, 4)
            optimizer = AdamW(module.parameters())
            FullyShardedDataParallel(module)(x).sum().backward()
            optimizer.step()

        return {
            "stage": said(lambda: zero(stage=3)),
            "not a class": said(lambda: zero(AdamW(linear.parameters()))),
            "LBFGS": said(lambda: zero(torch.optim.LBFGS)),
            "Adafactor": said(lambda: zero(torch.optim.Adafactor)),
            "options": said(lambda: zero(SGD, lr=-1.0)),
            "frozen": said(lambda: zero(module=nn.Linear(2, 2).requires_grad_(False))),
            "bucket": said(lambda: zero(bucket_cap_mb=0)),
            "other shape": said(lambda: zero(module=nn.Linear(2, 2 + r))),
            "no zero_grad 1": said(lambda: backward_twice(1)),
            "no zero_grad 2": said(lambda: backward_twice(2)),
            "by hand": said(by_hand),
            "thawed": said(thawed),
            "more groups": said(lambda: zero()[1].add_param_group({"params": [nn.Parameter(torch.ones(1))]})),
            "norm": said(lambda: zero()[1].clip_grad_norm_(1.0, norm_type=0)),
            "not a module": said(lambda: FullyShardedDataParallel("model")),
            "nothing": said(lambda: FullyShardedDataParallel(nn.Tanh())),
            "twice": said(lambda: FullyShardedDataParallel(nn.Sequential(FullyShardedDataParallel(nn.Linear(2, 2))))),
            "units": said(lambda: FullyShardedDataParallel(linear, should_shard="blocks")),
            "dtype": said(lambda: FullyShardedDataParallel(linear, compute_dtype=torch.int8)),
            "prefetch": said(lambda: FullyShardedDataParallel(linear, prefetch=-1)),
            "different": said(lambda: FullyShardedDataParallel(nn.Linear(2 + r, 2))),
            "built before": said(built_before_sharding),
        }

    expected = {
        "stage": r"stage=3: expected 1 .* or 2 .*FullyShardedDataParallel for stage 3",
        "not a class": "expected a class such as torch.optim.AdamW",
        "LBFGS": "LBFGS does not step element by element",
        "Adafactor": "Adafactor does not step element by element",
        "options": "Invalid learning rate: -1.0",
        "frozen": "none of the 2 parameters requires a gradient",
        "bucket": "bucket_cap_mb=0: expected a number of MiB above 0",
        "other shape": r"place 0 has number 0 float32\[2, 2\] .*, place 1 has number 0 float32\[3, 2\]",
        "no zero_grad 1": r"expected zero_grad\(\) of the ZeroOptimizer",
        "no zero_grad 2": r"expected zero_grad\(\) of the ZeroOptimizer",
        "by hand": "a .grad was set by hand: in stage 2 expected gradients that backward brings",
        "thawed": "was frozen when the ZeroOptimizer was made",
        "more groups": "Expected all groups at the start",
        "norm": "norm_type=0: expected a number above 0",
        "not a module": "module='model' is a str: expected an nn.Module",
        "nothing": "Tanh has no parameters",
        "twice": "0 is a FullyShardedDataParallel already: expected a plain module",
        "units": "should_shard='blocks': expected a function",
        "dtype": "compute_dtype=torch.int8: expected a dtype such as torch.bfloat16",
        "prefetch": "prefetch=-1",
        "different": r"different modules: place 0 has weight float32\[2, 2\] .*, place 1 has weight float32\[2, 3\]",
        "built before": "made before FullyShardedDataParallel",
    }
    for answers in launch(body, world_size=2):
        assert answers.keys() == expected.keys()
        assert {name: answers[name] for name in expected if not re.search(expected[name], answers[name])} == {}
