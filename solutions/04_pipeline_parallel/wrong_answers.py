"""Wrong answers to the exercises of chapter 4, as learners write them; tests/test_exercises.py has each refused.

The imports and the solutions are those of the notebook beside this file, in whose names it runs.
"""
# ruff: noqa: F821

import itertools

import torch
import torch.distributed as dist
from torch import nn

from course_lib.grading.wrong_answers import wrong


@wrong("4.1", "layers do not cost the same")
def partition_by_number(costs, num_stages):
    return [len(costs) // num_stages + (stage < len(costs) % num_stages) for stage in range(num_stages)]


@wrong("4.1", "the last one takes what is left")
def partition_fills_up_to_the_average(costs, num_stages):
    average, counts, held = sum(costs) / num_stages, [0], 0
    for index, cost in enumerate(costs):
        must = len(costs) - index <= num_stages - len(counts)
        if counts[-1] and len(counts) < num_stages and (held + cost > average or must):
            counts.append(0)
            held = 0
        counts[-1] += 1
        held += cost
    return counts


@wrong("4.1", "the smallest is asked")
def partition_takes_the_worst(costs, num_stages):
    def worst(cuts):
        bounds = [0, *cuts, len(costs)]
        return max(sum(costs[a:b]) for a, b in zip(bounds, bounds[1:]))

    cuts = max(itertools.combinations(range(1, len(costs)), num_stages - 1), key=worst)
    bounds = [0, *cuts, len(costs)]
    return [b - a for a, b in zip(bounds, bounds[1:])]


@wrong("4.1", "the last one ends with the last layer")
def partition_returns_the_cuts(costs, num_stages):
    def worst(cuts):
        bounds = [0, *cuts, len(costs)]
        return max(sum(costs[a:b]) for a, b in zip(bounds, bounds[1:]))

    return list(min(itertools.combinations(range(1, len(costs)), num_stages - 1), key=worst))


@wrong("4.2", "this is the naive pipeline")
def gpipe_one_at_a_time(rank, num_ranks, num_microbatches):
    return [f"{kind}{i}" for i in range(num_microbatches) for kind in "FB"]


@wrong("4.2", "rank 0: B0 stands before F0")
def gpipe_backwards_first(rank, num_ranks, num_microbatches):
    return [f"{kind}{i}" for kind in "BF" for i in range(num_microbatches)]


@wrong("4.2", "there are only micro-batches 0 to 7")
def gpipe_counts_from_one(rank, num_ranks, num_microbatches):
    return [f"{kind}{i}" for kind in "FB" for i in range(1, num_microbatches + 1)]


@wrong("4.2", "they are not dealt out to the ranks")
def gpipe_deals_out(rank, num_ranks, num_microbatches):
    return [f"{kind}{i}" for kind in "FB" for i in range(rank, num_microbatches, num_ranks)]


@wrong("4.2", "expected a list of strings")
def gpipe_as_one_string(rank, num_ranks, num_microbatches):
    return " ".join(f"{kind}{i}" for kind in "FB" for i in range(num_microbatches))


@wrong("4.3", "this is the share of the ideal time: here the total is asked")
def bubble_always_of_the_ideal(num_ranks, num_microbatches, num_chunks, of):
    return (num_ranks - 1) / (num_chunks * num_microbatches)


@wrong("4.3", "this is the share of the total: here the ideal time is asked")
def bubble_always_of_the_total(num_ranks, num_microbatches, num_chunks, of):
    return (num_ranks - 1) / (num_chunks * num_microbatches + num_ranks - 1)


@wrong("4.3", "the chunks are left out")
def bubble_without_chunks(num_ranks, num_microbatches, num_chunks, of):
    return (num_ranks - 1) / (num_microbatches + (num_ranks - 1 if of == "total" else 0))


@wrong("4.3", "a rank waits p - 1 times, not p")
def bubble_of_p(num_ranks, num_microbatches, num_chunks, of):
    return num_ranks / (num_chunks * num_microbatches + (num_ranks if of == "total" else 0))


@wrong("4.3", "this is the share of useful work")
def bubble_is_what_is_used(num_ranks, num_microbatches, num_chunks, of):
    return num_chunks * num_microbatches / (num_chunks * num_microbatches + num_ranks - 1)


def in_turns(warmup, num_microbatches):
    warmup = min(warmup, num_microbatches)
    order = [f"F{i}" for i in range(warmup)]
    for i in range(num_microbatches - warmup):
        order += [f"F{warmup + i}", f"B{i}"]
    return order + [f"B{i}" for i in range(num_microbatches - warmup, num_microbatches)]


@wrong("4.4", "one forward too many comes before the first backward")
def one_f_one_b_one_too_many(rank, num_ranks, num_microbatches):
    return in_turns(num_ranks - rank, num_microbatches)


@wrong("4.4", "all ranks get the head start of the first")
def one_f_one_b_the_same_everywhere(rank, num_ranks, num_microbatches):
    return in_turns(num_ranks - 1, num_microbatches)


@wrong("4.4", "the head start is turned around")
def one_f_one_b_turned_around(rank, num_ranks, num_microbatches):
    return in_turns(rank, num_microbatches)


@wrong("4.4", "when the forwards are used up, backwards are left")
def one_f_one_b_without_an_end(rank, num_ranks, num_microbatches):
    return in_turns(num_ranks - 1 - rank, num_microbatches)[:2 * num_microbatches - min(num_ranks - 1 - rank,
                                                                                         num_microbatches)]


@wrong("4.4", "this is GPipe, which keeps every micro-batch")
def one_f_one_b_is_gpipe(rank, num_ranks, num_microbatches):
    return my_gpipe(rank, num_ranks, num_microbatches)


@wrong("4.4", "there are only micro-batches 0 to 1")
def one_f_one_b_needs_many(rank, num_ranks, num_microbatches):
    warmup = num_ranks - 1 - rank
    order = [f"F{i}" for i in range(warmup)]
    for i in range(num_microbatches - warmup):
        order += [f"F{warmup + i}", f"B{i}"]
    return order + [f"B{i}" for i in range(num_microbatches - warmup, num_microbatches)]


def backward_of(saved, targets, scale, after=lambda gradient: gradient, sent=lambda x, gradient: x.grad):
    r, p = dist.get_rank(), dist.get_world_size()
    for i, (x, y) in enumerate(saved):
        gradient = torch.empty_like(y)
        if r == p - 1:
            (nn.functional.mse_loss(y, targets[i]) / scale).backward()
        else:
            dist.recv(gradient, r + 1)
            y.backward(after(gradient))
        if r > 0:
            dist.send(sent(x, gradient), r - 1)


@wrong("4.5", "so divide each loss by m")
def backward_forgets_to_divide(saved, targets):
    backward_of(saved, targets, 1)


@wrong("4.5", "what comes from the next rank is divided already")
def backward_divides_everywhere(saved, targets):
    backward_of(saved, targets, len(saved), after=lambda gradient: gradient / len(saved))


@wrong("4.5", "the gradient that was received is not used")
def backward_of_a_sum(saved, targets):
    backward_of(saved, targets, len(saved), after=torch.ones_like)


@wrong("4.5", "is passed on as it is")
def backward_passes_on(saved, targets):
    last = dist.get_rank() == dist.get_world_size() - 1
    backward_of(saved, targets, len(saved), sent=lambda x, gradient: x.grad if last else gradient)


@wrong("4.5", "rank 0 waits")
def backward_waits_for_the_wrong_side(saved, targets):
    r, p = dist.get_rank(), dist.get_world_size()
    for x, y in saved:
        gradient = torch.empty_like(y)
        dist.recv(gradient, r - 1 if r > 0 else r + 1)
        y.backward(gradient)
        if r < p - 1:
            dist.send(x.grad, r + 1)


@wrong("4.5", "the others receive theirs from the next rank")
def backward_on_the_last_rank_alone(saved, targets):
    if targets is not None:
        for (_, y), target in zip(saved, targets):
            (nn.functional.mse_loss(y, target) / len(saved)).backward()


def split(order, lag):
    written, waiting = [], []
    for action in order:
        if action.startswith("F"):
            written.append(action)
            continue
        written.append(action.replace("B", "I"))
        waiting.append(action.replace("B", "W"))
        if len(waiting) > lag:
            written.append(waiting.pop(0))
    return written + waiting


@wrong("4.6", "this is 1F1B, whose backward is whole")
def schedule_is_1f1b(rank, num_ranks, num_microbatches):
    return my_one_f_one_b(rank, num_ranks, num_microbatches)


@wrong("4.6", "each W comes right behind its I")
def schedule_with_w_at_once(rank, num_ranks, num_microbatches):
    return split(my_one_f_one_b(rank, num_ranks, num_microbatches), 0)


@wrong("4.6", "all W come at the end")
def schedule_with_w_at_the_end(rank, num_ranks, num_microbatches):
    return split(my_one_f_one_b(rank, num_ranks, num_microbatches), num_microbatches)


@wrong("4.6", "every rank lets as many W wait")
def schedule_with_the_same_wait(rank, num_ranks, num_microbatches):
    return split(my_one_f_one_b(rank, num_ranks, num_microbatches), num_ranks - 1)


@wrong("4.6", "the ranks are turned around")
def schedule_turned_around(rank, num_ranks, num_microbatches):
    return split(my_one_f_one_b(rank, num_ranks, num_microbatches), num_ranks - 1 - rank)


@wrong("4.6", "W0 stands before I0")
def schedule_with_weights_first(rank, num_ranks, num_microbatches):
    written = []
    for action in my_one_f_one_b(rank, num_ranks, num_microbatches):
        written += [action] if action.startswith("F") else [action.replace("B", "W"), action.replace("B", "I")]
    return written


@wrong("4.6", "W0 is missing, I0 is only half of backward")
def schedule_forgets_the_weights(rank, num_ranks, num_microbatches):
    return [action.replace("B", "I") for action in my_one_f_one_b(rank, num_ranks, num_microbatches)]
