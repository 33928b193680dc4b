"""Chapters 5, 7, 8 and 9: steps of a GPT in parts."""

from functools import partial

import torch
import torch.distributed as dist

from course_lib import expert_parallel, hybrid_parallel, sequence_parallel, tensor_parallel
from course_lib.expert_parallel import SINGLE, MoELayer, moe_gpt
from course_lib.reference import batches
from course_lib.runtime import device
from tests.pretend.trials.register import drawn, gpt, loss_of, tokens, train, trial


@trial("TP", "TP+SP", "TP+SP again")
def tensor_parallel_steps(way: str) -> dict:
    cut = tensor_parallel.parallelize(gpt(), None, "SP" in way, gather_again="again" in way)
    train(cut, rows=tokens, before=lambda: tensor_parallel.clip_grad_norm_(cut, 0.1))
    return tensor_parallel.full_state_dict(cut)


@trial(False, True)
def tensor_parallel_dropout(sequence: bool) -> None:
    """An equal seed draws equal masks, which are others than the CPU's."""
    cut, losses = tensor_parallel.parallelize(gpt(dropout=0.5), None, sequence), []
    for _ in range(2):
        torch.manual_seed(1)
        losses.append(loss_of(cut, tokens(0)))
        losses[-1].backward()
    assert losses[0].item() == losses[1].item()


@trial()
def tensor_parallel_cross_entropy() -> torch.Tensor:
    cut = tensor_parallel.Cut(2, (16,)).take(drawn(2, 8, 16), tensor_parallel.VocabParallelEmbedding(16, 2).member)
    return tensor_parallel.vocab_parallel_cross_entropy(cut, tokens(0, 2, 16, 8), label_smoothing=0.1)


# Sequence parallelism

@trial("contiguous", "striped", "zigzag", "ulysses", "both")
def attention(way: str) -> list:
    """12 heads of queries with 4 and with 1 of keys, causal and not; in 16 bits about as in 64."""
    found, (pairs, rings) = [], expert_parallel.make_groups(2)
    positions = (sequence_parallel.local_positions(48, rings, "zigzag", pairs) if way == "both" else
                 sequence_parallel.local_positions(48, None, "contiguous" if way == "ulysses" else way))
    attend = {"ulysses": sequence_parallel.ulysses_attention, "both": partial(
        sequence_parallel.ulysses_ring_attention, ulysses_group=pairs, ring_group=rings)}.get(
            way, partial(sequence_parallel.ring_attention, layout=way))
    for K, causal, dtype in ((4, True, torch.float64), (1, False, torch.float64), (1, False, torch.bfloat16)):
        *qkv, gradient = (drawn(2, heads, 48, 8, seed=seed)[:, :, positions].div(8).to(dtype).requires_grad_()
                          for seed, heads in enumerate((12, K, K, 12)))
        out = attend(*qkv, causal=causal)
        found.append([out.detach(), *torch.autograd.grad(out, qkv, gradient.detach())])
    for rounded, exact in zip(found.pop(), found[-1]):
        assert (rounded.double() - exact).abs().max() <= 0.04 * exact.abs().max().clamp(min=1)
    return found


@trial()
def dealt_out_tokens() -> list:
    positions, whole = sequence_parallel.local_positions(16), tokens(1, 2, 32, 16)
    model = sequence_parallel.context_parallel(gpt(), sequence_parallel.ring_attention, positions)
    mine = whole[:, positions]
    loss = sequence_parallel.context_parallel_loss(model(mine)[0], mine)
    loss.backward()
    assert torch.equal(sequence_parallel.gather_tokens(mine, 1), whole)
    return [loss, [p.grad for p in model.parameters()]]


@trial("full", "selective")
def recomputed(policy: str) -> None:
    """With dropout: in backward, on a thread of autograd's, the GPU draws the same masks again."""
    found, whole = [], tokens(1, 2, 32, 16)
    for wrap in (lambda function: function, partial(sequence_parallel.recompute, policy=policy)):
        model = gpt(dropout=0.3)
        for block in model.blocks:
            block.forward = wrap(block.forward)
        torch.manual_seed(2 + dist.get_rank())
        model(whole, whole)[1].backward()
        found.append([*(p.grad for p in model.parameters()), torch.rand(3)])
    assert all(torch.equal(one, other) for one, other in zip(*found))
    made = sequence_parallel.recompute(lambda x: x.exp() * torch.ones(3).exp())(torch.ones(3, requires_grad=True))
    made.sum().backward()  # ones, made again, lie where they lay


# Expert parallelism

@trial("whole", "in chunks", "two levels")
def expert_layer(way: str) -> list:
    found, groups = [], expert_parallel.make_groups(2 if way == "whole" else 4)
    how = {"whole": {}, "in chunks": {"num_chunks": 2}, "two levels": {"nodes": expert_parallel.make_groups(2)}}[way]
    for k, capacity, skew in ((1, None, 0.0), (2, 0.75, 0.0), (2, None, 50.0)):
        alone = MoELayer(6, 10, 8, k, capacity, SINGLE, "swiglu", num_shared=k - 1, seed=0).to(device(), torch.float64)
        with torch.no_grad():
            alone.router.weight.copy_(drawn(8, 6) / 9 + drawn(8, 6, seed=1) / 97)
            alone.router.weight[:, 0] += skew * torch.arange(8, 0, -1)
        part, x = MoELayer.from_unsplit(alone, groups[0], **how), drawn(14, 6, seed=2 + dist.get_rank()).abs() + 1
        out = part(x.requires_grad_())
        (out * drawn(14, 6, seed=9)).sum().backward()
        expert_parallel.average_gradients(part, None, groups[1])
        found += [out.detach(), x.grad, [p.grad for p in part.parameters()], part.tokens_per_expert(),
                  expert_parallel.full_state_dict(part)]
    return found


@trial()
def dealt_out_experts() -> dict:
    groups, rank = expert_parallel.make_groups(2), dist.get_rank()
    model = moe_gpt(gpt(), 4, group=groups[0], num_shared=1, balance=0.1, z=0.01)
    balancer = expert_parallel.BiasBalancer(model, 0.1, model.tokens_group)
    train(model, rows=lambda step: tokens(step)[2 * rank:2 * rank + 2], after=balancer.step,
          before=lambda: expert_parallel.average_gradients(model, model.tokens_group, groups[1]))
    return expert_parallel.full_state_dict(model)


# Several axes

@trial("dp2,tp2", "cp2,tp2", "pp2,tp2", "dp2,cp2,zero2", "dp2,pp2,zero1", "dp2,tp2,zero3", "dp2,tp2,ep4",
       "dp2,tp2,ep2,etp2", "dp2,tp2,ep2,zero3")
def hybrid_parallel_steps(name: str) -> dict:
    layout, whole = hybrid_parallel.ParallelLayout.from_string(name), gpt(vocab_size=256).cpu()
    with torch.device("cpu"):
        whole = moe_gpt(whole, 4, balance=0.0, group=SINGLE, tokens_group=SINGLE) if layout.ep > 1 else whole
    schedule = {"num_microbatches": 2} if layout.pp > 1 else {}
    model = hybrid_parallel.parallelize(whole, layout, sequence_parallel=layout.etp == 1, **schedule)
    optimizer = hybrid_parallel.HybridOptimizer(model, torch.optim.AdamW, lr=1e-3)
    for step in range(2):
        model.forward_backward(*batches(step, model.dp.r, model.dp.n, batch_size=4, sequence_length=16))
        hybrid_parallel.clip_grad_norm_(model, 0.5)
        optimizer.step()
        optimizer.zero_grad()
    return hybrid_parallel.gather_whole(hybrid_parallel.pieces(model))
