"""Right answers to the exercises of chapter 5 that nobody would think of first; tests/grading/test_answers.py has each
pass at ten seeds, in the names of the notebook beside this file.
"""
# ruff: noqa: F821

import math
from fractions import Fraction

import numpy
import torch
import torch.distributed as dist
import torch.nn.functional as F

from tools.answers import right


def total(tensor):
    tensor = tensor.clone()
    dist.all_reduce(tensor)
    return tensor


def hooked(x):
    """f: a hook on a view of x."""
    view = x.view_as(x)
    view.register_hook(total)
    return view


def straight_through(x):
    """g: the sum's value, with x's way back."""
    return x + (total(x.detach()) - x).detach()


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


def highest_of_all(logits):
    highest = logits.amax(-1)
    dist.all_reduce(highest, dist.ReduceOp.MAX)
    return highest


@right("5.5", "autograd through the sums; a list, and the loss a tensor")
def vocab_loss_by_autograd(logits, targets, c):
    own = logits.shape[-1]
    z, highest = logits.detach().requires_grad_(), highest_of_all(logits)
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
    highest, r = highest_of_all(logits), dist.get_rank()
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
def norm_of_norms(sliced, whole, partial):
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


WIDTHS = [
    right("5.8", "bisection")(searched),
    right("5.8", "a Fraction")(lambda t, G, F, nvlink, card, share, w: Fraction(
        (t - 1) * w * int(F), 9 * int(slowest_wire(t, G, nvlink, card))) / Fraction(share)),
    right("5.8", "rounded up")(lambda *asked: math.ceil(my_smallest_hidden_size(*asked))),
    right("5.8", "numpy, rounded up")(lambda *asked: numpy.ceil(my_smallest_hidden_size(*asked)).astype(int)),
    right("5.8", "from h = 1, a tensor")(lambda t, G, F, nvlink, card, share, w: torch.tensor(
        sending_over_computing(1.0, t, F, slowest_wire(t, G, nvlink, card), w) / share)),
]
