"""Wrong answers to the exercises of chapter 3, as learners write them; tests/test_exercises.py has each refused.

The imports and the solutions are those of the notebook beside this file, in whose names it runs.
"""
# ruff: noqa: F821

from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import nn

from course_lib.grading.wrong_answers import wrong


def weighed(parameter, share):
    """Replace .grad by the sum over the ranks of .grad times that rank's share."""
    if parameter.grad is not None:
        parameter.grad *= share
        dist.all_reduce(parameter.grad)


def rows_of_all(num_rows):
    total = torch.tensor(float(num_rows))
    dist.all_reduce(total)
    return total


@wrong("3.1", "all ranks count alike, so a row on a rank with few rows counts more")
def average_of_the_means(model, num_rows):
    for parameter in model.parameters():
        weighed(parameter, 1 / dist.get_world_size())


@wrong("3.1", "the sum of all ranks' means")
def average_forgets_the_rows(model, num_rows):
    for parameter in model.parameters():
        weighed(parameter, 1)


@wrong("3.1", "every gradient is B times too large")
def average_forgets_to_divide(model, num_rows):
    for parameter in model.parameters():
        weighed(parameter, num_rows)


@wrong("3.1", "nothing is left to divide")
def average_divides_by_the_ranks_too(model, num_rows):
    share = num_rows / rows_of_all(num_rows) / dist.get_world_size()
    for parameter in model.parameters():
        weighed(parameter, share)


@wrong("3.1", "weigh its gradient before the all-reduce")
def average_weighs_afterwards(model, num_rows):
    total = rows_of_all(num_rows)
    for parameter in model.parameters():
        if parameter.grad is not None:
            dist.all_reduce(parameter.grad)
            parameter.grad *= num_rows / total


@wrong("3.1", "has .grad None: leave it out")
def average_takes_gradients_that_are_not_there(model, num_rows):
    share = num_rows / rows_of_all(num_rows)
    for parameter in model.parameters():
        parameter.grad *= share
        dist.all_reduce(parameter.grad)


@wrong("3.1", "is frozen and had no gradient; on rank 0 it has got one")
def average_makes_gradients_that_were_not_there(model, num_rows):
    share = num_rows / rows_of_all(num_rows)
    for parameter in model.parameters():
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        weighed(parameter, share)


@wrong("3.1", "every rank still has the gradients of its own batch")
def average_of_the_weights(model, num_rows):
    for parameter in model.parameters():
        dist.all_reduce(parameter.data)
        parameter.data /= dist.get_world_size()


@wrong("3.1", "every rank still has the gradients of its own batch")
def average_of_a_copy(model, num_rows):
    share = num_rows / rows_of_all(num_rows)
    for parameter in model.parameters():
        if parameter.grad is not None:
            mean = parameter.grad * share
            dist.all_reduce(mean)


@wrong("3.1", "every rank has rank 0's gradients")
def average_by_broadcast(model, num_rows):
    for parameter in model.parameters():
        if parameter.grad is not None:
            dist.broadcast(parameter.grad, 0)


@wrong("3.1", "it took 9 calls, where 6 will do")
def average_of_weights_too(model, num_rows):
    share = num_rows / rows_of_all(num_rows)
    for parameter in model.parameters():
        weighed(parameter, share)
        if parameter.dim() == 2:
            dist.broadcast(parameter.data, 0)


@wrong("3.1", "it uses course_lib.data_parallel")
def average_by_the_course(model, num_rows):
    from course_lib.data_parallel import average_each

    share = num_rows / rows_of_all(num_rows) * dist.get_world_size()
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.grad *= share
    average_each(model.parameters())


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


def accumulate(model, micro_batches, factor, every_time=False):
    """All micro-batches, each mean loss times factor(its rows, all rows), communicated once or every time."""
    B = sum(len(x) for x, _ in micro_batches)
    for number, (x, y) in enumerate(micro_batches, start=1):
        with model.no_sync() if number < len(micro_batches) and not every_time else nullcontext():
            (nn.functional.mse_loss(model(x), y) * factor(len(x), B)).backward()


@wrong("3.4", "communicated the gradients 2 times, where 1 will do")
def accumulated_communicates_every_time(model, micro_batches):
    accumulate(model, micro_batches, lambda b, B: b / B, every_time=True)


@wrong("3.4", "no_sync belongs around forward and backward")
def accumulated_with_the_forward_outside(model, micro_batches):
    B = sum(len(x) for x, _ in micro_batches)
    for number, (x, y) in enumerate(micro_batches, start=1):
        loss = nn.functional.mse_loss(model(x), y) * len(x) / B
        with model.no_sync() if number < len(micro_batches) else nullcontext():
            loss.backward()


@wrong("3.4", "the micro-batches count alike, so a row of a small one counts more")
def accumulated_divides_by_k(model, micro_batches):
    accumulate(model, micro_batches, lambda b, B: 1 / len(micro_batches))


@wrong("3.4", "the means of all micro-batches are added up")
def accumulated_forgets_to_divide(model, micro_batches):
    accumulate(model, micro_batches, lambda b, B: 1)


@wrong("3.4", "DDP has divided by n already")
def accumulated_divides_by_the_ranks_too(model, micro_batches):
    accumulate(model, micro_batches, lambda b, B: b / B / dist.get_world_size())


@wrong("3.4", "the shares of the rows add up to one")
def accumulated_divides_by_k_too(model, micro_batches):
    accumulate(model, micro_batches, lambda b, B: b / B / len(micro_batches))


@wrong("3.4", "the last micro-batch, too, was inside no_sync")
def accumulated_never_communicates(model, micro_batches):
    with model.no_sync():
        accumulate(model, micro_batches, lambda b, B: b / B)


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


def backward(model, micro_batches, divisor):
    for x, y in micro_batches:
        (nn.functional.mse_loss(model(x), y) / divisor).backward()


def parameter_buckets(model, cap_bytes):
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return [[parameters[index] for index in indices]
            for indices in my_buckets([parameter.nbytes for parameter in parameters], cap_bytes)]


def send(bucket, under_way, wait=False):
    flat = torch.cat([parameter.grad.flatten() for parameter in bucket])
    under_way.append((bucket, flat, dist.all_reduce(flat, async_op=not wait)))


def finish(under_way):
    for bucket, flat, work in under_way:
        if work is not None:
            work.wait()
        for parameter, piece in zip(bucket, flat.split([each.numel() for each in bucket])):
            parameter.grad.copy_(piece.view_as(parameter) / dist.get_world_size())


def hooked(buckets, under_way, register="register_post_accumulate_grad_hook", wait=False):
    """Hooks that send each bucket once, when it is complete; the handles."""
    handles = []
    for bucket in buckets:
        missing = set(bucket)

        def ready(parameter, bucket=bucket, missing=missing):
            missing.discard(parameter)
            if not missing:
                send(bucket, under_way, wait)

        for parameter in bucket:
            hook = ready if "post" in register else lambda _, parameter=parameter, ready=ready: ready(parameter)
            handles.append(getattr(parameter, register)(hook))
    return handles


def step_of_hooks(model, micro_batches, cap_bytes, remove=True, divisor=None, **how):
    """A whole step, with hooks for the last micro-batch."""
    under_way, k = [], divisor or len(micro_batches)
    backward(model, micro_batches[:-1], k)
    handles = hooked(parameter_buckets(model, cap_bytes), under_way, **how)
    backward(model, micro_batches[-1:], k)
    if remove:
        for handle in handles:
            handle.remove()
    finish(under_way)


@wrong("3.7", "no message begins before the last gradient is there")
def overlapped_after_backward(model, micro_batches, cap_bytes):
    backward(model, micro_batches, len(micro_batches))
    under_way = []
    for bucket in parameter_buckets(model, cap_bytes):
        send(bucket, under_way)
    finish(under_way)


@wrong("3.7", "a rank that waits for a message computes nothing")
def overlapped_with_messages_that_are_waited_for(model, micro_batches, cap_bytes):
    step_of_hooks(model, micro_batches, cap_bytes, wait=True)


@wrong("3.7", "its hooks are still there")
def overlapped_leaves_its_hooks_behind(model, micro_batches, cap_bytes):
    step_of_hooks(model, micro_batches, cap_bytes, remove=False)


@wrong("3.7", "Tensor.register_hook comes before it is added to .grad")
def overlapped_sends_what_is_not_complete(model, micro_batches, cap_bytes):
    step_of_hooks(model, micro_batches, cap_bytes, register="register_hook")


@wrong("3.7", "every gradient is k times too large")
def overlapped_forgets_to_divide(model, micro_batches, cap_bytes):
    step_of_hooks(model, micro_batches, cap_bytes, divisor=1)


@wrong("3.7", "none before the last micro-batch")
def overlapped_sends_in_every_micro_batch(model, micro_batches, cap_bytes):
    for x, y in micro_batches:
        under_way = []
        handles = hooked(parameter_buckets(model, cap_bytes), under_way)
        backward(model, [(x, y)], len(micro_batches))
        for handle in handles:
            handle.remove()
    finish(under_way)


@wrong("3.7", "one for each bucket and step")
def overlapped_sends_every_gradient_alone(model, micro_batches, cap_bytes):
    step_of_hooks(model, micro_batches, cap_bytes=1)


@wrong("3.7", "every rank has its own gradients")
def overlapped_sends_nothing(model, micro_batches, cap_bytes):
    backward(model, micro_batches, len(micro_batches))


@wrong("3.7", "a bucket can leave as soon as the last of its gradients is complete")
def overlapped_sends_a_bucket_when_the_next_one_is_complete(model, micro_batches, cap_bytes):
    backward(model, micro_batches[:-1], len(micro_batches))
    under_way, complete, handles = [], [], []
    for bucket in parameter_buckets(model, cap_bytes):
        missing = set(bucket)

        def ready(parameter, bucket=bucket, missing=missing):
            missing.discard(parameter)
            if not missing:
                complete.append(bucket)
                if len(complete) > 1:
                    send(complete[-2], under_way)

        handles += [parameter.register_post_accumulate_grad_hook(ready) for parameter in bucket]
    backward(model, micro_batches[-1:], len(micro_batches))
    for handle in handles:
        handle.remove()
    send(complete[-1], under_way)
    finish(under_way)


def ring_s(num_bytes, n, alpha_s, beta_s_per_byte):
    return 2 * (n - 1) * alpha_s + 2 * (n - 1) / n * num_bytes * beta_s_per_byte


def whole(tokens, sequence_length):
    return -int(-tokens // sequence_length)


@wrong("3.8", "these are tokens")
def smallest_batch_in_tokens(num_parameters, num_buckets, n, flops_per_s, alpha_s, beta_s_per_byte, sequence_length):
    time_s = ring_s(4 * num_parameters, n, num_buckets * alpha_s, beta_s_per_byte)
    return time_s * flops_per_s / (4 * num_parameters)


@wrong("3.8", "round up")
def smallest_batch_rounded_down(num_parameters, num_buckets, n, flops_per_s, alpha_s, beta_s_per_byte, sequence_length):
    time_s = ring_s(4 * num_parameters, n, num_buckets * alpha_s, beta_s_per_byte)
    return int(time_s * flops_per_s / (4 * num_parameters) / sequence_length)


@wrong("3.8", "forward counts here")
def smallest_batch_with_forward(num_parameters, num_buckets, n, flops_per_s, alpha_s, beta_s_per_byte, sequence_length):
    time_s = ring_s(4 * num_parameters, n, num_buckets * alpha_s, beta_s_per_byte)
    return whole(time_s * flops_per_s / (6 * num_parameters), sequence_length)


@wrong("3.8", "alpha is paid for one message")
def smallest_batch_of_one_message(num_parameters, num_buckets, n, flops_per_s, alpha_s, beta_s_per_byte,
                                  sequence_length):
    time_s = ring_s(4 * num_parameters, n, alpha_s, beta_s_per_byte)
    return whole(time_s * flops_per_s / (4 * num_parameters), sequence_length)


@wrong("3.8", "float32 has 4")
def smallest_batch_in_16_bits(num_parameters, num_buckets, n, flops_per_s, alpha_s, beta_s_per_byte, sequence_length):
    time_s = ring_s(2 * num_parameters, n, num_buckets * alpha_s, beta_s_per_byte)
    return whole(time_s * flops_per_s / (4 * num_parameters), sequence_length)


@wrong("3.8", "every bucket is as large as all gradients")
def smallest_batch_of_buckets_that_hold_everything(num_parameters, num_buckets, n, flops_per_s, alpha_s,
                                                   beta_s_per_byte, sequence_length):
    time_s = num_buckets * ring_s(4 * num_parameters, n, alpha_s, beta_s_per_byte)
    return whole(time_s * flops_per_s / (4 * num_parameters), sequence_length)


@wrong("3.9", "a device is taken at its peak")
def most_devices_at_the_peak():
    return 1 + 2 * 3.2e6 * 25e9 / (4 * 312e12)


@wrong("3.9", "the wires are NVLink's")
def most_devices_inside_a_node():
    return 1 + 2 * 3.2e6 * 300e9 / (4 * 0.4 * 312e12)


@wrong("3.9", "200 Gbit/s are 25 GB/s")
def most_devices_with_bits_for_bytes():
    return 1 + 2 * 3.2e6 * 200e9 / (4 * 0.4 * 312e12)


@wrong("3.9", "float32 has 4 bytes")
def most_devices_in_16_bits():
    return 1 + 2 * 3.2e6 * 25e9 / (2 * 0.4 * 312e12)


@wrong("3.9", "how many such shares has the batch?")
def most_devices_answers_tokens():
    return 4 * 0.4 * 312e12 / (2 * 25e9)
