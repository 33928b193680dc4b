"""Wrong answers to the exercises of chapter 5, as learners write them; tests/test_exercises.py has each refused.

The imports and the solutions are those of the notebook beside this file, in whose names it runs.
"""
# ruff: noqa: F821

import torch
import torch.distributed as dist
import torch.nn.functional as F

from course_lib.grading.wrong_answers import wrong


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


def all_reduced_in_place(x):
    dist.all_reduce(x)
    return x.view_as(x)


@wrong("5.1", "f sends nothing in backward")
def f_that_forgets_backward():
    return door(same, same), door(total, same)


@wrong("5.1", "g adds up in backward as well")
def g_that_adds_in_backward():
    return door(same, total), door(total, total)


@wrong("5.1", "f and g are the other way round")
def f_and_g_swapped():
    return door(total, same), door(same, total)


@wrong("5.1", "g makes the mean")
def g_that_averages():
    return door(same, total), door(lambda x: total(x) / dist.get_world_size(), same)


@wrong("5.1", "g adds into the tensor that came in")
def g_in_place():
    return door(same, total), door(all_reduced_in_place, same)


@wrong("5.1", "f adds into the gradient that came in")
def f_in_place():
    return door(same, all_reduced_in_place), door(total, same)


@wrong("5.1", "but nothing leads back through them")
def f_and_g_without_autograd():
    return lambda x: x.detach(), lambda x: total(x.detach())


@wrong("5.1", "it returned nothing (None): expected two functions")
def f_and_g_not_returned():
    door(same, total), door(total, same)


@wrong("5.1", "it uses course_lib.collectives")
def f_and_g_of_the_library():
    from course_lib.collectives import copy_to_group, reduce_from_group

    return copy_to_group, reduce_from_group


def gated(x, gate, up):
    return F.silu(F.linear(x, gate)) * F.linear(x, up)


def own(weight, dim=0):
    return weight.chunk(dist.get_world_size(), dim)[dist.get_rank()]


@wrong("5.2", "the gradient of x is this rank's part")
def columns_without_f(x, gate, up):
    return gated(x, own(gate), own(up))


@wrong("5.2", "apply f once")
def columns_with_f_twice(x, gate, up):
    f, _ = my_f_and_g()
    return F.silu(F.linear(f(x), own(gate))) * F.linear(f(x), own(up))


@wrong("5.2", "x goes through g")
def columns_behind_g(x, gate, up):
    _, g = my_f_and_g()
    return gated(g(x), own(gate), own(up))


@wrong("5.2", "every rank computes all features")
def columns_not_cut(x, gate, up):
    f, _ = my_f_and_g()
    return gated(f(x), gate, up)


@wrong("5.2", "are the columns of the matrix that x is multiplied with")
def columns_cut_along_the_other_dimension(x, gate, up):
    f, _ = my_f_and_g()
    return gated(f(x), own(gate, 1), own(up, 1))


@wrong("5.2", "rank r has the rows r, r + t")
def columns_dealt_one_by_one(x, gate, up):
    f, _ = my_f_and_g()
    t, r = dist.get_world_size(), dist.get_rank()
    return gated(f(x), gate[r::t], up[r::t])


@wrong("5.2", "gate and up are cut as one")
def columns_of_both_as_one(x, gate, up):
    f, _ = my_f_and_g()
    return gated(f(x), *own(torch.cat([gate, up])).chunk(2))


@wrong("5.2", "it uses course_lib.tensor_parallel")
def columns_by_the_library(x, gate, up):
    from course_lib.tensor_parallel import ColumnParallelLinear

    return ColumnParallelLinear(x.shape[-1], len(gate))(x)


def summand(x, weight):
    return F.linear(x, own(weight, 1))


@wrong("5.3", "the bias is added t times")
def row_with_the_bias_inside(x, weight, bias, residual):
    _, g = my_f_and_g()
    return residual + g(F.linear(x, own(weight, 1), bias))


@wrong("5.3", "the residual is added t times")
def row_with_the_residual_inside(x, weight, bias, residual):
    _, g = my_f_and_g()
    return g(residual + summand(x, weight)) + bias


@wrong("5.3", "the bias is divided by t before the sum; but each gradient is divided as well")
def row_with_a_share_of_the_bias(x, weight, bias, residual):
    _, g = my_f_and_g()
    return residual + g(F.linear(x, own(weight, 1), bias / dist.get_world_size()))


@wrong("5.3", "bias and residual are added by one rank alone")
def row_where_rank_0_adds(x, weight, bias, residual):
    _, g = my_f_and_g()
    y = summand(x, weight)
    return g(y + bias + residual if dist.get_rank() == 0 else y)


@wrong("5.3", "nobody adds up")
def row_without_g(x, weight, bias, residual):
    return residual + summand(x, weight) + bias


@wrong("5.3", "(so does torch.distributed.nn's all_reduce)")
def row_as_torchs_all_reduce_has_it(x, weight, bias, residual):
    return residual + door(total, total)(summand(x, weight)) + bias


@wrong("5.3", "what is added up does not lead back to them")
def row_that_cuts_the_way_back(x, weight, bias, residual):
    return residual + total(summand(x, weight).detach()) + bias


@wrong("5.3", "are the columns of the matrix that x is multiplied with")
def row_cut_along_the_other_dimension(x, weight, bias, residual):
    _, g = my_f_and_g()
    return residual + g(F.linear(x, own(weight))) + bias


def qkv(weight, H, K):
    """d, and q, k, v."""
    d = len(weight) // (H + 2 * K)
    return d, *weight.split([H * d, K * d, K * d])


@wrong("5.4", "the fused matrix is cut as one")
def qkv_rows_of_the_whole_matrix(weight, num_heads, num_kv_heads):
    return own(weight)


@wrong("5.4", "every rank holds all heads of k and v")
def qkv_rows_with_all_keys(weight, num_heads, num_kv_heads):
    _, q, k, v = qkv(weight, num_heads, num_kv_heads)
    return torch.cat([own(q), k, v])


@wrong("5.4", "the heads of k and v are cut through")
def qkv_rows_with_half_a_head(weight, num_heads, num_kv_heads):
    return torch.cat([own(part) for part in qkv(weight, num_heads, num_kv_heads)[1:]])


@wrong("5.4", "the heads of k and v are dealt one by one")
def qkv_rows_with_keys_dealt_out(weight, num_heads, num_kv_heads):
    d, q, k, v = qkv(weight, num_heads, num_kv_heads)
    t, r, K = dist.get_world_size(), dist.get_rank(), num_kv_heads
    heads = [r % K] if t > K else list(range(r, K, t))
    return torch.cat([own(q), *(part.unflatten(0, (K, d))[heads].flatten(0, 1) for part in (k, v))])


@wrong("5.4", "it reads h // (H/K)")
def qkv_rows_with_keys_by_the_remainder(weight, num_heads, num_kv_heads):
    d, q, k, v = qkv(weight, num_heads, num_kv_heads)
    t, r, H, K = dist.get_world_size(), dist.get_rank(), num_heads, num_kv_heads
    heads = sorted({head % K for head in range(r * H // t, (r + 1) * H // t)})
    return torch.cat([own(q), *(part.unflatten(0, (K, d))[heads].flatten(0, 1) for part in (k, v))])


@wrong("5.4", "a view, which keeps the whole matrix alive")
def qkv_rows_as_a_view(weight, num_heads, num_kv_heads):
    rows = my_qkv_rows(weight, num_heads, num_kv_heads)
    weight[:len(rows)] = rows
    return weight[:len(rows)]


def maximum(logits):
    highest = logits.amax(-1)
    dist.all_reduce(highest, dist.ReduceOp.MAX)
    return highest


def vocab_loss(logits, targets, c, highest, add=total, everywhere=False, z_gradient=1.0, count=None):
    size, r = logits.shape[-1], dist.get_rank()
    is_target = (torch.arange(size) == targets[..., None] % size) if everywhere else (
        torch.arange(r * size, (r + 1) * size) == targets[..., None])
    e = (logits - highest[..., None]).exp()
    sums = add(torch.stack([e.sum(-1), (logits * is_target).sum(-1)]))
    log_Z = highest + sums[0].log()
    factor = (1 + z_gradient * 2 * c * log_Z)[..., None]
    gradient = (factor * e / sums[0][..., None] - is_target.double()) / (count or targets.numel())
    return (log_Z - sums[1] + c * log_Z**2).mean(), gradient


@wrong("5.5", "the loss of its own part of the vocabulary")
def vocab_loss_of_its_own(logits, targets, c):
    return vocab_loss(logits, targets, c, logits.amax(-1), add=lambda sums: sums)


@wrong("5.5", "each rank subtracts its own maximum")
def vocab_loss_with_its_own_maximum(logits, targets, c):
    highest = logits.amax(-1)
    loss, gradient = vocab_loss(logits, targets, c, highest)
    return loss, gradient


@wrong("5.5", "exp of a large logit overflows")
def vocab_loss_without_a_maximum(logits, targets, c):
    return vocab_loss(logits, targets, c, torch.zeros_like(logits[..., 0]))


@wrong("5.5", "every rank takes targets % (V/t) for its own")
def vocab_loss_with_targets_everywhere(logits, targets, c):
    return vocab_loss(logits, targets, c, maximum(logits), everywhere=True)


@wrong("5.5", "the z-loss is missing in the gradient")
def vocab_loss_without_the_z_gradient(logits, targets, c):
    return vocab_loss(logits, targets, c, maximum(logits), z_gradient=0.0)


@wrong("5.5", "the gradient is that of a sum over the tokens")
def vocab_loss_with_the_gradient_of_a_sum(logits, targets, c):
    return vocab_loss(logits, targets, c, maximum(logits), count=1)


@wrong("5.5", "the logits stay where they are")
def vocab_loss_of_gathered_logits(logits, targets, c):
    parts = [torch.empty_like(logits) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, logits)
    z = torch.cat(parts, -1).requires_grad_()
    log_Z = z.logsumexp(-1)
    loss = (log_Z - z.gather(-1, targets[..., None])[..., 0] + c * log_Z**2).mean()
    loss.backward()
    return loss.detach(), own(z.grad, -1).contiguous()


@wrong("5.5", "it uses course_lib.tensor_parallel")
def vocab_loss_by_the_library(logits, targets, c):
    from course_lib.tensor_parallel import vocab_parallel_cross_entropy

    logits.requires_grad_()
    loss = vocab_parallel_cross_entropy(logits, targets)
    loss.backward()
    return loss, logits.grad


def square(gradients):
    return sum(gradient.square().sum() for gradient in gradients)


def add_up(partial, scale=1.0):
    flat = total(torch.cat([gradient.flatten() for gradient in partial])) * scale
    for gradient, one in zip(partial, flat.split([gradient.numel() for gradient in partial])):
        gradient.copy_(one.view_as(gradient))


@wrong("5.6", "what is whole counts t times")
def norm_with_copies_t_times(sliced, whole, partial):
    add_up(partial)
    return (total(square([*sliced, *whole])) + square(partial)).sqrt().item()


@wrong("5.6", "what all ranks have counts t times")
def norm_of_all_added_up(sliced, whole, partial):
    add_up(partial)
    return total(square([*sliced, *whole, *partial])).sqrt().item()


@wrong("5.6", "the squares of the parts are added up: the gradient is the sum of the parts")
def norm_of_parts_by_their_squares(sliced, whole, partial):
    return (total(square([*sliced, *partial])) + square(whole)).sqrt().item()


@wrong("5.6", "each rank has the norm of its own slices")
def norm_of_its_own_slices(sliced, whole, partial):
    add_up(partial)
    return square([*sliced, *whole, *partial]).sqrt().item()


@wrong("5.6", "`partial` is as it was")
def norm_that_leaves_the_parts(sliced, whole, partial):
    copies = [gradient.clone() for gradient in partial]
    return my_gradient_norm(sliced, whole, copies)


@wrong("5.6", "`partial` was averaged")
def norm_of_averaged_parts(sliced, whole, partial):
    add_up(partial, 1 / dist.get_world_size())
    return (total(square(sliced)) + square([*whole, *partial])).sqrt().item()


@wrong("5.6", "all parts travel as one tensor")
def norm_with_a_call_for_each_part(sliced, whole, partial):
    for gradient in partial:
        dist.all_reduce(gradient)
    return (total(square(sliced)) + square([*whole, *partial])).sqrt().item()


@wrong("5.6", "the root is not taken")
def norm_without_a_root(sliced, whole, partial):
    return my_gradient_norm(sliced, whole, partial) ** 2


def split_block(x, weights, head_dim, f=None, g=None, f_first=False, bias_inside=False, copies=1, residual_inside=False,
                attend=None):
    right_f, right_g = my_f_and_g()
    f, g, attend = f or right_f, g or right_g, attend or attention

    def columns(x, norm, name):
        scale, shift = weights[f"{norm}.weight"], weights[f"{norm}.bias"]
        x = F.layer_norm(f(x), x.shape[-1:], scale, shift) if f_first else f(
            F.layer_norm(x, x.shape[-1:], scale, shift))
        return F.linear(x, weights[f"{name}.weight"], weights[f"{name}.bias"])

    def rows(hidden, x, name):
        y, bias = F.linear(hidden, weights[f"{name}.weight"]), weights[f"{name}.bias"]
        if residual_inside:
            return g(x + y) + bias
        return x + (g(y + bias) if bias_inside else g(y) + bias)

    if copies == 3:  # each of q, k and v reads a copy of its own
        normed = F.layer_norm(x, x.shape[-1:], weights["norm_1.weight"], weights["norm_1.bias"])
        q, k, v = (F.linear(f(normed), weight, bias) for weight, bias in zip(
            weights["qkv.weight"].chunk(3), weights["qkv.bias"].chunk(3)))
    else:
        q, k, v = columns(x, "norm_1", "qkv").chunk(3, dim=-1)
    x = rows(attend(q, k, v, head_dim), x, "output")
    return rows(F.gelu(columns(x, "norm_2", "up")), x, "down")


@wrong("5.7", "in both branches nobody adds up the gradient of what the column matrix reads")
def block_without_f(x, weights, head_dim):
    return split_block(x, weights, head_dim, f=lambda x: x)


@wrong("5.7", "f stands before the norm")
def block_with_f_before_the_norm(x, weights, head_dim):
    return split_block(x, weights, head_dim, f_first=True)


@wrong("5.7", "the bias of the row matrix is added t times")
def block_with_biases_inside(x, weights, head_dim):
    return split_block(x, weights, head_dim, bias_inside=True)


@wrong("5.7", "the residual is inside the sum")
def block_with_residuals_inside(x, weights, head_dim):
    return split_block(x, weights, head_dim, residual_inside=True)


@wrong("5.7", "the gradients are added up behind the row matrix as well")
def block_with_torchs_all_reduce(x, weights, head_dim):
    return split_block(x, weights, head_dim, g=door(total, total))


@wrong("5.7", "One f for q, k and v together")
def block_with_three_copies(x, weights, head_dim):
    return split_block(x, weights, head_dim, copies=3)


@wrong("5.7", "attention is causal")
def block_that_sees_the_future(x, weights, head_dim):
    def attend(q, k, v, head_dim):
        q, k, v = (part.unflatten(-1, (-1, head_dim)).transpose(1, 2) for part in (q, k, v))
        return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)

    return split_block(x, weights, head_dim, attend=attend)


@wrong("5.7", "taken for one")
def block_with_one_head(x, weights, head_dim):
    return split_block(x, weights, head_dim, attend=lambda q, k, v, d: attention(q, k, v, q.shape[-1]))


@wrong("5.7", "it uses course_lib.tensor_parallel")
def block_by_the_library(x, weights, head_dim):
    from course_lib.tensor_parallel import parallelize

    return parallelize(x)


@wrong("5.8", "four times too small")
def hidden_size_for_one_all_reduce(t, flops_per_s, bytes_per_s, share, number_bytes):
    return 2 * (t - 1) * number_bytes * flops_per_s / (72 * share * bytes_per_s)


@wrong("5.8", "half of it")
def hidden_size_for_forward_and_all_of_the_computing(t, flops_per_s, bytes_per_s, share, number_bytes):
    return 4 * (t - 1) * number_bytes * flops_per_s / (72 * share * bytes_per_s)


@wrong("5.8", "2 forward and 4 backward")
def hidden_size_beside_forwards_computing(t, flops_per_s, bytes_per_s, share, number_bytes):
    return 8 * (t - 1) * number_bytes * flops_per_s / (24 * share * bytes_per_s)


@wrong("5.8", "computing is not divided by t")
def hidden_size_where_everybody_computes_everything(t, flops_per_s, bytes_per_s, share, number_bytes):
    return 8 * (t - 1) / t * number_bytes * flops_per_s / (72 * share * bytes_per_s)


@wrong("5.8", "8 h^2 in the MLP")
def hidden_size_of_the_mlp_alone(t, flops_per_s, bytes_per_s, share, number_bytes):
    return 8 * (t - 1) * number_bytes * flops_per_s / (48 * share * bytes_per_s)


@wrong("5.8", "share is left out")
def hidden_size_without_share(t, flops_per_s, bytes_per_s, share, number_bytes):
    return 8 * (t - 1) * number_bytes * flops_per_s / (72 * bytes_per_s)
