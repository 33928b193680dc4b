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


def own_part(weights, num_decayed, cut=None):
    """This rank's piece, and two parameters on its memory: what decays, and what does not."""
    n, r = dist.get_world_size(), dist.get_rank()
    piece = weights.chunk(n)[r].clone()
    cut = max(0, min(num_decayed - r * len(piece), len(piece))) if cut is None else min(cut, len(piece))
    return piece, [nn.Parameter(piece[:cut]), nn.Parameter(piece[cut:])]


def two_groups(parts, settings):
    return torch.optim.AdamW([{"params": parts[:1]}, {"params": parts[1:], "weight_decay": 0.0}], **settings)


def stepped(weights, mean_gradient, num_steps, optimizer, parts, after_step=lambda: None):
    n, r = dist.get_world_size(), dist.get_rank()
    for _ in range(num_steps):
        gradients = mean_gradient(weights).chunk(n)[r].split([len(part) for part in parts])
        for part, gradient in zip(parts, gradients):
            part.grad = gradient
        optimizer.step()
        after_step()
    return optimizer


def handed_round(weights, piece):
    dist.all_gather(list(weights.chunk(dist.get_world_size())), piece)


def sharded(weights, mean_gradient, num_steps, settings, num_decayed, cut=None):
    piece, parts = own_part(weights, num_decayed, cut)
    return stepped(weights, mean_gradient, num_steps, two_groups(parts, settings), parts,
                   lambda: handed_round(weights, piece))


@wrong("6.2", "all weights decay")
def adamw_with_one_group(weights, mean_gradient, num_steps, settings, num_decayed):
    piece, _ = own_part(weights, num_decayed)
    parts = [nn.Parameter(piece)]
    return stepped(weights, mean_gradient, num_steps, torch.optim.AdamW(parts, **settings), parts,
                   lambda: handed_round(weights, piece))


@wrong("6.2", "the first num_decayed of every piece decay")
def adamw_counts_from_its_own_piece(weights, mean_gradient, num_steps, settings, num_decayed):
    return sharded(weights, mean_gradient, num_steps, settings, num_decayed, cut=num_decayed)


@wrong("6.2", "an n-th of num_decayed decays on every rank")
def adamw_deals_the_decay_out(weights, mean_gradient, num_steps, settings, num_decayed):
    return sharded(weights, mean_gradient, num_steps, settings, num_decayed, cut=num_decayed // dist.get_world_size())


@wrong("6.2", "the boundary may lie inside it")
def adamw_decays_a_piece_or_not(weights, mean_gradient, num_steps, settings, num_decayed):
    size = len(weights) // dist.get_world_size()
    starts_before_it = dist.get_rank() * size < num_decayed
    return sharded(weights, mean_gradient, num_steps, settings, num_decayed, cut=size if starts_before_it else 0)


@wrong("6.2", "made from all weights, so it keeps two moments")
def adamw_made_before_sharding(weights, mean_gradient, num_steps, settings, num_decayed):
    parts = [nn.Parameter(weights[:num_decayed].clone()), nn.Parameter(weights[num_decayed:].clone())]
    optimizer = two_groups(parts, settings)
    for _ in range(num_steps):
        gradient = mean_gradient(torch.cat([part.data for part in parts]))
        parts[0].grad, parts[1].grad = gradient[:num_decayed], gradient[num_decayed:]
        optimizer.step()
    weights.copy_(torch.cat([part.data for part in parts]))
    return optimizer


@wrong("6.2", "all-gather after each step")
def adamw_keeps_its_steps_to_itself(weights, mean_gradient, num_steps, settings, num_decayed):
    piece, parts = own_part(weights, num_decayed)
    own = weights.chunk(dist.get_world_size())[dist.get_rank()]
    return stepped(weights, mean_gradient, num_steps, two_groups(parts, settings), parts, lambda: own.copy_(piece))


@wrong("6.2", "gathered once, at the end")
def adamw_gathers_at_the_end(weights, mean_gradient, num_steps, settings, num_decayed):
    optimizer = adamw_keeps_its_steps_to_itself.function(weights, mean_gradient, num_steps, settings, num_decayed)
    dist.all_gather(list(weights.chunk(dist.get_world_size())),
                    weights.chunk(dist.get_world_size())[dist.get_rank()].clone())
    return optimizer


@wrong("6.2", "the moments are forgotten between steps")
def adamw_made_in_every_step(weights, mean_gradient, num_steps, settings, num_decayed):
    piece, parts = own_part(weights, num_decayed)
    for _ in range(num_steps):
        optimizer = two_groups(parts, settings)
        stepped(weights, mean_gradient, 1, optimizer, parts, lambda: handed_round(weights, piece))
    return optimizer


@wrong("6.2", "one all-gather a step, and the gradient is the mean already")
def adamw_averages_again(weights, mean_gradient, num_steps, settings, num_decayed):
    def averaged(at):
        gradient = mean_gradient(at)
        dist.all_reduce(gradient)
        return gradient / dist.get_world_size()

    return sharded(weights, averaged, num_steps, settings, num_decayed)


@wrong("6.2", "return the optimiser")
def adamw_returns_nothing(weights, mean_gradient, num_steps, settings, num_decayed):
    sharded(weights, mean_gradient, num_steps, settings, num_decayed)


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


def clip_where(pieces, max_norm, is_clipped):
    norm = all_reduced(own_square(pieces)).sqrt().item()
    if is_clipped(norm, max_norm):
        for piece in pieces:
            piece *= max_norm / norm
    return norm


@wrong("6.6", "A norm of 0 is not above max_norm")
def clip_also_at_the_limit(pieces, max_norm):
    return clip_where(pieces, max_norm, lambda norm, limit: norm >= limit)


@wrong("6.6", "A norm of 0 is not above max_norm")
def clip_without_looking_at_zero(pieces, max_norm):
    norm = all_reduced(own_square(pieces)).sqrt()
    for piece in pieces:
        piece *= (max_norm / norm).clamp(max=1.0)
    return norm.item()


def own_gathered_on_use(layer, free_after_forward=True):
    """6.4 once more, for what is wrong there."""
    pieces = pieces_of(layer)
    emptied(pieces)
    with_hooks(layer, lambda: refilled(pieces), lambda: emptied(pieces), free_after_forward=free_after_forward)
    return pieces


def trained_in_pieces(model, batches, settings, averaged=lambda piece: piece / dist.get_world_size(),
                      shard=nn.Parameter, gather_on_use=own_gathered_on_use, scatter=scattered, free=True,
                      made=lambda shards, settings: torch.optim.AdamW(shards.values(), **settings), every_step=False):
    pieces = {}
    for layer in model:
        if isinstance(layer, nn.Linear):
            pieces |= gather_on_use(layer)
    shards = {parameter: shard(piece) for parameter, piece in pieces.items()}

    def hook(parameter):
        shards[parameter].grad = averaged(scatter(parameter.grad))
        if free:
            parameter.grad = None

    for parameter in shards:
        parameter.register_post_accumulate_grad_hook(hook)
    optimizer = made(shards, settings)
    for x, y in batches:
        nn.functional.mse_loss(model(x), y).backward()
        if not free:
            model.zero_grad()
        optimizer = made(shards, settings) if every_step else optimizer
        optimizer.step()
    return optimizer


@wrong("6.7", "so divide by n")
def zero_3_forgets_to_divide(model, batches, settings):
    return trained_in_pieces(model, batches, settings, averaged=lambda piece: piece)


@wrong("6.7", "nobody added the others'")
def zero_3_with_its_own_gradient(model, batches, settings):
    def own(gradient):
        return padded(gradient).chunk(dist.get_world_size())[dist.get_rank()].clone()

    return trained_in_pieces(model, batches, settings, averaged=lambda piece: piece, scatter=own)


@wrong("6.7", "what the optimiser steps is a copy of what is gathered")
def zero_3_steps_a_copy(model, batches, settings):
    return trained_in_pieces(model, batches, settings, shard=lambda piece: nn.Parameter(piece.clone()))


@wrong("6.7", "the moments are forgotten between steps")
def zero_3_makes_an_optimiser_in_every_step(model, batches, settings):
    return trained_in_pieces(model, batches, settings, every_step=True)


@wrong("6.7", "free each one in its own hook")
def zero_3_keeps_whole_gradients(model, batches, settings):
    return trained_in_pieces(model, batches, settings, free=False)


@wrong("6.7", "whole weights are still there")
def zero_3_keeps_weights_for_backward(model, batches, settings):
    return trained_in_pieces(model, batches, settings,
                             gather_on_use=lambda layer: own_gathered_on_use(layer, free_after_forward=False))


@wrong("6.7", "something else keeps what was gathered")
def zero_3_keeps_a_view_of_the_whole_gradient(model, batches, settings):
    return trained_in_pieces(model, batches, settings, averaged=lambda piece: piece,
                             scatter=lambda gradient: reduced(gradient).chunk(dist.get_world_size())[dist.get_rank()])


@wrong("6.7", "each gradient is reduce-scattered once")
def zero_3_by_all_reduce(model, batches, settings):
    def piece_of_the_sum(gradient):
        return reduced(gradient).chunk(dist.get_world_size())[dist.get_rank()].clone()

    return trained_in_pieces(model, batches, settings, averaged=lambda piece: piece, scatter=piece_of_the_sum)


@wrong("6.7", "parameters, where the model has")
def zero_3_with_one_parameter_for_all(model, batches, settings):
    def together(shards, settings):
        return torch.optim.AdamW([nn.Parameter(torch.cat([shard.data for shard in shards.values()]))], **settings)

    return trained_in_pieces(model, batches, settings, made=together)


@wrong("6.7", "return the optimiser, whose parameters are the pieces")
def zero_3_returns_nothing(model, batches, settings):
    trained_in_pieces(model, batches, settings)


@wrong("6.7", "torch's fully_shard cuts the parameters by rows")
def zero_3_by_torch(model, batches, settings):
    from torch.distributed.fsdp import fully_shard

    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), **settings)
    for x, y in batches:
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    return optimizer


@wrong("6.7", "it uses course_lib.zero")
def zero_3_by_the_library(model, batches, settings):
    from course_lib.zero import FullyShardedDataParallel

    model = FullyShardedDataParallel(model)
    return torch.optim.AdamW(model.parameters(), **settings)


@wrong("6.8", "this is the limit of the step as a whole")
def devices_of_the_whole_step(batch_tokens, flops_per_s, bytes_per_s, weight_bytes, gradient_bytes):
    return 6 * batch_tokens * bytes_per_s / (flops_per_s * (2 * weight_bytes + gradient_bytes))


@wrong("6.8", "this is the limit of forward")
def devices_of_forward_alone(batch_tokens, flops_per_s, bytes_per_s, weight_bytes, gradient_bytes):
    return 2 * batch_tokens * bytes_per_s / (flops_per_s * weight_bytes)


@wrong("6.8", "this is the limit of backward")
def devices_of_backward_alone(batch_tokens, flops_per_s, bytes_per_s, weight_bytes, gradient_bytes):
    return 4 * batch_tokens * bytes_per_s / (flops_per_s * (weight_bytes + gradient_bytes))


@wrong("6.8", "backward computes twice as much as forward")
def devices_where_both_passes_compute_the_same(batch_tokens, flops_per_s, bytes_per_s, weight_bytes, gradient_bytes):
    of_all = 2 * batch_tokens * bytes_per_s / flops_per_s
    return min(of_all / weight_bytes, of_all / (weight_bytes + gradient_bytes))


@wrong("6.8", "these are tokens for each device")
def devices_as_tokens(batch_tokens, flops_per_s, bytes_per_s, weight_bytes, gradient_bytes):
    return max(weight_bytes / 2, (weight_bytes + gradient_bytes) / 4) * flops_per_s / bytes_per_s
