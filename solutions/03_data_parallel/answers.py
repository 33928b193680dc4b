"""Chapter 3: right and wrong answers, what each text stresses, each docstring's example; tools/answers.py reads it."""
# ruff: noqa: F821

import threading
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from fractions import Fraction

import numpy
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import _functional_collectives as functional

from tools.answers import example, right, term, wrong


def with_gradients(model):
    return [parameter for parameter in model.parameters() if parameter.grad is not None]


def listed(tensor):
    return str(tensor.tolist()).replace(".0", ".")


# ---- 3.1 my_average_gradients
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


@right("3.1", "functional collectives")
def average_functional(model, num_rows):
    share = num_rows / functional.all_reduce(torch.tensor(float(num_rows)), "sum", dist.group.WORLD)
    for parameter in with_gradients(model):
        parameter.grad = functional.all_reduce(parameter.grad * share, "sum", dist.group.WORLD)  # waits when it is used


def weighed(parameter, share):
    """Replace .grad by the sum over the ranks of .grad times that rank's share."""
    if parameter.grad is not None:
        parameter.grad *= share
        dist.all_reduce(parameter.grad)


def rows_of_all(num_rows):
    total = torch.tensor(float(num_rows))
    dist.all_reduce(total)
    return total


@wrong("3.1", "all ranks count alike, so a row on a rank with few rows counts more than one elsewhere: weigh each "
       "rank's gradient by its share of the rows")
def average_of_the_means(model, num_rows):
    for parameter in model.parameters():
        weighed(parameter, 1 / dist.get_world_size())


@wrong("3.1", "the sum of all ranks' means: weigh each by its share of the rows, and the sum is one mean")
def average_forgets_the_rows(model, num_rows):
    for parameter in model.parameters():
        weighed(parameter, 1)


@wrong("3.1", "every gradient is B times too large: the weights are num_rows / B, so that they add up to one")
def average_forgets_to_divide(model, num_rows):
    for parameter in model.parameters():
        weighed(parameter, num_rows)


@wrong("3.1", "every gradient is n times too small: the shares add up to one, nothing is left to divide")
def average_divides_by_the_ranks_too(model, num_rows):
    share = num_rows / rows_of_all(num_rows) / dist.get_world_size()
    for parameter in model.parameters():
        weighed(parameter, share)


@wrong("3.1", "every rank weighs the sum by its own rows: weigh its gradient before the all-reduce")
def average_weighs_afterwards(model, num_rows):
    total = rows_of_all(num_rows)
    for parameter in model.parameters():
        if parameter.grad is not None:
            dist.all_reduce(parameter.grad)
            parameter.grad *= num_rows / total


@wrong("3.1", "a parameter without a gradient, here the frozen one, has .grad None: leave it out")
def average_takes_gradients_that_are_not_there(model, num_rows):
    share = num_rows / rows_of_all(num_rows)
    for parameter in model.parameters():
        parameter.grad *= share
        dist.all_reduce(parameter.grad)


@wrong("3.1", "parameter 0.bias is frozen and had no gradient, now it has got one: leave its .grad None")
def average_makes_gradients_that_were_not_there(model, num_rows):
    share = num_rows / rows_of_all(num_rows)
    for parameter in model.parameters():
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        weighed(parameter, share)


@wrong("3.1", "every rank still has the gradients of its own batch: put the mean into parameter.grad itself; a copy of "
       "it, or parameter.data, does not reach the optimizer's step")
def average_of_the_weights(model, num_rows):
    for parameter in model.parameters():
        dist.all_reduce(parameter.data)
        parameter.data /= dist.get_world_size()


@wrong("3.1", "every rank still has the gradients of its own batch: put the mean into parameter.grad itself; a copy of "
       "it, or parameter.data, does not reach the optimizer's step")
def average_of_a_copy(model, num_rows):
    share = num_rows / rows_of_all(num_rows)
    for parameter in model.parameters():
        if parameter.grad is not None:
            mean = parameter.grad * share
            dist.all_reduce(mean)


@wrong("3.1", "every rank has rank 0's gradients: all batches count, not one")
def average_by_broadcast(model, num_rows):
    for parameter in model.parameters():
        if parameter.grad is not None:
            dist.broadcast(parameter.grad, 0)


@wrong("3.1", "every rank weighs its own gradients, and nobody adds them up")
def average_without_a_message(model, num_rows):
    share = num_rows / rows_of_all(num_rows)
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.grad *= share


@wrong("3.1", "rank 0 alone has the mean: the others would take another step, and the models drift apart")
def average_on_rank_0_alone(model, num_rows):
    share = num_rows / rows_of_all(num_rows)
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.grad *= share
            dist.reduce(parameter.grad, 0)


@wrong("3.1", "one for each gradient and one for the rows, so is any averaged twice?")
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


@wrong("3.1", "the rows are counted in a type that is too small for them: int8 ends at 127")
def rows_in_int8(model, num_rows):
    total = torch.tensor(num_rows, dtype=torch.int8)
    dist.all_reduce(total)
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.grad *= num_rows / total
            dist.all_reduce(parameter.grad)


TEXT_3_1 = [
    term("3.1", "rows count, not ranks", "num_rows / total", "1 / dist.get_world_size()"),
    term("3.1", "the rows of all ranks", "    dist.all_reduce(total)\n", "    total *= dist.get_world_size()\n"),
    term("3.1", "a frozen parameter has no gradient", "        if parameter.grad is not None:\n", "        if True:\n"),
    example("3.1", lambda inputs, answers: [
        "rank 0 has {} rows and .grad {}, rank 1 has {} row and .grad {}".format(*(
            part for rank in inputs for part in (len(rank["batches"][0][0]), listed(rank["given"]["0.weight"][0])))),
        f"afterwards it is {listed(answers[0]['gradients']['0.weight'][0])} on both"])]


# ---- 3.2 my_buckets
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


BUCKETS = [
    wrong("3.2", "the buckets begin with the first parameter, where backward ends: the last parameter's gradient is "
          "ready first")(
        lambda sizes, cap: [[len(sizes) - 1 - index for index in bucket] for bucket in my_buckets(sizes[::-1], cap)]),
    wrong("3.2", "the last bucket is missing: after the loop one is still open")(
        lambda sizes, cap: my_buckets(sizes, cap)[:-1]),
    wrong("3.2", "a gradient that fills a bucket exactly still fits: at most cap_bytes")(
        lambda sizes, cap: my_buckets(sizes, cap - 1)),
    wrong("3.2", "every gradient has a bucket of its own")(
        lambda sizes, cap: [[index] for index in reversed(range(len(sizes)))]),
    wrong("3.2", "all gradients are in one bucket, which has to wait for the very last")(
        lambda sizes, cap: [[*reversed(range(len(sizes)))]]),
    wrong("3.2", "the buckets are right, but in the opposite order: the first one sent has the last parameter")(
        lambda sizes, cap: my_buckets(sizes, cap)[::-1])]


@wrong("3.2", "a bucket of several gradients is larger than the cap: ask whether the gradient still fits before it "
       "goes in")
def buckets_that_run_over(sizes_bytes, cap_bytes):
    buckets, held_bytes = [[]], 0
    for index in reversed(range(len(sizes_bytes))):
        if held_bytes >= cap_bytes:
            buckets.append([])
            held_bytes = 0
        buckets[-1].append(index)
        held_bytes += sizes_bytes[index]
    return buckets


@wrong("3.2", "the first bucket is empty: close the open one only when there is something in it")
def buckets_begin_with_an_empty_one(sizes_bytes, cap_bytes):
    buckets, held_bytes = [[]], 0
    for index in reversed(range(len(sizes_bytes))):
        if held_bytes + sizes_bytes[index] > cap_bytes:
            buckets.append([])
            held_bytes = 0
        buckets[-1].append(index)
        held_bytes += sizes_bytes[index]
    return buckets


@wrong("3.2", "the gradients are not in the order in which they are ready. A bucket that was closed is on its way: "
       "what comes later cannot join it, even where there is room")
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


@wrong("3.2", "a gradient larger than the cap closes the bucket before it: here that one stays open, and what comes "
       "later joins it, so the order of sending changes")
def buckets_around_the_giant(sizes_bytes, cap_bytes):
    buckets, held, opened = [], 0, None
    for index in reversed(range(len(sizes_bytes))):
        size = sizes_bytes[index]
        if size > cap_bytes:
            buckets.append([index])
        elif opened is None or held + size > cap_bytes:
            opened, held = [index], size
            buckets.append(opened)
        else:
            opened.append(index)
            held += size
    return buckets


@right("3.2", "a generator of deques")
def buckets_one_by_one(sizes_bytes, cap_bytes):
    bucket, room = deque(), cap_bytes
    for index in range(len(sizes_bytes) - 1, -1, -1):
        if bucket and sizes_bytes[index] > room:
            yield bucket
            bucket, room = deque(), cap_bytes
        bucket.append(index)
        room -= sizes_bytes[index]
    yield bucket


TEXT_3_2 = [
    term("3.2", "from the last gradient to the first", "reversed(range(len(sizes_bytes)))", "range(len(sizes_bytes))"),
    term("3.2", "at most cap_bytes: an exact fit joins", "> cap_bytes", ">= cap_bytes"),
    term("3.2", "the bucket before is closed for good", "        buckets[-1].append(index)\n",
         "        next((b for b in buckets if sum(sizes_bytes[i] for i in b) + sizes_bytes[index] <= cap_bytes),\n"
         "             buckets[-1]).append(index)\n"),
    example("3.2", lambda inputs, answers: f"sizes_bytes = {inputs[0][0]}, cap_bytes = {inputs[0][1]} -> {answers[0]}")]


# ---- 3.3 my_bucketed_average
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


@right("3.3", "functional collectives")
def bucketed_functional(model, cap_bytes):
    gradients = [parameter.grad for parameter in with_gradients(model)]
    for indices in my_buckets([gradient.nbytes for gradient in gradients], cap_bytes):
        flat = nn.utils.parameters_to_vector(gradients[index] for index in indices)
        mean = functional.wait_tensor(functional.all_reduce(flat, "avg", dist.group.WORLD))
        nn.utils.vector_to_parameters(mean, [gradients[index] for index in indices])


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


@wrong("3.3", "every gradient is n times too large: all-reduce makes the sum, and the mean is asked, so divide by n")
def bucketed_forgets_to_divide(model, cap_bytes):
    travel(model, gradient_buckets(model, cap_bytes), in_order, divide_by=1)


@wrong("3.3", "every rank still has its own gradients: torch.cat makes a copy, so what has come back must be written "
       "into the gradients again")
def bucketed_forgets_the_way_back(model, cap_bytes):
    travel(model, gradient_buckets(model, cap_bytes), lambda bucket, flat: None, dist.get_world_size())


@wrong("3.3", "the mean comes back into the wrong gradients: a bucket is taken apart in another order than it was put "
       "together")
def bucketed_takes_apart_in_the_models_order(model, cap_bytes):
    travel(model, gradient_buckets(model, cap_bytes), lambda bucket, flat: in_order(bucket[::-1], flat),
           dist.get_world_size())


@wrong("3.3", "the messages have")
def bucketed_gathered_by_functional_collectives(model, cap_bytes):
    def mean(flat):
        of_all = functional.all_gather_tensor(flat, 0, dist.group.WORLD)
        return of_all.view(dist.get_world_size(), -1).mean(0)

    for bucket in gradient_buckets(model, cap_bytes):
        in_order(bucket, mean(torch.cat([gradient.flatten() for gradient in bucket])))


@wrong("3.3", "the buckets are right, but only the last one is written back: each has to be taken apart")
def bucketed_writes_the_last_bucket_back(model, cap_bytes):
    buckets = gradient_buckets(model, cap_bytes)
    travel(model, buckets, lambda bucket, flat: bucket is buckets[-1] and in_order(bucket, flat), dist.get_world_size())


@wrong("3.3", "one message for a whole bucket, not one for each gradient")
def bucketed_sends_every_gradient(model, cap_bytes):
    for bucket in gradient_buckets(model, cap_bytes):
        for gradient in bucket:
            dist.all_reduce(gradient)
            gradient /= dist.get_world_size()


@wrong("3.3", "one message has several buckets: what waits for the last gradient cannot leave while backward still "
       "runs")
def bucketed_in_one_message(model, cap_bytes):
    travel(model, [sum(gradient_buckets(model, cap_bytes), [])], in_order, dist.get_world_size())


@wrong("3.3", "the messages are sent in another order than that of my_buckets: the one with the last parameters first")
def bucketed_sends_the_last_bucket_first(model, cap_bytes):
    travel(model, gradient_buckets(model, cap_bytes)[::-1], in_order, dist.get_world_size())


@wrong("3.3", "each rank sends its buckets in an order of its own, so different gradients are added to each other: all "
       "ranks need the same order")
def bucketed_in_an_order_of_its_own_on_each_rank(model, cap_bytes):
    buckets, r = gradient_buckets(model, cap_bytes), dist.get_rank()
    travel(model, buckets[r:] + buckets[:r], in_order, dist.get_world_size())


TEXT_3_3 = [
    term("3.3", "the mean, not the sum", "        flat /= n\n", ""),
    term("3.3", "one message a bucket", "for indices in buckets:",
         "for indices in [[each] for own in buckets for each in own]:"),
    term("3.3", "each takes its own stretch back", "zip(bucket,", "zip(bucket[::-1],"),
    term("3.3", "in the buckets' order", "for indices in buckets:", "for indices in buckets[::-1]:"),
    example("3.3", lambda inputs, answers: [
        f"rank 0 has {listed(inputs[0]['given']['0.weight'])} and {listed(inputs[0]['given']['0.bias'])}",
        "afterwards both have {} and {}".format(*map(listed, answers[0]["gradients"].values()))])]


# ---- 3.4 my_accumulated_backward
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


def accumulate(model, micro_batches, factor, every_time=False):
    """All micro-batches, each mean loss times factor(its rows, all rows), communicated once or every time."""
    B = sum(len(x) for x, _ in micro_batches)
    for number, (x, y) in enumerate(micro_batches, start=1):
        with model.no_sync() if number < len(micro_batches) and not every_time else nullcontext():
            (nn.functional.mse_loss(model(x), y) * factor(len(x), B)).backward()


@wrong("3.4", "no_sync belongs around forward and backward of all but the last micro-batch")
def accumulated_communicates_every_time(model, micro_batches):
    accumulate(model, micro_batches, lambda b, B: b / B, every_time=True)


@wrong("3.4", "no_sync belongs around forward and backward of all but the last micro-batch")
def accumulated_with_the_forward_outside(model, micro_batches):
    B = sum(len(x) for x, _ in micro_batches)
    for number, (x, y) in enumerate(micro_batches, start=1):
        loss = nn.functional.mse_loss(model(x), y) * len(x) / B
        with model.no_sync() if number < len(micro_batches) else nullcontext():
            loss.backward()


@wrong("3.4", "the micro-batches count alike, so a row of a small one counts more: multiply each loss by its share of "
       "the rows")
def accumulated_divides_by_k(model, micro_batches):
    accumulate(model, micro_batches, lambda b, B: 1 / len(micro_batches))


@wrong("3.4", "the means of all micro-batches are added up: multiply each loss by its share of the rows, and one mean "
       "is the sum")
def accumulated_forgets_to_divide(model, micro_batches):
    accumulate(model, micro_batches, lambda b, B: 1)


@wrong("3.4", "every gradient is n times too small: DDP has divided by n already")
def accumulated_divides_by_the_ranks_too(model, micro_batches):
    accumulate(model, micro_batches, lambda b, B: b / B / dist.get_world_size())


@wrong("3.4", "every gradient is k times too small: the shares of the rows add up to one, nothing is left to divide")
def accumulated_divides_by_k_too(model, micro_batches):
    accumulate(model, micro_batches, lambda b, B: b / B / len(micro_batches))


@wrong("3.4", "every rank has its own gradients: nothing was communicated, because the last micro-batch, too, was "
       "inside no_sync")
def accumulated_never_communicates(model, micro_batches):
    with model.no_sync():
        accumulate(model, micro_batches, lambda b, B: b / B)


@wrong("3.4", "only the last micro-batch is in the gradients: do not set them to zero in between")
def accumulated_clears_in_between(model, micro_batches):
    for number, (x, y) in enumerate(micro_batches, start=1):
        model.zero_grad()
        with model.no_sync() if number < len(micro_batches) else nullcontext():
            (nn.functional.mse_loss(model(x), y) / len(micro_batches)).backward()


@wrong("3.4", "where 4 will do: one forward, then its backward, then the next micro-batch")
def accumulated_as_one_batch(model, micro_batches):
    x, y = (torch.cat(column) for column in zip(*micro_batches))
    nn.functional.mse_loss(model(x), y).backward()


@wrong("3.4", "where 4 will do: one forward, then its backward, then the next micro-batch")
def accumulated_in_one_backward(model, micro_batches):
    B = sum(len(x) for x, _ in micro_batches)
    with model.no_sync():
        losses = [nn.functional.mse_loss(model(x), y) * len(x) / B for x, y in micro_batches[:-1]]
    x, y = micro_batches[-1]
    (sum(losses) + nn.functional.mse_loss(model(x), y) * len(x) / B).backward()


TEXT_3_4 = [
    term("3.4", "rows count, micro-batches need not be of one size", "* len(x) / B", "/ len(micro_batches)"),
    term("3.4", "only the last average is needed", "with model.no_sync():", "if True:"),
    term("3.4", "one micro-batch at a time", "    for x, y in micro_batches[:-1]:\n            (nn",
         "    for x, y in [tuple(torch.cat(column) for column in zip(*micro_batches))][:len(micro_batches) - 1]:\n"
         "            (0 * nn"),
    example("3.4", lambda inputs, answers: (
        "{} rows whose gradient would be [1.] and then {} row with [5.]: afterwards .grad is {}".format(
            *(len(x) for x, _ in inputs[0]["batches"]), listed(answers[0]["gradients"]["0.weight"][0]))))]


# ---- 3.5 my_top_k_average
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


def exchange_largest(total, k, likes=None, add=True):
    """The mean of what all ranks send, the k numbers of `total` where `likes`, else their amount, is largest; the rest.
    """
    places, n = (total.abs() if likes is None else likes).topk(k).indices, dist.get_world_size()
    numbers, rest = total[places], total.clone()
    rest[places] = 0
    all_places, all_numbers = ([torch.empty_like(mine) for _ in range(n)] for mine in (places, numbers))
    dist.all_gather(all_places, places)
    dist.all_gather(all_numbers, numbers)
    result = torch.zeros_like(total)
    for where, what in zip(all_places, all_numbers):
        result[where] = result[where] + what if add else what
    return result / n, rest


@wrong("3.5", "the residual stays zero, so all that was not sent is lost: keep it, in place, as residual.copy_ does")
def top_k_without_residual(gradient, residual, k):
    return exchange_largest(gradient, k)[0]


@wrong("3.5", "the residual stays zero, so all that was not sent is lost: keep it, in place, as residual.copy_ does")
def top_k_with_a_residual_that_is_only_a_name(gradient, residual, k):
    residual = residual + gradient
    mean, residual = exchange_largest(residual, k)
    return mean


@wrong("3.5", "the residual is written, but never used: add it to the gradient before you choose")
def top_k_never_pays_its_debts(gradient, residual, k):
    mean, rest = exchange_largest(gradient, k)
    residual.copy_(rest)
    return mean


@wrong("3.5", "the residual is written, but never used: add it to the gradient before you choose")
def top_k_piles_up_its_debts(gradient, residual, k):
    mean, rest = exchange_largest(gradient, k)
    residual += rest
    return mean


@wrong("3.5", "what has been sent stays in the residual and is sent again: it has to be zero at those places")
def top_k_pays_twice(gradient, residual, k):
    residual += gradient
    return exchange_largest(residual, k)[0]


@wrong("3.5", "the residual holds what was sent: it should hold the rest")
def top_k_keeps_what_was_sent(gradient, residual, k):
    residual += gradient
    mean, rest = exchange_largest(residual, k)
    residual -= rest
    return mean


@wrong("3.5", "the residual forgets what was owed before: the rest of gradient + residual stays, not that of the "
       "gradient")
def top_k_forgets_old_debts(gradient, residual, k):
    mean, rest = exchange_largest(gradient + residual, k)
    residual.copy_(gradient * (rest != 0))
    return mean


@wrong("3.5", "the k largest are chosen with their sign, and large negative ones stay behind: choose by total.abs()")
def top_k_leaves_negative_numbers_behind(gradient, residual, k):
    residual += gradient
    mean, rest = exchange_largest(residual, k, likes=residual)
    residual.copy_(rest)
    return mean


@wrong("3.5", "the places are chosen by the gradient alone: a small gradient that adds up over many steps would never "
       "be sent, so choose by gradient + residual")
def top_k_of_the_gradient(gradient, residual, k):
    mean, rest = exchange_largest(gradient + residual, k, likes=gradient.abs())
    residual.copy_(rest)
    return mean


@wrong("3.5", "where two ranks send the same place, one number overwrites the other: add them, as index_add_ does")
def top_k_overwrites(gradient, residual, k):
    mean, rest = exchange_largest(gradient + residual, k, add=False)
    residual.copy_(rest)
    return mean


@wrong("3.5", "a tensor with N - k zeros in it costs as much as the gradient; send places and numbers")
def top_k_sends_zeros(gradient, residual, k):
    residual += gradient
    places = residual.abs().topk(k).indices
    sent = torch.zeros_like(gradient)
    sent[places] = residual[places]
    residual[places] = 0
    dist.all_reduce(sent)
    return sent / dist.get_world_size()


@wrong("3.5", "the sum is returned: the mean is asked, so divide by n")
def top_k_forgets_to_divide(gradient, residual, k):
    return my_top_k_average(gradient, residual, k) * dist.get_world_size()


@wrong("3.5", "whose bytes cannot be counted, as those of a sparse tensor")
def top_k_sparse_of_everything(gradient, residual, k):
    residual += gradient
    places = residual.abs().topk(k).indices
    mine = torch.zeros_like(gradient)
    mine[places] = residual[places]
    residual[places] = 0
    everything = torch.sparse_coo_tensor(torch.arange(len(mine))[None], mine, mine.shape)
    dist.all_reduce(everything)
    return everything.to_dense() / dist.get_world_size()


TEXT_3_5 = [
    term("3.5", "the largest amount, also a negative one", "residual.abs().topk", "residual.topk"),
    term("3.5", "what is owed is added", "    residual += gradient\n", "    residual.copy_(gradient)\n"),
    term("3.5", "what was sent is no longer owed", "    residual[places] = 0\n", ""),
    term("3.5", "the mean over all ranks", " / n\n", "\n"),
    example("3.5", lambda inputs, answers: [
        f"rank 0 has {listed(inputs[0]['given'][0])}, rank 1 has {listed(inputs[1]['given'][0])}",
        "both return {}; still owed: {} on rank 0, {} on rank 1".format(
            *map(listed, answers[0]["steps"].values()), listed(answers[1]["steps"]["the residual after step 0"]))])]


# ---- 3.6 my_shard
@right("3.6", "numpy's generator, an array")
def shard_in_numpy(num_samples, epoch, rank, world_size):
    return numpy.random.default_rng(epoch).permutation(num_samples)[rank::world_size]


@right("3.6", "a tensor, cut in nearly equal blocks")
def shard_in_blocks(num_samples, epoch, rank, world_size):
    order = torch.randperm(num_samples, generator=torch.Generator().manual_seed(1000 + epoch))
    return order.tensor_split(world_size)[rank]


def shuffled(num_samples, seed):
    return torch.randperm(num_samples, generator=torch.Generator().manual_seed(seed)).tolist()


@wrong("3.6", "some ranks take one more than others")
def shard_drops_the_tail(num_samples, epoch, rank, world_size):
    each = num_samples // world_size
    return shuffled(num_samples, epoch)[rank * each:(rank + 1) * each]


@wrong("3.6", "the parts are filled up to the same length; let some ranks have one less")
def shard_fills_up_by_repeating(num_samples, epoch, rank, world_size):
    order = shuffled(num_samples, epoch)
    order += order[:-num_samples % world_size]
    return order[rank::world_size]


@wrong("3.6", "every epoch has the same order: the seed has to change with the epoch, as set_epoch makes it do")
def shard_forgets_the_epoch(num_samples, epoch, rank, world_size):
    return shuffled(num_samples, 0)[rank::world_size]


@wrong("3.6", "nothing is shuffled")
def shard_in_the_order_of_the_file(num_samples, epoch, rank, world_size):
    return list(range(rank, num_samples, world_size))


@wrong("3.6", "the ranks divide different orders, so the seed must not depend on the rank")
def shard_shuffles_differently_on_each_rank(num_samples, epoch, rank, world_size):
    return shuffled(num_samples, 1000 * epoch + rank)[rank::world_size]


@wrong("3.6", "each rank has the same samples in every epoch, only in another order: shuffle all of them first, then "
       "divide")
def shard_divides_first(num_samples, epoch, rank, world_size):
    own = list(range(rank, num_samples, world_size))
    return [own[index] for index in shuffled(len(own), epoch)]


@wrong("3.6", "rank and epoch alone may decide, so seed a torch.Generator with the epoch")
def shard_with_the_global_generator(num_samples, epoch, rank, world_size):
    return torch.randperm(num_samples).tolist()[rank::world_size]


@wrong("3.6", "torch's global generator has moved, and with it everybody's dropout and initial weights: use a "
       "torch.Generator of your own")
def shard_seeds_the_global_generator(num_samples, epoch, rank, world_size):
    torch.manual_seed(epoch)
    return torch.randperm(num_samples).tolist()[rank::world_size]


@wrong("3.6", "all ranks have the same samples: each takes its own part of the order, every n-th from its rank on")
def shard_gives_everything_to_everybody(num_samples, epoch, rank, world_size):
    return shuffled(num_samples, epoch)


@wrong("3.6", "they should differ by one at most")
def shard_in_blocks_of_the_largest(num_samples, epoch, rank, world_size):
    each = -(-num_samples // world_size)
    return shuffled(num_samples, epoch)[rank * each:(rank + 1) * each]


@wrong("3.6", "of the neighbours in a hand are equally far apart")
def shard_rotates(num_samples, epoch, rank, world_size):
    return [(index + 7 * epoch) % num_samples for index in range(num_samples)][rank::world_size]


@wrong("3.6", "Python's hash() of a text is not")
def shard_by_the_hash_of_a_text(num_samples, epoch, rank, world_size):
    generator = torch.Generator().manual_seed(abs(hash(f"epoch {epoch}")))
    return torch.randperm(num_samples, generator=generator).tolist()[rank::world_size]


@wrong("3.6", "the global generator of Python has moved")
def shard_by_pythons_generator(num_samples, epoch, rank, world_size):
    import random
    random.seed(epoch)
    order = list(range(num_samples))
    random.shuffle(order)
    return order[rank::world_size]


ITS_OWN = "every epoch has an order of its own, whatever rank it is dealt to and wherever it begins"


@wrong("3.6", ITS_OWN)
def shard_cuts_the_deck(num_samples, epoch, rank, world_size):
    order = shuffled(num_samples, 0)
    cut = 37 * epoch % num_samples
    return (order[cut:] + order[:cut])[rank::world_size]


@wrong("3.6", ITS_OWN)
def shard_moves_the_ranks(num_samples, epoch, rank, world_size):
    return shuffled(num_samples, 0)[(rank + epoch) % world_size::world_size]


SHARD_SEEDS = [wrong("3.6", ITS_OWN)(lambda N, epoch, r, n, seed=seed: shuffled(N, seed(epoch))[r::n]) for seed in (
    lambda epoch: epoch % 2, lambda epoch: max(epoch, 1), lambda epoch: epoch % 10, lambda epoch: min(epoch, 3))]


TEXT_3_6 = [
    term("3.6", "shuffled anew for every epoch", "manual_seed(epoch)", "manual_seed(0)"),
    term("3.6", "shuffled", "torch.randperm(num_samples, generator=generator).tolist()", "list(range(num_samples))"),
    term("3.6", "each index on one rank", "[rank::world_size]", "[:num_samples // world_size + 1]"),
    term("3.6", "all N, also where n does not divide N", "[rank::world_size]",
         "[rank:num_samples // world_size * world_size:world_size]"),
    term("3.6", "global generators stay as they are", "torch.Generator().manual_seed(epoch)",
         "torch.default_generator.manual_seed(epoch)"),
    example("3.6", lambda inputs, answers: [
        f"num_samples = {inputs[0]['num_samples']}, world_size = {inputs[0]['world_size']}",
        "rank 0 gets [3, 4, 2], rank 1 gets [0, 1]" if [len(each["shards"][0]) for each in answers] == [3, 2] else "no",
    ])]


# ---- 3.7 my_overlapped_step
@right("3.7", "hooks that count over all k backwards")
def overlapped_by_counting(model, micro_batches, cap_bytes):
    n, k = dist.get_world_size(), len(micro_batches)
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    plan = my_buckets([parameter.nbytes for parameter in parameters], cap_bytes)
    bucket_of = {parameters[index]: number for number, indices in enumerate(plan) for index in indices}
    left, works = [k * len(indices) for indices in plan], {}

    def hook(parameter):
        left[bucket_of[parameter]] -= 1
        while len(works) < len(plan) and not left[number := len(works)]:
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
        for indices in plan[len(works):]:
            bucket = [parameters[index] for index in indices]
            if not there.issuperset(bucket):
                return
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


def planned_order(buckets, start):
    """A hook: it calls start(bucket) for each bucket once, when it is complete and all before it have started."""
    missing, waiting = {parameter for bucket in buckets for parameter in bucket}, list(buckets)

    def ready(parameter):
        missing.discard(parameter)
        while waiting and missing.isdisjoint(waiting[0]):
            start(waiting.pop(0))

    return ready


def when_complete(buckets, start):
    """A hook: it calls start(bucket) for each bucket once, when it is complete."""
    missing = {bucket[0]: set(bucket) for bucket in buckets}

    def ready(parameter):
        bucket = next(bucket for bucket in buckets if any(parameter is each for each in bucket))
        missing[bucket[0]].discard(parameter)
        if not missing[bucket[0]]:
            start(bucket)

    return ready


def hooked(buckets, under_way, register="register_post_accumulate_grad_hook", wait=False, order=planned_order):
    """Hooks that send each bucket once, when it is complete; the handles."""
    ready = order(buckets, lambda bucket: send(bucket, under_way, wait))
    return [getattr(parameter, register)(ready if "post" in register else lambda _, each=parameter: ready(each))
            for bucket in buckets for parameter in bucket]


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


def step_of_makers(model, micro_batches, cap_bytes, start, result):
    """A whole step: start(flat) from the hook of a bucket's last gradient, result(what that gave) after backward."""
    k, under_way = len(micro_batches), []
    backward(model, micro_batches[:-1], k)
    buckets = parameter_buckets(model, cap_bytes)
    hook = planned_order(buckets, lambda bucket: under_way.append(
        (bucket, start(torch.cat([each.grad.flatten() for each in bucket])))))
    handles = [parameter.register_post_accumulate_grad_hook(hook) for bucket in buckets for parameter in bucket]
    backward(model, micro_batches[-1:], k)
    for handle in handles:
        handle.remove()
    for bucket, started in under_way:
        nn.utils.vector_to_parameters(result(started) / dist.get_world_size(), [each.grad for each in bucket])


def reduced(flat):
    dist.all_reduce(flat)
    return flat


@right("3.7", "functional collectives")
def overlapped_functional(model, micro_batches, cap_bytes):
    step_of_makers(model, micro_batches, cap_bytes,
                   lambda flat: functional.all_reduce(flat, "sum", dist.group.WORLD), functional.wait_tensor)


@right("3.7", "one thread makes all the calls, in order, and waits for each")
def overlapped_in_a_thread(model, micro_batches, cap_bytes):
    with ThreadPoolExecutor(1) as caller:
        step_of_makers(model, micro_batches, cap_bytes, lambda flat: caller.submit(reduced, flat), Future.result)


@wrong("3.7", "no message begins before the last gradient is there: start each from a hook")
def overlapped_after_backward(model, micro_batches, cap_bytes):
    backward(model, micro_batches, len(micro_batches))
    under_way = []
    for bucket in parameter_buckets(model, cap_bytes):
        send(bucket, under_way)
    finish(under_way)


@wrong("3.7", "a rank that waits for a message computes nothing: dist.all_reduce(..., async_op=True), and wait() when "
       "backward is over")
def overlapped_with_messages_that_are_waited_for(model, micro_batches, cap_bytes):
    step_of_hooks(model, micro_batches, cap_bytes, wait=True)


@wrong("3.7", "a rank that waits for a message computes nothing: dist.all_reduce(..., async_op=True), and wait() when "
       "backward is over")
def overlapped_in_a_thread_that_the_hook_waits_for(model, micro_batches, cap_bytes):
    def start(flat):
        caller = threading.Thread(target=dist.all_reduce, args=(flat,))
        caller.start()
        caller.join()
        return flat

    step_of_makers(model, micro_batches, cap_bytes, start, lambda flat: flat)


@wrong("3.7", "no message begins before the last gradient is there: start each from a hook")
def overlapped_in_a_thread_after_backward(model, micro_batches, cap_bytes):
    with ThreadPoolExecutor(1) as caller:
        step_of_makers(model, micro_batches, cap_bytes, lambda flat: flat,
                       lambda flat: caller.submit(reduced, flat).result())


@wrong("3.7", "of its hooks are still there. Keep what register_post_accumulate_grad_hook returns, and remove() it "
       "when backward is over")
def overlapped_leaves_its_hooks_behind(model, micro_batches, cap_bytes):
    step_of_hooks(model, micro_batches, cap_bytes, remove=False)


@wrong("3.7", "the gradient that completes a bucket lacks the last micro-batch: Tensor.register_hook comes before it "
       "is added to .grad, register_post_accumulate_grad_hook after it")
def overlapped_sends_what_is_not_complete(model, micro_batches, cap_bytes):
    step_of_hooks(model, micro_batches, cap_bytes, register="register_hook")


@wrong("3.7", "every gradient is k times too large: backward adds up k means, so divide each loss by k")
def overlapped_forgets_to_divide(model, micro_batches, cap_bytes):
    step_of_hooks(model, micro_batches, cap_bytes, divisor=1)


@wrong("3.7", "one for each bucket and step, when its last gradient is complete, and none before the last micro-batch")
def overlapped_sends_in_every_micro_batch(model, micro_batches, cap_bytes):
    for x, y in micro_batches:
        under_way = []
        handles = hooked(parameter_buckets(model, cap_bytes), under_way)
        backward(model, [(x, y)], len(micro_batches))
        for handle in handles:
            handle.remove()
    finish(under_way)


@wrong("3.7", "one for each bucket and step, when its last gradient is complete, and none before the last micro-batch")
def overlapped_sends_every_gradient_alone(model, micro_batches, cap_bytes):
    step_of_hooks(model, micro_batches, cap_bytes=1)


@wrong("3.7", "the last micro-batch is not in the mean: send when its gradients are there, too")
def overlapped_without_the_last_micro_batch(model, micro_batches, cap_bytes):
    step_of_hooks(model, micro_batches[:-1], cap_bytes, divisor=len(micro_batches))


@wrong("3.7", "only the last micro-batch is in the mean: let gradients add up")
def overlapped_of_the_last_micro_batch(model, micro_batches, cap_bytes):
    step_of_hooks(model, micro_batches[-1:], cap_bytes, divisor=len(micro_batches))


@wrong("3.7", "every rank has its own gradients: no message was started, or none is in under_way")
def overlapped_sends_nothing(model, micro_batches, cap_bytes):
    backward(model, micro_batches, len(micro_batches))


@wrong("3.7", "a bucket can leave as soon as it and all before it are complete")
def overlapped_sends_a_bucket_when_the_next_one_is_complete(model, micro_batches, cap_bytes):
    backward(model, micro_batches[:-1], len(micro_batches))
    under_way, complete, buckets = [], [], parameter_buckets(model, cap_bytes)

    def start(bucket):
        complete.append(bucket)
        if len(complete) > 1:
            send(complete[-2], under_way)

    hook = planned_order(buckets, start)
    handles = [parameter.register_post_accumulate_grad_hook(hook) for bucket in buckets for parameter in bucket]
    backward(model, micro_batches[-1:], len(micro_batches))
    for handle in handles:
        handle.remove()
    send(complete[-1], under_way)
    finish(under_way)


def overlapped_by(micro_batches, model, cap_bytes, hooked, begin):
    """One step; hooked(bucket) are the parameters whose hooks count, begin(under_way, flat) starts a message."""
    buckets, under_way = parameter_buckets(model, cap_bytes), []

    def start(some):
        bucket = next(bucket for bucket in buckets if hooked(bucket)[0] is some[0])
        flat = torch.cat([each.grad.flatten() for each in bucket])
        under_way.append((bucket, flat, begin(under_way, flat)))

    backward(model, micro_batches[:-1], len(micro_batches))
    counted = [hooked(bucket) for bucket in buckets]
    hook = planned_order(counted, start)
    handles = [parameter.register_post_accumulate_grad_hook(hook) for some in counted for parameter in some]
    backward(model, micro_batches[-1:], len(micro_batches))
    for handle in handles:
        handle.remove()
    finish(under_way)


def waits_for_the_one_before(under_way, flat):
    for *_, work in under_way:
        work.wait()
    return dist.all_reduce(flat, async_op=True)


@wrong("3.7", "a rank that waits for a message computes nothing")
def overlapped_waits_for_the_one_before(model, micro_batches, cap_bytes):
    overlapped_by(micro_batches, model, cap_bytes, lambda bucket: bucket, waits_for_the_one_before)


def overlapped_until(arrived, model, micro_batches, cap_bytes):
    """A hook that goes on when the message that it started has arrived."""
    def begin(_, flat):
        work = dist.all_reduce(flat, async_op=True)
        while not arrived(work):
            pass
        return work

    overlapped_by(micro_batches, model, cap_bytes, lambda bucket: bucket, begin)


OVERLAPPED_POLLS = [wrong("3.7", "a rank that waits for a message computes nothing")(how) for how in (
    lambda *asked: overlapped_until(lambda work: work.is_completed(), *asked),
    lambda *asked: overlapped_until(lambda work: work.get_future().done(), *asked),
    lambda *asked: overlapped_until(lambda work: work.get_future().wait(), *asked))]


@right("3.7", "each hook asks once whether a message has arrived, and goes on")
def overlapped_asks_once(model, micro_batches, cap_bytes):
    def begin(under_way, flat):
        if under_way:
            under_way[-1][-1].is_completed()
        return dist.all_reduce(flat, async_op=True)

    overlapped_by(micro_batches, model, cap_bytes, lambda bucket: bucket, begin)


@wrong("3.7", "on rank 1 the first bucket that is complete is another one than on rank 0, and messages of different "
       "buckets are added up: a bucket leaves when it is complete and all before it in my_buckets have left")
def overlapped_as_soon_as_complete(model, micro_batches, cap_bytes):
    step_of_hooks(model, micro_batches, cap_bytes, order=when_complete)


@wrong("3.7", "only the last of a bucket's indices has a hook: which gradient comes last is not known beforehand, so "
       "each has one, and the bucket leaves when none is missing")
def overlapped_hook_on_the_last(model, micro_batches, cap_bytes):
    overlapped_by(micro_batches, model, cap_bytes, lambda bucket: bucket[-1:],
                  lambda _, flat: dist.all_reduce(flat, async_op=True))


@wrong("3.7", "one forward, then its backward, then the next micro-batch")
def overlapped_as_one_batch(model, micro_batches, cap_bytes):
    whole = [tuple(torch.cat(column) for column in zip(*micro_batches))]
    overlapped_by(whole, model, cap_bytes, lambda bucket: bucket, lambda _, flat: dist.all_reduce(flat, async_op=True))


TEXT_3_7 = [
    term("3.7", "a bucket leaves when it is complete", "missing.isdisjoint(bucket)", "bucket[-1] not in missing"),
    term("3.7", "and when all before it have left", "                break", "                continue"),
    term("3.7", "a hook starts a message and returns", "dist.all_reduce(flat, async_op=True)",
         "(lambda work: work.wait() or work)(dist.all_reduce(flat, async_op=True))"),
    term("3.7", "hooks are taken away again", "        handle.remove()\n", "        pass\n"),
    term("3.7", "gradients of k micro-batches add up to their mean", ") / k).backward()", ")).backward()"),
    example("3.7", lambda inputs, answers: "its gradients [1.] and [3.] leave {} on both".format(
        listed(answers[0]["gradients"]["0.weight"][0])))]


# ---- 3.8 my_smallest_batch
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


def tokens_to_hide(N, B, n, F, alpha, beta):
    return (2 * (n - 1) * B * alpha + 2 * (n - 1) / n * 4 * N * beta) * F / (4 * N)


SMALLEST_BATCH = [wrong("3.8", says)(function) for says, function in {
    "that is a whole number of tokens: whole sequences are asked":
        lambda *asked: my_smallest_batch(*asked[:-1], 1),
    "these are tokens: whole sequences are asked":
        lambda *asked: tokens_to_hide(*asked[:-1]),
    "a part of a sequence is no batch: round up":
        lambda *asked: tokens_to_hide(*asked[:-1]) / asked[-1],
    "rounded down, the last sequence is missing and a little stays exposed: round up":
        lambda *asked: int(tokens_to_hide(*asked[:-1]) / asked[-1]),
    "one sequence more is taken also where backward lasts exactly as long as the messages: that is long enough":
        lambda *asked: int(tokens_to_hide(*asked[:-1]) / asked[-1]) + 1,
    "forward counts here, 6 N b: the messages begin in backward, and only its 4 N b FLOPs can hide them":
        lambda N, B, n, F, alpha, beta, s: my_smallest_batch(N, B, n, F * 4 / 6, alpha, beta, s),
    "2 N b is a forward pass: backward takes twice as long":
        lambda N, B, n, F, alpha, beta, s: my_smallest_batch(N, B, n, F * 2, alpha, beta, s),
    "alpha is left out: each bucket pays 2(n-1) of them":
        lambda N, B, n, F, alpha, beta, s: my_smallest_batch(N, B, n, F, 0, beta, s),
    "alpha is paid for one message: each bucket pays 2(n-1) of them":
        lambda N, B, n, F, alpha, beta, s: my_smallest_batch(N, 1, n, F, alpha, beta, s),
    "alpha is paid once per bucket: a ring takes 2(n-1) steps, and each pays it":
        lambda N, B, n, F, alpha, beta, s: my_smallest_batch(N, B, n, F, alpha / (2 * (n - 1)), beta, s),
    "the bytes travel once: a ring sends them nearly twice, 2(n-1)/n times":
        lambda N, B, n, F, alpha, beta, s: my_smallest_batch(N, B, n, F, alpha, beta * n / (2 * (n - 1)), s),
    "every bucket is as large as all gradients: together they have 4 N bytes":
        lambda N, B, n, F, alpha, beta, s: my_smallest_batch(N, B, n, F, alpha, beta * B, s),
    "these gradients have 2 bytes per number: float32 has 4":
        lambda N, B, n, F, alpha, beta, s: my_smallest_batch(N, B, n, F, alpha, beta / 2, s)}.items()]
TEXT_3_8 = [
    term("3.8", "every bucket pays alpha", "* num_buckets * alpha_s", "* alpha_s"),
    term("3.8", "alpha for every step of the ring", "2 * (n - 1) * num_buckets", "num_buckets"),
    term("3.8", "(n-1)/n", "2 * (n - 1) / n * 4", "2 * 4"),
    term("3.8", "float32 gradients", "/ n * 4 *", "/ n * 2 *"),
    term("3.8", "whole sequences, and enough of them", " + (rest > 0)", ""),
    term("3.8", "at least as long: an exact fit will do", " + (rest > 0)", " + 1"),
    term("3.8", "backward alone", "/ (4 * num_parameters)", "/ (6 * num_parameters)"),
    example("3.8", lambda inputs, answers: (
        "{:.0e} parameters in {} buckets, n = {}, {:.0e} FLOP/s, alpha {:.0e} s, beta {:.0e} s a byte, sequences of "
        "{:,} tokens".format(*inputs[0]).replace("e+0", "e").replace("e+", "e").replace("e-0", "e-") +
        f": the messages take 0.02 + 4 s, as long as backward of 100,500 tokens -> {answers[0]['value']}"))]


# ---- 3.9 my_most_devices
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


def devices(flops_per_s=0.4 * 312e12, bytes_per_s=100e9, gradient_bytes=4):
    return 1 + 2 * 3.2e6 * bytes_per_s / (gradient_bytes * flops_per_s)


MOST_DEVICES = [wrong("3.9", says)(function) for says, function in {
    "a device is taken at its peak: it gets 40 % of that":
        lambda: devices(flops_per_s=312e12),
    "W is one card's, as where nodes have one GPU: a single ring would leave three of a node's four cards idle, so "
    "there is a ring for each card":
        lambda: devices(bytes_per_s=25e9),
    "W is NVLink's: a ring over many nodes leaves them by their cards, which carry 4 x 25 GB/s together":
        lambda: devices(bytes_per_s=300e9),
    "eight times too many: 200 Gbit/s are 25 GB/s for each card":
        lambda: devices(bytes_per_s=4 * 200e9),
    "W counts both directions of a card: what leaves a node has one of them, 25 GB/s, and what enters it the other":
        lambda: devices(bytes_per_s=2 * 100e9),
    "W is 200 GB/s, the 200 Gbit/s of one card: they are 25 GB/s, and a node has four cards":
        lambda: devices(bytes_per_s=200e9),
    "twice too many: float32 has 4 bytes per gradient, and a ring sends each of them nearly twice":
        lambda: devices(gradient_bytes=2),
    "all 6 N b FLOPs of a step hide the messages: they begin in backward, whose FLOPs are 4 N b":
        lambda: devices(flops_per_s=0.4 * 312e12 * 4 / 6),
    "a forward pass, 2 N b, hides the messages: it is backward, with 4 N b":
        lambda: devices(flops_per_s=0.4 * 312e12 * 2),
    "these are the tokens that a device needs: how many such shares has the batch?":
        lambda: 4 * 0.4 * 312e12 / (2 * 100e9),
    "these are nodes: how many devices are in them?":
        lambda: devices() / 4}.items()]


@wrong("3.9", "these are two levels, one after the other: the cards wait while NVLink adds up, NVLink while the cards "
       "send. A ring over all devices keeps both busy at once, so the slower of them decides, not their sum")
def devices_with_two_levels():
    def hidden(nodes):
        seconds_a_byte = 1.5 / 300e9 + 2 * (nodes - 1) / nodes / 4 / 25e9
        return 3.2e6 / (4 * nodes) / (0.4 * 312e12) >= seconds_a_byte
    return 4 * max(nodes for nodes in range(1, 1000) if hidden(nodes))


TEXT_3_9 = [
    term("3.9", "float32 gradients", "3.2e6, 4 ", "3.2e6, 2 "),
    term("3.9", "40 % of the peak", "0.4 * 312e12", "312e12"),
    term("3.9", "all cards of a node", "cards = 4", "cards = 1"),
    term("3.9", "the card's bits are not bytes", "200e9 / 8", "200e9"),
    term("3.9", "one way", "200e9 / 8", "2 * 200e9 / 8"),
    example("3.9", lambda inputs, answers: "The number of devices")]
