"""Wrong answers to the exercises of chapter 6, as learners write them; tests/test_exercises.py has each refused.

The imports and the solutions are those of the notebook beside this file, in whose names it runs.
"""
# ruff: noqa: F821

from functools import partial
from math import ceil

import torch
import torch.distributed as dist
from torch import nn

from course_lib.grading.wrong_answers import wrong


def held(sizes, stage, per_element, piece, cut=lambda stage, first: stage >= first):
    return sum(size * (piece if cut(stage, first) else sum(sizes)) for size, first in zip(per_element, (3, 2, 1)))


@wrong("6.1", "ceil(size/n) for every parameter, not size/n")
def bytes_without_filling_up(sizes, num_ranks, stage, *per_element):
    return held(sizes, stage, per_element, sum(sizes) / num_ranks)


@wrong("6.1", "the sum of ceil(size/n), not ceil of the sum")
def bytes_of_one_flat_parameter(sizes, num_ranks, stage, *per_element):
    return held(sizes, stage, per_element, ceil(sum(sizes) / num_ranks))


@wrong("6.1", "the last elements are on no rank")
def bytes_rounded_down(sizes, num_ranks, stage, *per_element):
    return held(sizes, stage, per_element, sum(size // num_ranks for size in sizes))


@wrong("6.1", "stage 2 cuts what stage 1 cuts too")
def bytes_where_stages_do_not_add_up(sizes, num_ranks, stage, *per_element):
    piece = sum(ceil(size / num_ranks) for size in sizes)
    return held(sizes, stage, per_element, piece, lambda stage, first: stage == first)


@wrong("6.1", "the stages come in another order")
def bytes_with_the_weights_first(sizes, num_ranks, stage, *per_element):
    piece = sum(ceil(size / num_ranks) for size in sizes)
    return held(sizes, stage, per_element, piece, lambda stage, first: stage >= 4 - first)


def stepped(weights, mean_gradient, num_steps, optimizer, piece, after_step=lambda: None):
    n, r = dist.get_world_size(), dist.get_rank()
    for _ in range(num_steps):
        piece.grad = mean_gradient(weights).chunk(n)[r]
        optimizer.step()
        after_step()
    return optimizer


def own_piece(weights):
    return nn.Parameter(weights.chunk(dist.get_world_size())[dist.get_rank()].clone())


def handed_round(weights, piece):
    dist.all_gather(list(weights.chunk(dist.get_world_size())), piece.data)


@wrong("6.2", "made from all weights, so it keeps two moments")
def adamw_made_before_sharding(weights, mean_gradient, num_steps, settings):
    whole = nn.Parameter(weights.clone())
    optimizer = torch.optim.AdamW([whole], **settings)
    for _ in range(num_steps):
        whole.grad = mean_gradient(whole)
        optimizer.step()
    weights.copy_(whole.data)
    return optimizer


@wrong("6.2", "all-gather after each step")
def adamw_keeps_its_steps_to_itself(weights, mean_gradient, num_steps, settings):
    n, r = dist.get_world_size(), dist.get_rank()
    piece = nn.Parameter(weights.chunk(n)[r])  # a view: its own part of `weights` moves along
    return stepped(weights, mean_gradient, num_steps, torch.optim.AdamW([piece], **settings), piece)


@wrong("6.2", "gathered once, at the end")
def adamw_gathers_at_the_end(weights, mean_gradient, num_steps, settings):
    n, r = dist.get_world_size(), dist.get_rank()
    piece = nn.Parameter(weights.chunk(n)[r])
    optimizer = stepped(weights, mean_gradient, num_steps, torch.optim.AdamW([piece], **settings), piece)
    dist.all_gather(list(weights.chunk(n)), piece.data.clone())
    return optimizer


@wrong("6.2", "the moments are forgotten between steps")
def adamw_made_in_every_step(weights, mean_gradient, num_steps, settings):
    piece = own_piece(weights)
    for _ in range(num_steps):
        optimizer = torch.optim.AdamW([piece], **settings)
        stepped(weights, mean_gradient, 1, optimizer, piece, lambda: handed_round(weights, piece))
    return optimizer


@wrong("6.2", "made from all weights, so it keeps two moments")
def adamw_steps_everything_and_sends_a_piece(weights, mean_gradient, num_steps, settings):
    whole = nn.Parameter(weights)
    optimizer = torch.optim.AdamW([whole], **settings)
    for _ in range(num_steps):
        whole.grad = mean_gradient(weights)
        optimizer.step()
        handed_round(weights, own_piece(weights))
    return optimizer


@wrong("6.2", "one all-gather a step, and the gradient is the mean already")
def adamw_averages_again(weights, mean_gradient, num_steps, settings):
    n, r = dist.get_world_size(), dist.get_rank()
    piece = own_piece(weights)
    optimizer = torch.optim.AdamW([piece], **settings)
    for _ in range(num_steps):
        gradient = mean_gradient(weights)
        dist.all_reduce(gradient)
        piece.grad = (gradient / n).chunk(n)[r]
        optimizer.step()
        handed_round(weights, piece)
    return optimizer


@wrong("6.2", "return the optimiser")
def adamw_returns_nothing(weights, mean_gradient, num_steps, settings):
    piece = own_piece(weights)
    stepped(weights, mean_gradient, num_steps, torch.optim.AdamW([piece], **settings), piece,
            lambda: handed_round(weights, piece))


def hooked(model, piece_of, free=True):
    """A hook for each parameter, which stores piece_of(parameter.grad)."""
    pieces = {}

    def store(parameter, name):
        pieces[name] = piece_of(parameter.grad)
        if free:
            parameter.grad = None

    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            parameter.register_post_accumulate_grad_hook(partial(store, name=name))
    return pieces


def scattered(gradient):
    """This rank's piece of the sum."""
    flat = padded(gradient)
    piece = flat.new_empty(len(flat) // dist.get_world_size())
    dist.reduce_scatter(piece, list(flat.chunk(dist.get_world_size())))
    return piece


def reduced(gradient):
    """All pieces of the mean, (n S,)."""
    flat = padded(gradient).clone()
    dist.all_reduce(flat)
    return flat / dist.get_world_size()


@wrong("6.3", "so divide by n")
def scattered_forgets_to_divide(model):
    return hooked(model, scattered)


@wrong("6.3", "set parameter.grad to None")
def scattered_keeps_the_whole_gradient(model):
    return hooked(model, lambda gradient: scattered(gradient) / dist.get_world_size(), free=False)


@wrong("6.3", "a view holds all that it is a part of")
def scattered_keeps_a_view(model):
    return hooked(model, lambda gradient: reduced(gradient).chunk(dist.get_world_size())[dist.get_rank()])


@wrong("6.3", "nobody asks for the second half")
def scattered_by_all_reduce(model):
    return hooked(model, lambda gradient: reduced(gradient).chunk(dist.get_world_size())[dist.get_rank()].clone())


@wrong("6.3", "bind the name when the hook is made")
def scattered_under_one_name(model):
    pieces = {}

    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            def scatter(parameter):
                pieces[name] = scattered(parameter.grad) / dist.get_world_size()  # noqa: B023
                parameter.grad = None

            parameter.register_post_accumulate_grad_hook(scatter)
    return pieces


@wrong("6.3", "nobody added the others'")
def scattered_without_anybody_else(model):
    return hooked(model, lambda gradient: padded(gradient).chunk(dist.get_world_size())[dist.get_rank()].clone())


@wrong("6.3", "free each one in its own hook")
def scattered_frees_when_all_is_over(model):
    n, pieces = dist.get_world_size(), {}

    def scatter_all(last):
        for name, parameter in model.named_parameters():
            if parameter.grad is not None:
                pieces[name] = scattered(parameter.grad) / n
                parameter.grad = None

    next(model.parameters()).register_post_accumulate_grad_hook(scatter_all)  # the last one that backward reaches
    return pieces


@wrong("6.3", "cannot register a hook on a tensor that doesn't require gradient")
def scattered_takes_the_frozen_one_too(model):
    pieces = {}
    for name, parameter in model.named_parameters():
        parameter.register_post_accumulate_grad_hook(
            lambda parameter, name=name: pieces.update({name: scattered(parameter.grad)}))
    return pieces


def gathered(parameter, piece):
    """The whole weight, a tensor of its own."""
    whole = piece.new_empty(dist.get_world_size() * len(piece))
    dist.all_gather(list(whole.chunk(dist.get_world_size())), piece)
    return whole[:parameter.numel()].view_as(parameter)


def pieces_of(layer):
    n, r = dist.get_world_size(), dist.get_rank()
    return {parameter: padded(parameter).chunk(n)[r].clone() for parameter in layer.parameters()}


def refilled(pieces):
    for parameter, piece in pieces.items():
        parameter.untyped_storage().resize_(parameter.nbytes)
        parameter.data.copy_(gathered(parameter, piece))


def emptied(pieces):
    for parameter in pieces:
        parameter.untyped_storage().resize_(0)


def with_hooks(layer, gather, free, free_after_forward=True, free_after_backward=True, gather_for_backward=True):
    layer.register_forward_pre_hook(lambda *_: gather())
    if free_after_forward:
        layer.register_forward_hook(lambda *_: free())
    if gather_for_backward:
        layer.register_full_backward_pre_hook(lambda *_: gather())
    if free_after_backward:
        layer.register_full_backward_hook(lambda *_: free())


@wrong("6.4", "a view keeps a storage alive, whatever parameter.data is")
def gathered_into_data(layer):
    pieces = pieces_of(layer)
    like = {parameter: torch.empty_like(parameter, device="meta") for parameter in pieces}

    def gather():
        for parameter, piece in pieces.items():
            parameter.data = gathered(like[parameter], piece)

    def free():
        for parameter, piece in pieces.items():
            parameter.data = piece.new_empty(0)

    free()
    with_hooks(layer, gather, free)


@wrong("6.4", "gathered for forward outlives its use")
def gathered_and_kept_after_forward(layer):
    pieces = pieces_of(layer)
    emptied(pieces)
    with_hooks(layer, lambda: refilled(pieces), lambda: emptied(pieces), free_after_forward=False,
               gather_for_backward=False)


@wrong("6.4", "gathered for backward outlives its use")
def gathered_and_kept_after_backward(layer):
    pieces = pieces_of(layer)
    emptied(pieces)
    with_hooks(layer, lambda: refilled(pieces), lambda: emptied(pieces), free_after_backward=False)


@wrong("6.4", "the whole weights are still there")
def gathered_but_never_emptied_at_first(layer):
    pieces = pieces_of(layer)
    with_hooks(layer, lambda: refilled(pieces), lambda: emptied(pieces))


@wrong("6.4", "used while its storage was empty")
def gathered_for_forward_only(layer):
    pieces = pieces_of(layer)
    emptied(pieces)
    with_hooks(layer, lambda: refilled(pieces), lambda: emptied(pieces), gather_for_backward=False)


@wrong("6.4", "copy into parameter.data")
def gathered_where_autograd_counts(layer):
    pieces = pieces_of(layer)

    def gather():
        with torch.no_grad():
            for parameter, piece in pieces.items():
                parameter.untyped_storage().resize_(parameter.nbytes)
                parameter.copy_(gathered(parameter, piece))

    emptied(pieces)
    with_hooks(layer, gather, lambda: emptied(pieces))


@wrong("6.4", "in the order of the ranks")
def gathered_without_the_others(layer):
    n, pieces = dist.get_world_size(), pieces_of(layer)

    def gather():
        for parameter, piece in pieces.items():
            parameter.untyped_storage().resize_(parameter.nbytes)
            parameter.data.copy_(piece.repeat(n)[:parameter.numel()].view_as(parameter))

    emptied(pieces)
    with_hooks(layer, gather, lambda: emptied(pieces))


def share(tensor):
    return tensor.chunk(dist.get_world_size())[dist.get_rank()]


@wrong("6.5", "smaller than half the distance to the next number")
def master_that_is_bf16_itself(weights, mean_gradient, num_steps, lr):
    master = share(weights).clone()
    for _ in range(num_steps):
        master -= lr * share(mean_gradient(weights))
        dist.all_gather(list(weights.chunk(dist.get_world_size())), master)
    return master


@wrong("6.5", "never anew from the weights")
def master_made_in_every_step(weights, mean_gradient, num_steps, lr):
    for _ in range(num_steps):
        master = share(weights).float()
        master -= lr * share(mean_gradient(weights)).float()
        dist.all_gather(list(weights.chunk(dist.get_world_size())), master.bfloat16())
    return master


@wrong("6.5", "make the piece bf16 before it is sent")
def master_sent_in_fp32(weights, mean_gradient, num_steps, lr):
    master, whole = share(weights).float(), weights.float()
    for _ in range(num_steps):
        master -= lr * share(mean_gradient(weights)).float()
        dist.all_gather(list(whole.chunk(dist.get_world_size())), master)
        weights.copy_(whole)
    return master


@wrong("6.5", "keep those of the own piece")
def master_of_everything(weights, mean_gradient, num_steps, lr):
    master = weights.float()
    for _ in range(num_steps):
        master -= lr * mean_gradient(weights).float()
        weights.copy_(master)
    return master


@wrong("6.5", "the master weights have moved, and the weights are where they were")
def master_that_nobody_sees(weights, mean_gradient, num_steps, lr):
    master = share(weights).float()
    for _ in range(num_steps):
        master -= lr * share(mean_gradient(weights)).float()
    return master


@wrong("6.6", "each rank clips by the norm of its own pieces")
def clip_by_the_local_norm(pieces, max_norm):
    norm = sum(piece.square().sum() for piece in pieces).sqrt().item()
    for piece in pieces:
        piece *= min(1.0, max_norm / norm)
    return norm


def clip(pieces, max_norm, norm, limit=1.0):
    for piece in pieces:
        piece *= min(limit, max_norm / norm)
    return norm


def all_reduced(number):
    dist.all_reduce(number)
    return number


def own_square(pieces):
    return sum(piece.square().sum() for piece in pieces)


@wrong("6.6", "squares add up, norms do not")
def clip_by_the_sum_of_norms(pieces, max_norm):
    return clip(pieces, max_norm, all_reduced(own_square(pieces).sqrt()).item())


@wrong("6.6", "the root is not taken")
def clip_by_the_square(pieces, max_norm):
    return clip(pieces, max_norm, all_reduced(own_square(pieces)).item())


@wrong("6.6", "clipping only makes gradients shorter")
def clip_that_also_lengthens(pieces, max_norm):
    return clip(pieces, max_norm, all_reduced(own_square(pieces)).sqrt().item(), limit=float("inf"))


@wrong("6.6", "the pieces are as they were")
def clip_a_copy(pieces, max_norm):
    norm = all_reduced(own_square(pieces)).sqrt().item()
    for piece in pieces:
        piece = piece * min(1.0, max_norm / norm)
    return norm


@wrong("6.6", "it took 3 calls, where 1 will do")
def clip_with_a_call_for_each_piece(pieces, max_norm):
    return clip(pieces, max_norm, sum(all_reduced(piece.square().sum()) for piece in pieces).sqrt().item())
