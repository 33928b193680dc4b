"""Chapter 6: right and wrong answers, what each text stresses, each docstring's example; tools/answers.py reads it."""
# ruff: noqa: F821

from functools import partial
from math import ceil

import numpy
import torch
import torch.distributed as dist
from torch import nn

from tools.answers import example, right, term, wrong


def gathered_alone(piece, parameter):
    whole = piece.new_empty(dist.get_world_size(), len(piece))
    dist.all_gather(list(whole), piece)
    return whole.flatten()[:parameter.numel()].view(parameter.shape)


def share(tensor):
    return tensor.chunk(dist.get_world_size())[dist.get_rank()]


def handed_round(weights, piece):
    dist.all_gather(list(weights.chunk(dist.get_world_size())), piece)


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


def piece_of_the_mean(gradient):
    return share(reduced(gradient)).clone()


def own_piece(gradient):
    return share(padded(gradient)).clone()


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


def shown(tensor):
    return str(tensor.tolist()).replace(".0", ".")


def rounded(tensor):
    return str([round(number, 10) for number in tensor.tolist()])


def slopes(inputs):
    """The gradient of the mean of (b - y)^2 at b = 0, for each rank."""
    return [(-2 * rank["batches"][0][1].mean(0) / rank["batches"][0][1].shape[1]) for rank in inputs]


# ---- 6.1 my_bytes_per_rank
@right("6.1", "numpy's whole number")
def bytes_in_numpy(sizes, num_ranks, stage, *per_element):
    whole = numpy.array([sum(sizes), numpy.ceil(numpy.array(sizes) / num_ranks).astype(int).sum()])
    return sum(each * whole[int(stage >= first)] for each, first in zip(per_element, (3, 2, 1)))


@right("6.1", "a tensor")
def bytes_as_a_tensor(sizes, num_ranks, stage, weight_bytes, gradient_bytes, optimizer_bytes):
    pieces = (torch.tensor(sizes) + num_ranks - 1).div(num_ranks, rounding_mode="floor").sum()
    return (weight_bytes * (pieces if stage == 3 else sum(sizes)) + optimizer_bytes * (pieces if stage else sum(sizes))
            + gradient_bytes * (sum(sizes) if stage < 2 else pieces))


def held(sizes, stage, per_element, piece, cut=lambda stage, first: stage >= first):
    return sum(size * (piece if cut(stage, first) else sum(sizes)) for size, first in zip(per_element, (3, 2, 1)))


@wrong("6.1", "a piece that is not full is filled up with zeros, which are held as well: ceil(size/n) for every "
       "parameter, not size/n")
def bytes_without_filling_up(sizes, num_ranks, stage, *per_element):
    return held(sizes, stage, per_element, sum(sizes) / num_ranks)


@wrong("6.1", "every parameter is cut on its own, so every one is filled up: the sum of ceil(size/n), not ceil of the "
       "sum")
def bytes_of_one_flat_parameter(sizes, num_ranks, stage, *per_element):
    return held(sizes, stage, per_element, ceil(sum(sizes) / num_ranks))


@wrong("6.1", "the pieces are rounded down, so the last elements are on no rank: ceil(size/n)")
def bytes_rounded_down(sizes, num_ranks, stage, *per_element):
    return held(sizes, stage, per_element, sum(size // num_ranks for size in sizes))


@wrong("6.1", "each stage cuts its own group and nothing else: stages add up, stage 2 cuts what stage 1 cuts too")
def bytes_where_stages_do_not_add_up(sizes, num_ranks, stage, *per_element):
    piece = sum(ceil(size / num_ranks) for size in sizes)
    return held(sizes, stage, per_element, piece, lambda stage, first: stage == first)


@wrong("6.1", "the stages come in another order: first the optimiser's state, then gradients, then weights")
def bytes_with_the_weights_first(sizes, num_ranks, stage, *per_element):
    piece = sum(ceil(size / num_ranks) for size in sizes)
    return held(sizes, stage, per_element, piece, lambda stage, first: stage >= 4 - first)


@wrong("6.1", "gradients come before weights: stage 2 cuts them, and weights stay whole until stage 3")
def bytes_with_gradients_last(sizes, num_ranks, stage, *per_element):
    piece = sum(ceil(size / num_ranks) for size in sizes)
    return held(sizes, stage, per_element, piece, lambda stage, first: stage >= {1: 1, 2: 3, 3: 2}[first])


@wrong("6.1", "what is whole is not filled up: zeros stand at the end of what is cut, and nowhere else")
def bytes_with_whole_groups_filled_up(sizes, num_ranks, stage, *per_element):
    pieces = [ceil(size / num_ranks) for size in sizes]
    return held([num_ranks * piece for piece in pieces], stage, per_element, sum(pieces))


@wrong("6.1", "the last rank's pieces hold zeros as well: all n pieces are equally long, ceil(size/n)")
def bytes_of_the_last_rank(sizes, num_ranks, stage, *per_element):
    last = sum(max(0, size - (num_ranks - 1) * ceil(size / num_ranks)) for size in sizes)
    return held(sizes, stage, per_element, last)


@wrong("6.1", "where n divides a size nothing is filled up: size // n + 1 is one too many there, and ceil(size/n) is "
       "not")
def bytes_with_one_more(sizes, num_ranks, stage, *per_element):
    return held(sizes, stage, per_element, sum(size // num_ranks + 1 for size in sizes))


BYTES = [
    wrong("6.1", "every group is cut at every stage: stage 1 cuts the optimiser's state alone")(
        lambda sizes, num_ranks, stage, *per_element: my_bytes_per_rank(sizes, num_ranks, 3, *per_element)),
    wrong("6.1", "the optimiser's state is missing")(lambda *asked: my_bytes_per_rank(*asked[:-1], 0)),
    wrong("6.1", "that is what all ranks hold together: one of them is asked")(
        lambda *asked: asked[1] * my_bytes_per_rank(*asked))]
TEXT_6_1 = [
    term("6.1", "the last piece is filled up", "-(-size // num_ranks)", "size // num_ranks"),
    term("6.1", "every parameter is cut on its own", "sum(-(-size // num_ranks) for size in sizes)",
         "-(-whole // num_ranks)"),
    term("6.1", "stage 0 cuts nothing", "stage >= 1", "stage >= 0"),
    term("6.1", "the state comes first, at stage 1", "stage >= 1", "stage >= 2"),
    term("6.1", "at stage 2 the gradients too", "stage >= 2", "stage >= 3"),
    term("6.1", "at stage 1 not yet the gradients", "stage >= 2", "stage >= 1"),
    term("6.1", "the gradients before the weights",
         "    weights = weight_bytes * (piece if stage >= 3 else whole)\n"
         "    gradients = gradient_bytes * (piece if stage >= 2 else whole)\n",
         "    weights = weight_bytes * (piece if stage >= 2 else whole)\n"
         "    gradients = gradient_bytes * (piece if stage >= 3 else whole)\n"),
    term("6.1", "at stage 3 the weights too", "stage >= 3", "stage > 3"),
    term("6.1", "stage 3 cuts what stage 2 cuts", "stage >= 2", "stage == 2"),
    term("6.1", "stages 2 and 3 cut what stage 1 cuts", "stage >= 1", "stage == 1"),
    example("6.1", lambda inputs, answers: [
        "{} elements on {} ranks: pieces of 3 + 1 elements".format(*inputs[0]),
        "In bf16 with AdamW at stage {2}: 13 ({3} + {4}) + 4 * {5} = {0} bytes".format(
            answers[0]["value"], *inputs[0][1:])])]


# ---- 6.2 my_sharded_adamw
@right("6.2", "the decay by hand, and an optimiser that knows of none")
def adamw_decays_by_hand(weights, mean_gradient, num_steps, settings, num_decayed):
    decay = settings["lr"] * settings["weight_decay"]
    part = nn.Parameter(share(weights).clone())
    decays = share((torch.arange(len(weights)) < num_decayed).double())
    optimizer = torch.optim.AdamW([part], **{**settings, "weight_decay": 0.0})
    for _ in range(num_steps):
        part.grad = share(mean_gradient(weights)).clone()
        part.data.mul_(1 - decay * decays)
        optimizer.step()
        dist.all_gather(list(weights.chunk(dist.get_world_size())), part.data)
    return optimizer


@right("6.2", "Adam on the piece of `weights` itself, which decays by hand")
def adamw_as_adam_in_place(weights, mean_gradient, num_steps, settings, num_decayed):
    n, r = dist.get_world_size(), dist.get_rank()
    settings = dict(settings)
    shrunk = 1 - settings["lr"] * settings.pop("weight_decay")
    part = nn.Parameter(share(weights))
    optimizer = torch.optim.Adam([part], **settings)
    for _ in range(num_steps):
        part.grad = share(mean_gradient(weights))
        part.data[:max(0, num_decayed - r * len(part))] *= shrunk
        optimizer.step()
        dist.all_gather(list(weights.chunk(n)), part.detach().clone())
    return optimizer


@right("6.2", "each rank broadcasts its piece of `weights`, which it steps in place")
def adamw_broadcasts(weights, mean_gradient, num_steps, settings, num_decayed):
    n, r = dist.get_world_size(), dist.get_rank()
    S = len(weights) // n
    cut = min(max(num_decayed, r * S), r * S + S)
    parts = nn.Parameter(weights[r * S:cut]), nn.Parameter(weights[cut:r * S + S])
    optimizer = torch.optim.AdamW([{"params": parts[:1]}, {"params": parts[1:], "weight_decay": 0}], **settings)
    for _ in range(num_steps):
        gradient = mean_gradient(weights)
        parts[0].grad, parts[1].grad = gradient[r * S:cut], gradient[cut:r * S + S]
        optimizer.step()
        for source in range(n):
            dist.broadcast(weights[source * S:source * S + S], source)
    return optimizer


ALL_STEPPED = ("an optimiser steps all weights on every rank, and nothing is sent: the one that is returned steps this "
               "rank's piece alone, which is handed round")


def own_part(weights, num_decayed, cut=None, rank=None):
    """The piece of a rank, of this one by default, and two parameters on its memory: what decays, and what does not."""
    n, r = dist.get_world_size(), dist.get_rank() if rank is None else rank
    piece = weights.chunk(n)[r].clone()
    cut = max(0, min(num_decayed - r * len(piece), len(piece))) if cut is None else min(cut, len(piece))
    return piece, [nn.Parameter(piece[:cut]), nn.Parameter(piece[cut:])]


def two_groups(parts, settings):
    return torch.optim.AdamW([{"params": parts[:1]}, {"params": parts[1:], "weight_decay": 0.0}], **settings)


def stepped(weights, mean_gradient, num_steps, optimizer, parts, after_step=lambda: None, own=share):
    for _ in range(num_steps):
        gradients = own(mean_gradient(weights)).split([len(part) for part in parts])
        for part, gradient in zip(parts, gradients):
            part.grad = gradient
        optimizer.step()
        after_step()
    return optimizer


def sharded(weights, mean_gradient, num_steps, settings, num_decayed, cut=None):
    piece, parts = own_part(weights, num_decayed, cut)
    return stepped(weights, mean_gradient, num_steps, two_groups(parts, settings), parts,
                   lambda: handed_round(weights, piece))


@wrong("6.2", "all weights decay: only the first num_decayed do, so make two groups of the piece")
def adamw_with_one_group(weights, mean_gradient, num_steps, settings, num_decayed):
    piece, _ = own_part(weights, num_decayed)
    parts = [nn.Parameter(piece)]
    return stepped(weights, mean_gradient, num_steps, torch.optim.AdamW(parts, **settings), parts,
                   lambda: handed_round(weights, piece))


@wrong("6.2", "the first num_decayed of every piece decay: they are counted from the beginning of all weights, and "
       "rank r's piece begins at r N/n")
def adamw_counts_from_its_own_piece(weights, mean_gradient, num_steps, settings, num_decayed):
    return sharded(weights, mean_gradient, num_steps, settings, num_decayed, cut=num_decayed)


@wrong("6.2", "an n-th of num_decayed decays on every rank: they are the first of all weights, so the first ranks have "
       "all of them")
def adamw_deals_the_decay_out(weights, mean_gradient, num_steps, settings, num_decayed):
    return sharded(weights, mean_gradient, num_steps, settings, num_decayed, cut=num_decayed // dist.get_world_size())


@wrong("6.2", "a piece decays wholly or not at all: the boundary may lie inside it")
def adamw_decays_a_piece_or_not(weights, mean_gradient, num_steps, settings, num_decayed):
    size = len(weights) // dist.get_world_size()
    starts_before_it = dist.get_rank() * size < num_decayed
    return sharded(weights, mean_gradient, num_steps, settings, num_decayed, cut=size if starts_before_it else 0)


@wrong("6.2", "no weight decays: the first num_decayed do, so one of the two groups takes `settings` as they are")
def adamw_without_decay(weights, mean_gradient, num_steps, settings, num_decayed):
    return sharded(weights, mean_gradient, num_steps, settings, num_decayed, cut=0)


@wrong("6.2", "the groups are swapped: it is the first num_decayed that decay")
def adamw_swaps_the_groups(weights, mean_gradient, num_steps, settings, num_decayed):
    piece, parts = own_part(weights, num_decayed)
    return stepped(weights, mean_gradient, num_steps, two_groups(parts[::-1], settings), parts,
                   lambda: handed_round(weights, piece))


@wrong("6.2", "every piece is rank 0's: rank r steps the piece with index r")
def adamw_steps_the_first_piece(weights, mean_gradient, num_steps, settings, num_decayed):
    piece, parts = own_part(weights, num_decayed, rank=0)
    return stepped(weights, mean_gradient, num_steps, two_groups(parts, settings), parts,
                   lambda: handed_round(weights, piece), lambda gradient: gradient[:len(piece)])


@wrong("6.2", "the weights are one step behind: gather after the step, not before it")
def adamw_gathers_before_the_step(weights, mean_gradient, num_steps, settings, num_decayed):
    piece, parts = own_part(weights, num_decayed)
    return stepped(weights, lambda at: handed_round(weights, piece) or mean_gradient(at), num_steps,
                   two_groups(parts, settings), parts)


@wrong("6.2", "the weights are as they were: what the optimiser steps is a copy of the piece, so gather it into "
       "`weights`")
def adamw_steps_a_copy(weights, mean_gradient, num_steps, settings, num_decayed):
    _, parts = own_part(weights, num_decayed)
    return stepped(weights, mean_gradient, num_steps, two_groups(parts, settings), parts)


@wrong("6.2", ALL_STEPPED)
def adamw_made_before_sharding(weights, mean_gradient, num_steps, settings, num_decayed):
    parts = [nn.Parameter(weights[:num_decayed].clone()), nn.Parameter(weights[num_decayed:].clone())]
    optimizer = two_groups(parts, settings)
    for _ in range(num_steps):
        gradient = mean_gradient(torch.cat([part.data for part in parts]))
        parts[0].grad, parts[1].grad = gradient[:num_decayed], gradient[num_decayed:]
        optimizer.step()
    weights.copy_(torch.cat([part.data for part in parts]))
    return optimizer


def sharded_without_gathering(weights, mean_gradient, num_steps, settings, num_decayed):
    piece, parts = own_part(weights, num_decayed)
    return stepped(weights, mean_gradient, num_steps, two_groups(parts, settings), parts,
                   lambda: share(weights).copy_(piece))


@wrong("6.2", "every rank has stepped its own piece only: the others' pieces of `weights` are as old as in the "
       "beginning, so all-gather after each step")
def adamw_keeps_its_steps_to_itself(weights, mean_gradient, num_steps, settings, num_decayed):
    return sharded_without_gathering(weights, mean_gradient, num_steps, settings, num_decayed)


@wrong("6.2", "the pieces are gathered once, at the end: every gradient before was taken at weights of which n-1 "
       "pieces were old")
def adamw_gathers_at_the_end(weights, mean_gradient, num_steps, settings, num_decayed):
    optimizer = sharded_without_gathering(weights, mean_gradient, num_steps, settings, num_decayed)
    handed_round(weights, share(weights).clone())
    return optimizer


@wrong("6.2", "every step takes the gradient of the first one: ask mean_gradient(weights) in each, at the weights of "
       "then")
def adamw_takes_the_gradient_once(weights, mean_gradient, num_steps, settings, num_decayed):
    gradient = mean_gradient(weights)
    return sharded(weights, lambda at: gradient, num_steps, settings, num_decayed)


@wrong("6.2", "one weight too many decays: the first num_decayed are 0 to num_decayed - 1")
def adamw_decays_one_more(weights, mean_gradient, num_steps, settings, num_decayed):
    return sharded(weights, mean_gradient, num_steps, settings, num_decayed + 1)


@wrong("6.2", "one weight too few decays: the first num_decayed are 0 to num_decayed - 1")
def adamw_decays_one_less(weights, mean_gradient, num_steps, settings, num_decayed):
    return sharded(weights, mean_gradient, num_steps, settings, num_decayed - 1)


@wrong("6.2", "this is Adam, in which the decay is a part of the gradient and goes through the moments: AdamW takes it "
       "off the weights")
def adamw_as_adam(weights, mean_gradient, num_steps, settings, num_decayed):
    piece, parts = own_part(weights, num_decayed)
    adam = torch.optim.Adam([{"params": parts[:1]}, {"params": parts[1:], "weight_decay": 0.0}], **settings)
    return stepped(weights, mean_gradient, num_steps, adam, parts, lambda: handed_round(weights, piece))


@wrong("6.2", "the moments are forgotten between steps: make the optimiser once, before the loop")
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


@wrong("6.2", "return the optimiser that took the steps")
def adamw_returns_nothing(weights, mean_gradient, num_steps, settings, num_decayed):
    sharded(weights, mean_gradient, num_steps, settings, num_decayed)


@wrong("6.2", ALL_STEPPED)
def adamw_with_two_optimisers(weights, mean_gradient, num_steps, settings, num_decayed):
    """One steps everything on every rank; the other one is returned."""
    n = dist.get_world_size()
    piece, parts = own_part(weights, num_decayed)
    shown = two_groups(parts, settings)
    whole = [nn.Parameter(weights[:num_decayed]), nn.Parameter(weights[num_decayed:])]
    stepping = two_groups(whole, settings)
    for _ in range(num_steps):
        gradient = mean_gradient(weights)
        for part, own in zip(parts, gradient.chunk(n)[dist.get_rank()].split([len(part) for part in parts])):
            part.grad = own
        for part, own in zip(whole, gradient.split([len(part) for part in whole])):
            part.grad = own
        shown.step()
        stepping.step()
    return shown


@right("6.2", "gradient, list of pieces and new weights keep their names until the next step")
def adamw_keeps_names(weights, mean_gradient, num_steps, settings, num_decayed):
    piece, parts = own_part(weights, num_decayed)
    optimizer = two_groups(parts, settings)
    for _ in range(num_steps):
        gradient = mean_gradient(weights)
        own = share(gradient)
        parts[0].grad, parts[1].grad = own[:len(parts[0])].clone(), own[len(parts[0]):].clone()
        optimizer.step()
        pieces = [torch.empty_like(piece) for _ in range(dist.get_world_size())]
        dist.all_gather(pieces, piece)
        new = torch.cat(pieces)
        weights.copy_(new)
    return optimizer


TEXT_6_2 = [
    term("6.2", "state for its piece alone", "    for _ in range(num_steps):\n",
         "    rest = nn.Parameter(weights.clone())\n    rest.grad = torch.zeros_like(weights)\n"
         "    optimizer.add_param_group({'params': [rest]})\n    for _ in range(num_steps):\n"),
    term("6.2", "and no other optimiser for all of them", "    for _ in range(num_steps):\n",
         "    whole = torch.optim.AdamW([nn.Parameter(weights)], lr=0.0)\n"
         "    whole.param_groups[0]['params'][0].grad = weights\n"
         "    for _ in range(num_steps):\n        whole.step()\n"),
    term("6.2", "not all of them decay", '"weight_decay": 0.0', '"weight_decay": settings["weight_decay"]'),
    term("6.2", "the first num_decayed do", "optimizer = torch.optim.AdamW([{",
         'settings = {**settings, "weight_decay": 0.0}\n    optimizer = torch.optim.AdamW([{'),
    term("6.2", "the boundary counts from the beginning of all weights", "num_decayed - r * len(piece)",
         "num_decayed"),
    term("6.2", "it may lie inside somebody's piece", "max(0, min(num_decayed - r * len(piece), len(piece)))",
         "len(piece) * (num_decayed >= (r + 1) * len(piece))"),
    term("6.2", "it may lie before one's piece", "max(0, min(", "min(len(piece), min("),
    term("6.2", "rank r steps the r-th piece", "weights.chunk(n)[r].clone()", "weights.chunk(n)[0].clone()"),
    term("6.2", "num_steps of them", "range(num_steps)", "range(1)"),
    term("6.2", "the gradient at the weights of now", "    for _ in range(num_steps):\n"
         "        gradient = mean_gradient(weights).chunk(n)[r]\n", "    gradient = "
         "mean_gradient(weights).chunk(n)[r]\n    for _ in range(num_steps):\n"),
    term("6.2", "averaged over the ranks already", "mean_gradient(weights).chunk(n)[r]",
         "mean_gradient(weights).chunk(n)[r] / n"),
    term("6.2", "settings: eps", "**settings)", "**{**settings, 'eps': 1e-8})"),
    term("6.2", "settings: betas", "**settings)", "**{**settings, 'betas': (0.9, 0.999)})"),
    term("6.2", "handed round in every step", "        dist.all_gather(list(weights.chunk(n)), piece)\n",
         "    dist.all_gather(list(weights.chunk(n)), piece)\n"),
    term("6.2", "handed round after the step", "        optimizer.step()\n"
         "        dist.all_gather(list(weights.chunk(n)), piece)\n",
         "        dist.all_gather(list(weights.chunk(n)), piece)\n        optimizer.step()\n"),
    term("6.2", "trained in place", "    piece = weights.chunk(n)[r].clone()  # (N/n,)\n",
         "    weights = weights.clone()\n    piece = weights.chunk(n)[r].clone()  # (N/n,)\n"),
    term("6.2", "one all-gather a step", "        dist.all_gather(list(weights.chunk(n)), piece)\n",
         "        for _ in range(2):\n            dist.all_gather(list(weights.chunk(n)), piece)\n"),
    term("6.2", "returns the optimiser", "return optimizer", "return piece"),
    example("6.2", lambda inputs, answers: [
        f"Two ranks, weights {shown(inputs[0]['weights'])}, a gradient that is always {inputs[0]['gradient']}, "
        "lr = eps = 0.1, weight_decay = 0.5",
        f"num_decayed = {inputs[0]['num_decayed']}: all of rank 0's piece decay, and one of rank 1's",
        f"after one step {rounded(answers[1]['weights'])} on both"])]


# ---- 6.3 my_scattered_gradients
def register_all(model, scatter):
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            parameter.register_post_accumulate_grad_hook(lambda parameter, name=name: scatter(parameter, name))


@right("6.3", "one tensor in, one out")
def scattered_tensors(model):
    n, pieces = dist.get_world_size(), {}

    def scatter(parameter, name):
        pieces[name] = torch.empty(-(-parameter.numel() // n), dtype=torch.float64)
        dist.reduce_scatter_single(pieces[name], padded(parameter.grad) / n)
        parameter.grad = None

    register_all(model, scatter)
    return pieces


@right("6.3", "an all-to-all, and each rank adds up")
def scattered_by_all_to_all(model):
    n, pieces = dist.get_world_size(), {}

    def scatter(parameter, name):
        flat = padded(parameter.grad)
        parameter.grad = None
        arriving = torch.empty_like(flat)
        dist.all_to_all(list(arriving.chunk(n)), list(flat.chunk(n))) if n > 1 else arriving.copy_(flat)
        pieces[name] = arriving.view(n, -1).mean(0)

    register_all(model, scatter)
    return pieces


@right("6.3", "the message is on its way while backward goes on to the next gradient")
def scattered_in_the_background(model):
    n, pieces, travelling = dist.get_world_size(), {}, []
    total = sum(parameter.requires_grad for parameter in model.parameters())

    def arrive():
        for work, name, _ in travelling:
            work.wait()
            pieces[name] /= n
        travelling.clear()

    def scatter(parameter, name):
        arrive()
        flat = padded(parameter.grad)
        parameter.grad = None
        pieces[name] = flat.new_empty(len(flat) // n)
        travelling.append((dist.reduce_scatter(pieces[name], list(flat.chunk(n)), async_op=True), name, flat))
        if len(pieces) == total:
            arrive()

    register_all(model, scatter)
    return pieces


@right("6.3", "a reduce to each rank in turn")
def scattered_by_reduces(model):
    n, r, pieces = dist.get_world_size(), dist.get_rank(), {}

    def scatter(parameter, name):
        parts = padded(parameter.grad).div(n).chunk(n)
        parameter.grad = None
        for rank, part in enumerate(parts):
            dist.reduce(part, rank)
        pieces[name] = parts[r].clone()

    register_all(model, scatter)
    return pieces


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


@wrong("6.3", "every piece is n times too large: reduce-scatter makes the sum, so divide by n")
def scattered_forgets_to_divide(model):
    return hooked(model, scattered)


@wrong("6.3", "set parameter.grad to None when its piece is there")
def scattered_keeps_the_whole_gradient(model):
    return hooked(model, lambda gradient: scattered(gradient) / dist.get_world_size(), free=False)


@wrong("6.3", "a piece is a view, and a view holds all that it is a part of; make a tensor of its own")
def scattered_keeps_a_view(model):
    return hooked(model, lambda gradient: share(reduced(gradient)))


@wrong("6.3", "something keeps whole gradients alive when their pieces are there")
def scattered_keeps_gradients_in_a_list(model):
    kept = []
    return hooked(model, lambda gradient: kept.append(gradient) or scattered(gradient) / dist.get_world_size())


@wrong("6.3", "an all-reduce is a reduce-scatter and an all-gather, and nobody asks for the second half")
def scattered_by_all_reduce(model):
    return hooked(model, piece_of_the_mean)


@wrong("6.3", "all pieces are stored under one name: a hook that reads the loop's variable reads it when it is called, "
       "and the loop is at its end by then; bind the name when the hook is made")
def scattered_under_one_name(model):
    pieces = {}

    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            def scatter(parameter):
                pieces[name] = scattered(parameter.grad) / dist.get_world_size()  # noqa: B023
                parameter.grad = None

            parameter.register_post_accumulate_grad_hook(scatter)
    return pieces


@wrong("6.3", "every rank has its piece of its own gradient: nobody added the others', so reduce-scatter")
def scattered_without_anybody_else(model):
    return hooked(model, own_piece)


PIECES = [
    wrong("6.3", "every piece is n times too small: it is divided by n twice")(
        lambda model: hooked(model, lambda gradient: scattered(gradient) / dist.get_world_size()**2)),
    wrong("6.3", "every rank has its piece of its own gradient, over n: nobody added the others', so reduce-scatter")(
        lambda model: hooked(model, lambda gradient: own_piece(gradient) / dist.get_world_size())),
    wrong("6.3", "every rank has rank 0's piece: rank r keeps the piece with index r")(
        lambda model: hooked(model, lambda gradient: reduced(gradient).chunk(dist.get_world_size())[0].clone())),
    wrong("6.3", "every rank holds all n pieces: keep the own one, the other ranks have the others")(
        lambda model: hooked(model, reduced)),
    wrong("6.3", "every rank holds whole gradients: keep the own piece, the other ranks have the others")(
        lambda model: hooked(model, lambda gradient: reduced(gradient)[:gradient.numel()].view_as(gradient))),
    wrong("6.3", "no hook has run: the dictionary is empty after backward")(lambda model: {}),
    wrong("6.3", "the pieces are cut from columns: the elements of a tensor in a row are those of its rows, one after "
          "the other, as .flatten() has them")(
        lambda model: hooked(model, lambda gradient: scattered(gradient.mT if gradient.dim() > 1 else gradient)
                             / dist.get_world_size()))]


@wrong("6.3", "the loss is a mean over the rows of a rank already: divide by the number of ranks alone")
def scattered_divides_by_rows(model):
    rows = []
    model.register_forward_hook(lambda model, inputs, output: rows.append(len(output)))
    return hooked(model, lambda gradient: scattered(gradient) / dist.get_world_size() / rows[-1])


@wrong("6.3", "A reduce-scatter takes n pieces of equal size: fill up the last one")
def scattered_without_filling_up(model):
    n = dist.get_world_size()

    def piece_of(gradient):
        parts = [part.clone() for part in gradient.flatten().chunk(n)]
        piece = torch.empty_like(parts[0])
        dist.reduce_scatter(piece, parts)
        return piece / n

    return hooked(model, piece_of)


@wrong("6.3", "set parameter.grad to None when its piece is there")
def scattered_makes_it_zero(model):
    def piece_of(gradient):
        piece = scattered(gradient) / dist.get_world_size()
        gradient.zero_()
        return piece

    return hooked(model, piece_of, free=False)


@wrong("6.3", "free each gradient in its own hook")
def scattered_frees_when_all_is_over(model):
    n, pieces = dist.get_world_size(), {}

    def scatter_all(last):
        for name, parameter in model.named_parameters():
            if parameter.grad is not None:
                pieces[name] = scattered(parameter.grad) / n
                parameter.grad = None

    first = next(parameter for parameter in model.parameters() if parameter.requires_grad)
    first.register_post_accumulate_grad_hook(scatter_all)  # the last one that backward reaches
    return pieces


@wrong("6.3", "cannot register a hook on a tensor that doesn't require gradient")
def scattered_takes_the_frozen_one_too(model):
    pieces = {}
    for name, parameter in model.named_parameters():
        parameter.register_post_accumulate_grad_hook(
            lambda parameter, name=name: pieces.update({name: scattered(parameter.grad)}))
    return pieces


@wrong("6.3", "of gradients after gradient")
def scattered_all_at_the_end(model):
    n, pieces, waiting = dist.get_world_size(), {}, []
    parameters = {each: name for name, each in model.named_parameters() if each.requires_grad}

    def hook(parameter):
        waiting.append((parameters[parameter], padded(parameter.grad).clone()))
        parameter.grad = None
        if len(waiting) == len(parameters):
            while waiting:
                name, flat = waiting.pop()
                piece = flat.new_empty(len(flat) // n)
                dist.reduce_scatter(piece, list(flat.chunk(n)))
                pieces[name] = piece / n

    for parameter in parameters:
        parameter.register_post_accumulate_grad_hook(hook)
    return pieces


TEXT_6_3 = [
    term("6.3", "the mean over the ranks", "piece / n", "piece"),
    term("6.3", "filled up with zeros", "padded(parameter.grad)", "parameter.grad.flatten().repeat(n)[:-(-"
         "parameter.numel() // n) * n]"),
    term("6.3", "as soon as a gradient is complete",
         "        pieces[name] = piece / n\n        parameter.grad = None\n",
         "        pieces[name] = piece / n\n        if name.startswith('0'):\n            model.zero_grad()\n"),
    term("6.3", "wherever you keep it", "        pieces[name] = piece / n\n",
         "        pieces[name] = piece / n\n        model.kept = [*getattr(model, 'kept', []), parameter.grad]\n"),
    term("6.3", "M/n bytes after backward: a view holds more", "        pieces[name] = piece / n\n",
         "        pieces[name] = flat.clone().chunk(n)[dist.get_rank()]\n        pieces[name].copy_(piece / n)\n"),
    term("6.3", "bias.grad is None", "parameter.grad = None", "parameter.grad.zero_()"),
    term("6.3", "frozen parameters take no hook", "if parameter.requires_grad:", "if True:"),
    term("6.3", "all others take one", "if parameter.requires_grad:", "if parameter.requires_grad and "
         "name.endswith('weight'):"),
    term("6.3", "under its own name", "pieces[name] =", "pieces[name.partition('.')[2]] ="),
    term("6.3", "half of what an all-reduce sends", "dist.reduce_scatter(piece, list(flat.chunk(n)))",
         "dist.all_reduce(flat)\n        piece.copy_(flat.chunk(n)[dist.get_rank()])"),
    example("6.3", lambda inputs, answers: [
        "the bias of layer 0 has a .grad of {} on rank 0 and {} on rank 1, the mean is 2".format(
            *map(shown, slopes(inputs))),
        'pieces["0.bias"] is {} on rank 0, {} on rank 1'.format(
            *(shown(answer["pieces"]["0.bias"]) for answer in answers))])]


# ---- 6.4 my_gathered_on_use
def whole_while_at_work(layer, gather_all):
    n, r = dist.get_world_size(), dist.get_rank()
    pieces = {parameter: padded(parameter).chunk(n)[r].clone() for parameter in layer.parameters()}

    def gather(*_):
        for parameter, whole in gather_all(pieces, n):
            parameter.untyped_storage().resize_(parameter.nbytes)
            parameter.data.copy_(whole[:parameter.numel()].view_as(parameter))

    def free(*_):
        for parameter in pieces:
            parameter.untyped_storage().resize_(0)

    free()
    layer.register_forward_pre_hook(gather)
    layer.register_forward_hook(free)
    layer.register_full_backward_pre_hook(gather)
    layer.register_full_backward_hook(free)
    return pieces


@right("6.4", "weight and bias in one message")
def gathered_in_one_message(layer):
    def gather_all(pieces, n):
        flat = torch.cat(list(pieces.values()))
        whole = [torch.empty_like(flat) for _ in range(n)]
        dist.all_gather(whole, flat)
        sizes = [len(piece) for piece in pieces.values()]
        return zip(pieces, (torch.cat(parts) for parts in zip(*(own.split(sizes) for own in whole))))
    return whole_while_at_work(layer, gather_all)


@right("6.4", "a function of its own for autograd, in place of hooks")
def gathered_in_a_function(layer):
    pieces = {parameter: share(padded(parameter)).clone() for parameter in layer.parameters()}
    shapes = [(piece, torch.empty(parameter.shape, device="meta")) for parameter, piece in pieces.items()]

    class GatheredLinear(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, weight, bias):
            ctx.save_for_backward(x)
            return nn.functional.linear(x, *(gathered_alone(*each) for each in shapes))

        @staticmethod
        def backward(ctx, dy):
            x, = ctx.saved_tensors
            return dy @ gathered_alone(*shapes[0]), dy.mT @ x, dy.sum(0)

    for parameter in pieces:
        parameter.untyped_storage().resize_(0)
    layer.forward = lambda x: GatheredLinear.apply(x, layer.weight, layer.bias)
    return pieces


@right("6.4", "in backward the weight alone, which is all that it needs; and for forward no hooks, but a wrapper")
def gathered_without_the_bias_in_backward(layer):
    pieces = {parameter: share(padded(parameter)).clone() for parameter in layer.parameters()}
    forward = layer.forward

    def gather(parameters):
        for parameter in parameters:
            parameter.untyped_storage().resize_(parameter.nbytes)
            parameter.data.copy_(gathered_alone(pieces[parameter], parameter))

    def free():
        for parameter in pieces:
            parameter.untyped_storage().resize_(0)

    def at_work(x):
        gather(pieces)
        y = forward(x)
        free()
        return y

    free()
    layer.forward = at_work
    layer.register_full_backward_pre_hook(lambda *_: gather([layer.weight]))
    layer.register_full_backward_hook(lambda *_: free())
    return pieces


@right("6.4", "each rank broadcasts its piece")
def gathered_by_broadcasts(layer):
    def gather_all(pieces, n):
        for parameter, piece in pieces.items():
            whole = [piece.clone() if rank == dist.get_rank() else torch.empty_like(piece) for rank in range(n)]
            for rank, each in enumerate(whole):
                dist.broadcast(each, rank)
            yield parameter, torch.cat(whole)
    return whole_while_at_work(layer, gather_all)


KEPT = ("no parameter's own storage has them any more, so something else keeps what was gathered: a tensor of yours; "
        "or, where parameter.data is another tensor now, the view that autograd saved. Then empty the storage itself, "
        "parameter.untyped_storage().resize_(0)")


@wrong("6.4", KEPT)
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
    return pieces


@wrong("6.4", "what was gathered for forward outlives its use; free it in the layer's forward hook")
def gathered_and_kept_after_forward(layer):
    pieces = pieces_of(layer)
    emptied(pieces)
    with_hooks(layer, lambda: refilled(pieces), lambda: emptied(pieces), free_after_forward=False,
               gather_for_backward=False)
    return pieces


@wrong("6.4", "what was gathered for backward outlives its use; free it in the layer's backward hook")
def gathered_and_kept_after_backward(layer):
    pieces = pieces_of(layer)
    emptied(pieces)
    with_hooks(layer, lambda: refilled(pieces), lambda: emptied(pieces), free_after_backward=False)
    return pieces


@wrong("6.4", "the whole weights are still there; only the pieces should be")
def gathered_but_never_emptied_at_first(layer):
    pieces = pieces_of(layer)
    with_hooks(layer, lambda: refilled(pieces), lambda: emptied(pieces))
    return pieces


@wrong("6.4", "A weight was used while its storage was empty: gather it before the layer's forward, and again before "
       "its backward")
def gathered_for_forward_only(layer):
    pieces = pieces_of(layer)
    emptied(pieces)
    with_hooks(layer, lambda: refilled(pieces), lambda: emptied(pieces), gather_for_backward=False)
    return pieces


@wrong("6.4", "copy into parameter.data, whose changes are not counted")
def gathered_where_autograd_counts(layer):
    pieces = pieces_of(layer)

    def gather():
        with torch.no_grad():
            for parameter, piece in pieces.items():
                parameter.untyped_storage().resize_(parameter.nbytes)
                parameter.copy_(gathered(parameter, piece))

    emptied(pieces)
    with_hooks(layer, gather, lambda: emptied(pieces))
    return pieces


@wrong("6.4", "every piece of a weight is this rank's own: gather all ranks' pieces, in the order of the ranks")
def gathered_without_the_others(layer):
    n, pieces = dist.get_world_size(), pieces_of(layer)

    def gather():
        for parameter, piece in pieces.items():
            parameter.untyped_storage().resize_(parameter.nbytes)
            parameter.data.copy_(piece.repeat(n)[:parameter.numel()].view_as(parameter))

    emptied(pieces)
    with_hooks(layer, gather, lambda: emptied(pieces))
    return pieces


@wrong("6.4", "gather before forward and before backward, each weight once")
def gathered_twice(layer):
    pieces = pieces_of(layer)
    emptied(pieces)
    with_hooks(layer, lambda: refilled(pieces) or refilled(pieces), lambda: emptied(pieces))
    return pieces


@wrong("6.4", KEPT)
def gathered_and_remembered(layer):
    """Whole copies stay from forward to backward."""
    pieces, wholes = pieces_of(layer), {}

    def gather():
        for parameter, piece in pieces.items():
            wholes[parameter] = whole = gathered(parameter, piece)
            parameter.untyped_storage().resize_(parameter.nbytes)
            parameter.data.copy_(whole)

    emptied(pieces)
    with_hooks(layer, gather, lambda: emptied(pieces))
    return pieces


@wrong("6.4", "a piece is a view of the whole weight, and a view keeps all of it: make it a tensor of its own")
def gathered_from_views(layer):
    n, r = dist.get_world_size(), dist.get_rank()
    pieces = {parameter: padded(parameter).clone().chunk(n)[r] for parameter in layer.parameters()}
    emptied(pieces)
    with_hooks(layer, lambda: refilled(pieces), lambda: emptied(pieces))
    return pieces


@wrong("6.4", "other pieces: expected a dict with this rank's piece of each parameter of the layer")
def gathered_without_the_bias(layer):
    pieces = pieces_of(layer)
    pieces.popitem()
    emptied(pieces)
    with_hooks(layer, lambda: refilled(pieces), lambda: emptied(pieces))
    return pieces


ROOM = "its storage has to have room for them: weight.nbytes bytes, eight for each number"


@wrong("6.4", ROOM)
def gathered_into_nothing(layer):
    pieces = pieces_of(layer)

    def gather():
        for parameter, piece in pieces.items():
            parameter.data.copy_(gathered(parameter, piece))

    emptied(pieces)
    with_hooks(layer, gather, lambda: emptied(pieces))
    return pieces


@wrong("6.4", ROOM)
def gathered_for_four_bytes(layer):
    pieces = pieces_of(layer)

    def gather():
        for parameter, piece in pieces.items():
            parameter.untyped_storage().resize_(4 * parameter.numel())
            parameter.data.copy_(gathered(parameter, piece))

    emptied(pieces)
    with_hooks(layer, gather, lambda: emptied(pieces))
    return pieces


@wrong("6.4", "A crash comes from a weight that is read or written while its storage is empty: gather it before it is "
       "used")
def gathered_from_empty_weights(layer):
    """The pieces are made when the weights are gone."""
    emptied(list(layer.parameters()))
    pieces = pieces_of(layer)
    with_hooks(layer, lambda: refilled(pieces), lambda: emptied(pieces))
    return pieces


def gathering(layer):
    n, r = dist.get_world_size(), dist.get_rank()
    pieces = {parameter: padded(parameter).chunk(n)[r].clone() for parameter in layer.parameters()}

    def gather(*_):
        for parameter, piece in pieces.items():
            whole = piece.new_empty(n * len(piece))
            dist.all_gather(list(whole.chunk(n)), piece)
            parameter.untyped_storage().resize_(parameter.nbytes)
            parameter.data.copy_(whole[:parameter.numel()].view_as(parameter))

    def free(*_):
        for parameter in pieces:
            parameter.untyped_storage().resize_(0)

    free()
    layer.register_forward_pre_hook(gather)
    layer.register_forward_hook(free)
    layer.register_full_backward_pre_hook(gather)
    layer.register_full_backward_hook(free)
    return pieces


@wrong("6.4", "returned no pieces: expected a dict with this rank's piece of each parameter of the layer")
def gathered_and_nothing_returned(layer):
    gathering(layer)


@wrong("6.4", "the pieces that are returned are not what the hooks gather")
def gathered_and_copies_returned(layer):
    return {parameter: piece.clone() for parameter, piece in gathering(layer).items()}


@wrong("6.4", "returned other pieces")
def gathered_and_other_pieces_returned(layer):
    return {parameter: piece * 0 for parameter, piece in gathering(layer).items()}


TEXT_6_4 = [
    term("6.4", "emptied from the beginning", "\n    free()\n", "\n"),
    term("6.4", "made whole for forward", "    layer.register_forward_pre_hook(gather)\n", ""),
    term("6.4", "thrown away after it", "    layer.register_forward_hook(free)\n", ""),
    term("6.4", "in backward the same again", "    layer.register_full_backward_pre_hook(gather)\n", ""),
    term("6.4", "thrown away after backward", "    layer.register_full_backward_hook(free)\n", ""),
    term("6.4", "the storage is emptied, not the name", "            parameter.untyped_storage().resize_(0)",
         "            parameter.data = parameter.data.new_empty(parameter.shape)"),
    term("6.4", ".data: not to count as a change", "parameter.data.copy_(", "parameter.detach().copy_("),
    term("6.4", "the pieces of all ranks", "dist.all_gather(list(whole.chunk(n)), piece)",
         "whole.copy_(piece.repeat(n))"),
    term("6.4", "every weight, the bias as well", "in pieces.items():", "in list(pieces.items())[:1]:"),
    term("6.4", "gathered twice, not more", "        for parameter, piece in pieces.items():\n",
         "        for parameter, piece in [*pieces.items()] * 2:\n"),
    term("6.4", "returns the pieces", "return pieces", "return None"),
    term("6.4", "the same tensors that the hooks gather", "return pieces",
         "return {parameter: piece.clone() for parameter, piece in pieces.items()}"),
    example("6.4", lambda inputs, answers: "Two ranks, a weight {}: rank 0 keeps {} and rank 1 {}".format(
        shown(inputs[0]["weights"]["0.weight"]), *(shown(answer["pieces"]["0.weight"]) for answer in answers)))]


# ---- 6.5 my_master_steps
@right("6.5", "torch's SGD steps the master weights")
def masters_by_sgd(weights, mean_gradient, num_steps, lr):
    master = nn.Parameter(share(weights).float())
    optimizer = torch.optim.SGD([master], lr=lr)
    for _ in range(num_steps):
        master.grad = share(mean_gradient(weights)).float()
        optimizer.step()
        dist.all_gather(list(weights.chunk(dist.get_world_size())), master.detach().bfloat16())
    return master


@right("6.5", "addcmul, and the rounding is made in place")
def masters_by_add(weights, mean_gradient, num_steps, lr):
    n = dist.get_world_size()
    master, rounded = share(weights).float(), share(weights).clone()
    for _ in range(num_steps):
        master.add_(share(mean_gradient(weights)), alpha=-lr)
        rounded.copy_(master)
        dist.all_gather_single(weights, rounded) if n > 1 else weights.copy_(rounded)
    return master.clone()


FORGOTTEN = ("the weights are where they were: each update is smaller than half the distance to the next number that "
             "bf16 has. Something of 32 bits must remember it from one step to the next: make the master weights once, "
             "before the loop, and never anew from the weights")


@wrong("6.5", FORGOTTEN)
def master_that_is_bf16_itself(weights, mean_gradient, num_steps, lr):
    master = share(weights).clone()
    for _ in range(num_steps):
        master -= lr * share(mean_gradient(weights))
        handed_round(weights, master)
    return master


@wrong("6.5", FORGOTTEN)
def master_made_in_every_step(weights, mean_gradient, num_steps, lr):
    for _ in range(num_steps):
        master = share(weights).float()
        master -= lr * share(mean_gradient(weights)).float()
        handed_round(weights, master.bfloat16())
    return master


@wrong("6.5", "make the piece bf16 before it is sent, not afterwards; and send it once a step")
def master_sent_in_fp32(weights, mean_gradient, num_steps, lr):
    master, whole = share(weights).float(), weights.float()
    for _ in range(num_steps):
        master -= lr * share(mean_gradient(weights)).float()
        handed_round(whole, master)
        weights.copy_(whole)
    return master


ALL_MASTERS = ("every rank steps the master weights of all pieces, and nothing is sent: keep those of the own piece, "
               "step them and hand their rounding round")


@wrong("6.5", ALL_MASTERS)
def master_of_everything(weights, mean_gradient, num_steps, lr):
    master = weights.float()
    for _ in range(num_steps):
        master -= lr * mean_gradient(weights).float()
        weights.copy_(master)
    return master


@wrong("6.5", "every rank has stepped its own piece only: the others' pieces are as old as in the beginning, so "
       "all-gather after each step")
def master_of_the_own_piece_of_weights(weights, mean_gradient, num_steps, lr):
    master = share(weights).float()
    for _ in range(num_steps):
        master -= lr * share(mean_gradient(weights)).float()
        share(weights).copy_(master)
    return master


@wrong("6.5", "every piece is rank 0's: rank r steps the piece with index r")
def master_of_the_first_piece(weights, mean_gradient, num_steps, lr):
    n = dist.get_world_size()
    master = weights.chunk(n)[0].float()
    for _ in range(num_steps):
        master -= lr * mean_gradient(weights).chunk(n)[0].float()
        handed_round(weights, master.bfloat16())
    return master


@wrong("6.5", "the master weights have moved, and the weights are where they were: after each step they have to become "
       "what the master weights are, rounded, for the gradient to be taken there")
def master_that_nobody_sees(weights, mean_gradient, num_steps, lr):
    master = share(weights).float()
    for _ in range(num_steps):
        master -= lr * share(mean_gradient(weights)).float()
    return master


@wrong("6.5", "the gradients of the ranks are added up: they are the same on all ranks, so this is n times as much")
def master_with_summed_gradients(weights, mean_gradient, num_steps, lr):
    n = dist.get_world_size()
    return my_master_steps(weights, lambda at: n * mean_gradient(at), num_steps, lr)


@wrong("6.5", "lr is in it twice: the weights hardly move")
def master_with_lr_twice(weights, mean_gradient, num_steps, lr):
    return my_master_steps(weights, mean_gradient, num_steps, lr * lr)


@wrong("6.5", "fp16 has 11 significant bits: master weights are fp32, with 24")
def master_in_fp16(weights, mean_gradient, num_steps, lr):
    master = share(weights).half()
    for _ in range(num_steps):
        master -= lr * share(mean_gradient(weights)).half()
        handed_round(weights, master.bfloat16())
    return master


def stepped_masters(weights, mean_gradient, num_steps, lr, whole, cast=lambda master: master.bfloat16(),
                    before=False, every_step=True):
    """`whole`: the master weights of all pieces are stepped here."""
    n, r = dist.get_world_size(), dist.get_rank()
    mine = (lambda tensor: tensor) if whole else (lambda tensor: tensor.chunk(n)[r])
    master = mine(weights).float().clone()

    def hand_round():
        dist.all_gather(list(weights.chunk(n)), cat_own(cast(master), whole))
    for _ in range(num_steps):
        gradient = mine(mean_gradient(weights)).float()
        if before:
            hand_round()
        master -= lr * gradient
        if every_step and not before:
            hand_round()
    if not every_step:
        hand_round()
    return master


def cat_own(master, whole):
    return master.chunk(dist.get_world_size())[dist.get_rank()].contiguous() if whole else master


@wrong("6.5", ALL_MASTERS)
def masters_whole_on_every_rank(weights, mean_gradient, num_steps, lr):
    master = weights.float()
    for _ in range(num_steps):
        master -= lr * mean_gradient(weights).float()
        weights.copy_(master)
    return master.chunk(dist.get_world_size())[dist.get_rank()].clone()


@wrong("6.5", "each rank keeps the master weights of its piece alone, 4 N/n bytes: here it holds those of all pieces")
def masters_whole_and_gathered(weights, mean_gradient, num_steps, lr):
    return cat_own(stepped_masters(weights, mean_gradient, num_steps, lr, whole=True), True).clone()


@wrong(
    "6.5",
    "the weights are handed round once, in the end: in between every gradient is taken where the others' pieces "
    "were at the beginning")
def masters_handed_round_at_the_end(weights, mean_gradient, num_steps, lr):
    n, r = dist.get_world_size(), dist.get_rank()
    master = weights.chunk(n)[r].float()
    for _ in range(num_steps):
        master -= lr * mean_gradient(weights).chunk(n)[r].float()
        weights.chunk(n)[r].copy_(master)
    dist.all_gather(list(weights.chunk(n)), master.bfloat16())
    return master


@wrong("6.5", "the weights are handed round before the step, and so are one step behind their master weights")
def masters_handed_round_before_the_step(weights, mean_gradient, num_steps, lr):
    return stepped_masters(weights, mean_gradient, num_steps, lr, whole=False, before=True)


@wrong("6.5", "the bits that bf16 has no room for are cut off: what the others see is rounded, as .bfloat16() does")
def masters_cut_off(weights, mean_gradient, num_steps, lr):
    return stepped_masters(weights, mean_gradient, num_steps, lr, whole=False, cast=lambda master: (
        master.view(torch.int32) & -65536).view(torch.float32).bfloat16())


@right("6.5", "gradient in fp32, list of pieces and new weights keep their names until the next step")
def masters_keep_names(weights, mean_gradient, num_steps, lr):
    master = share(weights).float()
    for _ in range(num_steps):
        gradient = mean_gradient(weights).float()
        master -= lr * share(gradient)
        pieces = [torch.empty_like(share(weights)) for _ in range(dist.get_world_size())]
        dist.all_gather(pieces, master.bfloat16())
        new = torch.cat(pieces)
        weights.copy_(new)
    return master


@right("6.5", "what is gathered has its place from the beginning")
def masters_with_places(weights, mean_gradient, num_steps, lr):
    master, rounded, whole = share(weights).float(), share(weights).clone(), torch.empty_like(weights)
    for _ in range(num_steps):
        master.sub_(share(mean_gradient(weights)).float(), alpha=lr)
        rounded.copy_(master)
        dist.all_gather(list(whole.chunk(dist.get_world_size())), rounded)
        weights.copy_(whole)
    return master


TEXT_6_5 = [
    term("6.5", "master weights in fp32", "weights.chunk(n)[r].float()", "weights.chunk(n)[r].clone()"),
    term("6.5", "they remember from step to step", "    master = weights.chunk(n)[r].float()  # (N/n,), a copy\n"
         "    for _ in range(num_steps):\n", "    for _ in range(num_steps):\n"
         "        master = weights.chunk(n)[r].float()\n"),
    term("6.5", "its piece, not all", "return master", "return torch.cat([master] * n)"),
    term("6.5", "the others see their rounding", "master.bfloat16()",
         "(master.view(torch.int32) & -65536).view(torch.float32).bfloat16()"),
    term("6.5", "in every step", "        dist.all_gather(list(weights.chunk(n)), master.bfloat16())\n",
         "    dist.all_gather(list(weights.chunk(n)), master.bfloat16())\n"),
    term("6.5", "after the step", "        master -= lr * mean_gradient(weights).chunk(n)[r].float()\n"
         "        dist.all_gather(list(weights.chunk(n)), master.bfloat16())\n",
         "        gradient = mean_gradient(weights).chunk(n)[r].float()\n"
         "        dist.all_gather(list(weights.chunk(n)), master.bfloat16())\n        master -= lr * gradient\n"),
    term("6.5", "lr", "lr * mean", "mean"),
    term("6.5", "the gradient at the bf16 weights", "mean_gradient(weights)", "mean_gradient(weights.float())"),
    term("6.5", "the same gradient on all ranks", "mean_gradient(weights).chunk(n)[r].float()",
         "mean_gradient(weights).chunk(n)[r].float() / n"),
    term("6.5", "two bytes a weight are sent", "dist.all_gather(list(weights.chunk(n)), master.bfloat16())",
         "whole = weights.float()\n        dist.all_gather(list(whole.chunk(n)), master)\n"
         "        weights.copy_(whole)"),
    term("6.5", "in place", "    master = weights", "    weights = weights.clone()\n    master = weights"),
    example("6.5", lambda inputs, answers: [
        f"One rank, a weight of {inputs[0]['weights'].item()}, a gradient that is always {inputs[0]['gradient']:g}, "
        "lr = 0.001",
        f"after ten master {answers[0]['master'].item():.3f}, weight {answers[0]['weights'].item():.4f}"])]


# ---- 6.6 my_clip_over_shards
@right("6.6", "torch's own utilities")
def clip_by_torch(pieces, max_norm):
    own_norm = torch.nn.utils.get_total_norm(pieces) if pieces else torch.zeros(())
    square = own_norm.double() ** 2
    dist.all_reduce(square)
    norm = square.sqrt()
    for piece in pieces:
        piece.mul_((max_norm / (norm + 1e-6)).clamp(max=1.0) if norm > max_norm else 1.0)
    return norm


@right("6.6", "numpy's norm, a float32 scalar")
def clip_in_numpy(pieces, max_norm):
    square = torch.tensor([float(numpy.sum(numpy.concatenate([piece.numpy() for piece in pieces]) ** 2))]).double()
    dist.all_reduce(square)
    norm = numpy.sqrt(square.item())
    for piece in pieces if norm > max_norm else ():
        piece.copy_(piece * (max_norm / norm))
    return norm


@right("6.6", "a number of four bytes")
def clip_in_fp32(pieces, max_norm):
    square = torch.tensor(sum(float(piece.norm()) ** 2 for piece in pieces))
    dist.all_reduce(square)
    norm = square.sqrt()
    torch._foreach_mul_(pieces, float(max_norm / norm) if norm > max_norm else 1.0)
    return norm


@right("6.6", "torch's clipping with a norm that is given")
def clip_by_parameters(pieces, max_norm):
    square = torch.stack([piece.square().sum() for piece in pieces]).sum()
    dist.all_reduce(square)
    parameters = [nn.Parameter(torch.zeros_like(piece)) for piece in pieces]
    for parameter, piece in zip(parameters, pieces):
        parameter.grad = piece
    nn.utils.clip_grads_with_norm_(parameters, max_norm, square.sqrt())
    return square.item() ** 0.5


def clip(pieces, max_norm, norm, limit=1.0):
    for piece in pieces:
        piece *= min(limit, max_norm / norm)
    return norm


def all_reduced(number):
    dist.all_reduce(number)
    return number


def own_square(pieces):
    return sum(piece.square().sum() for piece in pieces)


@wrong("6.6", "each rank clips by the norm of its own pieces, so every piece is scaled by another number and the "
       "gradient points elsewhere: add up the squares of all ranks")
def clip_by_the_local_norm(pieces, max_norm):
    return clip(pieces, max_norm, own_square(pieces).sqrt().item())


@wrong("6.6", "the ranks' norms are added up: squares add up, norms do not, so take the root after the all-reduce")
def clip_by_the_sum_of_norms(pieces, max_norm):
    return clip(pieces, max_norm, all_reduced(own_square(pieces).sqrt()).item())


@wrong("6.6", "the squares are added up, but the root is not taken")
def clip_by_the_square(pieces, max_norm):
    return clip(pieces, max_norm, all_reduced(own_square(pieces)).item())


@wrong("6.6", "the squares are averaged over the ranks: the pieces are parts of one gradient, so they add up")
def clip_by_the_mean_square(pieces, max_norm):
    return clip(pieces, max_norm, (all_reduced(own_square(pieces)) / dist.get_world_size()).sqrt().item())


@wrong("6.6", "send the sum of the squares, not the pieces")
def clip_by_gathering_everything(pieces, max_norm):
    whole = torch.cat(pieces).repeat(dist.get_world_size())
    handed_round(whole, torch.cat(pieces))
    return clip_where(pieces, max_norm, lambda norm, limit: norm > limit, whole.norm().item())


@wrong("6.6", "a norm below max_norm is scaled up to it: clipping only makes gradients shorter")
def clip_that_also_lengthens(pieces, max_norm):
    return clip(pieces, max_norm, all_reduced(own_square(pieces)).sqrt().item(), limit=float("inf"))


@wrong("6.6", "the norm is right, but the pieces are as they were: write into them, as piece *= does")
def clip_a_copy(pieces, max_norm):
    norm = all_reduced(own_square(pieces)).sqrt().item()
    for piece in pieces:
        piece = piece * min(1.0, max_norm / norm)
    return norm


@wrong("6.6", "add up the squares of all own pieces first")
def clip_with_a_call_for_each_piece(pieces, max_norm):
    return clip(pieces, max_norm, sum(all_reduced(piece.square().sum()) for piece in pieces).sqrt().item())


def clip_where(pieces, max_norm, is_clipped, norm=None):
    norm = all_reduced(own_square(pieces)).sqrt().item() if norm is None else norm
    if is_clipped(norm, max_norm):
        for piece in pieces:
            piece *= max_norm / norm
    return norm


@wrong("6.6", "A norm of 0 is not above max_norm: divide only where it is, and all else stays as it is")
def clip_also_at_the_limit(pieces, max_norm):
    return clip_where(pieces, max_norm, lambda norm, limit: norm >= limit)


@wrong("6.6", "A norm of 0 is not above max_norm: divide only where it is, and all else stays as it is")
def clip_without_looking_at_zero(pieces, max_norm):
    norm = all_reduced(own_square(pieces)).sqrt()
    for piece in pieces:
        piece *= (max_norm / norm).clamp(max=1.0)
    return norm.item()


@wrong("6.6", "this is the norm afterwards: asked is that before")
def clip_and_return_what_is_left(pieces, max_norm):
    return min(my_clip_over_shards(pieces, max_norm), max_norm)


@wrong("6.6", "this is the largest of the ranks' norms: their pieces are parts of one gradient, so the squares add up")
def clip_by_the_largest_norm(pieces, max_norm):
    norm = own_square(pieces).sqrt()
    dist.all_reduce(norm, dist.ReduceOp.MAX)
    return clip_where(pieces, max_norm, lambda norm, limit: norm > limit, norm.item())


@wrong("6.6", "the norm is right, and the pieces are scaled by the square of max_norm / norm")
def clip_by_the_squared_factor(pieces, max_norm):
    norm = my_clip_over_shards(pieces, max_norm)
    return clip_where(pieces, max_norm, lambda norm, limit: norm > limit, norm)


@wrong("6.6", "the norm is right, and each element is cut off at max_norm: all of them are multiplied by max_norm / "
       "norm, and the gradient points where it did")
def clip_by_value(pieces, max_norm):
    norm = all_reduced(own_square(pieces)).sqrt().item()
    for piece in pieces:
        piece.clamp_(-max_norm, max_norm)
    return norm


@wrong("6.6", "only the first of this rank's pieces is counted and scaled: `pieces` is a list of all")
def clip_the_first_piece(pieces, max_norm):
    return my_clip_over_shards(pieces[:1], max_norm)


@wrong("6.6", "the norm is right, and only the first of this rank's pieces is scaled: `pieces` is a list of all")
def clip_the_first_piece_by_the_norm_of_all(pieces, max_norm):
    norm = all_reduced(own_square(pieces)).sqrt().item()
    return clip_where(pieces[:1], max_norm, lambda norm, limit: norm > limit, norm)


@wrong("6.6", "the norm is right, but the pieces are as they were: write into them, as piece *= does")
def clip_that_changes_the_list(pieces, max_norm):
    pieces[:] = [piece.clone() for piece in pieces]
    return my_clip_over_shards(pieces, max_norm)


TEXT_6_6 = [
    term("6.6", "squares of all elements", "piece.square().sum() for", "piece.abs().sum() for"),
    term("6.6", "on all ranks", "    dist.all_reduce(square)\n", ""),
    term("6.6", "the root", "square.sqrt().item()", "square.item()"),
    term("6.6", "of all pieces", "for piece in pieces)", "for piece in pieces[:1])"),
    term("6.6", "above max_norm only", "if norm > max_norm:", "if norm > 0:"),
    term("6.6", "all of them are scaled", "        for piece in pieces:\n", "        for piece in pieces[:1]:\n"),
    term("6.6", "also at norm 0", "if norm > max_norm:", "if norm >= max_norm:"),
    term("6.6", "max_norm / norm", "piece *= max_norm / norm", "piece *= 1 / norm"),
    term("6.6", "in place", "piece *= max_norm / norm", "piece = piece * max_norm / norm"),
    term("6.6", "the norm before", "return norm", "return min(norm, max_norm)"),
    term("6.6", "one all-reduce", "dist.all_reduce(square)", "dist.all_reduce(square)\n    dist.all_reduce(norm_of_all "
         ":= square.clone())"),
    example("6.6", lambda inputs, answers: (
        "pieces {} on rank 0, {} on rank 1, max_norm = {:g}: both return {:g}.".format(
            *(shown(rank["pieces"][0]) for rank in inputs), inputs[0]["max_norm"], answers[0]["norm"])
        + ", and have {} and {}".format(*(rounded(answer["pieces"][0]) for answer in answers))))]


# ---- 6.7 my_zero_3_training
def trained(model, batches, settings, loss_of, share):
    """Whole steps with own hooks for gathering, from my_gathered_on_use."""
    n, pieces = dist.get_world_size(), {}
    for layer in model:
        pieces |= my_gathered_on_use(layer) if isinstance(layer, nn.Linear) else {}
    shards = {parameter: nn.Parameter(piece) for parameter, piece in pieces.items()}
    optimizer = torch.optim.AdamW(list(shards.values()), **settings)

    def scatter(parameter):
        flat = padded(parameter.grad)
        parameter.grad = None
        gradient = flat.new_empty(len(flat) // n)
        dist.reduce_scatter(gradient, list(flat.chunk(n)))
        shards[parameter].grad = gradient * share

    for parameter in shards:
        parameter.register_post_accumulate_grad_hook(scatter)
    for x, y in batches:
        loss_of(model, x, y).backward()
        optimizer.step()
        optimizer.zero_grad()
    return optimizer


@right("6.7", "the loss is divided, and not the gradients")
def zero_3_divides_the_loss(model, batches, settings):
    n = dist.get_world_size()
    return trained(model, batches, settings, lambda model, x, y: nn.functional.mse_loss(model(x), y) / n, 1)


@right("6.7", "the loss written out")
def zero_3_with_its_own_loss(model, batches, settings):
    n = dist.get_world_size()
    return trained(model, batches, settings, lambda model, x, y: (model(x) - y).square().mean(), 1 / n)


@right("6.7", "a function of its own for autograd: pieces are leaves, and backward gives their gradients")
def zero_3_in_a_function(model, batches, settings):
    n = dist.get_world_size()
    leaves = []

    class GatheredLinear(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, shapes, weight, bias):
            ctx.save_for_backward(x, weight)
            ctx.shapes = shapes
            return nn.functional.linear(x, *map(gathered_alone, (weight.data, bias.data), shapes))

        @staticmethod
        def backward(ctx, dy):
            x, weight = ctx.saved_tensors
            own_gradients = []
            for whole in (lambda: dy.mT @ x, lambda: dy.sum(0)):
                flat = padded(whole() / n)
                own_gradients.append(flat.new_empty(len(flat) // n))
                dist.reduce_scatter(own_gradients[-1], list(flat.chunk(n)))
            return dy @ gathered_alone(weight.data, ctx.shapes[0]), None, *own_gradients

    for layer in model:
        if isinstance(layer, nn.Linear):
            shapes = [torch.empty(parameter.shape, device="meta") for parameter in layer.parameters()]
            pieces = [nn.Parameter(share(padded(parameter)).clone()) for parameter in layer.parameters()]
            leaves += pieces
            layer.forward = lambda x, shapes=shapes, pieces=pieces: GatheredLinear.apply(x, shapes, *pieces)
            for parameter in layer.parameters():
                parameter.untyped_storage().resize_(0)
    optimizer = torch.optim.AdamW(leaves, **settings)
    for x, y in batches:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
    return optimizer


def piece_in_a_whole_tensor(gradient):
    """A view of as much as the whole gradient."""
    piece = scattered(gradient) / dist.get_world_size()
    return share(padded(gradient).clone()).copy_(piece)


def own_gathered_on_use(layer, free_after_forward=True):
    """6.4 once more, for what is wrong there."""
    pieces = pieces_of(layer)
    emptied(pieces)
    with_hooks(layer, lambda: refilled(pieces), lambda: emptied(pieces), free_after_forward=free_after_forward)
    return pieces


def trained_in_pieces(model, batches, settings, averaged=lambda piece: piece / dist.get_world_size(),
                      shard=nn.Parameter, gather_on_use=own_gathered_on_use, scatter=scattered, free=True,
                      made=lambda shards, settings: torch.optim.AdamW(shards.values(), **settings), every_step=False,
                      adds=False):
    pieces = {}
    for layer in model:
        if isinstance(layer, nn.Linear):
            pieces |= gather_on_use(layer)
    shards = {parameter: shard(piece) for parameter, piece in pieces.items()}

    def hook(parameter):
        before = shards[parameter].grad
        piece = averaged(scatter(parameter.grad))
        shards[parameter].grad = piece + before if adds and before is not None else piece
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


@wrong("6.7", "the gradients are n times too large: reduce-scatter makes the sum, so divide by n")
def zero_3_forgets_to_divide(model, batches, settings):
    return trained_in_pieces(model, batches, settings, averaged=lambda piece: piece)


@wrong("6.7", "every rank steps with its own gradient: nobody added the others', so reduce-scatter")
def zero_3_with_its_own_gradient(model, batches, settings):
    return trained_in_pieces(model, batches, settings, averaged=lambda piece: piece, scatter=own_piece)


@wrong("6.7", "every gradient was taken at the weights of the beginning: what the optimiser steps is a copy of what is "
       "gathered. nn.Parameter(piece) is on the memory of the piece itself")
def zero_3_steps_a_copy(model, batches, settings):
    return trained_in_pieces(model, batches, settings, shard=lambda piece: nn.Parameter(piece.clone()))


@wrong("6.7", "the moments are forgotten between steps: make the optimiser once, before the loop")
def zero_3_makes_an_optimiser_in_every_step(model, batches, settings):
    return trained_in_pieces(model, batches, settings, every_step=True)


WHOLE_STEPS = [
    wrong("6.7", "the gradients of earlier steps are still in .grad: a step sets it, and does not add to it")(
        lambda model, batches, settings: trained_in_pieces(model, batches, settings, adds=True)),
    wrong("6.7", "the pieces are as they were: the optimiser has no gradients, or takes no step")(
        lambda model, batches, settings: trained_in_pieces(model, [], settings)),
    wrong("6.7", "one step was taken, after the last batch: each batch has its own")(
        lambda model, batches, settings: trained_in_pieces(model, batches[-1:], settings))]


@wrong("6.7", "the optimiser has the model's own parameters, whose storage is empty: make it from the pieces")
def zero_3_steps_the_models_parameters(model, batches, settings):
    return trained_in_pieces(model, batches, settings,
                             made=lambda shards, settings: torch.optim.AdamW(shards, **settings))


@wrong("6.7", "the last batch has no step: a step comes after the backward of its batch")
def zero_3_steps_at_the_beginning(model, batches, settings):
    return trained_in_pieces(model, batches[:-1], settings)


@wrong("6.7", "the biases step with this rank's own gradient: the mean over the ranks is asked of every parameter")
def zero_3_with_own_gradients_of_biases(model, batches, settings):
    def scatter(gradient):
        return scattered(gradient) if gradient.dim() > 1 else own_piece(gradient) * dist.get_world_size()

    return trained_in_pieces(model, batches, settings, scatter=scatter)


@wrong("6.7", "free each gradient in its own hook, as soon as its piece is there")
def zero_3_scatters_after_backward(model, batches, settings):
    n, pieces = dist.get_world_size(), {}
    for layer in model:
        pieces |= own_gathered_on_use(layer) if isinstance(layer, nn.Linear) else {}
    shards = {parameter: nn.Parameter(piece) for parameter, piece in pieces.items()}
    optimizer = torch.optim.AdamW(shards.values(), **settings)
    for x, y in batches:
        nn.functional.mse_loss(model(x), y).backward()
        for parameter, shard in shards.items():
            shard.grad, parameter.grad = scattered(parameter.grad) / n, None
        optimizer.step()
    return optimizer


@wrong("6.7", "free each gradient in its own hook, as soon as its piece is there")
def zero_3_keeps_whole_gradients(model, batches, settings):
    return trained_in_pieces(model, batches, settings, free=False)


@wrong("6.7", "whole weights are still there, so free them in the layer's hooks")
def zero_3_keeps_weights_for_backward(model, batches, settings):
    return trained_in_pieces(model, batches, settings,
                             gather_on_use=lambda layer: own_gathered_on_use(layer, free_after_forward=False))


@wrong("6.7", "the parameters' own storages are empty, so something else keeps what was gathered, or whole gradients")
def zero_3_keeps_a_view_of_the_whole_gradient(model, batches, settings):
    return trained_in_pieces(model, batches, settings, averaged=lambda piece: piece,
                             scatter=piece_in_a_whole_tensor)


@wrong("6.7", "each weight is gathered for forward and for backward, and each gradient is reduce-scattered once")
def zero_3_by_all_reduce(model, batches, settings):
    return trained_in_pieces(model, batches, settings, averaged=lambda piece: piece, scatter=piece_of_the_mean)


@wrong("6.7", "it steps this rank's piece of each, in the order of model.parameters()")
def zero_3_with_one_parameter_for_all(model, batches, settings):
    def together(shards, settings):
        return torch.optim.AdamW([nn.Parameter(torch.cat([shard.data for shard in shards.values()]))], **settings)

    return trained_in_pieces(model, batches, settings, made=together)


@wrong("6.7", "return the optimiser, whose parameters are the pieces")
def zero_3_returns_nothing(model, batches, settings):
    trained_in_pieces(model, batches, settings)


@wrong("6.7", "torch's fully_shard cuts the parameters by rows and replaces them: write it with your own gathers and "
       "scatters")
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


TEXT_6_7 = [
    term("6.7", "the mean over the ranks", "gradient / n", "gradient"),
    term("6.7", "over all ranks", "dist.reduce_scatter(gradient, list(flat.chunk(n)))",
         "gradient.copy_(flat.chunk(n)[dist.get_rank()] * n)"),
    term("6.7", "on the memory of the piece", "nn.Parameter(piece) for", "nn.Parameter(piece.clone()) for"),
    term("6.7", "a step on each of the batches", "        optimizer.step()\n", "    optimizer.step()\n"),
    term("6.7", "one whole gradient at most", "        parameter.grad = None\n", ""),
    term("6.7", "all of settings", "**settings)", "**{**settings, 'betas': (0.9, 0.999)})"),
    term("6.7", "weight decay among them", "**settings)", "**{**settings, 'weight_decay': 0.0})"),
    term("6.7", "in the order of model.parameters()", "shards.values()", "list(shards.values())[::-1]"),
    term("6.7", "every layer in pieces", "for layer in model:", "for layer in list(model)[:-1]:"),
    term("6.7", "the optimiser knows the pieces alone", "torch.optim.AdamW(shards.values(), **settings)",
         "torch.optim.AdamW([*shards.values(), *model.parameters()], **settings)"),
    term("6.7", "half of what an all-reduce sends", "dist.reduce_scatter(gradient, list(flat.chunk(n)))",
         "dist.all_reduce(flat)\n        gradient.copy_(flat.chunk(n)[dist.get_rank()])"),
    term("6.7", "a step forgets the gradient of the one before", "shards[parameter].grad = gradient / n",
         "before = shards[parameter].grad\n"
         "        shards[parameter].grad = gradient / n + (0 if before is None else before)"),
    example("6.7", lambda inputs, answers: [
        "a weight {} whose gradient is {:g} on rank 0 and {:g} on rank 1, lr = 0.1 and eps = 0.1".format(
            shown(inputs[0]["weights"]["0.weight"]), *(slope.item() for slope in slopes(inputs))),
        f"rank 0's piece is -0.1 * 2 / (2 + 0.1) = {answers[0]['pieces'][0].item():.4f} afterwards",
        f"rank 1's is all filling up, {answers[1]['pieces'][0].item():g}"])]


# ---- 6.8 my_most_devices
@right("6.8", "rounded down, and so whole")
def devices_rounded_down(*asked):
    return int(my_most_devices(*asked) // 1)


@right("6.8", "by bisection, numpy's number")
def devices_by_bisection(batch_tokens, flops_per_s, devices_per_node, nvlink, card, weight_bytes, gradient_bytes):
    bytes_per_s = sorted([nvlink, devices_per_node * card])[0]

    def hidden(devices):
        tokens = batch_tokens / devices
        return all(flops * tokens / flops_per_s >= sent / bytes_per_s
                   for flops, sent in ((2, weight_bytes), (4, weight_bytes + gradient_bytes)))
    low, high = 0.0, 1e12
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if hidden(middle) else (low, middle)
    return numpy.float64(low)


def devices_from(says):
    """Decorate what somebody makes of B, F, W, w and g, and who has W right."""
    return lambda made: wrong("6.8", says)(lambda B, F, G, nvlink, card, w, g: made(B, F, min(nvlink, G * card), w, g))


def devices_with(says, wire):
    """Of somebody who takes wire(G, nvlink, card) for W."""
    return wrong("6.8", says)(lambda B, F, G, nvlink, card, w, g: my_most_devices(
        B, F, 1, wire(G, nvlink, card), wire(G, nvlink, card), w, g))


DEVICES = [
    devices_from("this is the limit of the step as a whole: what backward has to send cannot travel during forward, so "
                 "each pass has a limit of its own, and the lower one counts")(
        lambda B, F, W, w, g: 6 * B * W / (F * (2 * w + g))),
    devices_from("this is the limit of forward: in backward the weights are gathered once more and the gradients leave "
                 "as well, beside twice the arithmetic")(lambda B, F, W, w, g: 2 * B * W / (F * w)),
    devices_from("this is the limit of backward: forward has to hide its gathers behind its own arithmetic")(
        lambda B, F, W, w, g: 4 * B * W / (F * (w + g))),
    devices_from("backward computes twice as much as forward, 4 N T")(
        lambda B, F, W, w, g: min(2 * B * W / (F * w), 2 * B * W / (F * (w + g)))),
    devices_from("these are tokens for each device: devices are asked, so divide the batch by them")(
        lambda B, F, W, w, g: max(w / 2, (w + g) / 4) * F / W),
    devices_from("backward computes 4 N T: 6 N T are those of forward and backward together")(
        lambda B, F, W, w, g: min(2 * B * W / (F * w), 6 * B * W / (F * (w + g)))),
    wrong("6.8", "a gradient is sent once, in a reduce-scatter: twice is an all-reduce")(
        lambda *asked: my_most_devices(*asked[:-1], 2 * asked[-1])),
    devices_from("this is the larger of the two limits: from the smaller one on, one of the passes waits")(
        lambda B, F, W, w, g: max(2 * B * W / (F * w), 4 * B * W / (F * (w + g)))),
    wrong("6.8", "rounded up, this is a device too many: it would wait")(
        lambda *asked: ceil(my_most_devices(*asked))),
    devices_from("backward gathers the weights again: they are freed after forward")(
        lambda B, F, W, w, g: min(2 * B * W / (F * w), 4 * B * W / (F * g))),
    wrong("6.8", "bytes were taken for bits, or bits for bytes: that is a factor of 8")(
        lambda *asked: 8 * my_most_devices(*asked)),
    wrong("6.8", "bits were taken for bytes, or bytes for bits: that is a factor of 8")(
        lambda *asked: my_most_devices(*asked) / 8),
    devices_from("all gathers and the reduction are counted beside forward alone: backward has two thirds of the "
                 "arithmetic")(lambda B, F, W, w, g: 2 * B * W / (F * (2 * w + g))),
    devices_with("W is one card's: all devices of a node shard together, so every message leaves the node over all its "
                 "cards, one for each device", lambda G, nvlink, card: card),
    devices_with("W is NVLink's, which ends at the edge of the node: what goes on to the next node goes over the "
                 "node's cards", lambda G, nvlink, card: nvlink),
    devices_with("NVLink is left out: what arrives over all cards of a node passes each device's NVLink as well, and "
                 "the slower of the two sets the speed", lambda G, nvlink, card: G * card),
    devices_with("NVLink and the cards are added up: every byte takes both, and the slower of the two sets the speed",
                 lambda G, nvlink, card: nvlink + G * card)]
TEXT_6_8 = [
    term("6.8", "forward has its own limit", "min(forward, backward)", "backward"),
    term("6.8", "backward has its own limit", "min(forward, backward)", "forward"),
    term("6.8", "the lower one", "min(forward, backward)", "max(forward, backward)"),
    term("6.8", "4 N T backward", "4 * batch_tokens", "2 * batch_tokens"),
    term("6.8", "2 N T forward", "forward = 2 * batch_tokens", "forward = 6 * batch_tokens"),
    term("6.8", "weights are gathered again in backward", "(weight_bytes + gradient_bytes)", "gradient_bytes"),
    term("6.8", "gradients are sent in backward", "(weight_bytes + gradient_bytes)", "weight_bytes"),
    term("6.8", "what a weight has while it travels", "(flops_per_s * weight_bytes)", "(flops_per_s * 2)"),
    term("6.8", "what a gradient has while it travels", "(weight_bytes + gradient_bytes)", "(weight_bytes + 4)"),
    term("6.8", "all cards of a node", "devices_per_node * card", "card"),
    term("6.8", "beyond a node its cards", "min(nvlink, devices_per_node * card)", "nvlink"),
    term("6.8", "the slower of the two", "min(nvlink, devices_per_node * card)", "devices_per_node * card"),
    term("6.8", "down, not to the nearest", "return min(forward, backward)", "return round(min(forward, backward))"),
    example("6.8", lambda inputs, answers: [
        "{:,} tokens, {} FLOP/s, {} in a node, {} bytes/s inside, {} bytes/s a card, weights of {} byte, gradients of "
        "{}".format(*inputs[0]),
        f"backward {answers[0]['value']:.1f}, so {answers[0]['value']:.1f}, or {int(answers[0]['value'])}"])]
