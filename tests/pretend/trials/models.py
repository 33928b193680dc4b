"""Chapters 5, 7, 8 and 9: steps of a GPT in parts equal those of one process."""

from functools import partial

import torch
import torch.distributed as dist
import torch.nn.functional as F

from course_lib import expert_parallel, hybrid_parallel, sequence_parallel, tensor_parallel
from course_lib.expert_parallel import SINGLE, moe_gpt
from course_lib.reference import GPT, batches
from course_lib.runtime import device
from tests.expert_parallel import cases as expert_cases
from tests.pretend.trials.register import difference, gpt, tokens, trial
from tests.sequence_parallel import cases as sequence_cases

W = 4
CPU = torch.device("cpu")


# Tensor parallelism

def rows(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    drawn = tokens(step, 2, 16, 9)
    return drawn[:, :-1], drawn[:, 1:]


def train(model: GPT, clip: object, where: torch.device) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for step in range(3):
        optimizer.zero_grad()
        model(*(tensor.to(where) for tensor in rows(step)))[1].backward()
        clip(model)
        optimizer.step()


@trial("tensor_parallel", "TP", "TP+SP", "TP+SP again")
def tensor_parallel_steps(way: str) -> None:
    cut = tensor_parallel.parallelize(gpt(16, 8).to(device()), None, "SP" in way, gather_again="again" in way)
    train(cut, lambda model: tensor_parallel.clip_grad_norm_(model, 0.1), device())
    state = tensor_parallel.full_state_dict(cut)
    with CPU:
        alone = gpt(16, 8)
        train(alone, lambda model: torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1), CPU)
    assert difference(state, alone.state_dict()) < 1e-12
    tensor_parallel.load_full_state_dict(cut, state)


@trial("tensor_parallel dropout", False, True)
def dropout(sequence: bool) -> None:
    cut = tensor_parallel.parallelize(gpt(16, 8, dropout=0.5).to(device()), None, sequence)
    losses = []
    for _ in range(2):
        torch.manual_seed(1)
        losses.append(cut(*(tensor.to(device()) for tensor in rows(0)))[1])
        losses[-1].backward()
    assert losses[0].item() == losses[1].item()


@trial("tensor_parallel cross-entropy")
def cross_entropy() -> None:
    logits = torch.randn(2, 8, 16, generator=torch.Generator().manual_seed(0), device="cpu")
    mine = tensor_parallel.Cut(2, (16,)).take(logits, tensor_parallel.VocabParallelEmbedding(16, 2).member)
    targets = rows(0)[0]
    loss = tensor_parallel.vocab_parallel_cross_entropy(mine.to(device()), targets.to(device()), label_smoothing=0.1)
    with CPU:
        expected = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), label_smoothing=0.1)
    assert abs(loss.item() - expected.item()) < 1e-5


# Sequence parallelism

@trial("sequence_parallel attention", *sequence_cases.WAYS)
def attention(way: str) -> None:
    drawn = [case for case in sequence_cases.cases((torch.float64, torch.bfloat16))
             if case.way == way and case.num_kv_heads < sequence_cases.H]
    assert not (problems := sequence_cases.run(drawn)), problems[0]


@trial("sequence_parallel GPT")
def dealt_out_tokens() -> None:
    positions, whole = sequence_parallel.local_positions(16), tokens(1, 2, 32, 16)
    model = sequence_parallel.context_parallel(gpt(), sequence_parallel.ring_attention, positions).to(device())
    mine = whole[:, positions].to(device())
    loss = sequence_parallel.context_parallel_loss(model(mine)[0], mine)
    loss.backward()
    gradient = model.head.weight.grad.cpu()
    assert torch.equal(sequence_parallel.gather_tokens(mine, 1).cpu(), whole)
    dist.all_reduce(gradient)
    with CPU:
        alone = gpt()
        expected = alone(whole, whole)[1]
        expected.backward()
    assert abs(loss.item() - expected.item()) < 1e-12
    assert (gradient / dist.get_world_size() - alone.head.weight.grad).abs().max() < 1e-12


@trial("sequence_parallel recompute", "full", "selective")
def recomputed(policy: str) -> None:
    """With dropout: in backward, on a thread of autograd's, the GPU draws the same masks again."""
    found, whole = [], tokens(1, 2, 32, 16).to(device())
    for wrap in (lambda function: function, partial(sequence_parallel.recompute, policy=policy)):
        model = gpt(dropout=0.3).to(device())
        for block in model.blocks:
            block.forward = wrap(block.forward)
        torch.manual_seed(2 + dist.get_rank())
        model(whole, whole)[1].backward()
        found.append([*(p.grad for p in model.parameters()), torch.rand(3)])
    assert all(torch.equal(one, other) for one, other in zip(*found))
    made = sequence_parallel.recompute(lambda x: x.exp() * torch.ones(3).exp())(torch.ones(3, requires_grad=True))
    made.sum().backward()  # ones, made again, lie where they lay


# Expert parallelism

@trial("expert_parallel layer", "whole", "in chunks", "two levels")
def layer(way: str) -> None:
    problems = expert_cases.run(list(expert_cases.few()), W, 2 * (way == "two levels"),
                                **{"num_chunks": 2} if way == "in chunks" else {})
    assert not problems, problems[0]


def train_experts(model: GPT, groups: tuple, mine: slice, where: torch.device) -> dict[str, torch.Tensor]:
    balancer = expert_parallel.BiasBalancer(model, 0.1, model.tokens_group)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, eps=1e-5)
    for step in range(3):
        optimizer.zero_grad()
        drawn = tokens(step, 2 * W, 32, 17)[mine].to(where)
        model(drawn[:, :-1], drawn[:, 1:])[1].backward()
        expert_parallel.average_gradients(model, model.tokens_group, groups[1])
        optimizer.step()
        balancer.step()
    return expert_parallel.full_state_dict(model)


@trial("expert_parallel GPT")
def dealt_out_experts() -> None:
    groups, rank = expert_parallel.make_groups(2), dist.get_rank()
    options = {"num_shared": 1, "balance": 0.1, "z": 0.01}
    model = moe_gpt(gpt().to(device()), 4, group=groups[0], **options)
    state = train_experts(model, groups, slice(2 * rank, 2 * rank + 2), device())
    with CPU:
        alone = moe_gpt(gpt(), 4, group=SINGLE, tokens_group=SINGLE, **options)
        expected = train_experts(alone, (SINGLE, SINGLE), slice(None), CPU)
    assert difference(state, expected) < 1e-9


# Several axes

def text(step: int, place: int, n: int) -> tuple[torch.Tensor, torch.Tensor]:
    return batches(step, place, n, batch_size=4, sequence_length=16)


@trial("hybrid_parallel", "dp2,tp2", "cp2,tp2", "pp2,tp2", "dp2,cp2,zero2", "dp2,pp2,zero1", "dp2,tp2,zero3",
       "dp2,tp2,ep4", "dp2,tp2,ep2,etp2", "dp2,tp2,ep2,zero3")
def hybrid_steps(name: str) -> None:
    layout = hybrid_parallel.ParallelLayout.from_string(name)

    def make() -> GPT:
        whole = gpt(vocab_size=256)
        with CPU:
            return moe_gpt(whole, 4, balance=0.0, group=SINGLE, tokens_group=SINGLE) if layout.ep > 1 else whole

    schedule = {"num_microbatches": 2} if layout.pp > 1 else {}
    model = hybrid_parallel.parallelize(make(), layout, sequence_parallel=layout.etp == 1, **schedule)
    optimizer = hybrid_parallel.HybridOptimizer(model, torch.optim.AdamW, lr=1e-3)
    alone = make()
    plain = torch.optim.AdamW(alone.parameters(), lr=1e-3)
    for step in range(2):
        model.forward_backward(*text(step, model.dp.r, model.dp.n))
        hybrid_parallel.clip_grad_norm_(model, 0.5)
        optimizer.step()
        optimizer.zero_grad()
        with CPU:
            alone(*text(step, 0, 1))[1].backward()
            torch.nn.utils.clip_grad_norm_(alone.parameters(), 0.5)
            plain.step()
            plain.zero_grad()
    state = hybrid_parallel.gather_whole(hybrid_parallel.pieces(model))
    assert difference(state, dict(alone.named_parameters())) < 1e-10
