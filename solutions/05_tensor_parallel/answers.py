"""Chapter 5: right and wrong answers, what each text stresses, each docstring's example; tools/answers.py reads it."""
# ruff: noqa: F821

import math
from fractions import Fraction

import numpy
import torch
import torch.distributed as dist
import torch.nn.functional as F

from tools.answers import example, right, term, wrong


def hooked(x):
    """f: a hook on a view of x."""
    view = x.view_as(x)
    view.register_hook(total)
    return view


def straight_through(x):
    """g: the sum's value, with x's way back."""
    return x + (total(x.detach()) - x).detach()


def total(tensor):
    tensor = tensor.clone()
    dist.all_reduce(tensor)
    return tensor


def door(forward, backward):
    """An autograd.Function of what it does to what comes in, forward and backward."""
    class Door(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return forward(x)

        @staticmethod
        def backward(ctx, dy):
            return backward(dy)

    return Door.apply


def same(x):
    return x.view_as(x)


def mean(x):
    return total(x) / dist.get_world_size()


def own(weight, dim=0):
    return weight.chunk(dist.get_world_size(), dim)[dist.get_rank()]


def gathered(tensor, dim):
    """Of all ranks, side by side; backward leads to this rank's own."""
    parts = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, tensor.detach().contiguous())
    parts[dist.get_rank()] = tensor
    return torch.cat(parts, dim)


def nested(tensor):
    """As the docstrings write it: whole numbers with a point behind them."""
    return str((tensor.round(decimals=6) + 0.0).tolist()).replace(".0,", ".,").replace(".0]", ".]")


# ---- 5.1 my_f_and_g
@right("5.1", "a hook for f, and for g the sum's value with the way back of x")
def doors_without_a_function():
    return [hooked, straight_through]


@right("5.1", "forward returns what it got, and the sums are waited for")
def doors_with_requests():
    def waited(x):
        x = x.detach().clone(memory_format=torch.contiguous_format)
        dist.all_reduce(x, async_op=True).wait()
        return x

    class Copy(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x

        @staticmethod
        def backward(ctx, dy):
            return waited(dy)

    class Add(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return waited(x)

        @staticmethod
        def backward(ctx, dy):
            return dy.clone()
    return lambda x: Copy.apply(x), lambda x: Add.apply(x)


@right("5.1", "vmap's form, with setup_context; the functional collective")
def doors_with_setup_context():
    from torch.distributed._functional_collectives import all_reduce

    class Copy(torch.autograd.Function):
        @staticmethod
        def forward(x):
            return x.clone()

        @staticmethod
        def setup_context(ctx, inputs, output):
            """Nothing is kept."""

        @staticmethod
        def backward(ctx, dy):
            return all_reduce(dy, "sum", dist.group.WORLD)

    return Copy.apply, straight_through


def all_reduced_in_place(x):
    dist.all_reduce(x)
    return x.view_as(x)


@wrong("5.1", "f sends nothing in backward, so each rank has its own part of the gradient of x, though forward is "
       "right: every rank uses x, so its gradient is the sum over the ranks")
def f_that_forgets_backward():
    return door(same, same), door(total, same)


@wrong("5.1", "g adds up in backward as well: each of its summands goes into every rank's sum once, and the gradient "
       "is the same on all ranks already, so pass it on as it is")
def g_that_adds_in_backward():
    return door(same, total), door(total, total)


@wrong("5.1", "f and g are the other way round")
def f_and_g_swapped():
    return door(total, same), door(same, total)


@wrong("5.1", "g makes the mean: the ranks' results are summands, so nothing is divided")
def g_that_averages():
    return door(same, total), door(mean, same)


@wrong("5.1", "g adds into the tensor that came in, which somebody else still needs: add up a copy")
def g_in_place():
    return door(same, total), door(all_reduced_in_place, same)


@wrong("5.1", "f adds into the gradient that came in, which belongs to others too, here to the second term of a sum: "
       "add up a copy")
def f_in_place():
    return door(same, all_reduced_in_place), door(total, same)


@wrong("5.1", "the results are right, but nothing leads back through them: return the .apply of an autograd.Function")
def f_and_g_without_autograd():
    return lambda x: x.detach(), lambda x: total(x.detach())


@wrong("5.1", "it returned nothing (None): expected two functions")
def f_and_g_not_returned():
    door(same, total), door(total, same)


@wrong("5.1", "it uses course_lib.collectives")
def f_and_g_of_the_library():
    from course_lib.collectives import copy_to_group, reduce_from_group

    return copy_to_group, reduce_from_group


@wrong("5.1", "f is the class CopyToRanks, and calling a class makes an object of it: return CopyToRanks.apply")
def f_and_g_as_classes():
    class CopyToRanks(torch.autograd.Function):
        pass

    return CopyToRanks, CopyToRanks


F_AND_G = [wrong("5.1", says)(function) for says, function in (
    ("f adds up in forward as well: what comes in is whole already, so pass it on as it is",
     lambda: (door(total, total), door(total, same))),
    ("f and g both add up in both directions: each of them does so in one",
     lambda: (door(total, total), door(total, total))),
    ("g adds into the tensor that came in, which somebody else still needs: add up a copy",
     lambda: (door(same, total), door(lambda x: x.copy_(total(x)), same))),
    ("g sends nothing in forward: what it returns is the sum over the ranks",
     lambda: (door(same, total), door(same, same))),
    ("g makes the mean: the ranks' results are summands, so nothing is divided",
     lambda: (door(same, total), door(mean, lambda dy: dy / dist.get_world_size()))),
    ("f makes the mean of the gradients: they are summands, so nothing is divided",
     lambda: (door(same, mean), door(total, same))))]
TEXT_5_1 = [
    term("5.1", "f: forward x as it is", "return x.view_as(x)", "return added_up(x)"),
    term("5.1", "f: backward the sum", "return added_up(dy)", "return dy.clone()"),
    term("5.1", "g: forward the sum", "return added_up(x)", "return x.view_as(x)"),
    term("5.1", "g: backward dy as it is", "            return dy\n", "            return added_up(dy)\n"),
    term("5.1", "do not write into what comes in", "total = x.clone()", "total = x"),
    term("5.1", "not into f's gradient either", "return added_up(dy)", "dist.all_reduce(dy)\n            return dy"),
    term("5.1", "one all-reduce each", "return added_up(dy)", "return added_up(added_up(dy) * 0 + dy)"),
    example("5.1", lambda inputs, answers: [
        "w = {:g} on rank 0 and {:g} on rank 1, y = g(w * (f(x) + x)) at x = {:g}, and dy = {:g}:".format(
            *(rank["w"].item() for rank in inputs), inputs[0]["x"].item(), inputs[0]["c"].item()),
        "y is {:g} + {:g} = {:g} on both, w.grad is {:g} on both".format(
            *(answer["h"].item() for answer in answers), answers[0]["g"].item(), answers[1]["w"].item()),
        "x.grad is {0:g} + {1:g} through f on both, and past f {0:g} on rank 0 and {1:g} on rank 1".format(
            *(rank["w"].item() for rank in inputs)),
        "on rank 1: {:g} and {:g}".format(*(answer["x"].item() for answer in answers))])]


# ---- 5.2 my_gated_columns
@right("5.2", "one fused product")
def columns_in_one_product(x, gate, up):
    t, r = dist.get_world_size(), dist.get_rank()
    both = torch.cat([gate.chunk(t)[r], up.chunk(t)[r]])
    opened, brought = F.linear(hooked(x), both).chunk(2, dim=-1)
    return F.silu(opened) * brought


@right("5.2", "einsum, and the gradient of x by hand")
def columns_by_hand(x, gate, up):
    t, r = dist.get_world_size(), dist.get_rank()

    class Gated(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, gate, up):
            opened, brought = (torch.einsum("btd,fd->btf", x, weight) for weight in (gate, up))
            ctx.save_for_backward(x, gate, up, opened, brought)
            return F.silu(opened) * brought

        @staticmethod
        def backward(ctx, dy):
            x, gate, up, opened, brought = ctx.saved_tensors
            is_open = opened.sigmoid()
            d_opened = dy * brought * is_open * (1 + opened * (1 - is_open))
            d_brought = dy * opened * is_open
            dx = d_opened @ gate + d_brought @ up
            request = dist.all_reduce(dx, async_op=True)  # on its way while the weights' gradients are computed
            d_gate, d_up = (torch.einsum("btf,btd->fd", each, x) for each in (d_opened, d_brought))
            request.wait()
            return dx, d_gate, d_up
    return Gated.apply(x, *(weight.unflatten(0, (t, -1))[r] for weight in (gate, up)))


def gated(x, gate, up):
    return F.silu(F.linear(x, gate)) * F.linear(x, up)


@wrong("5.2", "forward is right, but the gradient of x is this rank's part: every rank reads all of x, so its gradient "
       "is a sum over the ranks, which f makes")
def columns_without_f(x, gate, up):
    return gated(x, own(gate), own(up))


@wrong("5.2", "apply f once, and let both matrices read what it gives: autograd adds their gradients up before f sends "
       "them")
def columns_with_f_twice(x, gate, up):
    f, _ = my_f_and_g()
    return F.silu(F.linear(f(x), own(gate))) * F.linear(f(x), own(up))


@wrong("5.2", "x goes through g, and is t times too large: what comes in is whole already, so f")
def columns_behind_g(x, gate, up):
    _, g = my_f_and_g()
    return gated(g(x), own(gate), own(up))


@wrong("5.2", "every rank computes all features: rank r has the r-th piece of rows of each weight")
def columns_not_cut(x, gate, up):
    f, _ = my_f_and_g()
    return gated(f(x), gate, up)


@wrong("5.2", "are the columns of the matrix that x is multiplied with")
def columns_cut_along_the_other_dimension(x, gate, up):
    f, _ = my_f_and_g()
    return gated(f(x), own(gate, 1), own(up, 1))


@wrong("5.2", "rank r has the rows r, r + t, r + 2t: its features lie next to each other, as weight.chunk(t)[r]")
def columns_dealt_one_by_one(x, gate, up):
    f, _ = my_f_and_g()
    t, r = dist.get_world_size(), dist.get_rank()
    return gated(f(x), gate[r::t], up[r::t])


@wrong("5.2", "gate and up are cut as one: each rank has the r-th piece of gate and the r-th piece of up")
def columns_of_both_as_one(x, gate, up):
    f, _ = my_f_and_g()
    return gated(f(x), *own(torch.cat([gate, up])).chunk(2))


@wrong("5.2", "every rank computes all features and keeps its own: take this rank's rows of the weights first, and "
       "multiply by these alone")
def columns_computed_whole(x, gate, up):
    f, _ = my_f_and_g()
    return own(gated(f(x), gate, up), -1)


@wrong("5.2", "the gradients of all features are gathered, and every rank computes the whole gradient of x: compute "
       "this rank's part of it, and add up")
def columns_with_gathered_gradients(x, gate, up):
    class Gated(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, gate, up):
            ctx.save_for_backward(x, gate, up)
            return gated(x, own(gate), own(up))

        @staticmethod
        def backward(ctx, dy):
            x, gate, up = (tensor.detach().requires_grad_() for tensor in ctx.saved_tensors)
            with torch.enable_grad():
                whole = gated(x, gate, up)
            dx, *weights = torch.autograd.grad(whole, (x, gate, up), gathered(dy, -1))
            for weight in weights:
                rows = own(weight).clone()
                own(weight.zero_()).copy_(rows)
            return dx, *weights

    return Gated.apply(x, gate, up)


@wrong("5.2", "it uses course_lib.tensor_parallel")
def columns_by_the_library(x, gate, up):
    from course_lib.tensor_parallel import ColumnParallelLinear

    return ColumnParallelLinear(x.shape[-1], len(gate))(x)


COLUMNS = [wrong("5.2", says)(function) for says, function in (
    ("every rank computes rank 0's features: take the r-th piece",
     lambda x, gate, up: my_gated_columns(x, *(weight[:len(own(weight))].repeat(dist.get_world_size(), 1)
                                               for weight in (gate, up)))),
    ("the gates and the others have changed places: silu belongs to `gate`",
     lambda x, gate, up: my_gated_columns(x, up, gate)),
    ("the gradient of x is a mean over the ranks: its parts are summands, so nothing is divided",
     lambda x, gate, up: gated(door(same, mean)(x), own(gate), own(up))))]
TEXT_5_2 = [
    term("5.2", "x.grad is that of all features", "x = f(x)", "pass"),
    term("5.2", "the r-th of t equal pieces", "weight.chunk(t)[r]", "weight.chunk(t)[0]"),
    term("5.2", "pieces that lie together", "weight.chunk(t)[r]", "weight[r::t]"),
    term("5.2", "silu of x gate^T", "F.silu(F.linear(x, gate)) * F.linear(x, up)",
         "F.silu(F.linear(x, up)) * F.linear(x, gate)"),
    term("5.2", "nothing in forward", "x = f(x)", "x = f(x)\n    dist.all_reduce(x.detach().clone())"),
    term("5.2", "one all-reduce for both matrices", """x = f(x)
    gate, up = (weight.chunk(t)[r] for weight in (gate, up))  # (F/t, D)
    return F.silu(F.linear(x, gate)) * F.linear(x, up)""",
         """gate, up = (weight.chunk(t)[r] for weight in (gate, up))
    return F.silu(F.linear(f(x), gate)) * F.linear(f(x), up)"""),
    term("5.2", "gate.grad and up.grad 0 elsewhere", "for weight in (gate, up)", "for weight in (f(gate), f(up))"),
    term("5.2", "a t-th of the products", "return F.silu(F.linear(x, gate)) * F.linear(x, up)",
         "F.linear(x, gate)\n    return F.silu(F.linear(x, gate)) * F.linear(x, up)"),
    example("5.2", lambda inputs, answers: [
        "one token, x {};".format(nested(inputs[0]["given"]["x"])),
        "gate {}, up {}".format(*(nested(inputs[0]["given"][name]) for name in ("gate", "up"))),
        "rank 0 returns {}, and rank 1 {}".format(*(nested(answer["y"]) for answer in answers)),
        "dy {} on both".format(nested(inputs[0]["dy"])),
        "it is {} on both".format(nested(answers[1]["gradients"]["x"])),
        "up.grad on rank 0 is {}".format(nested(answers[0]["gradients"]["up"]))])]


# ---- 5.3 my_row_linear
@right("5.3", "bias and residual are added while the sum is under way")
def row_with_a_sum_under_way(x, weight, bias, residual):
    t, r = dist.get_world_size(), dist.get_rank()
    summand = x @ weight.tensor_split(t, 1)[r].mT
    arriving = summand.detach().clone()
    request = dist.all_reduce(arriving, async_op=True)
    beside = residual + bias
    request.wait()
    return beside + summand + (arriving - summand).detach()


@right("5.3", "the sum of all rows of all tokens as one matrix, with autograd by hand")
def row_by_hand(x, weight, bias, residual):
    r, part = dist.get_rank(), x.shape[-1]
    own = slice(r * part, (r + 1) * part)

    class Row(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, weight, bias, residual):
            ctx.save_for_backward(x, weight)
            return total(x.flatten(0, 1) @ weight[:, own].T).view_as(residual) + bias + residual

        @staticmethod
        def backward(ctx, dy):
            x, weight = ctx.saved_tensors
            d_weight = torch.zeros_like(weight)
            d_weight[:, own] = dy.flatten(0, 1).T @ x.flatten(0, 1)
            return dy @ weight[:, own], d_weight, dy.sum((0, 1)), dy
    return Row.apply(x, weight, bias, residual)


def summand(x, weight):
    return F.linear(x, own(weight, 1))


def row(x, weight, inside, outside):
    """With something inside the sum, on each rank, and something added to it."""
    _, g = my_f_and_g()
    return g(summand(x, weight) + inside) + outside


def share(tensor):
    return tensor / dist.get_world_size()


def of_rank_0(tensor):
    return tensor if dist.get_rank() == 0 else 0


@wrong("5.3", "the bias is added t times, once on every rank before the sum: add to the sum")
def row_with_the_bias_inside(x, weight, bias, residual):
    return row(x, weight, bias, residual)


@wrong("5.3", "the residual is added t times, once on every rank before the sum: add to the sum")
def row_with_the_residual_inside(x, weight, bias, residual):
    return row(x, weight, residual, bias)


@wrong("5.3", "forward is right, because the bias is divided by t before the sum; but each gradient is divided as "
       "well: add to the sum, undivided")
def row_with_a_share_of_the_bias(x, weight, bias, residual):
    return row(x, weight, share(bias), residual)


@wrong("5.3", "forward is right, but bias and residual are added by one rank alone, so that only there is a gradient, "
       "and the copies of the ranks part with the first step: add to the sum, on all ranks")
def row_where_rank_0_adds(x, weight, bias, residual):
    return row(x, weight, of_rank_0(bias + residual), 0)


@wrong("5.3", "nobody adds up: what a rank computes is a summand of the result")
def row_without_g(x, weight, bias, residual):
    return residual + summand(x, weight) + bias


@wrong("5.3", "the gradients are added up as well, though every rank has the whole gradient of the sum already (so "
       "does torch.distributed.nn's all_reduce): backward of g is a copy")
def row_as_torchs_all_reduce_has_it(x, weight, bias, residual):
    return residual + door(total, total)(summand(x, weight)) + bias


@wrong("5.3", "the gradients of x and weight are missing: what is added up does not lead back to them, so let g do it")
def row_that_cuts_the_way_back(x, weight, bias, residual):
    return residual + total(summand(x, weight).detach()) + bias


WHOLE_PRODUCT = ("every rank computes the whole product, of all ranks' x or of its own among zeros: multiply this "
                 "rank's features by its columns, and add the products up")


@wrong("5.3", WHOLE_PRODUCT)
def row_of_features_among_zeros(x, weight, bias, residual):
    t, r = dist.get_world_size(), dist.get_rank()
    _, g = my_f_and_g()
    return residual + g(F.linear(F.pad(x, (r * x.shape[-1], (t - 1 - r) * x.shape[-1])), weight)) + bias


@wrong("5.3", WHOLE_PRODUCT)
def row_of_gathered_features(x, weight, bias, residual):
    t, r = dist.get_world_size(), dist.get_rank()
    columns = [part if rank == r else part.detach() for rank, part in enumerate(weight.chunk(t, 1))]
    return residual + F.linear(gathered(x, -1), torch.cat(columns, 1)) + bias


@wrong("5.3", "are the columns of the matrix that x is multiplied with")
def row_cut_along_the_other_dimension(x, weight, bias, residual):
    _, g = my_f_and_g()
    return residual + g(F.linear(x, own(weight))) + bias


BY_ONE_ALONE = ("added by one rank alone, so that only there is a gradient, and the copies of the ranks part with the "
                "first step: add to the sum, on all ranks")
DIVIDED = "divided by t before the sum; but each gradient is divided as well: add to the sum, undivided"
AVERAGED = "the summands are averaged: they are parts of one product, so nothing is divided"
ROWS = [wrong("5.3", says)(function) for says, function in (
    (f"forward is right, but the bias is {BY_ONE_ALONE}",
     lambda x, weight, bias, residual: row(x, weight, of_rank_0(bias), residual)),
    ("the bias is missing", lambda x, weight, bias, residual: row(x, weight, 0, residual)),
    (f"forward is right, because the residual is {DIVIDED}",
     lambda x, weight, bias, residual: row(x, weight, share(residual), bias)),
    (f"forward is right, but the residual is {BY_ONE_ALONE}",
     lambda x, weight, bias, residual: row(x, weight, of_rank_0(residual), bias)),
    ("the residual is missing", lambda x, weight, bias, residual: row(x, weight, 0, bias)),
    ("bias and residual are added t times, once on every rank before the sum: add to the sum",
     lambda x, weight, bias, residual: row(x, weight, bias + residual, 0)),
    (f"forward is right, because bias and residual are {DIVIDED}",
     lambda x, weight, bias, residual: row(x, weight, share(bias + residual), 0)),
    ("bias and residual are missing", lambda x, weight, bias, residual: row(x, weight, 0, 0)),
    (AVERAGED, lambda x, weight, bias, residual: share(row(x, weight, 0, 0)) + bias + residual),
    (AVERAGED, lambda x, weight, bias, residual: door(mean, same)(summand(x, weight)) + bias + residual),
    ("every rank takes rank 0's columns: take the r-th piece along dim 1", lambda x, weight, bias, residual:
     my_row_linear(x, weight[:, :x.shape[-1]].repeat(1, dist.get_world_size()), bias, residual)))]


def row_parts(inputs):
    """Of each result: both ranks' products, the bias, the residual."""
    given = [rank["given"] for rank in inputs]
    products = [own["x"].flatten() @ own["weight"].chunk(2, 1)[r].T for r, own in enumerate(given)]
    parts = zip(*products, given[0]["bias"], given[0]["residual"].flatten())
    return ", ".join(" + ".join(f"{number:g}." for number in each) for each in parts)


TEXT_5_3 = [
    term("5.3", "what comes out is a summand", "g(summand)", "summand"),
    term("5.3", "the bias counts once", "residual + g(summand) + bias", "residual + g(summand + bias)"),
    term("5.3", "the residual counts once", "residual + g(summand) + bias", "g(residual + summand) + bias"),
    term("5.3", "bias.grad is whole", "residual + g(summand) + bias", "residual + g(summand + bias / t)"),
    term("5.3", "residual.grad is whole on each", "residual + g(summand) + bias",
         "g(summand + (residual if r == 0 else 0)) + bias"),
    term("5.3", "this rank's columns", "weight.chunk(t, dim=1)[r]", "weight.chunk(t, dim=1)[0]"),
    term("5.3", "a piece of the features", "weight.chunk(t, dim=1)[r]", "weight[:, r::t]"),
    term("5.3", "one all-reduce", "g(summand)", "g(summand) + 0 * g(summand.detach())"),
    term("5.3", "nothing in backward", "g(summand)", "my_f_and_g()[0](g(summand)) + 0"),
    term("5.3", "a t-th of the product", "summand = F.linear(x,",
         "F.linear(x.repeat(1, 1, t), weight)\n    summand = F.linear(x,"),
    example("5.3", lambda inputs, answers: [
        "x {} and {}, weight {}, bias {}, residual {}".format(
            *(nested(rank["given"]["x"]) for rank in inputs),
            *(nested(inputs[0]["given"][name]) for name in ("weight", "bias", "residual"))),
        f"both return [[[{row_parts(inputs)}]]] = {nested(answers[0]['y'])}",
        "dy {}: bias.grad is {} on both, weight.grad {} and {}".format(
            nested(inputs[0]["dy"]), nested(answers[1]["gradients"]["bias"]),
            *(nested(answer["gradients"]["weight"]) for answer in answers))])]


# ---- 5.4 my_qkv_rows
@right("5.4", "by index")
def qkv_rows_by_index(weight, num_heads, num_kv_heads):
    t, r, group = dist.get_world_size(), dist.get_rank(), num_heads // num_kv_heads
    heads = torch.arange(num_heads).view(t, -1)[r]
    kv = (heads // group).unique()
    all_of_them = torch.cat([heads, num_heads + kv, num_heads + num_kv_heads + kv])
    return weight.view(num_heads + 2 * num_kv_heads, -1, weight.shape[1])[all_of_them].flatten(0, 1)


@right("5.4", "numpy, row by row")
def qkv_rows_in_numpy(weight, num_heads, num_kv_heads):
    t, r, rows = dist.get_world_size(), dist.get_rank(), weight.numpy()
    d = len(rows) // (num_heads + 2 * num_kv_heads)
    q, kv = num_heads // t, max(num_kv_heads // t, 1)
    first_kv = r * num_kv_heads // t
    starts = (r * q, num_heads + first_kv, num_heads + num_kv_heads + first_kv)
    own = [rows[start * d + row] for start, heads in zip(starts, (q, kv, kv)) for row in range(heads * d)]
    return torch.from_numpy(numpy.stack(own))


@right("5.4", "written into an empty parameter")
def qkv_rows_as_a_parameter(weight, num_heads, num_kv_heads):
    own = my_qkv_rows(weight, num_heads, num_kv_heads)
    return torch.nn.Parameter(torch.empty_like(own).copy_(own))


def rows_of(weight, H, K, q, kv):
    """Those of these heads of q, and of k and v."""
    heads = weight.unflatten(0, (H + 2 * K, -1))
    return heads[[*q, *(H + head for head in kv), *(H + K + head for head in kv)]].flatten(0, 1)


def own_heads(H):
    return own(torch.arange(H)).tolist()


def read_by(heads, H, K):
    return sorted({head * K // H for head in heads})


@wrong("5.4", "the fused matrix is cut as one, so that rank 0 has heads of q and hardly a key: cut q, k and v each on "
       "its own")
def qkv_rows_of_the_whole_matrix(weight, num_heads, num_kv_heads):
    return own(weight)


@wrong("5.4", "every rank holds all heads of k and v: it needs those that its heads of q read, and no others")
def qkv_rows_with_all_keys(weight, num_heads, num_kv_heads):
    return rows_of(weight, num_heads, num_kv_heads, own_heads(num_heads), range(num_kv_heads))


@wrong("5.4", "t is larger than K, and the heads of k and v are cut through: a rank needs the whole head, which others "
       "hold as well")
def qkv_rows_with_half_a_head(weight, num_heads, num_kv_heads):
    d = len(weight) // (num_heads + 2 * num_kv_heads)
    return torch.cat([own(part) for part in weight.split([num_heads * d, num_kv_heads * d, num_kv_heads * d])])


@wrong("5.4", "the heads of k and v are dealt one by one, r, r + t and so on: heads of q that follow one another share "
       "one")
def qkv_rows_with_keys_dealt_out(weight, num_heads, num_kv_heads):
    t, r, K = dist.get_world_size(), dist.get_rank(), num_kv_heads
    return rows_of(weight, num_heads, K, own_heads(num_heads), [r % K] if t > K else range(r, K, t))


@wrong("5.4", "head h of q is taken to read head h % K of k and v: it reads h // (H/K)")
def qkv_rows_with_keys_by_the_remainder(weight, num_heads, num_kv_heads):
    heads = own_heads(num_heads)
    return rows_of(weight, num_heads, num_kv_heads, heads, sorted({head % num_kv_heads for head in heads}))


@wrong("5.4", "what is returned is a view, which keeps the whole matrix alive: make a tensor of its own")
def qkv_rows_as_a_view(weight, num_heads, num_kv_heads):
    rows = my_qkv_rows(weight, num_heads, num_kv_heads)
    weight[:len(rows)] = rows
    return weight[:len(rows)]


@wrong("5.4", "what is returned is a view, which keeps the whole matrix alive: make a tensor of its own")
def qkv_rows_as_a_parameter_that_is_a_view(weight, num_heads, num_kv_heads):
    rows = my_qkv_rows(weight, num_heads, num_kv_heads)
    weight[:len(rows)] = rows
    return torch.nn.Parameter(weight[:len(rows)])


@wrong("5.4", "every rank has the whole matrix, so nobody has to ask")
def qkv_rows_that_rank_0_sends(weight, num_heads, num_kv_heads):
    if dist.get_rank() == 0:
        for other in range(1, dist.get_world_size()):
            dist.send(weight, other)
    else:
        dist.recv(weight, 0)
    return my_qkv_rows(weight, num_heads, num_kv_heads)


@wrong("5.4", "the heads of q are dealt one by one, r, r + t and so on: the ones that share a key follow one another, "
       "so take them in a row")
def qkv_rows_with_queries_dealt_out(weight, num_heads, num_kv_heads):
    heads = range(dist.get_rank(), num_heads, dist.get_world_size())
    return rows_of(weight, num_heads, num_kv_heads, heads, read_by(heads, num_heads, num_kv_heads))


QKV = [wrong("5.4", says)(function) for says, function in (
    ("each head of q has its own copy of a head of k and v: those that share one need it once",
     lambda weight, H, K: rows_of(weight, H, K, own_heads(H), [head * K // H for head in own_heads(H)])),
    ("k and v are missing: the rows of all three are asked, q, then k, then v",
     lambda weight, H, K: rows_of(weight, H, K, own_heads(H), [])),
    ("every rank has rank 0's rows: take those of rank r", lambda weight, H, K: rows_of(
        weight, H, K, range(H // dist.get_world_size()), read_by(range(H // dist.get_world_size()), H, K))))]


def named(rows):
    """Of q, k and v, which have tens 1, 2 and 3."""
    return " ".join(f"{'qkv'[int(row) // 10 - 1]}{int(row) % 10}" for row in rows.flatten())


TEXT_5_4 = [
    term("5.4", "q, k and v on their own", "return torch.cat([q[first * d:(last + 1) * d], k[kv], v[kv]])",
         "return weight.chunk(t)[r].clone()"),
    term("5.4", "heads of q in a row", "q[first * d:(last + 1) * d]", "q.unflatten(0, (-1, d))[r::t].flatten(0, 1)"),
    term("5.4", "of k and v what these read", "slice(kv_first * d, (kv_last + 1) * d)", "slice(None)"),
    term("5.4", "all that these read", "(kv_last + 1) * d", "(kv_first + 1) * d"),
    term("5.4", "head h reads h // (H/K)", "head * num_kv_heads // num_heads for head",
         "head % num_kv_heads for head"),
    term("5.4", "several ranks hold the same head, whole", "slice(kv_first * d, (kv_last + 1) * d)",
         "slice(r * num_kv_heads * d // t, (r + 1) * num_kv_heads * d // t)"),
    term("5.4", "first of q, then of k, then of v", "k[kv], v[kv]", "v[kv], k[kv]"),
    term("5.4", "memory of their own", "return torch.cat([q[first * d:(last + 1) * d], k[kv], v[kv]])",
         "own = torch.cat([q[first * d:(last + 1) * d], k[kv], v[kv]])\n    weight[:len(own)] = own\n"
         "    return weight[:len(own)]"),
    term("5.4", "nothing is sent", "    return torch.cat(",
         "    dist.all_reduce(weight, dist.ReduceOp.MAX)\n    return torch.cat("),
    example("5.4", lambda inputs, answers: [
        "H = {}, K = {}, d = 1, D = 1, rows named {}".format(*inputs[0]["heads"], named(inputs[0]["weight"])),
        "weight {}".format(nested(inputs[0]["weight"])),
        "on 2 ranks rank 0 {}: {} rank 1 {}".format(
            named(answers[0]["returned"]), nested(answers[0]["returned"]), named(answers[1]["returned"]))])]


# ---- 5.5 my_vocab_loss
@right("5.5", "autograd through the sums; a list, and the loss a tensor")
def vocab_loss_by_autograd(logits, targets, c):
    own = logits.shape[-1]
    z, highest = logits.detach().requires_grad_(), maximum(logits)
    places = targets - dist.get_rank() * own
    here = (places >= 0) & (places < own)
    z_y = z.gather(-1, places.clamp(0, own - 1)[..., None])[..., 0] * here
    both = straight_through(torch.stack([(z - highest[..., None]).exp().sum(-1), z_y]))
    log_Z = both[0].log() + highest
    loss = (log_Z - both[1] + c * log_Z**2).mean()
    loss.backward()
    return [loss.detach(), z.grad]


@right("5.5", "each rank's own log-sum-exp, one sum for the targets of all tokens, a number of numpy")
def vocab_loss_of_log_sum_exps(logits, targets, c):
    r, own, count = dist.get_rank(), logits.shape[-1], targets.numel()
    lse = logits.logsumexp(-1)
    highest = lse.clone()
    dist.all_reduce(highest, dist.ReduceOp.MAX)
    one_hot = F.one_hot(targets, own * dist.get_world_size())[..., r * own:(r + 1) * own]
    sums = total(torch.cat([(lse - highest).exp().flatten(), (logits * one_hot).sum()[None]]))
    log_Z = highest + sums[:-1].log().view_as(highest)
    gradient = (logits - log_Z[..., None]).exp() * (1 + 2 * c * log_Z[..., None]) - one_hot
    return numpy.float64((log_Z + c * log_Z**2).mean() - sums[-1] / count), gradient / count


@right("5.5", "three all-reduces, a Fraction")
def vocab_loss_in_three_messages(logits, targets, c):
    highest, r = maximum(logits), dist.get_rank()
    exponentials = (logits - highest[..., None]).exp()
    Z = total(exponentials.sum(-1))
    places = torch.arange(logits.shape[-1]).add(r * logits.shape[-1]).expand_as(logits)
    is_target = places.eq(targets[..., None])
    z_y = total(logits.where(is_target, 0.0).sum(-1))
    log_Z = Z.log() + highest
    loss = (log_Z - z_y + c * log_Z**2).mean()
    gradient = (1 + 2 * c * log_Z)[..., None] * exponentials / Z[..., None]
    gradient[is_target] -= 1
    return Fraction(loss.item()), gradient / targets.numel()


def maximum(logits):
    highest = logits.amax(-1)
    dist.all_reduce(highest, dist.ReduceOp.MAX)
    return highest


def vocab_loss(logits, targets, c, highest, add=total, everywhere=False, z_gradient=1.0, at_target=1.0, again=True):
    size, r = logits.shape[-1], dist.get_rank()
    is_target = (torch.arange(size) == targets[..., None] % size) if everywhere else (
        torch.arange(r * size, (r + 1) * size) == targets[..., None])
    e = (logits - highest[..., None]).exp()
    sums = add(torch.stack([e.sum(-1), (logits * is_target).sum(-1)]))
    log_Z = highest * again + sums[0].log()
    factor = (1 + z_gradient * 2 * c * log_Z)[..., None]
    gradient = (factor * e / sums[0][..., None] - at_target * is_target) / targets.numel()
    return (log_Z - sums[1] + c * log_Z**2).mean(), gradient


@wrong("5.5", "each rank has the loss of its own part of the vocabulary: the sum of the exponentials and the target's "
       "logit are sums over the ranks")
def vocab_loss_of_its_own(logits, targets, c):
    return vocab_loss(logits, targets, c, logits.amax(-1), add=lambda sums: sums)


@wrong("5.5", "each rank subtracts its own maximum, so the sums do not fit together: take the maximum over the ranks")
def vocab_loss_with_its_own_maximum(logits, targets, c):
    return vocab_loss(logits, targets, c, logits.amax(-1))


@wrong("5.5", "exp of a large logit overflows")
def vocab_loss_without_a_maximum(logits, targets, c):
    return vocab_loss(logits, targets, c, torch.zeros_like(logits[..., 0]))


def maximum_of_rank_0(logits):
    highest = logits.amax(-1)
    dist.broadcast(highest, 0)
    return highest


@wrong("5.5", "rank 0's maximum is subtracted on all ranks: exp overflows where another rank has a far larger logit. "
       "Take the maximum over the ranks")
def vocab_loss_with_the_maximum_of_rank_0(logits, targets, c):
    return vocab_loss(logits, targets, c, maximum_of_rank_0(logits))


@wrong("5.5", "the mean of the ranks' maxima is subtracted: exp overflows where one is far above it. Take the maximum "
       "over the ranks")
def vocab_loss_with_the_mean_of_maxima(logits, targets, c):
    return vocab_loss(logits, targets, c, mean(logits.amax(-1)))


@wrong("5.5", "nothing smaller than 0 is taken for the maximum: where all logits are far below 0 their sum of "
       "exponentials is 0, which has no logarithm")
def vocab_loss_with_a_maximum_from_0(logits, targets, c):
    return vocab_loss(logits, targets, c, maximum(logits).clamp(min=0))


@wrong("5.5", "every rank takes targets % (V/t) for its own, so that t logits and not one are subtracted: the target "
       "is on one rank, whose ids begin at r V/t")
def vocab_loss_with_targets_everywhere(logits, targets, c):
    return vocab_loss(logits, targets, c, maximum(logits), everywhere=True)


@wrong("5.5", "the z-loss is missing in the gradient: the derivative of c (log Z)^2 is 2 c log Z softmax(z)")
def vocab_loss_without_the_z_gradient(logits, targets, c):
    return vocab_loss(logits, targets, c, maximum(logits), z_gradient=0.0)


@wrong("5.5", "the gradient is that of a sum over the tokens: the loss is their mean, so divide by B T")
def vocab_loss_with_the_gradient_of_a_sum(logits, targets, c):
    loss, gradient = my_vocab_loss(logits, targets, c)
    return loss, gradient * targets.numel()


@wrong("5.5", "the logits stay where they are: three numbers of each token are enough")
def vocab_loss_of_gathered_logits(logits, targets, c):
    parts = [torch.empty_like(logits) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, logits)
    z = torch.cat(parts, -1).requires_grad_()
    log_Z = z.logsumexp(-1)
    loss = (log_Z - z.gather(-1, targets[..., None])[..., 0] + c * log_Z**2).mean()
    loss.backward()
    return loss.detach(), own(z.grad, -1).contiguous()


LOSSES = [wrong("5.5", says)(function) for says, function in (
    ("the maximum was not added to the logarithm again: log Z is larger by it",
     lambda logits, targets, c: vocab_loss(logits, targets, c, maximum(logits), again=False)),
    ("the z-loss is missing, in loss and gradient",
     lambda logits, targets, c: my_vocab_loss(logits, targets, 0.0)),
    ("the z-loss is missing in the loss, and there in the gradient",
     lambda logits, targets, c: (my_vocab_loss(logits, targets, 0.0)[0], my_vocab_loss(logits, targets, c)[1])),
    ("the gradient of c (log Z)^2 is halved: its derivative has a factor of 2",
     lambda logits, targets, c: vocab_loss(logits, targets, c, maximum(logits), z_gradient=0.5)),
    ("the loss is a sum over the tokens: their mean is asked",
     lambda logits, targets, c: (my_vocab_loss(logits, targets, c)[0] * targets.numel(),
                                 my_vocab_loss(logits, targets, c)[1])),
    ("nothing is subtracted at the target: the gradient is softmax(z) - 1_y",
     lambda logits, targets, c: vocab_loss(logits, targets, c, maximum(logits), at_target=0.0)))]


@wrong("5.5", "it uses course_lib.tensor_parallel")
def vocab_loss_by_the_library(logits, targets, c):
    from course_lib.tensor_parallel import vocab_parallel_cross_entropy

    logits.requires_grad_()
    loss = vocab_parallel_cross_entropy(logits, targets)
    loss.backward()
    return loss, logits.grad


TEXT_5_5 = [
    term("5.5", "logits may be large", "dist.all_reduce(highest, dist.ReduceOp.MAX)", "highest.zero_()"),
    term("5.5", "the largest of all ranks", "dist.all_reduce(highest, dist.ReduceOp.MAX)", "pass"),
    term("5.5", "the largest, and not that of rank 0", "dist.all_reduce(highest, dist.ReduceOp.MAX)",
         "dist.broadcast(highest, 0)"),
    term("5.5", "also where all logits are far below 0", "highest = logits.amax(-1)",
         "highest = logits.amax(-1).clamp(min=0)"),
    term("5.5", "the largest is added again", "log_Z = highest + ", "log_Z = "),
    term("5.5", "Z is over all V", "dist.all_reduce(sums)", "pass"),
    term("5.5", "ids from r V/t", "torch.arange(r * own, (r + 1) * own)", "torch.arange(own)"),
    term("5.5", "c (log Z)^2 in the loss", "sums[1] + c * log_Z**2", "sums[1]"),
    term("5.5", "(log Z)^2", "c * log_Z**2", "c * log_Z"),
    term("5.5", "1 + 2 c log Z in the gradient", "(1 + 2 * c * log_Z)", "(1 + 0 * log_Z)"),
    term("5.5", "minus 1 at the target", " - is_target.double()", ""),
    term("5.5", "the mean of the loss", "c * log_Z**2).mean()", "c * log_Z**2).sum()"),
    term("5.5", "the gradient of a mean", " / targets.numel()", ""),
    term("5.5", "nothing for the gradient", "    loss = (",
         "    dist.all_reduce(log_Z.clone())\n    dist.all_reduce(log_Z.clone())\n    loss = ("),
    term("5.5", "three numbers a token, not V", "    loss = (",
         "    dist.all_gather([logits.clone() for _ in range(dist.get_world_size())], logits)\n    loss = ("),
    example("5.5", lambda inputs, answers: [
        "logits {} on both, so Z = 4; target {}, which is rank 1's first; c = {:g}:".format(
            nested(inputs[0]["logits"][0, 0]), inputs[0]["targets"].item(), inputs[0]["c"]),
        "loss log {:.0f} on both; gradient {} on rank 0, {} on rank 1".format(
            math.exp(answers[0]["loss"]), *(nested(answer["gradient"][0, 0]) for answer in answers))])]


# ---- 5.6 my_gradient_norm
@right("5.6", "one all-reduce: the square of the slices travels with the parts")
def norm_in_one_message(sliced, whole, partial):
    square = sum(gradient.square().sum() for gradient in sliced)
    flat = torch.cat([square[None], *(gradient.flatten() for gradient in partial)])
    dist.all_reduce(flat)
    start = 1
    for gradient in partial:
        gradient.view(-1)[:] = flat[start:start + gradient.numel()]
        start += gradient.numel()
    return (flat[0] + flat[1:].square().sum() + sum(gradient.square().sum() for gradient in whole)).sqrt()


@right("5.6", "a norm of norms by numpy, the number first")
def norm_by_ranks(sliced, whole, partial):
    slices = torch.nn.utils.get_total_norm(sliced) ** 2
    dist.all_reduce(slices)
    flat = torch.nn.utils.parameters_to_vector(partial)
    dist.all_reduce(flat)
    for gradient, new in zip(partial, flat.split([each.numel() for each in partial])):
        gradient.data[...] = new.view_as(gradient)
    return numpy.linalg.norm([slices.sqrt(), torch.nn.utils.get_total_norm(whole), flat.norm()])


@right("5.6", "both messages are under way at once; hypot")
def norm_under_way(sliced, whole, partial):
    square = torch.stack([gradient.pow(2).sum() for gradient in sliced]).sum()
    flat = torch.cat([gradient.reshape(-1) for gradient in partial])
    requests = [dist.all_reduce(each, async_op=True) for each in (flat, square)]
    for request in requests:
        request.wait()
    for gradient, new in zip(partial, flat.split([each.numel() for each in partial])):
        gradient.zero_().add_(new.view_as(gradient))
    return math.hypot(square.sqrt(), *(gradient.norm() for gradient in [*whole, *partial]))


def square(gradients):
    return sum(gradient.square().sum() for gradient in gradients)


def add_up(partial, scale=1.0):
    flat = total(torch.cat([gradient.flatten() for gradient in partial])) * scale
    for gradient, one in zip(partial, flat.split([gradient.numel() for gradient in partial])):
        gradient.copy_(one.view_as(gradient))


def norm_of(over_ranks, once):
    """Squares that are added up over the ranks, and such as are not."""
    return (total(square(over_ranks)) + square(once)).sqrt().item()


@wrong("5.6", "what is whole counts t times: all ranks have the same copy of it, so its squares are not added up over "
       "the ranks")
def norm_with_copies_t_times(sliced, whole, partial):
    add_up(partial)
    return norm_of([*sliced, *whole], partial)


@wrong("5.6", "what all ranks have counts t times, `whole` and, once it is added up, `partial`: only the squares of "
       "slices are added up over the ranks")
def norm_of_all_added_up(sliced, whole, partial):
    add_up(partial)
    return total(square([*sliced, *whole, *partial])).sqrt().item()


@wrong("5.6", "the squares of the parts are added up: the gradient is the sum of the parts, so first the sum, and then "
       "its square")
def norm_of_parts_by_their_squares(sliced, whole, partial):
    return norm_of([*sliced, *partial], whole)


@wrong("5.6", "each rank has the norm of its own slices: the squares of the others' have to be added")
def norm_of_its_own_slices(sliced, whole, partial):
    add_up(partial)
    return square([*sliced, *whole, *partial]).sqrt().item()


@wrong("5.6", "the norm is right, but `partial` is as it was: every rank steps with its part of these gradients, and "
       "the copies part. Write the sums into them")
def norm_that_leaves_the_parts(sliced, whole, partial):
    copies = [gradient.clone() for gradient in partial]
    return my_gradient_norm(sliced, whole, copies)


@wrong("5.6", "`partial` was averaged: every rank has seen other tokens of the same batch, so the parts add up")
def norm_of_averaged_parts(sliced, whole, partial):
    add_up(partial, 1 / dist.get_world_size())
    return norm_of(sliced, [*whole, *partial])


@wrong("5.6", "all parts travel as one tensor, and all squares as one number")
def norm_with_a_call_for_each_part(sliced, whole, partial):
    for gradient in partial:
        dist.all_reduce(gradient)
    return norm_of(sliced, [*whole, *partial])


@wrong("5.6", "the root is not taken")
def norm_without_a_root(sliced, whole, partial):
    return my_gradient_norm(sliced, whole, partial) ** 2


@wrong("5.6", "the parts count t times: once they are added up all ranks have the same, so their squares are not added "
       "up over the ranks")
def norm_with_parts_t_times(sliced, whole, partial):
    add_up(partial)
    return norm_of([*sliced, *partial], whole)


@wrong("5.6", "`whole` was added up over the ranks, though all have the whole gradient already: it is t times too "
       "large now")
def norm_with_the_copies_added_up(sliced, whole, partial):
    add_up(whole)
    return my_gradient_norm(sliced, whole, partial)


@wrong("5.6", "the norms of the slices are added up: squares add up, norms do not")
def norm_of_norms(sliced, whole, partial):
    add_up(partial)
    return (total(square(sliced).sqrt()) ** 2 + square([*whole, *partial])).sqrt().item()


@wrong("5.6", "of slices and copies only the sum of the squares has to travel, if anything")
def norm_of_gathered_slices(sliced, whole, partial):
    add_up(partial)
    own = torch.cat([gradient.flatten() for gradient in sliced])
    slices = [torch.empty_like(own) for _ in range(dist.get_world_size())]
    dist.all_gather(slices, own)
    return square([*slices, *whole, *partial]).sqrt().item()


@wrong("5.6", "the squares of the parts are added up: the gradient is the sum of the parts, so first the sum, and then "
       "its square")
def norm_before_the_parts_are_added_up(sliced, whole, partial):
    norm = norm_of([*sliced, *partial], whole)
    add_up(partial)
    return norm


NORMS = [wrong("5.6", says)(function) for says, function in (
    ("the squares of the parts are added up, and what is whole counts t times: first the sum of the parts, then its "
     "square; and copies count once",
     lambda sliced, whole, partial: total(square([*sliced, *whole, *partial])).sqrt().item()),
    ("each rank has the norm of what lies on it, and nobody sends anything: slices and parts of the others are missing",
     lambda sliced, whole, partial: square([*sliced, *whole, *partial]).sqrt().item()))]
@wrong("5.6", "the list has other tensors, and those that were given are as they were: write the sums into them")
def norm_that_changes_the_list(sliced, whole, partial):
    partial[:] = [gradient.clone() for gradient in partial]
    return my_gradient_norm(sliced, whole, partial)


TEXT_5_6 = [
    term("5.6", "squares of slices of all ranks", "    dist.all_reduce(square)\n", ""),
    term("5.6", "what is whole counts once", "in [*whole, *partial]", "in [*whole, *whole, *partial]"),
    term("5.6", "what is whole is not left out", "[*whole, *partial]", "partial"),
    term("5.6", "copies are not added up over the ranks", """in sliced)
    dist.all_reduce(square)
    return (square + sum(gradient.square().sum() for gradient in [*whole, *partial])""", """in [*sliced, *whole])
    dist.all_reduce(square)
    return (square + sum(gradient.square().sum() for gradient in partial)"""),
    term("5.6", "the sum of parts, then its square", "    dist.all_reduce(flat)\n", ""),
    term("5.6", "in place", "flat = torch.cat([gradient.flatten() for gradient in partial])",
         "partial = [gradient.clone() for gradient in partial]\n"
         "    flat = torch.cat([gradient.flatten() for gradient in partial])"),
    term("5.6", "parts are added up, not averaged", "dist.all_reduce(flat)",
         "dist.all_reduce(flat)\n    flat /= dist.get_world_size()"),
    term("5.6", "the root", ".sqrt()", ""),
    term("5.6", "all partial gradients together", "    dist.all_reduce(flat)\n",
         "    for part in (flat[:1], flat[1:]):\n        dist.all_reduce(part)\n"),
    term("5.6", "a single number", "dist.all_reduce(square)",
         "slices = torch.cat([gradient.flatten() for gradient in sliced])\n    dist.all_reduce(slices)\n"
         "    dist.all_reduce(square)"),
    example("5.6", lambda inputs, answers: [
        "sliced {} on rank 0 and {} on rank 1, whole {} on both, partial {} on rank 0 and {} on rank 1".format(
            *(nested(rank["sliced"][0]) for rank in inputs), nested(inputs[0]["whole"][0]),
            *(nested(rank["partial"][0]) for rank in inputs)),
        "= {:.2f} on both, and partial is {} on both".format(answers[0]["norm"], nested(answers[1]["partial"][0]))])]


# ---- 5.7 my_split_block
def normed(x, weights, name):
    """Without F.layer_norm."""
    centred = x - x.mean(-1, keepdim=True)
    scaled = centred * (centred.square().mean(-1, keepdim=True) + 1e-5).rsqrt()
    return scaled * weights[f"{name}.weight"] + weights[f"{name}.bias"]


@right("5.7", "hooks, the sum's value, and attention head by head")
def block_head_by_head(x, weights, head_dim):
    qkv = hooked(normed(x, weights, "norm_1")) @ weights["qkv.weight"].T + weights["qkv.bias"]
    q, k, v = (part.split(head_dim, -1) for part in qkv.chunk(3, -1))
    hidden = torch.full((x.shape[1],) * 2, -math.inf, dtype=x.dtype).triu(1)
    heads = [((a @ b.mT / math.sqrt(head_dim) + hidden).softmax(-1) @ c) for a, b, c in zip(q, k, v)]
    x = x + weights["output.bias"] + straight_through(torch.cat(heads, -1) @ weights["output.weight"].T)
    up = hooked(normed(x, weights, "norm_2")) @ weights["up.weight"].T + weights["up.bias"]
    up = up * (1 + (up / math.sqrt(2)).erf()) / 2
    return straight_through(up @ weights["down.weight"].T) + weights["down.bias"] + x


def halves(x):
    """The sum of all ranks' x, whose numbers t divides."""
    pieces = list(x.reshape(dist.get_world_size(), -1))
    own = torch.empty_like(pieces[0])
    dist.reduce_scatter(own, pieces)
    parts = [torch.empty_like(own) for _ in pieces]
    dist.all_gather(parts, own)
    return torch.cat(parts).view(x.shape)


@right("5.7", "each sum by a reduce-scatter and an all-gather")
def block_in_halves(x, weights, head_dim):
    def f(x):
        view = x.view_as(x)
        view.register_hook(halves)
        return view

    def branch(x, norm, column, row, inside):
        y = F.layer_norm(x, x.shape[-1:], weights[f"{norm}.weight"], weights[f"{norm}.bias"])
        h = inside(F.linear(f(y), weights[f"{column}.weight"], weights[f"{column}.bias"]))
        summand = F.linear(h, weights[f"{row}.weight"])
        return x + (summand + (halves(summand.detach()) - summand).detach() + weights[f"{row}.bias"])

    x = branch(x, "norm_1", "qkv", "output", lambda qkv: attention(*qkv.chunk(3, -1), head_dim))
    return branch(x, "norm_2", "up", "down", F.gelu)


def split_block(x, weights, head_dim, where=("output", "down"), f=None, g=None, f_first=False, bias_inside=None,
                residual_inside=False, norms=True, num_copies=1, attend=attention):
    """With changes in the branches of the row matrices `where`; bias_inside: how often before the sum; num_copies: that
    q, k and v read."""
    right_f, right_g = my_f_and_g()

    def normed(x, norm):
        return F.layer_norm(x, x.shape[-1:], weights[f"{norm}.weight"], weights[f"{norm}.bias"]) if norms else x

    for norm, column, name in (("norm_1", "qkv", "output"), ("norm_2", "up", "down")):
        here = name in where
        copy, add = here and f or right_f, here and g or right_g
        parts = (weights[f"{column}.{kind}"].chunk(num_copies if column == "qkv" else 1) for kind in ("weight", "bias"))
        hidden = torch.cat([F.linear(normed(copy(x), norm) if here and f_first else copy(normed(x, norm)), *part)
                            for part in zip(*parts)], -1)
        hidden = attend(*hidden.chunk(3, dim=-1), head_dim) if column == "qkv" else F.gelu(hidden)
        y, bias = F.linear(hidden, weights[f"{name}.weight"]), weights[f"{name}.bias"]
        if here and residual_inside:
            x = add(x + y) + bias
        elif here and bias_inside is not None:
            x = x + add(y + bias_inside * bias if bias_inside else y)
        else:
            x = x + add(y) + bias
    return x


def of_both(x):
    return door(total, total)(x)


def block(**changes):
    return lambda x, weights, head_dim: split_block(x, weights, head_dim, **changes)


def block_with_shares_of_biases(where):
    return lambda x, weights, head_dim: split_block(x, weights, head_dim, where, bias_inside=1 / dist.get_world_size())


BLOCKS = [wrong("5.7", says)(function) for words, where in (
    ("both branches", ("output", "down")), ("attention", ("output",)), ("the MLP", ("down",))) for says, function in (
    (f"forward is right, but in {words} nobody adds up the gradient of what the column matrix reads, so x and norms "
     "have a part of theirs: f behind the norm", block(where=where, f=same)),
    (f"forward is right, and so is the gradient of x, but in {words} f stands before the norm, whose own gradients are "
     "then each rank's part: f behind the norm", block(where=where, f_first=True)),
    (f"in {words} the bias of the row matrix is added t times: add it to the sum, behind g",
     block(where=where, bias_inside=1)),
    (f"forward is right, but in {words} the row's bias is divided by t before the sum, and so is its gradient: add it "
     "to the sum, behind g", block_with_shares_of_biases(where)),
    (f"in {words} the residual is inside the sum, so it counts t times: add it behind g",
     block(where=where, residual_inside=True)),
    (f"in {words} the gradients are added up behind the row matrix as well: every rank has the whole gradient of the "
     "sum already, so backward of g is a copy", block(where=where, g=of_both)),
    (f"in {words} nobody adds up in forward: what a rank computes there is a summand", block(where=where, g=same)),
    (f"in {words} the bias of the row matrix is missing", block(where=where, bias_inside=0)))]


@wrong("5.7", "one f for q, k and v together, and one g behind each row matrix: a branch has one all-reduce in each "
       "direction")
def block_with_three_copies(x, weights, head_dim):
    return split_block(x, weights, head_dim, num_copies=3)


def attend(q, k, v, head_dim, **options):
    q, k, v = (part.unflatten(-1, (-1, head_dim)).transpose(1, 2) for part in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, **options).transpose(1, 2).flatten(2)


ATTENDED = [wrong("5.7", says)(function) for says, function in (
    ("tokens see what comes after them: attention is causal", block(attend=attend)),
    ("all of this rank's heads are taken for one: a head has head_dim numbers, and its own softmax",
     block(attend=lambda q, k, v, d: attention(q, k, v, q.shape[-1]))),
    ("q, k and v are in another order: the rows of qkv.weight are q, then k, then v",
     block(attend=lambda q, k, v, d: attention(k, q, v, d))),
    ("attention divides by the root of this rank's width: a head has head_dim numbers",
     block(attend=lambda q, k, v, d: attend(q, k, v, d, is_causal=True, scale=q.shape[-1] ** -0.5))),
    ("the norms are missing", block(norms=False)))]


@wrong("5.7", "the slices of all weights are gathered, and every rank computes the whole block: weights are larger "
       "than activations here, so let these travel, and compute this rank's part")
def block_of_gathered_weights(x, weights, head_dim):
    def whole(name, dim=0):
        return gathered(weights[name], dim)

    def normed(x, norm):
        return F.layer_norm(x, x.shape[-1:], weights[f"{norm}.weight"], weights[f"{norm}.bias"])

    qkv = [torch.cat([part for parts in zip(*(rank.chunk(3) for rank in whole(name).chunk(dist.get_world_size())))
                      for part in parts]) for name in ("qkv.weight", "qkv.bias")]
    heads = attention(*F.linear(normed(x, "norm_1"), *qkv).chunk(3, -1), head_dim)
    x = x + F.linear(heads, whole("output.weight", 1), weights["output.bias"])
    hidden = F.gelu(F.linear(normed(x, "norm_2"), whole("up.weight"), whole("up.bias")))
    return x + F.linear(hidden, whole("down.weight", 1), weights["down.bias"])


@wrong("5.7", "it uses course_lib.tensor_parallel")
def block_by_the_library(x, weights, head_dim):
    from course_lib.tensor_parallel import parallelize

    return parallelize(x)


def sums_in_block(inputs, answers):
    first, second = (rank["given"] for rank in inputs)
    v = [own["qkv.weight"][2] for own in (first, second)]
    heads = [own @ first["x"].flatten().sign() for own in v]
    outputs = [head * own["output.weight"][:, 0] for head, own in zip(heads, (first, second))]
    a = first["x"].flatten() + sum(outputs) + first["output.bias"]
    ups = [own["up.weight"] @ a.sign() for own in (first, second)]
    downs = [own["down.weight"] @ up for own, up in zip((first, second), ups)]
    return [
        "one token, x {}, D = {}, head_dim = {};".format(
            nested(first["x"].flatten()), first["x"].shape[-1], inputs[0]["head_dim"]),
        "of q and k 0, of v {} on rank 0 and {} on rank 1".format(*map(nested, v)),
        "heads [{:g}.] and [{:g}.]".format(*heads),
        "output {} and {}, bias {}: a = x + {} + {} + bias = {}".format(
            *(nested(own["output.weight"]) for own in (first, second)),
            nested(first["output.bias"]), *map(nested, outputs), nested(a)),
        "four rows {} and four rows {}: four times {:g} and four times {:g}".format(
            *(nested(own["up.weight"][0]) for own in (first, second)), *(up[0] for up in ups)),
        "{} everywhere, bias {}: y = a + {} + {} + bias = {} on both".format(
            first["down.weight"][0, 0], nested(first["down.bias"]), *map(nested, downs),
            nested(answers[0]["y"].flatten())),
        "dy {} on both: norm_1.bias.grad is [9., 0.] + [0., 20.] = {} on both".format(
            nested(inputs[0]["dy"].flatten()), nested(answers[1]["gradients"]["norm_1.bias"]))]


TEXT_5_7 = [
    term("5.7", "x.grad is whole, f in front of qkv", 'f(norm(x, "norm_1"))', 'norm(x, "norm_1")'),
    term("5.7", "f in front of up", 'f(norm(x, "norm_2"))', 'norm(x, "norm_2")'),
    term("5.7", "gradients of norms are whole", 'f(norm(x, "norm_1"))', 'norm(f(x), "norm_1")'),
    term("5.7", "g behind output", 'g(F.linear(heads, weights["output.weight"]))',
         'F.linear(heads, weights["output.weight"])'),
    term("5.7", "g behind down", 'g(F.linear(hidden, weights["down.weight"]))',
         'F.linear(hidden, weights["down.weight"])'),
    term("5.7", "output.bias counts once", 'g(F.linear(heads, weights["output.weight"])) + weights["output.bias"]',
         'g(F.linear(heads, weights["output.weight"], weights["output.bias"]))'),
    term("5.7", "down.bias counts once", 'g(F.linear(hidden, weights["down.weight"])) + weights["down.bias"]',
         'g(F.linear(hidden, weights["down.weight"], weights["down.bias"]))'),
    term("5.7", "x + output", "x = x + g(", "x = g("),
    term("5.7", "a + down", "return x + g(", "return g("),
    term("5.7", "norm_2 of a", 'f(norm(x, "norm_2"))', 'f(norm(x, "norm_1"))'),
    term("5.7", "gelu as it comes", "F.gelu(", '(lambda h: F.gelu(h, approximate="tanh"))('),
    term("5.7", "rows of q, then of k, then of v", "q, k, v = F.linear", "k, q, v = F.linear"),
    term("5.7", "biases of qkv and up", ', weights["up.bias"])', ")"),
    term("5.7", "what four all-reduces send", "return x + g(",
         "dist.all_reduce(x.detach().clone())\n    return x + g("),
    example("5.7", sums_in_block)]


# ---- 5.8 my_smallest_hidden_size
def sending_over_computing(h, t, flops_per_s, bytes_per_s, number_bytes):
    return (4 * 2 * (t - 1) / t * number_bytes * h / bytes_per_s) / (6 * 12 * h**2 / (t * flops_per_s))


def slowest_wire(t, devices_per_node, nvlink, card):
    wires = [nvlink, *[devices_per_node * card] * (t > devices_per_node)]
    return sorted(wires)[0]


def searched(t, devices_per_node, flops_per_s, nvlink, card, share, number_bytes):
    bytes_per_s = slowest_wire(t, devices_per_node, nvlink, card)
    low, high = 1e-9, 1e12
    for _ in range(200):
        middle = (low * high) ** 0.5
        enough = sending_over_computing(middle, t, flops_per_s, bytes_per_s, number_bytes) <= share
        low, high = (low, middle) if enough else (middle, high)
    return high


WIDE = [
    right("5.8", "bisection")(searched),
    right("5.8", "a Fraction")(lambda t, G, F, nvlink, card, share, w: Fraction(
        (t - 1) * w * int(F), 9 * int(slowest_wire(t, G, nvlink, card))) / Fraction(share)),
    right("5.8", "rounded up")(lambda *asked: math.ceil(my_smallest_hidden_size(*asked))),
    right("5.8", "numpy, rounded up")(lambda *asked: numpy.ceil(my_smallest_hidden_size(*asked)).astype(int)),
    right("5.8", "from h = 1, a tensor")(lambda t, G, F, nvlink, card, share, w: torch.tensor(
        sending_over_computing(1.0, t, F, slowest_wire(t, G, nvlink, card), w) / share))]
WIDTHS = [wrong("5.8", says)(lambda t, G, F, nvlink, card, share, w, times=times: times(t, share, w)
                             * my_smallest_hidden_size(t, G, F, nvlink, card, share, w))
          for says, times in (
    ("four times too small: a layer has four all-reduces, behind attention and behind the MLP, forward and backward",
     lambda t, share, w: 1 / 4),
    ("half of it: either two of the four all-reduces are missing, or a ring's second half: each of the numbers is sent "
     "2(t-1)/t times", lambda t, share, w: 1 / 2),
    ("computing takes 6 FLOPs a token for each number: 2 forward and 4 backward", lambda t, share, w: 3),
    ("computing is not divided by t: each device has a t-th of every matrix", lambda t, share, w: 1 / t),
    ("a token takes 6 FLOPs for each of 12 h^2 numbers: backward takes twice what forward does, and a block has 4 h^2 "
     "numbers in attention and 8 h^2 in the MLP", lambda t, share, w: 1.5),
    ("share is left out: sending may take only this part of the time of computing", lambda t, share, w: share),
    ("the bytes of a number on its way are left out", lambda t, share, w: 1 / w),
    ("a ring sends 2(t-1)/t of the message, not twice of it", lambda t, share, w: t / (t - 1)),
    ("share stands on the wrong side: the less sending may take, the wider the model",
     lambda t, share, w: share**2),
    ("share is taken of computing and sending together: it is sending over computing",
     lambda t, share, w: 1 - share),
    ("bytes were taken for bits: that is a factor of 8", lambda t, share, w: 8),
    ("bits were taken for bytes: that is a factor of 8", lambda t, share, w: 1 / 8))]


def width_with(says, wire):
    """Of somebody who takes wire(t, G, nvlink, card) for W."""
    return wrong("5.8", says)(lambda t, G, F, nvlink, card, share, w: my_smallest_hidden_size(
        t, t, F, wire(t, G, nvlink, card), card, share, w))


ONE_CARD = ("W is one card's: ranks that fill whole nodes have all cards of each node, one for each device. Only where "
            "each rank stands in another node is it one")
ALL_CARDS = ("the cards of all nodes are added up: every byte passes each node, and there only this node's cards carry "
             "it")
WIRES = [
    width_with(ONE_CARD, lambda t, G, nvlink, card: nvlink if t <= G else card),
    width_with(ONE_CARD, lambda t, G, nvlink, card: nvlink if t <= G else min(nvlink, card)),
    width_with("W is NVLink's, which ends at the edge of the node: what goes on to the next node goes over the node's "
               "cards", lambda t, G, nvlink, card: nvlink),
    width_with(ALL_CARDS, lambda t, G, nvlink, card: nvlink if t <= G else t * card),
    width_with(ALL_CARDS, lambda t, G, nvlink, card: nvlink if t <= G else min(nvlink, t * card)),
    width_with("inside a node nothing passes a network card: W is NVLink's where t is at most devices_per_node",
               lambda t, G, nvlink, card: min(nvlink, G * card)),
    width_with("NVLink is left out: what arrives over all cards of a node passes each device's NVLink as well, and the "
               "slower of the two sets the speed", lambda t, G, nvlink, card: nvlink if t <= G else G * card),
    width_with("NVLink and the cards are added up: every byte takes both, and the slower of the two sets the speed",
               lambda t, G, nvlink, card: nvlink if t <= G else nvlink + G * card)]
TEXT_5_8 = [
    term("5.8", "four all-reduces", "8 * (t - 1)", "4 * (t - 1)"),
    term("5.8", "t - 1, and not t", "(t - 1)", "t"),
    term("5.8", "the bytes of a number", "* number_bytes", ""),
    term("5.8", "6 FLOPs a token, forward and backward", "72 *", "24 *"),
    term("5.8", "12 h^2 numbers", "72 *", "48 *"),
    term("5.8", "share of the time of computing", "share * ", ""),
    term("5.8", "computing, not both together", "share * ", "share / (1 - share) * "),
    term("5.8", "what a device does and sends", "* flops_per_s / (72 * share * W)",
         "* W / (72 * share * flops_per_s)"),
    term("5.8", "inside a node NVLink", "nvlink if t <= devices_per_node else min(nvlink, devices_per_node * card)",
         "min(nvlink, devices_per_node * card)"),
    term("5.8", "beyond it the cards", " if t <= devices_per_node else min(nvlink, devices_per_node * card)", ""),
    term("5.8", "all cards of a node", "devices_per_node * card", "card"),
    term("5.8", "of one node, not of all", "devices_per_node * card", "t * card"),
    term("5.8", "the slower of the two", "min(nvlink, devices_per_node * card)", "devices_per_node * card"),
    example("5.8", lambda inputs, answers: (
        "t = {}, {} in a node, {} FLOP/s, {} bytes/s inside, {} bytes/s per card, share = {}, {} bytes per number: "
        "h = {:g}".format(
            *inputs[0], answers[0]["value"])))]
