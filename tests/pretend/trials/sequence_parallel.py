"""Chapter 7: attention over dealt-out tokens, and a recomputed GPT, against one process on the CPU."""

from functools import partial

import torch
import torch.distributed as dist

from course_lib import sequence_parallel
from course_lib.reference import GPT, GPTConfig
from course_lib.runtime import device
from tests.pretend.trials.register import trial
from tests.sequence_parallel import cases

CONFIG = GPTConfig(num_layers=2, hidden_size=16, num_heads=4, vocab_size=32, sequence_length=16)


def gpt(config: GPTConfig = CONFIG) -> GPT:
    """Equal everywhere, and made on the CPU."""
    with torch.device("cpu"):
        torch.manual_seed(0)
        return GPT(config).double()


def tokens() -> torch.Tensor:
    """(2, 16), on the CPU."""
    return torch.randint(0, 32, (2, 16), generator=torch.Generator().manual_seed(1), device="cpu")


@trial("sequence_parallel attention", *cases.WAYS)
def attention(way: str) -> None:
    drawn = [case for case in cases.cases((torch.float64, torch.bfloat16))
             if case.way == way and case.num_kv_heads < cases.H]
    assert not (problems := cases.run(drawn)), problems[0]


@trial("sequence_parallel GPT")
def whole_model() -> None:
    positions = sequence_parallel.local_positions(16)
    model = sequence_parallel.context_parallel(gpt(), sequence_parallel.ring_attention, positions).to(device())
    mine = tokens()[:, positions].to(device())
    loss = sequence_parallel.context_parallel_loss(model(mine)[0], mine)
    loss.backward()
    gradient = model.head.weight.grad.cpu()
    total = sequence_parallel.gather_tokens(mine, 1)
    assert torch.equal(total.cpu(), tokens())
    dist.all_reduce(gradient)
    with torch.device("cpu"):
        alone = gpt()
        expected = alone(tokens(), tokens())[1]
        expected.backward()
    assert abs(loss.item() - expected.item()) < 1e-12
    assert (gradient / dist.get_world_size() - alone.head.weight.grad).abs().max() < 1e-12


@trial("sequence_parallel recompute", "full", "selective")
def recomputed(policy: str) -> None:
    """With dropout: in backward, on a thread of autograd's, the GPU draws the same masks again."""
    found = []
    for wrap in (lambda function: function, partial(sequence_parallel.recompute, policy=policy)):
        model = gpt(GPTConfig(**{**vars(CONFIG), "dropout": 0.3})).to(device())
        for block in model.blocks:
            block.forward = wrap(block.forward)
        torch.manual_seed(2 + dist.get_rank())
        model(tokens().to(device()), tokens().to(device()))[1].backward()
        found.append([*(p.grad for p in model.parameters()), torch.rand(3)])
    assert all(torch.equal(one, other) for one, other in zip(*found))
    made = sequence_parallel.recompute(lambda x: x.exp() * torch.ones(3).exp())(torch.ones(3, requires_grad=True))
    made.sum().backward()  # ones, made again, lie where they lay
