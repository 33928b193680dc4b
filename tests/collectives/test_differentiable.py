"""Each differentiable collective gives the values and gradients of one process that holds all ranks' tensors, to the
bit, by one call of torch.distributed a direction. Many cases travel in one launch."""

import pytest
import torch
import torch.distributed as dist

from course_lib import collectives
from course_lib.runtime import LaunchError, launch, record_communication
from tests.collectives.cases import run
from tests.collectives.differentiable_cases import OPERATORS, cases, mistakes, problems_of
from tests.groups.mistakes import answers
from tests.ranks import on_ranks


@on_ranks(1, 2, 3, 4)
def test_values_gradients_calls_and_bytes_are_those_of_one_process_and_of_the_formula():
    n = dist.get_world_size()
    groups = {tuple(range(first, n)) for first in (0, 1)} | {(0, n - 1)} - {(0, 0)}
    drawn = [case for members in sorted(groups) if members for case in cases(members)
             if len(members) == n or case.layout == "every second"]
    assert not run(drawn, problems_of)[:3]


@on_ranks(2)
def test_an_output_that_is_used_twice_sends_one_gradient_and_one_that_needs_none_sends_nothing():
    x = torch.arange(4.0, requires_grad=True)
    y = collectives.all_gather_along(x, 0)
    with record_communication() as once:
        (y.sum() + 2 * y.sum()).backward()
    with record_communication() as nothing:
        frozen = collectives.copy_to_group(x.detach())
        with torch.no_grad():
            outside = collectives.scatter_to_group(x, 0)
        (frozen * outside.sum() * torch.ones(4, requires_grad=True)).sum().backward()
    assert [event.op for event in once.events] == ["reduce_scatter"] and x.grad.tolist() == [6.0] * 4
    assert nothing.calls() == 0 and not frozen.requires_grad


@on_ranks(2)
def test_writing_into_a_result_leaves_the_input_and_the_gradients_as_they_were_and_the_dtype_is_that_of_the_input():
    for operator, gradient in zip(OPERATORS, (6.0, 3.0, 3.0, 3.0, 6.0, 3.0, 3.0)):
        dims = {"copy_to_group": (), "reduce_from_group": (), "all_to_all_along": (0, 1)}.get(operator, (0,))
        x = torch.ones(2, 2, requires_grad=True)
        getattr(collectives, operator)(x, *dims).mul_(3).sum().backward()
        assert torch.equal(x, torch.ones(2, 2)) and x.grad.unique().item() == gradient, operator
        for dtype in (torch.bfloat16, torch.float16, torch.float32, torch.int64):
            assert getattr(collectives, operator)(torch.ones(2, 2).to(dtype), *dims).dtype == dtype, operator


@on_ranks(2)
def test_gradients_can_be_differentiated_again():
    x = torch.tensor([1.0 + dist.get_rank()], dtype=torch.float64, requires_grad=True)
    y = collectives.all_gather_along(x, 0)
    gradient, = torch.autograd.grad((y * y * y).sum(), x, create_graph=True)  # 3 x**2 from each of two ranks
    second, = torch.autograd.grad(gradient.sum(), x)
    assert (gradient.item(), second.item()) == [(6.0, 12.0), (24.0, 24.0)][dist.get_rank()]


def test_a_mistake_is_answered_with_what_was_given_and_what_was_expected(snapshot):
    def body():
        foreign = dist.new_group([0])
        return answers(mistakes(dist.group.WORLD, foreign)) if dist.get_rank() == 1 else None

    assert launch(body, world_size=2)[1] == snapshot


@pytest.mark.parametrize("operator, dims", [("reduce_from_group", ()), ("all_gather_along", (0,)),
                                            ("reduce_scatter_along", (0,)), ("all_to_all_along", (0, 1))])
def test_ranks_that_bring_different_sizes_are_stopped_at_their_line_and_do_not_hang(operator, dims):
    def body():
        x = torch.ones(4 * (1 + dist.get_rank()), 2)
        return getattr(collectives, operator)(x, *dims)

    with pytest.raises(LaunchError, match="(?s)test_differentiable.*another rank's tensor .* has a different size"):
        launch(body, world_size=2)
