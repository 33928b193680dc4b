"""Chapter 8: a layer and a GPT whose experts are dealt out, against one process on the CPU."""

import torch
import torch.distributed as dist

from course_lib import expert_parallel
from course_lib.reference import GPT, GPTConfig
from course_lib.runtime import device
from tests.expert_parallel import cases
from tests.pretend.trials.register import trial

WAYS = {"whole": {}, "in chunks": {"num_chunks": 2}}
W = 4


@trial("expert_parallel layer", "whole", "in chunks", "two levels")
def layer(way: str) -> None:
    problems = cases.run(list(cases.few()), W, 2 if way == "two levels" else 0, **WAYS.get(way, {}))
    assert not problems, problems[0]


def gpt() -> GPT:
    with torch.device("cpu"):
        torch.manual_seed(0)
        return GPT(GPTConfig(2, 16, 4, 32, 16)).double()


def rows(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Of all ranks, (8, 16) each, on the CPU."""
    tokens = torch.randint(32, (2 * W, 17), generator=torch.Generator().manual_seed(step), device="cpu")
    return tokens[:, :-1], tokens[:, 1:]


def train(model: GPT, groups: tuple, mine: slice, where: torch.device) -> dict[str, torch.Tensor]:
    balancer = expert_parallel.BiasBalancer(model, 0.1, model.tokens_group)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, eps=1e-5)
    for step in range(3):
        optimizer.zero_grad()
        model(*(tensor[mine].to(where) for tensor in rows(step)))[1].backward()
        expert_parallel.average_gradients(model, model.tokens_group, groups[1])
        optimizer.step()
        balancer.step()
    return expert_parallel.full_state_dict(model)


@trial("expert_parallel GPT")
def whole_model() -> None:
    groups, rank = expert_parallel.make_groups(2), dist.get_rank()
    model = expert_parallel.moe_gpt(gpt().to(device()), 4, group=groups[0], num_shared=1, balance=0.1, z=0.01)
    state = train(model, groups, slice(2 * rank, 2 * rank + 2), device())
    with torch.device("cpu"):
        single = expert_parallel.SINGLE
        alone = expert_parallel.moe_gpt(gpt(), 4, group=single, tokens_group=single, num_shared=1, balance=0.1, z=0.01)
        expected = train(alone, (single, single), slice(None), torch.device("cpu"))
    worst = max((state[name] - value).abs().max().item() for name, value in expected.items())
    assert worst < 1e-9, worst
