"""Gradients of experts, routers and auxiliary losses in every layout, and the two mistakes that no loss curve shows."""

import pytest
import torch
import torch.distributed as dist

from course_lib import expert_parallel as ep
from tests.expert_parallel.cases import gradients_with_all_experts
from tests.ranks import on_ranks

TOKENS, D, F, E = 24, 6, 10, 4


def made(group=ep.SINGLE):
    layer = ep.MoELayer(D, F, E, group=group, seed=0).double()
    with torch.no_grad():
        layer.router.weight.copy_(torch.randn(E, D, generator=torch.Generator().manual_seed(1)))
    return layer


def batch():
    return torch.randn(TOKENS, D, dtype=torch.float64, generator=torch.Generator().manual_seed(2))


def backward(layer, tokens, balance=0.0, z=0.0):
    loss = layer(tokens).square().mean()
    (loss + ep.auxiliary_loss(layer, balance, z) if balance or z else loss).backward()
    return layer


def in_one_process(*auxiliary):
    return {name: p.grad for name, p in backward(made(), batch(), *auxiliary).named_parameters()}


def on_a_rank(shared_by, average, *auxiliary):
    """Gradients with all experts, after this rank's tokens went through, and `average(layer, groups)` was called."""
    groups = ep.make_groups(shared_by)
    layer = backward(made(groups[0]), batch().chunk(dist.get_world_size())[dist.get_rank()], *auxiliary)
    average(layer, groups)
    return gradients_with_all_experts(layer)


def rightly(layer, groups):
    ep.average_gradients(layer, None, groups[1])


def without_naming(layer, groups):
    ep.average_gradients(layer)


def ratios(found, expected):
    """For each parameter how many times too large its gradient is; None where it is another one altogether."""
    result = {}
    for name, right in expected.items():
        ratio = (found[name] * right).sum() / right.square().sum()
        result[name] = ratio.item() if torch.allclose(found[name], ratio * right, rtol=1e-8, atol=1e-12) else None
    return result


@on_ranks(1, 2, 3, 4)
def test_every_gradient_is_that_of_the_whole_batch_in_every_layout_with_auxiliary_losses_and_without():
    n = dist.get_world_size()
    plain, auxiliary = in_one_process(), in_one_process(0.3, 0.01)
    assert (auxiliary["router.weight"] - plain["router.weight"]).abs().max() > 1e-3  # they matter
    for shared_by in (divisor for divisor in range(1, n + 1) if n % divisor == 0):
        for average in (rightly, without_naming) if shared_by in (1, n) else (rightly,):
            for expected, how in ((plain, ()), (auxiliary, (0.3, 0.01))):
                found = ratios(on_a_rank(shared_by, average, *how), expected)
                assert found == pytest.approx(dict.fromkeys(expected, 1.0), rel=1e-9), (shared_by, how)


@on_ranks(4)
def test_groups_must_be_named_where_some_share_the_experts():
    layer = made(ep.make_groups(2)[0])
    for group, said in (
            (None, r"experts are shared by \[2\] of 4 ranks: expected same_experts, the ranks that hold the same ones; "
                   "make_groups gives both"),
            (dist.group.WORLD, r"experts are shared by \[2\] ranks and held 4 times in a group of 4: expected numbers "
                               "that multiply to it")):
        with pytest.raises(ValueError, match=said):
            ep.average_gradients(layer, None, group)


@on_ranks(1, 4)
def test_a_clipped_norm_of_every_kind_is_that_of_the_whole_layer():
    for norm_type in (1.0, 2.0, float("inf")):
        alone, norms = backward(made(), batch()), []

        def clipped(layer, groups, norm_type=norm_type, norms=norms):
            rightly(layer, groups)
            norms.append(ep.clip_grad_norm_(layer, 0.01, norm_type).item())

        found = on_a_rank((dist.get_world_size() + 1) // 2, clipped)
        expected = torch.nn.utils.clip_grad_norm_(alone.parameters(), 0.01, norm_type).item()
        assert norms == pytest.approx([expected], rel=1e-9)
        for name, parameter in alone.named_parameters():
            assert torch.allclose(found[name], parameter.grad, rtol=1e-8, atol=1e-14), name


@on_ranks(2)
def test_a_parameter_that_no_rank_used_keeps_no_gradient():
    layer = torch.nn.ModuleDict({"moe": made(None), "unused": torch.nn.Linear(2, 2), "some": torch.nn.Linear(2, 2)})
    layer["moe"](batch()).sum().backward()
    if dist.get_rank() == 1:
        layer["some"](torch.ones(1, 2)).sum().backward()
    ep.average_gradients(layer)
    assert layer["unused"].weight.grad is None and layer["some"].weight.grad.tolist() == [[0.5, 0.5]] * 2
