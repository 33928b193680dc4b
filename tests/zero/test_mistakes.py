"""What sharding cannot work with is said, with what was given and what was expected."""

import torch
import torch.distributed as dist
from torch import nn

from course_lib.runtime import launch
from course_lib.zero import FullyShardedDataParallel, ZeroOptimizer
from tests.groups.mistakes import answers


def test_a_mistake_is_answered_with_what_was_given_and_what_was_expected(snapshot):
    def body():
        r, linear, x = dist.get_rank(), nn.Linear(4, 4), torch.ones(1, 4)
        SGD, AdamW = torch.optim.SGD, torch.optim.AdamW

        def zero(optimizer=SGD, stage=1, module=None, **options):
            module = module or nn.Linear(4, 4)
            return module, ZeroOptimizer(module.parameters(), optimizer, stage, **options)

        def run(stage, *actions):
            module, optimizer = zero(stage=stage)
            for action in actions:
                {"backward": lambda: module(x).sum().backward(), "step": optimizer.step,
                 "clip": lambda: optimizer.clip_grad_norm_(0.1)}[action]()

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

        return answers({
            "stage": lambda: zero(stage=3),
            "not a class": lambda: zero("AdamW"),
            "LBFGS": lambda: zero(torch.optim.LBFGS),
            "Adafactor": lambda: zero(torch.optim.Adafactor),
            "options": lambda: zero(SGD, lr=-1.0),
            "frozen": lambda: zero(module=nn.Linear(2, 2).requires_grad_(False)),
            "bucket": lambda: zero(bucket_cap_mb=0),
            "other shape": lambda: zero(module=nn.Linear(2, 2 + r)),
            "no zero_grad 1": lambda: run(1, "backward", "step", "backward", "step"),
            "no zero_grad 2": lambda: run(2, "backward", "step", "backward", "step"),
            "after clipping 1": lambda: run(1, "backward", "clip", "backward"),
            "by hand": by_hand,
            "thawed": thawed,
            "more groups": lambda: zero()[1].add_param_group({"params": [nn.Parameter(torch.ones(1))]}),
            "norm": lambda: zero()[1].clip_grad_norm_(1.0, norm_type=0),
            "not a module": lambda: FullyShardedDataParallel("model"),
            "nothing": lambda: FullyShardedDataParallel(nn.Tanh()),
            "twice": lambda: FullyShardedDataParallel(nn.Sequential(FullyShardedDataParallel(nn.Linear(2, 2)))),
            "units": lambda: FullyShardedDataParallel(linear, should_shard="blocks"),
            "dtype": lambda: FullyShardedDataParallel(linear, compute_dtype=torch.int8),
            "prefetch": lambda: FullyShardedDataParallel(linear, prefetch=-1),
            "different": lambda: FullyShardedDataParallel(nn.Linear(2 + r, 2)),
            "built before": built_before_sharding,
        })

    first, second = launch(body, world_size=2)
    assert first == second == snapshot
