"""Gradients of experts, routers and auxiliary losses in every layout, and the two mistakes that no loss curve shows."""

import pytest
import torch
import torch.distributed as dist

from course_lib.expert_parallel import (
    SINGLE,
    MoELayer,
    auxiliary_loss,
    average_expert_gradients,
    average_gradients,
    average_replicated_gradients,
    clip_grad_norm_,
    expert_parameters,
    load_balancing_loss,
    make_groups,
    replicated_parameters,
)
from course_lib.expert_parallel.full_state import gather_experts
from course_lib.groups.packing import add_up
from course_lib.runtime import launch

TOKENS, D, F, E = 24, 6, 10, 4
LAYOUTS = [(1, 1), (2, 1), (2, 2), (3, 3), (4, 1), (4, 2), (4, 4)]  # (ranks, ranks that share the experts)


def made(group=SINGLE):
    layer = MoELayer(D, F, E, group=group, seed=0).double()
    with torch.no_grad():
        layer.router.weight.copy_(torch.randn(E, D, generator=torch.Generator().manual_seed(1)))
    return layer


def batch():
    return torch.randn(TOKENS, D, dtype=torch.float64, generator=torch.Generator().manual_seed(2))


def loss_of(layer, tokens, balance=0.0, z=0.0, group=None):
    loss = layer(tokens).square().mean()
    return loss + auxiliary_loss(layer, balance, z, group) if balance or z else loss


def in_one_process(balance=0.0, z=0.0):
    layer = made()
    loss_of(layer, batch(), balance, z).backward()
    return {name: p.grad for name, p in layer.named_parameters()}


def on_a_rank(layout, average, balance=0.0, z=0.0):
    """Gradients with all experts, after this rank's tokens went through, and `average` was called."""
    world, shared_by = layout
    groups = make_groups(shared_by)
    layer = made(groups[0])
    loss_of(layer, batch().chunk(world)[dist.get_rank()], balance, z).backward()
    average(layer, groups)
    return {name: gather_experts(p.grad, E, layer.member) if name.startswith("experts.") else p.grad
            for name, p in layer.named_parameters()}


def rightly(layer, groups):
    average_gradients(layer, None, groups[1])


def ratios(found, expected):
    """For each parameter how many times too large its gradient is; None where it is another one altogether."""
    result = {}
    for name, right in expected.items():
        ratio = (found[name] * right).sum() / right.square().sum()
        result[name] = ratio.item() if torch.allclose(found[name], ratio * right, rtol=1e-8, atol=1e-12) else None
    return result


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_gradient_is_that_of_the_whole_batch_in_every_layout_with_auxiliary_losses_and_without(layout):
    ways = [(), (0.3, 0.01)]
    without, with_them = expected = [in_one_process(*way) for way in ways]
    assert (with_them["router.weight"] - without["router.weight"]).abs().max() > 1e-3  # they matter
    for of_rank in launch(lambda: [on_a_rank(layout, rightly, *way) for way in ways], world_size=layout[0]):
        for found, right in zip(of_rank, expected):
            assert ratios(found, right) == pytest.approx(dict.fromkeys(right, 1.0), rel=1e-9)


def test_groups_need_not_be_named_where_all_share_the_experts_or_nobody_does():
    expected = in_one_process()

    def without_naming(layer, groups):
        average_gradients(layer)

    for layout in ((2, 2), (2, 1)):
        for found in launch(on_a_rank, layout, without_naming, world_size=2):
            assert ratios(found, expected) == pytest.approx(dict.fromkeys(expected, 1.0), rel=1e-9)
    for said in launch(refusal, world_size=4):
        assert said == ("experts are shared by [2] of 4 ranks: expected same_experts, the ranks that hold the same "
                        "ones; make_groups gives both",
                        "experts are shared by [2] ranks and held 4 times in a group of 4: expected numbers that "
                        "multiply to it")


def refusal():
    layer, said = made(make_groups(2)[0]), []
    for group in (None, dist.group.WORLD):
        try:
            average_gradients(layer, None, group)
        except ValueError as error:
            said.append(str(error))
    return tuple(said)


def test_experts_averaged_over_their_copies_alone_would_be_too_large_by_the_ranks_that_share_them():
    """The mistake: a mean over the ranks that hold the same experts forgets that backward has added up already."""
    def by_copies(layer, groups):
        average_expert_gradients(expert_parameters(layer), groups[1], groups[1].size())
        average_replicated_gradients(replicated_parameters(layer))

    expected = in_one_process()
    for found in launch(on_a_rank, (4, 2), by_copies, world_size=4):
        for name, ratio in ratios(found, expected).items():
            assert ratio == pytest.approx(2.0 if name.startswith("experts.") else 1.0, rel=1e-9)


def test_experts_averaged_like_all_else_would_be_those_of_other_experts():
    """The mistake: an average over the world mixes experts that only have the same name."""
    def like_all_else(layer, groups):
        average_replicated_gradients(layer.parameters())

    expected = in_one_process()
    for found in launch(on_a_rank, (2, 2), like_all_else, world_size=2):
        assert ratios(found, expected)["experts.w1"] is None


def only_auxiliary(how, world):
    """The router's gradient of the auxiliary loss alone, on a rank."""
    layer = made()
    layer(batch().chunk(world)[dist.get_rank()])
    routing = layer.routing
    if how == "right":
        auxiliary_loss(layer, 1.0).backward()
    elif how == "summed":
        auxiliary_loss(layer, 1.0).backward()
        add_up([layer.router.weight.grad])
    elif how == "own counts":
        load_balancing_loss(routing.scores, routing.experts).backward()
    elif how == "without gradient":
        load_balancing_loss(routing.scores.detach(), routing.experts).requires_grad_().backward()
    if how != "summed" and layer.router.weight.grad is not None:
        add_up([layer.router.weight.grad], divide_by=world)
    return layer.router.weight.grad


def test_an_auxiliary_loss_that_is_summed_or_counted_alone_or_detached_would_be_found():
    layer = made()
    layer(batch())
    auxiliary_loss(layer, 1.0).backward()
    expected = layer.router.weight.grad
    hows = ("right", "summed", "own counts", "without gradient")
    for world in (2, 4):
        found = launch(lambda world: {how: only_auxiliary(how, world) for how in hows}, world, world_size=world)[0]
        assert torch.allclose(found["right"], expected, atol=1e-14)
        assert torch.allclose(found["summed"], world * expected, atol=1e-14)
        assert not torch.allclose(found["own counts"], expected, rtol=1e-3)
        assert found["without gradient"] is None


def test_a_clipped_norm_of_every_kind_is_that_of_the_whole_layer():
    def body(layout):
        found = []
        for norm_type in norm_types:
            def clipped(layer, groups, norm_type=norm_type):
                average_gradients(layer, None, groups[1])
                found.append(clip_grad_norm_(layer, 0.01, norm_type).item())
            found.append(on_a_rank(layout, clipped))
        return list(zip(found[::2], found[1::2]))

    norm_types = (1.0, 2.0, float("inf"))
    for layout in ((1, 1), (4, 2)):
        for of_rank in launch(body, layout, world_size=layout[0]):
            for norm_type, (norm, found) in zip(norm_types, of_rank):
                layer = made()
                loss_of(layer, batch()).backward()
                expected = torch.nn.utils.clip_grad_norm_(layer.parameters(), 0.01, norm_type).item()
                assert norm == pytest.approx(expected, rel=1e-9)
                for name, parameter in layer.named_parameters():
                    assert torch.allclose(found[name], parameter.grad, rtol=1e-8, atol=1e-14), name


def test_a_parameter_that_no_rank_used_keeps_no_gradient():
    def body():
        layer = torch.nn.ModuleDict({"moe": made(None), "unused": torch.nn.Linear(2, 2), "some": torch.nn.Linear(2, 2)})
        layer["moe"](batch()).sum().backward()
        if dist.get_rank() == 1:
            layer["some"](torch.ones(1, 2)).sum().backward()
        average_gradients(layer)
        return layer["unused"].weight.grad, layer["some"].weight.grad.tolist()

    assert launch(body, world_size=2) == [(None, [[0.5, 0.5], [0.5, 0.5]])] * 2
