"""Right answers to the exercises of chapter 3 that nobody would think of first; tests/grading/test_answers.py has each
pass at ten seeds, in the names of the notebook beside this file.
"""
# ruff: noqa: F821

from fractions import Fraction

import numpy
import torch
import torch.distributed as dist
from torch import nn

from tools.answers import right


def with_gradients(model):
    return [parameter for parameter in model.parameters() if parameter.grad is not None]


@right("3.1", "one packed message for all gradients and the rows")
def average_packed(model, num_rows):
    parameters = with_gradients(model)
    flat = torch.cat([*(p.grad.flatten() * num_rows for p in parameters), torch.tensor([float(num_rows)]).double()])
    dist.all_reduce(flat)
    nn.utils.vector_to_parameters(flat[:-1] / flat[-1], [p.grad for p in parameters])


@right("3.1", "the rows travel as Python objects")
def average_with_rows_as_objects(model, num_rows):
    rows = [None] * dist.get_world_size()
    dist.all_gather_object(rows, num_rows)
    for parameter in with_gradients(model):
        dist.all_reduce(parameter.grad.mul_(num_rows / sum(rows)))


@right("3.2", "tuples, by recursion from the end")
def buckets_by_recursion(sizes_bytes, cap_bytes):
    def rest(index):
        if index < 0:
            return ()
        first, held = [index], sizes_bytes[index]
        while index and held + sizes_bytes[index - 1] <= cap_bytes:
            index -= 1
            first.append(index)
            held += sizes_bytes[index]
        return tuple(first), *rest(index - 1)
    return rest(len(sizes_bytes) - 1)


@right("3.2", "numpy's whole numbers, cut at sums")
def buckets_in_numpy(sizes_bytes, cap_bytes):
    buckets, sizes, start = [], numpy.array(sizes_bytes)[::-1], 0
    while start < len(sizes):
        fitting = int(numpy.searchsorted(sizes[start:].cumsum(), cap_bytes, side="right"))
        end = start + max(fitting, 1)
        buckets.append(len(sizes) - 1 - numpy.arange(start, end))
        start = end
    return buckets


@right("3.3", "divided before it is sent, into one flat buffer")
def bucketed_divided_first(model, cap_bytes):
    gradients = [parameter.grad for parameter in with_gradients(model)]
    for indices in my_buckets([gradient.nbytes for gradient in gradients], cap_bytes):
        flat = nn.utils.parameters_to_vector(gradients[index] for index in indices) / dist.get_world_size()
        dist.all_reduce(flat)
        nn.utils.vector_to_parameters(flat, [gradients[index] for index in indices])


@right("3.3", "gradients become views of their flat bucket, all messages at once")
def bucketed_as_views(model, cap_bytes):
    parameters, works = with_gradients(model), []
    for indices in my_buckets([parameter.grad.nbytes for parameter in parameters], cap_bytes):
        flat, at = torch.cat([parameters[index].grad.flatten() for index in indices]), 0
        for index in indices:
            size = parameters[index].numel()
            parameters[index].grad = flat[at:at + size].view_as(parameters[index])
            at += size
        works.append((dist.all_reduce(flat, async_op=True), flat))
    for work, flat in works:
        work.wait()
        flat /= dist.get_world_size()


@right("3.4", "DDP's flag in place of no_sync")
def accumulated_by_the_flag(model, micro_batches):
    B = sum(len(x) for x, _ in micro_batches)
    for number, (x, y) in enumerate(micro_batches, 1):
        model.require_backward_grad_sync = number == len(micro_batches)
        (nn.functional.mse_loss(model(x), y) * len(x) / B).backward()


@right("3.4", "the inner module, averaged by hand")
def accumulated_by_hand(model, micro_batches):
    rows = sum(len(x) for x, _ in micro_batches)
    for x, y in micro_batches:
        (nn.functional.mse_loss(model.module(x), y) * (len(x) / rows)).backward()
    for parameter in with_gradients(model):
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()


@right("3.5", "numbers and places in one message")
def top_k_packed(gradient, residual, k):
    residual += gradient
    places = residual.abs().argsort(descending=True)[:k]
    mine = torch.stack([residual[places], places.double()])
    residual[places] = 0
    everybody = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(everybody, mine)
    result = torch.zeros_like(gradient)
    for numbers, at in everybody:
        result[at.long()] += numbers / len(everybody)
    return result


@right("3.5", "places of four bytes")
def top_k_short_places(gradient, residual, k):
    n, total = dist.get_world_size(), gradient + residual
    places = total.abs().topk(k).indices
    values = total[places]
    residual.copy_(total.index_fill(0, places, 0))
    all_places = [torch.empty(k, dtype=torch.int32) for _ in range(n)]
    all_values = [torch.empty_like(values) for _ in range(n)]
    dist.all_gather(all_places, places.int())
    dist.all_gather(all_values, values)
    result = torch.zeros_like(total)
    for of_rank, share in zip(all_places, all_values):
        result.index_add_(0, of_rank.long(), share / n)
    return result


@right("3.6", "numpy's generator, an array")
def shard_in_numpy(num_samples, epoch, rank, world_size):
    return numpy.random.default_rng(epoch).permutation(num_samples)[rank::world_size]


@right("3.6", "a tensor, cut in nearly equal blocks")
def shard_in_blocks(num_samples, epoch, rank, world_size):
    order = torch.randperm(num_samples, generator=torch.Generator().manual_seed(1000 + epoch))
    return order.tensor_split(world_size)[rank]


@right("3.7", "hooks that count over all k backwards")
def overlapped_by_counting(model, micro_batches, cap_bytes):
    n, k = dist.get_world_size(), len(micro_batches)
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    plan = my_buckets([parameter.nbytes for parameter in parameters], cap_bytes)
    bucket_of = {parameters[index]: number for number, indices in enumerate(plan) for index in indices}
    left, works = [k * len(indices) for indices in plan], {}

    def hook(parameter):
        number = bucket_of[parameter]
        left[number] -= 1
        if not left[number]:
            flat = torch.cat([parameters[index].grad.flatten() for index in plan[number]])
            works[number] = dist.all_reduce(flat, async_op=True), flat
    handles = [parameter.register_post_accumulate_grad_hook(hook) for parameter in parameters]
    for x, y in micro_batches:
        (nn.functional.mse_loss(model(x), y) / k).backward()
    for number, (work, flat) in works.items():
        work.wait()
        nn.utils.vector_to_parameters(flat / n, [parameters[index].grad for index in plan[number]])
    for handle in handles:
        handle.remove()


@right("3.7", "all k backwards with hooks, which look whether it is the last")
def overlapped_asking_for_the_last(model, micro_batches, cap_bytes):
    n, k = dist.get_world_size(), len(micro_batches)
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    plan = my_buckets([parameter.nbytes for parameter in parameters], cap_bytes)
    works, last, there = [], False, set()

    def hook(parameter):
        there.add(parameter) if last else None
        for indices in plan:
            bucket = [parameters[index] for index in indices]
            if last and parameter in set(bucket) <= there:
                flat = torch.cat([each.grad.flatten() for each in bucket]) / n
                works.append((bucket, flat, dist.all_reduce(flat, async_op=True)))
    handles = [parameter.register_post_accumulate_grad_hook(hook) for parameter in parameters]
    for number, (x, y) in enumerate(micro_batches, 1):
        last = number == k
        (nn.functional.mse_loss(model(x), y) / k).backward()
    for bucket, flat, work in works:
        work.wait()
        nn.utils.vector_to_parameters(flat, [each.grad for each in bucket])
    for handle in handles:
        handle.remove()


@right("3.8", "numpy's ceiling")
def batch_in_numpy(num_parameters, num_buckets, n, flops_per_s, alpha_s, beta_s_per_byte, sequence_length):
    seconds = num_buckets * 2 * (n - 1) * alpha_s + 8 * (n - 1) / n * num_parameters * beta_s_per_byte
    return numpy.ceil(seconds * flops_per_s / (4 * num_parameters) / sequence_length).astype(int)


@right("3.8", "found by doubling and halving, a tensor")
def batch_by_bisection(num_parameters, num_buckets, n, flops_per_s, alpha_s, beta_s_per_byte, sequence_length):
    seconds = num_buckets * 2 * (n - 1) * alpha_s + 2 * (n - 1) / n * 4 * num_parameters * beta_s_per_byte
    def enough(sequences):
        return 4 * num_parameters * sequences * sequence_length / flops_per_s >= seconds
    high = 1
    while not enough(high):
        high *= 2
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return torch.tensor(high)


@right("3.9", "a Fraction, rounded down")
def devices_as_a_fraction():
    return int(1 + Fraction(2 * 3_200_000 * 4 * 25 * 10**9, 4 * 1248 * 10**11))


@right("3.9", "numpy's number, with the data sheet's rounding")
def devices_in_numpy():
    return numpy.float32(1 + 2 * 3.2e6 * 100e9 / (4 * 0.4 * 312e12))


@right("3.9", "two levels at once: while the cards reduce one part, NVLink adds up the next")
def devices_in_a_pipeline():
    seconds_a_byte = max(1.5 / 300e9, 2 / 4 / 25e9)
    return 3.2e6 / (0.4 * 312e12 * seconds_a_byte)


@right("3.9", "of the cards what two nodes were measured to get of theirs, 1 GiB")
def devices_as_measured():
    return 1 + 2 * 3.2e6 * 0.5 * 183.82e9 / (4 * 0.4 * 312e12)
