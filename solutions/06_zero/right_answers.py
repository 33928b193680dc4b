"""Right answers to the exercises of chapter 6 that nobody would think of first; tests/grading/test_answers.py has each
pass at ten seeds, in the names of the notebook beside this file.
"""
# ruff: noqa: F821

import numpy
import torch
import torch.distributed as dist
from torch import nn

from tools.answers import right


@right("6.1", "numpy's whole number")
def bytes_in_numpy(sizes, num_ranks, stage, *per_element):
    whole = numpy.array([sum(sizes), numpy.ceil(numpy.array(sizes) / num_ranks).astype(int).sum()])
    return sum(each * whole[int(stage >= first)] for each, first in zip(per_element, (3, 2, 1)))


@right("6.1", "a tensor")
def bytes_as_a_tensor(sizes, num_ranks, stage, weight_bytes, gradient_bytes, optimizer_bytes):
    pieces = (torch.tensor(sizes) + num_ranks - 1).div(num_ranks, rounding_mode="floor").sum()
    return (weight_bytes * (pieces if stage == 3 else sum(sizes)) + optimizer_bytes * (pieces if stage else sum(sizes))
            + gradient_bytes * (sum(sizes) if stage < 2 else pieces))


def own(tensor):
    return tensor.chunk(dist.get_world_size())[dist.get_rank()]


@right("6.2", "the decay by hand, and an optimiser that knows of none")
def adamw_decays_by_hand(weights, mean_gradient, num_steps, settings, num_decayed):
    decay = settings["lr"] * settings["weight_decay"]
    part = nn.Parameter(own(weights).clone())
    decays = own((torch.arange(len(weights)) < num_decayed).double())
    optimizer = torch.optim.AdamW([part], **{**settings, "weight_decay": 0.0})
    for _ in range(num_steps):
        part.grad = own(mean_gradient(weights)).clone()
        part.data.mul_(1 - decay * decays)
        optimizer.step()
        dist.all_gather(list(weights.chunk(dist.get_world_size())), part.data)
    return optimizer


@right("6.2", "Adam on the piece of `weights` itself, which decays by hand")
def adamw_as_adam_in_place(weights, mean_gradient, num_steps, settings, num_decayed):
    n, r = dist.get_world_size(), dist.get_rank()
    settings = dict(settings)
    shrunk = 1 - settings["lr"] * settings.pop("weight_decay")
    part = nn.Parameter(own(weights))
    optimizer = torch.optim.Adam([part], **settings)
    for _ in range(num_steps):
        part.grad = own(mean_gradient(weights))
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


def hooked(model, scatter):
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

    hooked(model, scatter)
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

    hooked(model, scatter)
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

    hooked(model, scatter)
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

    hooked(model, scatter)
    return pieces


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


def gathered_alone(piece, parameter):
    whole = piece.new_empty(dist.get_world_size(), len(piece))
    dist.all_gather(list(whole), piece)
    return whole.flatten()[:parameter.numel()].view(parameter.shape)


@right("6.4", "a function of its own for autograd, in place of hooks")
def gathered_in_a_function(layer):
    pieces = {parameter: own(padded(parameter)).clone() for parameter in layer.parameters()}
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
    pieces = {parameter: own(padded(parameter)).clone() for parameter in layer.parameters()}
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


@right("6.5", "torch's SGD steps the master weights")
def masters_by_sgd(weights, mean_gradient, num_steps, lr):
    master = nn.Parameter(own(weights).float())
    optimizer = torch.optim.SGD([master], lr=lr)
    for _ in range(num_steps):
        master.grad = own(mean_gradient(weights)).float()
        optimizer.step()
        dist.all_gather(list(weights.chunk(dist.get_world_size())), master.detach().bfloat16())
    return master


@right("6.5", "addcmul, and the rounding is made in place")
def masters_by_add(weights, mean_gradient, num_steps, lr):
    n = dist.get_world_size()
    master, rounded = own(weights).float(), own(weights).clone()
    for _ in range(num_steps):
        master.add_(own(mean_gradient(weights)), alpha=-lr)
        rounded.copy_(master)
        dist.all_gather_single(weights, rounded) if n > 1 else weights.copy_(rounded)
    return master.clone()


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
            pieces = [nn.Parameter(own(padded(parameter)).clone()) for parameter in layer.parameters()]
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
