"""Wrong answers to the exercises of chapter 3, as learners write them; tests/test_exercises.py has each refused.

The imports and the solutions are those of the notebook beside this file, in whose names it runs.
"""
# ruff: noqa: F821

from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import nn

from course_lib.grading.wrong_answers import wrong


@wrong("3.1", "so divide by n")
def average_forgets_to_divide(model):
    for parameter in model.parameters():
        if parameter.grad is not None:
            dist.all_reduce(parameter.grad)


@wrong("3.1", "it is divided by n twice")
def average_divides_before_and_after(model):
    n = dist.get_world_size()
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.grad /= n
            dist.all_reduce(parameter.grad)
            parameter.grad /= n


@wrong("3.1", "has .grad None: leave it out")
def average_takes_gradients_that_are_not_there(model):
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()


@wrong("3.1", "is frozen and had no gradient; on rank 0 it has got one")
def average_makes_gradients_that_were_not_there(model):
    for parameter in model.parameters():
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()


@wrong("3.1", "every rank still has the gradients of its own batch")
def average_of_the_weights(model):
    for parameter in model.parameters():
        dist.all_reduce(parameter.data)
        parameter.data /= dist.get_world_size()


@wrong("3.1", "every rank still has the gradients of its own batch")
def average_of_a_copy(model):
    n = dist.get_world_size()
    for parameter in model.parameters():
        if parameter.grad is not None:
            mean = parameter.grad / n
            dist.all_reduce(mean)


@wrong("3.1", "every rank has rank 0's gradients")
def average_by_broadcast(model):
    for parameter in model.parameters():
        if parameter.grad is not None:
            dist.broadcast(parameter.grad, 0)


@wrong("3.1", "it took 8 calls, where 5 will do")
def average_of_weights_too(model):
    for parameter in model.parameters():
        if parameter.grad is not None:
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()
        if parameter.dim() == 2:
            dist.broadcast(parameter.data, 0)


@wrong("3.2", "the buckets begin with the first parameter")
def buckets_from_the_first(sizes_bytes, cap_bytes):
    buckets, held_bytes = [], 0
    for index in range(len(sizes_bytes)):
        if not buckets or held_bytes + sizes_bytes[index] > cap_bytes:
            buckets.append([])
            held_bytes = 0
        buckets[-1].append(index)
        held_bytes += sizes_bytes[index]
    return buckets


@wrong("3.2", "the last bucket is missing")
def buckets_loses_the_open_one(sizes_bytes, cap_bytes):
    buckets, bucket, held_bytes = [], [], 0
    for index in reversed(range(len(sizes_bytes))):
        if bucket and held_bytes + sizes_bytes[index] > cap_bytes:
            buckets.append(bucket)
            bucket, held_bytes = [], 0
        bucket.append(index)
        held_bytes += sizes_bytes[index]
    return buckets


@wrong("3.2", "still fits: at most cap_bytes")
def buckets_that_are_never_full(sizes_bytes, cap_bytes):
    buckets, held_bytes = [], 0
    for index in reversed(range(len(sizes_bytes))):
        if not buckets or held_bytes + sizes_bytes[index] >= cap_bytes:
            buckets.append([])
            held_bytes = 0
        buckets[-1].append(index)
        held_bytes += sizes_bytes[index]
    return buckets


@wrong("3.2", "ask whether the gradient still fits before it goes in")
def buckets_that_run_over(sizes_bytes, cap_bytes):
    buckets, held_bytes = [[]], 0
    for index in reversed(range(len(sizes_bytes))):
        if held_bytes >= cap_bytes:
            buckets.append([])
            held_bytes = 0
        buckets[-1].append(index)
        held_bytes += sizes_bytes[index]
    return buckets


@wrong("3.2", "bucket 0 is empty")
def buckets_begin_with_an_empty_one(sizes_bytes, cap_bytes):
    buckets, held_bytes = [[]], 0
    for index in reversed(range(len(sizes_bytes))):
        if held_bytes + sizes_bytes[index] > cap_bytes:
            buckets.append([])
            held_bytes = 0
        buckets[-1].append(index)
        held_bytes += sizes_bytes[index]
    return buckets


@wrong("3.2", "is on its way: what comes later cannot join it")
def buckets_filled_up_later(sizes_bytes, cap_bytes):
    buckets, held_bytes = [], []
    for index in reversed(range(len(sizes_bytes))):
        room = [b for b in range(len(buckets)) if held_bytes[b] + sizes_bytes[index] <= cap_bytes]
        if not room:
            buckets.append([])
            held_bytes.append(0)
            room = [-1]
        buckets[room[0]].append(index)
        held_bytes[room[0]] += sizes_bytes[index]
    return buckets


def travel(model, buckets, write_back, divide_by):
    """All-reduce each bucket of gradients as one tensor; write_back(bucket, flat) takes it apart."""
    for bucket in buckets:
        flat = torch.cat([gradient.flatten() for gradient in bucket])
        dist.all_reduce(flat)
        write_back(bucket, flat / divide_by)


def gradient_buckets(model, cap_bytes):
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    return [[gradients[index] for index in indices]
            for indices in my_buckets([gradient.nbytes for gradient in gradients], cap_bytes)]


def in_order(bucket, flat):
    for gradient, piece in zip(bucket, flat.split([gradient.numel() for gradient in bucket])):
        gradient.copy_(piece.view_as(gradient))


@wrong("3.3", "so divide by n")
def bucketed_forgets_to_divide(model, cap_bytes):
    travel(model, gradient_buckets(model, cap_bytes), in_order, divide_by=1)


@wrong("3.3", "torch.cat makes a copy")
def bucketed_forgets_the_way_back(model, cap_bytes):
    travel(model, gradient_buckets(model, cap_bytes), lambda bucket, flat: None, dist.get_world_size())


@wrong("3.3", "taken apart in another order than it was put together")
def bucketed_takes_apart_in_the_models_order(model, cap_bytes):
    travel(model, gradient_buckets(model, cap_bytes), lambda bucket, flat: in_order(bucket[::-1], flat),
           dist.get_world_size())


@wrong("3.3", "one message for a whole bucket, not one for each gradient")
def bucketed_sends_every_gradient(model, cap_bytes):
    for bucket in gradient_buckets(model, cap_bytes):
        for gradient in bucket:
            dist.all_reduce(gradient)
            gradient /= dist.get_world_size()


@wrong("3.3", "what waits for the last gradient cannot leave while backward still runs")
def bucketed_in_one_message(model, cap_bytes):
    travel(model, [sum(gradient_buckets(model, cap_bytes), [])], in_order, dist.get_world_size())


@wrong("3.3", "the one with the last parameters first")
def bucketed_sends_the_last_bucket_first(model, cap_bytes):
    travel(model, gradient_buckets(model, cap_bytes)[::-1], in_order, dist.get_world_size())


@wrong("3.3", "all ranks need the same order")
def bucketed_in_an_order_of_its_own_on_each_rank(model, cap_bytes):
    buckets, r = gradient_buckets(model, cap_bytes), dist.get_rank()
    travel(model, buckets[r:] + buckets[:r], in_order, dist.get_world_size())


@wrong("3.4", "communicated the gradients 2 times, where 1 will do")
def accumulated_communicates_every_time(model, micro_batches):
    for x, y in micro_batches:
        (nn.functional.mse_loss(model(x), y) / len(micro_batches)).backward()


@wrong("3.4", "no_sync belongs around forward and backward")
def accumulated_with_the_forward_outside(model, micro_batches):
    for number, (x, y) in enumerate(micro_batches, start=1):
        loss = nn.functional.mse_loss(model(x), y) / len(micro_batches)
        with model.no_sync() if number < len(micro_batches) else nullcontext():
            loss.backward()


@wrong("3.4", "every gradient is k times too large")
def accumulated_forgets_to_divide(model, micro_batches):
    for number, (x, y) in enumerate(micro_batches, start=1):
        with model.no_sync() if number < len(micro_batches) else nullcontext():
            nn.functional.mse_loss(model(x), y).backward()


@wrong("3.4", "DDP has divided by n already")
def accumulated_divides_by_the_ranks_too(model, micro_batches):
    for number, (x, y) in enumerate(micro_batches, start=1):
        with model.no_sync() if number < len(micro_batches) else nullcontext():
            (nn.functional.mse_loss(model(x), y) / len(micro_batches) / dist.get_world_size()).backward()


@wrong("3.4", "the last micro-batch, too, was inside no_sync")
def accumulated_never_communicates(model, micro_batches):
    with model.no_sync():
        for x, y in micro_batches:
            (nn.functional.mse_loss(model(x), y) / len(micro_batches)).backward()


@wrong("3.4", "do not set them to zero in between")
def accumulated_clears_in_between(model, micro_batches):
    for number, (x, y) in enumerate(micro_batches, start=1):
        model.zero_grad()
        with model.no_sync() if number < len(micro_batches) else nullcontext():
            (nn.functional.mse_loss(model(x), y) / len(micro_batches)).backward()


def exchanged(places, numbers, size):
    """The mean of all ranks' numbers at their places, (size,)."""
    n = dist.get_world_size()
    all_places, all_numbers = ([torch.empty_like(mine) for _ in range(n)] for mine in (places, numbers))
    dist.all_gather(all_places, places)
    dist.all_gather(all_numbers, numbers)
    return numbers.new_zeros(size).index_add_(0, torch.cat(all_places), torch.cat(all_numbers)) / n


@wrong("3.5", "all that was not sent is lost")
def top_k_without_residual(gradient, residual, k):
    places = gradient.abs().topk(k).indices
    return exchanged(places, gradient[places], len(gradient))


@wrong("3.5", "all that was not sent is lost")
def top_k_with_a_residual_that_is_only_a_name(gradient, residual, k):
    residual = residual + gradient
    places = residual.abs().topk(k).indices
    numbers = residual[places]
    residual[places] = 0
    return exchanged(places, numbers, len(gradient))


@wrong("3.5", "the residual is written, but never used")
def top_k_never_pays_its_debts(gradient, residual, k):
    places = gradient.abs().topk(k).indices
    numbers = gradient[places]
    residual.copy_(gradient)
    residual[places] = 0
    return exchanged(places, numbers, len(gradient))


@wrong("3.5", "what has been sent stays in the residual")
def top_k_pays_twice(gradient, residual, k):
    residual += gradient
    places = residual.abs().topk(k).indices
    return exchanged(places, residual[places], len(gradient))


@wrong("3.5", "choose by total.abs()")
def top_k_leaves_negative_numbers_behind(gradient, residual, k):
    residual += gradient
    places = residual.topk(k).indices
    numbers = residual[places]
    residual[places] = 0
    return exchanged(places, numbers, len(gradient))


@wrong("3.5", "one number overwrites the other")
def top_k_overwrites(gradient, residual, k):
    n = dist.get_world_size()
    residual += gradient
    places = residual.abs().topk(k).indices
    numbers = residual[places]
    residual[places] = 0
    all_places, all_numbers = ([torch.empty_like(mine) for _ in range(n)] for mine in (places, numbers))
    dist.all_gather(all_places, places)
    dist.all_gather(all_numbers, numbers)
    result = torch.zeros_like(gradient)
    for q in range(n):
        result[all_places[q]] = all_numbers[q]
    return result / n


@wrong("3.5", "costs as much as the gradient")
def top_k_sends_zeros(gradient, residual, k):
    residual += gradient
    places = residual.abs().topk(k).indices
    sent = torch.zeros_like(gradient)
    sent[places] = residual[places]
    residual[places] = 0
    dist.all_reduce(sent)
    return sent / dist.get_world_size()


@wrong("3.5", "the sum is returned")
def top_k_forgets_to_divide(gradient, residual, k):
    residual += gradient
    places = residual.abs().topk(k).indices
    numbers = residual[places]
    residual[places] = 0
    return exchanged(places, numbers, len(gradient)) * dist.get_world_size()


def shuffled(num_samples, seed):
    return torch.randperm(num_samples, generator=torch.Generator().manual_seed(seed)).tolist()


@wrong("3.6", "2 samples are on no rank, the 2 beyond 3 equal parts")
def shard_drops_the_tail(num_samples, epoch, rank, world_size):
    each = num_samples // world_size
    return shuffled(num_samples, epoch)[rank * each:(rank + 1) * each]


@wrong("3.6", "filled up to the same length")
def shard_fills_up_by_repeating(num_samples, epoch, rank, world_size):
    order = shuffled(num_samples, epoch)
    order += order[:-num_samples % world_size]
    return order[rank::world_size]


@wrong("3.6", "every epoch has the same order")
def shard_forgets_the_epoch(num_samples, epoch, rank, world_size):
    return shuffled(num_samples, 0)[rank::world_size]


@wrong("3.6", "nothing is shuffled")
def shard_in_the_order_of_the_file(num_samples, epoch, rank, world_size):
    return list(range(rank, num_samples, world_size))


@wrong("3.6", "the seed must not depend on the rank")
def shard_shuffles_differently_on_each_rank(num_samples, epoch, rank, world_size):
    return shuffled(num_samples, 1000 * epoch + rank)[rank::world_size]


@wrong("3.6", "shuffle all of them first, then divide")
def shard_divides_first(num_samples, epoch, rank, world_size):
    own = list(range(rank, num_samples, world_size))
    return [own[index] for index in shuffled(len(own), epoch)]


@wrong("3.6", "the same call gives other indices the second time")
def shard_with_the_global_generator(num_samples, epoch, rank, world_size):
    return torch.randperm(num_samples).tolist()[rank::world_size]


@wrong("3.6", "torch's global generator has moved")
def shard_seeds_the_global_generator(num_samples, epoch, rank, world_size):
    torch.manual_seed(epoch)
    return torch.randperm(num_samples).tolist()[rank::world_size]


@wrong("3.6", "all ranks have the same samples")
def shard_gives_everything_to_everybody(num_samples, epoch, rank, world_size):
    return shuffled(num_samples, epoch)
