"""Each differentiable collective gives the values and gradients of one process that holds all ranks' tensors, to the
bit, by one call of torch.distributed a direction. Many cases travel in one launch."""

import re
from itertools import product

import pytest
import torch
import torch.distributed as dist
from torch.nn.functional import gelu

from course_lib import collectives
from course_lib.runtime import LaunchError, launch, record_communication
from tests.collectives.differentiable_cases import OPERATORS, cases, run, said_to_mistakes


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_values_gradients_calls_and_bytes_are_those_of_one_process_and_of_the_formula(world_size):
    groups = {tuple(range(first, world_size)) for first in (0, 1)} | {(0, world_size - 1)} - {(0, 0)}
    drawn = [case for members in sorted(groups) if members for case in cases(members)]
    problems = [problem for of_rank in launch(run, drawn, world_size=world_size) for problem in of_rank]
    assert not problems, "\n\n".join(problems[:3])


def test_an_mlp_in_columns_and_rows_equals_the_whole_one_with_f_and_g_and_with_t_dealt_out():
    B, T, D, F = 2, 8, 4, 12

    def weights(seed=0):
        generator = torch.Generator().manual_seed(seed)
        return [torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_()
                for shape in ((B, T, D), (F, D), (D, F))]

    def body(dealt):
        n, r = dist.get_world_size(), dist.get_rank()
        x, up, down = weights()
        mine = x.detach().chunk(n, 1)[r].clone().requires_grad_() if dealt else x
        columns, rows = (w.detach().chunk(n, dim)[r].clone().requires_grad_() for w, dim in ((up, 0), (down, 1)))
        whole = collectives.all_gather_along(mine, 1) if dealt else collectives.copy_to_group(mine)
        summand = gelu(whole @ columns.T) @ rows.T
        y = collectives.reduce_scatter_along(summand, 1) if dealt else collectives.reduce_from_group(summand)
        y.pow(2).sum().backward()
        return y.detach(), mine.grad, columns.grad, rows.grad

    x, up, down = weights()
    y = gelu(x @ up.T) @ down.T
    y.pow(2).sum().backward()
    for n, dealt in product((1, 2, 4), (False, True)):
        for r, (of_y, of_x, of_up, of_down) in enumerate(launch(body, dealt, world_size=n)):
            pieces = [(of_y, y.detach().chunk(n, 1)[r] if dealt else y.detach()),
                      (of_x, x.grad.chunk(n, 1)[r] if dealt else x.grad),
                      (of_up, up.grad.chunk(n, 0)[r]), (of_down, down.grad.chunk(n, 1)[r])]
            for given, wanted in pieces:
                torch.testing.assert_close(given, wanted, rtol=1e-12, atol=1e-12)


def test_an_all_to_all_from_tokens_to_heads_is_undone_by_the_one_back():
    def body():
        x = torch.randn(2, 6, 5, 4)  # (B, heads, T/n, head_dim)
        heads = collectives.all_to_all_along(x, 1, 2)
        return heads.shape, torch.equal(collectives.all_to_all_along(heads, 2, 1), x)

    assert launch(body, world_size=3) == [((2, 2, 15, 4), True)] * 3


def test_an_output_that_is_used_twice_sends_one_gradient_and_one_that_needs_none_sends_nothing():
    def body():
        x = torch.arange(4.0, requires_grad=True)
        y = collectives.all_gather_along(x, 0)
        with record_communication() as once:
            (y.sum() + 2 * y.sum()).backward()
        with record_communication() as nothing:
            frozen = collectives.copy_to_group(x.detach())
            with torch.no_grad():
                outside = collectives.scatter_to_group(x, 0)
            (frozen * outside.sum() * torch.ones(4, requires_grad=True)).sum().backward()
        return [event.op for event in once.events], x.grad.tolist(), nothing.calls(), frozen.requires_grad

    assert launch(body, world_size=2) == [(["reduce_scatter"], [6.0] * 4, 0, False)] * 2


def test_writing_into_a_result_leaves_the_input_and_the_gradients_as_they_were():
    def body():
        written = []
        for operator in OPERATORS:
            dims = {"copy_to_group": (), "reduce_from_group": (), "all_to_all_along": (0, 1)}.get(operator, (0,))
            x = torch.ones(2, 2, requires_grad=True)
            y = getattr(collectives, operator)(x, *dims)
            y.mul_(3).sum().backward()
            written.append(torch.equal(x, torch.ones(2, 2)) and x.grad.unique().item())
        return written

    assert launch(body, world_size=2) == [[6.0, 3.0, 3.0, 3.0, 6.0, 3.0, 3.0]] * 2


def test_gradients_can_be_differentiated_again():
    def body():
        x = torch.tensor([1.0 + dist.get_rank()], dtype=torch.float64, requires_grad=True)
        y = collectives.all_gather_along(x, 0)
        gradient, = torch.autograd.grad((y * y * y).sum(), x, create_graph=True)  # 3 x**2 from each of two ranks
        second, = torch.autograd.grad(gradient.sum(), x)
        return gradient.item(), second.item()

    assert launch(body, world_size=2) == [(6.0, 12.0), (24.0, 24.0)]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.int64])
def test_the_dtype_stays_what_it_is(dtype):
    def body():
        x = torch.ones(2, 2).to(dtype)
        return {y.dtype for y in (collectives.reduce_from_group(x), collectives.all_gather_along(x, 0),
                                  collectives.reduce_scatter_along(x, 1), collectives.all_to_all_along(x, 0, 1))}

    assert launch(body, world_size=2) == [{dtype}] * 2


def test_a_mistake_is_answered_with_what_was_given_and_what_was_expected():
    def body():
        foreign = dist.new_group([0])
        return said_to_mistakes(dist.group.WORLD, foreign) if dist.get_rank() == 1 else None

    said = launch(body, world_size=2)[1]
    missing = [name for name, expected in EXPECTED.items() if not re.search(expected, said[name])]
    assert missing == [] and said.keys() == EXPECTED.keys(), said


@pytest.mark.parametrize("operator, dims", [("reduce_from_group", ()), ("all_gather_along", (0,)),
                                            ("reduce_scatter_along", (0,)), ("all_to_all_along", (0, 1))])
def test_ranks_that_bring_different_sizes_are_stopped_at_their_line_and_do_not_hang(operator, dims):
    def body():
        x = torch.ones(4 * (1 + dist.get_rank()), 2)
        return getattr(collectives, operator)(x, *dims)

    with pytest.raises(LaunchError, match="(?s)test_differentiable.*another rank's tensor .* has a different size"):
        launch(body, world_size=2)


EXPECTED = {
    "dim too large": r"dim=2 of float32\[2, 3\] on cpu: expected -2 to 1",
    "dim too small": r"dim=-3 of float32\[2, 3\] on cpu: expected -2 to 1",
    "dim that is no number": "dim=1.0 is a float: expected a whole number",
    "group in the place of dim": "is a ProcessGroup: expected a whole number",
    "dim that is a truth value": "dim=True is a bool: expected a whole number",
    "no dims": r"dim=0 of float32\[\] on cpu: expected a tensor that has dimensions",
    "pieces of a scatter": r"3 elements along dim=1 of float32\[2, 3\] on cpu: expected a number that the 2 ranks",
    "pieces of a reduce-scatter": r"3 elements along dim=1 of .*: expected a number that the 2 ranks of the group",
    "pieces of an all-to-all": r"3 elements along split_dim=1 of .*: expected a number that the 2 ranks of the group",
    "where to join": r"concat_dim=5 of float32\[2, 3\] on cpu: expected -2 to 1",
    "foreign group": "rank 1 is not in the group it was given",
    "no group": "group='world' is not a group: expected None",
}
