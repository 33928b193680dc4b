"""Chapter 4: right and wrong answers, what each text stresses, each docstring's example; tools/answers.py reads it."""
# ruff: noqa: F821

import itertools
import math
from decimal import Decimal
from fractions import Fraction
from functools import cache

import numpy
import torch
import torch.distributed as dist
from torch import nn

from tools.answers import example, right, term, wrong


def rounds_of(numbers_of_rounds):
    return [f"{kind}{i}" for numbers in numbers_of_rounds for kind in "FB" for i in numbers]


def in_turns(warmup, num_microbatches):
    warmup = min(warmup, num_microbatches)
    order = [f"F{i}" for i in range(warmup)]
    for i in range(num_microbatches - warmup):
        order += [f"F{warmup + i}", f"B{i}"]
    return order + [f"B{i}" for i in range(num_microbatches - warmup, num_microbatches)]


def quoted(names):
    return str(names).replace("'", '"')


# ---- 4.1 my_partition
@right("4.1", "a search for the least cost of a stage, numpy's numbers")
def partition_by_binary_search(costs, num_stages):
    def stages(most):
        found, held = [0], 0
        for place, cost in enumerate(costs):
            if held + cost > most:
                found.append(place)
                held = 0
            held += cost
        return found
    most = next(most for most in range(max(costs), sum(costs) + 1) if len(stages(most)) <= num_stages)
    starts = set(stages(most))
    starts |= set([place for place in range(len(costs)) if place not in starts][:num_stages - len(starts)])
    return numpy.diff([*sorted(starts), len(costs)])


@right("4.1", "dynamic programming, a tuple")
def partition_by_dynamic_programming(costs, num_stages):
    @cache
    def best(start, stages):
        if stages == 1:
            return sum(costs[start:]), (len(costs) - start,)
        cuts = range(start + 1, len(costs) - stages + 2)
        return min((max(sum(costs[start:cut]), best(cut, stages - 1)[0]), (cut - start, *best(cut, stages - 1)[1]))
                   for cut in cuts)
    return best(0, num_stages)[1]


@right("4.1", "a list of numpy's whole numbers")
def partition_in_numpy(costs, num_stages):
    return [numpy.int64(size) for size in my_partition(costs, num_stages)]


@wrong("4.1", "all stages have as many layers, and layers do not cost the same: count costs")
def partition_by_number(costs, num_stages):
    return [len(costs) // num_stages + (stage < len(costs) % num_stages) for stage in range(num_stages)]


@wrong("4.1", "each stage is filled up to the average and the last one takes what is left: what is best for the first "
       "stages need not be best for all, so compare whole cuts")
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


@wrong("4.1", "this is the cut with the most expensive dearest stage: the smallest is asked")
def partition_takes_the_worst(costs, num_stages):
    def worst(bounds):
        return max(sum(costs[a:b]) for a, b in zip(bounds, bounds[1:]))

    every = itertools.combinations(range(1, len(costs)), num_stages - 1)
    bounds = max(([0, *cuts, len(costs)] for cuts in every), key=worst)
    return [b - a for a, b in zip(bounds, bounds[1:])]


@wrong("4.1", "the last one ends with the last layer")
def partition_returns_the_cuts(costs, num_stages):
    return list(itertools.accumulate(my_partition(costs, num_stages)))[:-1]


def cut_by(costs, num_stages, cost_of):
    """The cut with the least sum of cost_of(stage's cost)."""
    cuts = itertools.combinations(range(1, len(costs)), num_stages - 1)
    ends = min(([0, *cut, len(costs)] for cut in cuts),
               key=lambda ends: sum(cost_of(sum(costs[a:b])) for a, b in zip(ends, ends[1:])))
    return [b - a for a, b in zip(ends, ends[1:])]


@wrong("4.1", "the stages' squares are least together: one stage may still be more expensive than it has to be")
def partition_of_least_squares(costs, num_stages):
    return cut_by(costs, num_stages, lambda cost: cost**2)


@wrong(
    "4.1", "each cut is where the sum is nearest to its share: one stage may still be more expensive than it has to be")
def partition_nearest_to_the_shares(costs, num_stages):
    sums, ends = list(itertools.accumulate(costs)), [0]
    for stage in range(1, num_stages):
        places = range(ends[-1] + 1, len(costs) - num_stages + stage + 1)
        ends.append(min(places, key=lambda end: abs(sums[end - 1] - sums[-1] * stage / num_stages)))
    ends.append(len(costs))
    return [b - a for a, b in zip(ends, ends[1:])]


@wrong("4.1", "no single cut can be moved and make it better, but two together can: compare whole cuts")
def partition_moves_one_cut_at_a_time(costs, num_stages):
    def worst(ends):
        return max(sum(costs[a:b]) for a, b in zip(ends, ends[1:]))

    ends = [0, *itertools.accumulate(partition_by_number.function(costs, num_stages))]
    while True:
        moved = [[*ends[:i], ends[i] + by, *ends[i + 1:]] for i in range(1, num_stages) for by in (-1, 1)
                 if ends[i - 1] < ends[i] + by < ends[i + 1]]
        if not moved or worst(best := min(moved, key=worst)) >= worst(ends):
            return [b - a for a, b in zip(ends, ends[1:])]
        ends = best


TEXT_4_1 = [
    term("4.1", "layers are weighed, not counted", "sum(costs[a:b])", "b - a"),
    term("4.1", "the most expensive stage", "key=lambda cuts: max(", "key=lambda cuts: -min("),
    term("4.1", "every stage at least one layer", "range(1, len(costs))", "range(len(costs))"),
    example("4.1", lambda inputs, answers: [
        f"costs = {inputs[0][0]}, the layers' costs in the model's order; {inputs[0][1]} stages",
        f"{answers[0]} has 9, 8 and 7"])]


# ---- 4.2 my_rounds
@right("4.2", "the last one back first")
def rounds_last_back_first(rank, num_ranks, num_microbatches, num_in_flight):
    order = []
    for start in range(0, num_microbatches, num_in_flight):
        some = list(range(start, min(start + num_in_flight, num_microbatches)))
        order += [f"F{i}" for i in some] + [f"B{i}" for i in some[::-1]]
    return order


@right("4.2", "sorted by round, kind and number, an array of strings")
def rounds_sorted(rank, num_ranks, num_microbatches, num_in_flight):
    every = [(i // num_in_flight, kind == "B", i, f"{kind}{i}") for kind in "FB" for i in range(num_microbatches)]
    return numpy.array([name for *_, name in sorted(every)])


@wrong("4.2", "this is one round of all micro-batches: the next round starts when the g before have come back")
def rounds_is_gpipe(rank, num_ranks, num_microbatches, num_in_flight):
    return rounds_of([range(num_microbatches)])


@wrong("4.2", "this is the naive pipeline: each micro-batch comes back before the next one starts, and one rank works "
       "at a time")
def rounds_one_at_a_time(rank, num_ranks, num_microbatches, num_in_flight):
    return rounds_of([i] for i in range(num_microbatches))


@wrong("4.2", "the last round is missing: it is not full, and has to be done as well")
def rounds_without_the_rest(rank, num_ranks, num_microbatches, num_in_flight):
    g = num_in_flight
    return rounds_of(range(k * g, (k + 1) * g) for k in range(num_microbatches // g))


@wrong("4.2", "the last round goes on beyond the last micro-batch: it may have less than num_in_flight")
def rounds_that_are_always_full(rank, num_ranks, num_microbatches, num_in_flight):
    return rounds_of(range(start, start + num_in_flight) for start in range(0, num_microbatches, num_in_flight))


@wrong("4.2", "num_in_flight is how many micro-batches a round has, not how many rounds there are")
def rounds_by_their_number(rank, num_ranks, num_microbatches, num_in_flight):
    size = num_microbatches // num_in_flight
    return rounds_of(range(start, min(start + size, num_microbatches)) for start in range(0, num_microbatches, size))


@wrong("4.2", "a round has as many micro-batches as there are ranks: num_in_flight is asked")
def rounds_of_as_many_as_ranks(rank, num_ranks, num_microbatches, num_in_flight):
    return my_rounds(rank, num_ranks, num_microbatches, num_ranks)


@wrong("4.2", "rank 0: B0 stands before F0")
def rounds_backwards_first(rank, num_ranks, num_microbatches, num_in_flight):
    return [f"{kind}{i}" for kind in "BF" for i in range(num_microbatches)]


@wrong("4.2", "every micro-batch passes every rank: they are not dealt out to the ranks")
def rounds_deal_out(rank, num_ranks, num_microbatches, num_in_flight):
    return rounds_of([range(rank, num_microbatches, num_ranks)])


@wrong("4.2", "expected a list of strings")
def rounds_as_one_string(rank, num_ranks, num_microbatches, num_in_flight):
    return " ".join(my_rounds(rank, num_ranks, num_microbatches, num_in_flight))


@wrong("4.2", "it uses course_lib.pipeline_parallel")
def rounds_by_the_library(rank, num_ranks, num_microbatches, num_in_flight):
    from course_lib.pipeline_parallel import gpipe

    return [str(action) for action in gpipe(num_ranks, num_microbatches).actions[rank]]


@wrong("4.2", "where g does not divide m, m // g rounds are too few: a round would have more than g micro-batches")
def rounds_of_equal_size(rank, num_ranks, num_microbatches, num_in_flight):
    k = num_microbatches // num_in_flight or 1
    return rounds_of(chunk.tolist() for chunk in torch.arange(num_microbatches).tensor_split(k))


@right("4.2", "a generator")
def rounds_one_by_one(rank, num_ranks, num_microbatches, num_in_flight):
    left = iter(range(num_microbatches))
    while some := list(itertools.islice(left, num_in_flight)):
        yield from (f"{kind}{i}" for kind in "FB" for i in some)


TEXT_4_2 = [
    term(
        "4.2",
        "g forward and back, then the next g",
        "range(start, min(start + num_in_flight, num_microbatches))",
        "range(start, min(start + num_ranks, num_microbatches))"),
    term(
        "4.2", "the last round may not be full", "min(start + num_in_flight, num_microbatches)", "start + num_in_flight"
    ),
    term(
        "4.2",
        "all forward before the first comes back",
        'for kind in "FB" for i in some',
        'for i in some for kind in "FB"'),
    example("4.2", lambda inputs, answers: (
        f"m = {inputs[0][2]}, g = {inputs[0][3]}, on either rank of the picture: {quoted(answers[0])}"))]


# ---- 4.3 my_bubble
@right("4.3", "a Fraction")
def bubble_as_a_fraction(stage_costs, num_microbatches, of):
    step = sum(stage_costs) + (num_microbatches - 1) * max(stage_costs)
    whole, work = len(stage_costs) * step, num_microbatches * sum(stage_costs)
    return Fraction(whole - work, whole if of == "total" else work)


@right("4.3", "the pipeline played, a tensor")
def bubble_played(stage_costs, num_microbatches, of):
    free = [0] * len(stage_costs)
    for _ in range(num_microbatches):
        at = 0
        for stage, cost in enumerate(stage_costs):
            at = free[stage] = max(at, free[stage]) + cost
    work = torch.tensor(stage_costs, dtype=torch.float64).sum() * num_microbatches
    idle = len(free) * free[-1] - work
    return idle / (idle + work) if of == "total" else idle / work


@wrong("4.3", "this is the share of the ideal time: here the total is asked, with the idle time in the denominator")
def bubble_always_of_the_ideal(stage_costs, num_microbatches, of):
    return my_bubble(stage_costs, num_microbatches, "ideal")


@wrong("4.3", "this is the share of the total: here the ideal time is asked, without the idle time in the denominator")
def bubble_always_of_the_total(stage_costs, num_microbatches, of):
    return my_bubble(stage_costs, num_microbatches, "total")


@wrong("4.3", "this takes all stages for equally long, as in (p - 1)/(m + p - 1): all others keep the pace of the "
       "slowest")
def bubble_of_equal_stages(stage_costs, num_microbatches, of):
    idle = len(stage_costs) - 1
    return idle / (num_microbatches + (idle if of == "total" else 0))


def bubble_of_step(step, stage_costs, num_microbatches, of):
    work = num_microbatches * sum(stage_costs)
    idle = len(stage_costs) * step - work
    return idle / (work + idle if of == "total" else work)


@wrong("4.3", "filling and draining the line takes each stage's own time, not p - 1 times the slowest's")
def bubble_where_the_slowest_is_everywhere(stage_costs, num_microbatches, of):
    step = (num_microbatches + len(stage_costs) - 1) * max(stage_costs)
    return bubble_of_step(step, stage_costs, num_microbatches, of)


@wrong("4.3", "the slowest stage is counted m times beside the first passage, which it is a part of: m - 1 others "
       "follow")
def bubble_with_the_slowest_once_more(stage_costs, num_microbatches, of):
    step = sum(stage_costs) + num_microbatches * max(stage_costs)
    return bubble_of_step(step, stage_costs, num_microbatches, of)


@wrong("4.3", "this is the share of useful work: 1 minus it is asked")
def bubble_is_what_is_used(stage_costs, num_microbatches, of):
    return 1 - my_bubble(stage_costs, num_microbatches, "total")


@wrong("4.3", "the work is that of one micro-batch: there are m")
def bubble_with_the_work_of_one(stage_costs, num_microbatches, of):
    step, work = sum(stage_costs) + (num_microbatches - 1) * max(stage_costs), sum(stage_costs)
    return (len(stage_costs) * step - work) / (len(stage_costs) * step if of == "total" else work)


@wrong("4.3", "these are per cent: a share is asked")
def bubble_in_per_cent(stage_costs, num_microbatches, of):
    return 100 * my_bubble(stage_costs, num_microbatches, of)


@wrong("4.3", "this is what the slowest rank idles: the others wait for it, too, and all ranks' time is asked")
def bubble_of_the_slowest_rank(stage_costs, num_microbatches, of):
    step = sum(stage_costs) + (num_microbatches - 1) * max(stage_costs)
    work = num_microbatches * max(stage_costs)
    return (step - work) / (step if of == "total" else work)


@wrong("4.3", "this is the pace of the last stage: micro-batches come out at that of the slowest, wherever it stands")
def bubble_at_the_pace_of_the_last(stage_costs, num_microbatches, of):
    step = sum(stage_costs) + (num_microbatches - 1) * stage_costs[-1]
    return bubble_of_step(step, stage_costs, num_microbatches, of)


BUBBLE_IN_DECIMAL = right("4.3", "a Decimal")(lambda *asked: Decimal(my_bubble(*asked)))


TEXT_4_3 = [
    term("4.3", "the pace of the slowest", "* max(stage_costs)", "* stage_costs[-1]"),
    term(
        "4.3",
        "the first goes at the pace of each",
        "step = sum(stage_costs)",
        "step = len(stage_costs) * max(stage_costs)"),
    term(
        "4.3",
        "of the total or of the ideal time",
        'if of == "total" else idle / work',
        'if of != "total" else idle / work'),
    example("4.3", lambda inputs, answers: (
        f"{inputs[0][0]}, {inputs[0][1]} micro-batches: the step takes 3, each rank works for 2: "
        f"1/{1 / answers[0]['value']:.0f} of the total"))]


# ---- 4.4 my_one_f_one_b
@right("4.4", "by zip, a tuple")
def one_f_one_b_by_zip(rank, num_ranks, num_microbatches):
    ahead = min(num_ranks - 1 - rank, num_microbatches)
    forwards, backwards = ([f"{kind}{i}" for i in range(num_microbatches)] for kind in "FB")
    turns = [each for pair in zip(forwards[ahead:], backwards) for each in pair]
    return (*forwards[:ahead], *turns, *backwards[num_microbatches - ahead:])


@right("4.4", "a forward whenever there is room, else the backward that is due")
def one_f_one_b_by_room(rank, num_ranks, num_microbatches):
    order, sent, back = [], 0, 0
    while back < num_microbatches:
        if sent < num_microbatches and sent - back < num_ranks - rank:
            order.append(f"F{sent}")
            sent += 1
        else:
            order.append(f"B{back}")
            back += 1
    return order


@wrong("4.4", "one forward too many comes before the first backward: the turns begin with a forward, so p - 1 - r come "
       "before them")
def one_f_one_b_one_too_many(rank, num_ranks, num_microbatches):
    return in_turns(num_ranks - rank, num_microbatches)


@wrong("4.4", "all ranks get the head start of the first: the later a rank is, the sooner its first gradient comes")
def one_f_one_b_the_same_everywhere(rank, num_ranks, num_microbatches):
    return in_turns(num_ranks - 1, num_microbatches)


@wrong("4.4", "the head start is turned around: the first rank waits longest for a gradient, so it is the one that "
       "sends most forwards ahead")
def one_f_one_b_turned_around(rank, num_ranks, num_microbatches):
    return in_turns(rank, num_microbatches)


@wrong("4.4", "one forward too few comes before the turns: rank r sends p - 1 - r ahead")
def one_f_one_b_one_too_few(rank, num_ranks, num_microbatches):
    return in_turns(max(0, num_ranks - 2 - rank), num_microbatches)


@wrong("4.4", "no rank has a head start: this is the naive pipeline")
def one_f_one_b_is_naive(rank, num_ranks, num_microbatches):
    return in_turns(0, num_microbatches)


@wrong("4.4", "when the forwards are used up, backwards are left: as many as there were forwards before the turns")
def one_f_one_b_without_an_end(rank, num_ranks, num_microbatches):
    order = my_one_f_one_b(rank, num_ranks, num_microbatches)
    return order[:2 * num_microbatches - min(num_ranks - 1 - rank, num_microbatches)]


@wrong("4.4", "this is GPipe, which keeps every micro-batch until the last one has come down")
def one_f_one_b_is_gpipe(rank, num_ranks, num_microbatches):
    return rounds_of([range(num_microbatches)])


@wrong("4.4", "it uses course_lib.pipeline_parallel")
def one_f_one_b_by_the_library(rank, num_ranks, num_microbatches):
    from course_lib import pipeline_parallel

    return [str(action) for action in pipeline_parallel.one_f_one_b(num_ranks, num_microbatches).actions[rank]]


@wrong("4.4", "there are only micro-batches 0 to 1")
def one_f_one_b_needs_many(rank, num_ranks, num_microbatches):
    warmup = num_ranks - 1 - rank
    order = [f"F{i}" for i in range(warmup)]
    for i in range(num_microbatches - warmup):
        order += [f"F{warmup + i}", f"B{i}"]
    return order + [f"B{i}" for i in range(num_microbatches - warmup, num_microbatches)]


@wrong("4.4", "two forwards too few come before the turns: rank r sends p - 1 - r ahead")
def one_f_one_b_two_too_few(rank, num_ranks, num_microbatches):
    return in_turns(max(0, num_ranks - 3 - rank), num_microbatches)


@wrong("4.4", "the last rank takes micro-batches in pairs: it can turn each one around at once, and hold one at a time")
def one_f_one_b_in_pairs_on_the_last(rank, num_ranks, num_microbatches):
    order = my_one_f_one_b(rank, num_ranks, num_microbatches)
    if rank < num_ranks - 1:
        return order
    return rounds_of(range(start, min(start + 2, num_microbatches)) for start in range(0, num_microbatches, 2))


@wrong("4.4", "the last backwards come in the opposite order: the gradient that came first waits for all others")
def one_f_one_b_newest_first_at_the_end(rank, num_ranks, num_microbatches):
    order = my_one_f_one_b(rank, num_ranks, num_microbatches)
    left = min(num_ranks - 1 - rank, num_microbatches)
    return order[:len(order) - left] + order[len(order) - left:][::-1]


TEXT_4_4 = [
    term("4.4", "a head start of p - 1 - r", "num_ranks - 1 - rank", "num_ranks - 1"),
    term("4.4", "m may be smaller than p", "min(num_ranks - 1 - rank, num_microbatches)", "num_ranks - 1 - rank"),
    term("4.4", "one forward, then one backward", '[f"F{warmup + i}", f"B{i}"]', '[f"B{i}", f"F{warmup + i}"]'),
    example("4.4", lambda inputs, answers: "p = {}, m = {}: rank 0 has {}, rank 1 has {}".format(
        *inputs[0][1:], *map(quoted, answers)))]


# ---- 4.5 my_pipeline_backward
def tied_sum(tied):
    """Both parts, by an exchange without an order."""
    if tied is not None:
        other, there = torch.empty_like(tied), dist.get_world_size() - 1 - dist.get_rank()
        sending = dist.isend(tied.grad.clone(), there)
        dist.recv(other, there)
        sending.wait()
        tied.grad += other


@right("4.5", "sends that nobody waits for before the end")
def backward_isend(saved, targets, tied):
    r, p, works = dist.get_rank(), dist.get_world_size(), []
    for i, (x, y) in enumerate(saved):
        gradient = torch.empty_like(y)
        if r == p - 1:
            (nn.functional.mse_loss(y, targets[i]) / len(saved)).backward()
        else:
            dist.recv(gradient, r + 1)
            y.backward(gradient)
        works += [dist.isend(x.grad, r - 1)] if r else []
    for work in works:
        work.wait()
    tied_sum(tied)


@right("4.5", "all receives are asked for beforehand, and the gradients divided in the end")
def backward_asks_beforehand(saved, targets, tied):
    r, p = dist.get_rank(), dist.get_world_size()
    arriving = [torch.empty_like(y) for _, y in saved]
    works = [dist.irecv(gradient, r + 1) for gradient in arriving] if r < p - 1 else []
    for i, (x, y) in enumerate(saved):
        if r == p - 1:
            gradient, = torch.autograd.grad(nn.functional.mse_loss(y, targets[i]), y)
        else:
            works[i].wait()
            gradient = arriving[i]
        y.backward(gradient / len(saved) if r == p - 1 else gradient)
        if r:
            dist.send(x.grad, r - 1)
    tied_sum(tied)


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


def others_part(tied, receives_first=0, adds_before_it_sends=False):
    """The other rank's part of the tied gradient, which stays as it is unless who receives first adds."""
    other, rank = torch.empty_like(tied), dist.get_rank()
    peer = dist.get_world_size() - 1 - rank
    if rank == receives_first:
        dist.recv(other, peer)
        if adds_before_it_sends:
            tied.grad += other
        dist.send(tied.grad, peer)
    else:
        dist.send(tied.grad, peer)
        dist.recv(other, peer)
    return other


def add_tied(tied):
    if tied is not None:
        tied.grad += others_part(tied)


def add_tied_and_send_it_back(tied, first):
    """`first` adds, and sends the sum to the other one, who adds it to its own part."""
    if tied is not None:
        other = others_part(tied, receives_first=first, adds_before_it_sends=True)
        if dist.get_rank() != first:
            tied.grad += other


def add_tied_on(tied, rank):
    """Only `rank` gets the other part."""
    if tied is not None and dist.get_rank() == rank:
        other = torch.empty_like(tied)
        dist.recv(other, dist.get_world_size() - 1 - rank)
        tied.grad += other
    elif tied is not None:
        dist.send(tied.grad, rank)


@wrong("4.5", "the tied weight has one rank's part of its gradient: the first and the last rank each have the other "
       "part, and both need the sum")
def backward_forgets_the_tied_weight(saved, targets, tied):
    backward_of(saved, targets, len(saved))


@wrong("4.5", "the first rank sends the sum back, and the last one adds it to its own part, which is in it already: "
       "send what belongs to this rank alone")
def backward_sends_the_sum_back(saved, targets, tied):
    backward_of(saved, targets, len(saved))
    add_tied_and_send_it_back(tied, 0)


@wrong("4.5", "the last rank sends the sum back, and the first one adds it to its own part, which is in it already: "
       "send what belongs to this rank alone")
def backward_sends_the_sum_to_the_first(saved, targets, tied):
    backward_of(saved, targets, len(saved))
    add_tied_and_send_it_back(tied, dist.get_world_size() - 1)


@wrong("4.5", "the tied weight has the other rank's part of its gradient: both need the sum of the two")
def backward_takes_the_others_part(saved, targets, tied):
    backward_of(saved, targets, len(saved))
    if tied is not None:
        tied.grad.copy_(others_part(tied))


@wrong("4.5", "only the first rank has the sum for the tied weight: the last one steps its copy as well, and the two "
       "would part")
def backward_sums_on_the_first_rank_alone(saved, targets, tied):
    backward_of(saved, targets, len(saved))
    add_tied_on(tied, 0)


@wrong("4.5", "only the last rank has the sum for the tied weight: the first one steps its copy as well, and the two "
       "would part")
def backward_sums_on_the_last_rank_alone(saved, targets, tied):
    backward_of(saved, targets, len(saved))
    add_tied_on(tied, dist.get_world_size() - 1)


@wrong("4.5", "the two parts of the tied gradient are averaged: they belong to one weight at two places of one loss, "
       "so they add up")
def backward_averages_the_tied_weight(saved, targets, tied):
    backward_of(saved, targets, len(saved))
    add_tied(tied)
    if tied is not None:
        tied.grad /= 2


@wrong("4.5", "only the gradient of x travels, to the rank before, and that of the tied weight, once, when it is "
       "complete")
def backward_exchanges_after_each_microbatch(saved, targets, tied):
    total = torch.zeros_like(tied) if tied is not None else None
    for i, pair in enumerate(saved):
        backward_of([pair], targets and targets[i:i + 1], len(saved))
        if tied is not None:
            total += tied.grad + others_part(tied)
            tied.grad = None
    if tied is not None:
        tied.grad = total


@wrong("4.5", "rank 0 sends to rank 1")
def backward_where_both_send_first(saved, targets, tied):
    backward_of(saved, targets, len(saved))
    if tied is not None:
        other, peer = torch.empty_like(tied), dist.get_world_size() - 1 - dist.get_rank()
        dist.send(tied.grad, peer)
        dist.recv(other, peer)
        tied.grad += other


@wrong("4.5", "every gradient is m times too large: backward adds up m means, and one mean is asked, so divide each "
       "loss by m")
def backward_forgets_to_divide(saved, targets, tied):
    backward_of(saved, targets, 1)
    add_tied(tied)


@wrong("4.5", "gradients are divided by m twice: the loss alone has to be")
def backward_divides_twice(saved, targets, tied):
    backward_of(saved, targets, len(saved) ** 2)
    add_tied(tied)


@wrong("4.5", "only the last micro-batch is in the gradients: all of `saved` has to go backward")
def backward_of_the_last_microbatch(saved, targets, tied):
    backward_of(saved[-1:], targets and targets[-1:], len(saved))
    add_tied(tied)


@wrong("4.5", "only the first micro-batch is in the gradients: all of `saved` has to go backward")
def backward_of_the_first_microbatch(saved, targets, tied):
    backward_of(saved[:1], targets, len(saved))
    add_tied(tied)


@wrong("4.5", "the micro-batches and their targets are taken in opposite orders")
def backward_in_opposite_orders(saved, targets, tied):
    backward_of(saved, targets and targets[::-1], len(saved))
    add_tied(tied)


@wrong("4.5", "every rank divides by m, and what comes from the next rank is divided already: only the loss is, once")
def backward_divides_everywhere(saved, targets, tied):
    backward_of(saved, targets, len(saved), after=lambda gradient: gradient / len(saved))
    add_tied(tied)


@wrong("4.5", "the gradient that was received is not used: y.backward(gradient) takes it")
def backward_of_a_sum(saved, targets, tied):
    backward_of(saved, targets, len(saved), after=torch.ones_like)
    add_tied(tied)


@wrong("4.5", "the gradient that was received is passed on as it is: the rank before needs that of x, which backward "
       "has left in x.grad")
def backward_passes_on(saved, targets, tied):
    last = dist.get_rank() == dist.get_world_size() - 1
    backward_of(saved, targets, len(saved), sent=lambda x, gradient: x.grad if last else gradient)
    add_tied(tied)


@wrong("4.5", "rank 0 waits")
def backward_waits_for_the_wrong_side(saved, targets, tied):
    r, p = dist.get_rank(), dist.get_world_size()
    for x, y in saved:
        gradient = torch.empty_like(y)
        dist.recv(gradient, r - 1 if r > 0 else r + 1)
        y.backward(gradient)
        if r < p - 1:
            dist.send(x.grad, r + 1)


@wrong("4.5", "only the last rank has gradients: the others receive theirs from the next rank")
def backward_on_the_last_rank_alone(saved, targets, tied):
    if targets is not None:
        for (_, y), target in zip(saved, targets):
            (nn.functional.mse_loss(y, target) / len(saved)).backward()


def turned_around(saved, targets, tied, order):
    """Backward in this order; all gradients are received first, and sent in the end, each in a message of its own."""
    r, p, m = dist.get_rank(), dist.get_world_size(), len(saved)
    received = [torch.empty_like(y) for _, y in saved]
    for gradient in received if r < p - 1 else ():
        dist.recv(gradient, r + 1)
    for i in order:
        x, y = saved[i]
        if r == p - 1:
            (nn.functional.mse_loss(y, targets[i]) / m).backward()
        else:
            y.backward(received[i])
    for x, _ in saved if r else ():
        dist.send(x.grad, r - 1)
    add_tied(tied)


@wrong("4.5", "or the rank before has nothing to do")
def backward_all_then_send(saved, targets, tied):
    turned_around(saved, targets, tied, range(len(saved)))


@wrong("4.5", "first one first")
def backward_last_one_first(saved, targets, tied):
    turned_around(saved, targets, tied, range(len(saved))[::-1])


@wrong("4.5", "with all of them in one it can begin only when this one is through")
def backward_in_one_message(saved, targets, tied):
    r, p, m = dist.get_rank(), dist.get_world_size(), len(saved)
    if r == p - 1:
        for (_, y), target in zip(saved, targets):
            (nn.functional.mse_loss(y, target) / m).backward()
    else:
        gradients = torch.stack([y for _, y in saved]).detach().clone()
        dist.recv(gradients, r + 1)
        for (_, y), gradient in zip(saved, gradients):
            y.backward(gradient)
    if r:
        dist.send(torch.stack([x.grad for x, _ in saved]), r - 1)
    add_tied(tied)


@wrong("4.5", "the loss is divided by a micro-batch's rows, and not by its numbers: mse_loss is a mean over both")
def backward_of_a_mean_over_rows(saved, targets, tied):
    D = saved[0][1].shape[1]
    backward_of(saved, targets, len(saved) / D)
    add_tied(tied)


@wrong("4.5", "what is sent is the x.grad of the micro-batch before: send each when its own backward is over")
def backward_sends_the_one_before(saved, targets, tied):
    before = []

    def sent(x, gradient):
        before.append(x.grad)
        return before[-2] if len(before) > 1 else torch.zeros_like(x)

    backward_of(saved, targets, len(saved), sent=sent)
    add_tied(tied)


def halves(tensor):
    return str(tensor.tolist()).replace(".0", ".")


TEXT_4_5 = [
    term("4.5", "the mean over the micro-batches", " / m).backward()", ").backward()"),
    term("4.5", "first one first", "enumerate(saved):", "reversed(list(enumerate(saved))):"),
    term("4.5", "the gradient of what came in", "dist.send(x.grad, r - 1)", "dist.send(y.detach().clone(), r - 1)"),
    term(
        "4.5",
        "the tied weight's parts are added up",
        "        tied.grad += other\n",
        "        tied.grad.copy_(other)\n"),
    example("4.5", lambda inputs, answers: [
        f"both have {halves(answers[0]['gradients']['weight'])}",
        f"gradients are [1.] and [3.] leave {halves(answers[1]['gradients']['bias'])} in .grad"])]


# ---- 4.6 my_schedule
@right("4.6", "a whole B on the first rank, as B frees its memory at once")
def schedule_with_a_whole_b(rank, num_ranks, num_microbatches):
    order = my_schedule(rank, num_ranks, num_microbatches)
    return [name.replace("I", "B") for name in order if name[0] != "W"] if rank == 0 else order


@right("4.6", "the newest W first")
def schedule_newest_w_first(rank, num_ranks, num_microbatches):
    waiting, order = [], []
    for name in my_schedule(rank, num_ranks, num_microbatches):
        waiting += [name[1:]] if name[0] == "I" else []
        order.append(f"W{waiting.pop()}" if name[0] == "W" else name)
    return order


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


@wrong("4.6", "this is 1F1B, whose backward is whole: split it, so that the stage before waits for its half alone")
def schedule_is_1f1b(rank, num_ranks, num_microbatches):
    return my_one_f_one_b(rank, num_ranks, num_microbatches)


@wrong("4.6", "each W comes right behind its I, where others wait for this rank: let it wait, r turns on rank r")
def schedule_with_w_at_once(rank, num_ranks, num_microbatches):
    return split(my_one_f_one_b(rank, num_ranks, num_microbatches), 0)


@wrong("4.6", "all W come at the end, and the activations wait with them: on rank r, r of them may wait")
def schedule_with_w_at_the_end(rank, num_ranks, num_microbatches):
    return split(my_one_f_one_b(rank, num_ranks, num_microbatches), num_microbatches)


@wrong("4.6", "every rank lets as many W wait: the first rank has no memory left for that, the last one most")
def schedule_with_the_same_wait(rank, num_ranks, num_microbatches):
    return split(my_one_f_one_b(rank, num_ranks, num_microbatches), num_ranks - 1)


@wrong("4.6", "the ranks are turned around: the first has sent most forwards ahead and has no memory left for a W that "
       "waits, so rank r lets r of them wait")
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


@wrong("4.6", "it uses course_lib.pipeline_parallel")
def schedule_by_the_library(rank, num_ranks, num_microbatches):
    from course_lib.pipeline_parallel.schedules import zb_h1

    return [str(action) for action in zb_h1(num_ranks, num_microbatches).actions[rank]]


@wrong("4.6", "one W more waits on each rank than there is room for: on rank r, r of them may wait")
def schedule_with_one_more_waiting(rank, num_ranks, num_microbatches):
    return split(my_one_f_one_b(rank, num_ranks, num_microbatches), rank + 1)


@wrong("4.6", "one W fewer waits on each rank than there is room for: on rank r, r of them may wait")
def schedule_with_one_less_waiting(rank, num_ranks, num_microbatches):
    return split(my_one_f_one_b(rank, num_ranks, num_microbatches), max(rank - 1, 0))


@wrong("4.6", "half as many W wait as there is room for: on rank r, r of them may wait")
def schedule_with_half_of_them_waiting(rank, num_ranks, num_microbatches):
    return split(my_one_f_one_b(rank, num_ranks, num_microbatches), rank // 2)


@wrong("4.6", "this is ZB-H2's head start, 2 (p - 1 - r) + 1 forwards: it has no idle time, and holds up to 2p - 1")
def schedule_with_twice_the_head_start(rank, num_ranks, num_microbatches):
    return split(in_turns(2 * (num_ranks - 1 - rank), num_microbatches), 2 * rank)


TEXT_4_6 = [
    term("4.6", "W waits, as long as there is room", 'W{i - rank}"] if i >= rank', 'W{i}"] if True'),
    term("4.6", "W before the end", '[f"W{i - rank}"] if i >= rank else []', "[]"),
    term("4.6", "a head start", "num_ranks - 1 - rank", "0 * rank"),
    example("4.6", lambda inputs, answers: f"One rank, two micro-batches: {quoted(answers[0])} is never idle")]


# ---- 4.7 my_interleaved
@right("4.7", "by quotient and rest")
def interleaved_by_divmod(rank, num_ranks, num_microbatches, num_chunks):
    p, every = num_ranks, num_microbatches * num_chunks

    def name(kind, turn):
        group, within = divmod(turn, p * num_chunks)
        chunk, i = divmod(within, p)
        chunk = chunk if kind == "F" else num_chunks - 1 - chunk
        return f"{kind}{group * p + i}.{chunk}"
    ahead = (num_chunks - 1) * p + p - 1 - rank
    order = [name("F", turn) for turn in range(ahead)]
    for turn in range(every - ahead):
        order += [name("F", ahead + turn), name("B", turn)]
    return order + [name("B", turn) for turn in range(every - ahead, every)]


@right("4.7", "chunk 0 as .0, a tuple")
def interleaved_dot_zero(rank, num_ranks, num_microbatches, num_chunks):
    return tuple(name if "." in name else f"{name}.0"
                 for name in my_interleaved(rank, num_ranks, num_microbatches, num_chunks))


def interleaved(ahead, num_ranks, num_microbatches, num_chunks, size=None, last_first=True):
    size, chunks = size or num_ranks, range(num_chunks)

    def grouped(kind, chunks):
        return [f"{kind}{i}.{c}" if c else f"{kind}{i}" for start in range(0, num_microbatches, size) for c in chunks
                for i in range(start, start + size)]

    forwards, backwards = grouped("F", chunks), grouped("B", chunks[::-1] if last_first else chunks)
    ahead = min(ahead, len(forwards))
    turns = [action for pair in zip(forwards[ahead:], backwards) for action in pair]
    return forwards[:ahead] + turns + backwards[len(forwards) - ahead:]


@wrong("4.7", "the head start is that of one chunk: a micro-batch has to pass all v")
def interleaved_as_1f1b(rank, num_ranks, num_microbatches, num_chunks):
    return interleaved(num_ranks - 1 - rank, num_ranks, num_microbatches, num_chunks)


@wrong("4.7", "this is the papers' head start of two forwards a rank, which gives messages time to travel: here they "
       "take none, and one a rank is enough")
def interleaved_as_in_megatron(rank, num_ranks, num_microbatches, num_chunks):
    ahead = 2 * (num_ranks - 1 - rank) + (num_chunks - 1) * num_ranks
    return interleaved(ahead, num_ranks, num_microbatches, num_chunks)


@wrong("4.7", "one forward too many comes before the first backward: the turns begin with a forward")
def interleaved_one_too_many(rank, num_ranks, num_microbatches, num_chunks):
    return interleaved(num_chunks * num_ranks - rank, num_ranks, num_microbatches, num_chunks)


@wrong("4.7", "one group too many comes before the first backward: the last chunk's turn is among the turns")
def interleaved_one_group_too_many(rank, num_ranks, num_microbatches, num_chunks):
    return interleaved((num_chunks + 1) * num_ranks - 1 - rank, num_ranks, num_microbatches, num_chunks)


@wrong("4.7", "all ranks get the head start of the first: the later a rank is, the sooner its first gradient comes")
def interleaved_the_same_everywhere(rank, num_ranks, num_microbatches, num_chunks):
    return interleaved(num_chunks * num_ranks - 1, num_ranks, num_microbatches, num_chunks)


@wrong("4.7", "one micro-batch after the other passes all chunks, and between two of its chunks the rank waits for the "
       "others: let p of them follow each other")
def interleaved_one_after_the_other(rank, num_ranks, num_microbatches, num_chunks):
    return interleaved(num_chunks * num_ranks - 1 - rank, num_ranks, num_microbatches, num_chunks, size=1)


@wrong("4.7", "all micro-batches pass a chunk before the next chunk begins: they go in groups of p, which pass all "
       "chunks before the next group begins")
def interleaved_chunk_after_chunk(rank, num_ranks, num_microbatches, num_chunks):
    ahead = (num_chunks - 1) * num_microbatches + num_ranks - 1 - rank
    return interleaved(ahead, num_ranks, num_microbatches, num_chunks, size=num_microbatches)


@wrong("4.7", "backward begins with the first chunk: gradients come from the end of the model, so with the last one")
def interleaved_back_in_the_order_of_forward(rank, num_ranks, num_microbatches, num_chunks):
    ahead = (num_chunks - 1) * num_ranks + num_ranks - 1 - rank
    return interleaved(ahead, num_ranks, num_microbatches, num_chunks, last_first=False)


@wrong("4.7", "this is GPipe: everything goes forward before the first gradient comes back")
def interleaved_is_gpipe(rank, num_ranks, num_microbatches, num_chunks):
    return interleaved(num_chunks * num_microbatches, num_ranks, num_microbatches, num_chunks)


@wrong("4.7", "'F0.2' among its actions: expected \"F0\" or \"B0\" and so on, chunk 1 as \"F0.1\"")
def interleaved_counts_chunks_from_one(rank, num_ranks, num_microbatches, num_chunks):
    return [f"{kind}{i}.{c}" for kind in "FB" for i in range(num_microbatches) for c in range(1, num_chunks + 1)]


@wrong("4.7", "the head start counts p - 1 for each chunk: a group of p passes each of the first v - 1 chunks")
def interleaved_with_p_less_one_a_chunk(rank, num_ranks, num_microbatches, num_chunks):
    return interleaved(num_chunks * (num_ranks - 1) - rank, num_ranks, num_microbatches, num_chunks)


@wrong("4.7", "one forward too few comes before the first backward")
def interleaved_one_too_few(rank, num_ranks, num_microbatches, num_chunks):
    ahead = (num_chunks - 1) * num_ranks + num_ranks - 2 - rank
    return interleaved(max(ahead, 0), num_ranks, num_microbatches, num_chunks)


TEXT_4_7 = [
    term("4.7", "the head start passes all chunks", "(v - 1) * p + p - 1 - rank", "p - 1 - rank"),
    term("4.7", "groups of p", "range(start, start + p) for start in range(0, m, p)", "range(m)"),
    term("4.7", "backward from the last chunk to the first", "range(v)[::-1]", "range(v)"),
    term(
        "4.7",
        "one forward and one backward in turns",
        "for pair in zip(forwards[ahead:], backwards) for action in pair",
        "for pair in zip(backwards, forwards[ahead:]) for action in pair"),
    example("4.7", lambda inputs, answers: (
        "p = {}, m = {}, v = {}: rank 1 has {}".format(*inputs[0][1:], quoted(answers[1]))))]


# ---- 4.8 my_layout
@right("4.8", "an array of numpy")
def layout_in_numpy(*asked):
    return numpy.array(my_layout(*asked))


@right("4.8", "in fractions, the largest that is as good")
def layout_in_fractions(num_devices, num_sequences, state_gb, activations_gb, device_gb, overhead):
    best = None
    for p in range(num_devices, 0, -1):
        if num_devices % p:
            continue
        own = num_sequences * p // num_devices
        for b in range(1, own + 1):
            m = own // b
            if own % b or Fraction(state_gb) + min(p, m) * b * Fraction(activations_gb) > p * Fraction(device_gb):
                continue
            step = Fraction(m + p - 1) * (b + Fraction(overhead)) / p
            if best is None or step < best[0]:
                best = step, p, m
    return list(best[1:])


def best_layout(num_devices, num_sequences, fits, time):
    layouts = [(p, m) for p in range(1, num_devices + 1) if num_devices % p == 0
               for m in range(1, num_sequences * p // num_devices + 1) if num_sequences * p // num_devices % m == 0]
    return min(filter(lambda layout: fits(*layout), layouts), key=lambda layout: time(*layout))


def step_of(num_devices, num_sequences, overhead):
    return lambda p, m: (m + p - 1) * (num_sequences * p / num_devices / m + overhead) / p


def fits_in(num_devices, num_sequences, state_gb, activations_gb, device_gb):
    own = num_sequences / num_devices
    return lambda p, m: state_gb / p + min(p, m) * own / m * activations_gb <= device_gb


@wrong("4.8", "this would be the shortest step if memory were without end")
def layout_without_memory(num_devices, num_sequences, state_gb, activations_gb, device_gb, overhead):
    return best_layout(num_devices, num_sequences, lambda p, m: True, step_of(num_devices, num_sequences, overhead))


@wrong("4.8", "this is the longest step of all that fit")
def layout_of_the_longest_step(num_devices, num_sequences, state_gb, activations_gb, device_gb, overhead):
    step = step_of(num_devices, num_sequences, overhead)
    fits = fits_in(num_devices, num_sequences, state_gb, activations_gb, device_gb)
    return best_layout(num_devices, num_sequences, fits, lambda p, m: -step(p, m))


@wrong("4.8", "the state alone fits, and activations are left out")
def layout_without_activations(num_devices, num_sequences, state_gb, activations_gb, device_gb, overhead):
    return best_layout(num_devices, num_sequences, lambda p, m: state_gb / p <= device_gb,
                       step_of(num_devices, num_sequences, overhead))


@wrong("4.8", "it holds what GPipe would: under 1F1B the first rank has at most p micro-batches in flight, not m")
def layout_for_gpipe(num_devices, num_sequences, state_gb, activations_gb, device_gb, overhead):
    own = num_sequences / num_devices  # of a rank: its p-th of p times as many
    return best_layout(num_devices, num_sequences, lambda p, m: state_gb / p + own * activations_gb <= device_gb,
                       step_of(num_devices, num_sequences, overhead))


@wrong("4.8", "it counts one micro-batch in flight: the first rank has min(p, m) of them")
def layout_with_one_in_flight(num_devices, num_sequences, state_gb, activations_gb, device_gb, overhead):
    own = num_sequences / num_devices
    return best_layout(num_devices, num_sequences, lambda p, m: state_gb / p + own / m * activations_gb <= device_gb,
                       step_of(num_devices, num_sequences, overhead))


@wrong("4.8", "this has the least idle time of all that fit: but small micro-batches cost more time than they save, so "
       "compare steps")
def layout_of_the_least_idle_time(num_devices, num_sequences, state_gb, activations_gb, device_gb, overhead):
    fits = fits_in(num_devices, num_sequences, state_gb, activations_gb, device_gb)
    return best_layout(num_devices, num_sequences, fits, lambda p, m: (p - 1) / m)


@wrong("4.8", "these are the fewest stages that fit: with more of them there is room for larger micro-batches, so "
       "compare all")
def layout_of_the_fewest_stages(num_devices, num_sequences, state_gb, activations_gb, device_gb, overhead):
    step = step_of(num_devices, num_sequences, overhead)
    fits = fits_in(num_devices, num_sequences, state_gb, activations_gb, device_gb)
    return best_layout(num_devices, num_sequences, fits, lambda p, m: (p, step(p, m)))


@wrong("4.8", "m is counted for a replica, and there are 16 of them")
def layout_of_the_whole_batch(num_devices, num_sequences, state_gb, activations_gb, device_gb, overhead):
    return 4, num_sequences


@wrong("4.8", "some devices have nothing to do")
def layout_that_leaves_devices_out(num_devices, num_sequences, state_gb, activations_gb, device_gb, overhead):
    return 3, 1


def chosen_layout(asked, in_flight=min, slots=lambda p, m: m + p - 1, gb=1.0, may=lambda p, m: True):
    num_devices, num_sequences, state_gb, activations_gb, device_gb, overhead = asked
    layouts = []
    for p in (p for p in range(1, num_devices + 1) if num_devices % p == 0):
        own = num_sequences * p // num_devices
        for m in (m for m in range(1, own + 1) if own % m == 0 and may(p, m)):
            if (state_gb + in_flight(p, m) * own / m * activations_gb) / p <= device_gb * gb:
                layouts.append((slots(p, m) * (own / m + overhead) / p, p, m))
    return min(layouts)[1:]


@wrong("4.8", "p micro-batches are counted in flight where a replica has only m: min(p, m)")
def layout_with_p_in_flight(*asked):
    return chosen_layout(asked, in_flight=lambda p, m: p)


@wrong("4.8", "layouts with fewer micro-batches than stages are left out: they may be the quickest that fit")
def layout_with_at_least_p(*asked):
    return chosen_layout(asked, may=lambda p, m: m >= p)


@wrong("4.8", "a step of m micro-batches over p stages has m + p - 1 turns, not m + p")
def layout_with_a_turn_too_many(*asked):
    return chosen_layout(asked, slots=lambda p, m: m + p)


@wrong("4.8", "device_gb are GB, as all that it has to hold: a GiB is 7 % more")
def layout_in_gib(*asked):
    return chosen_layout(asked, gb=2**30 / 1e9)


@wrong("4.8", "k is left out: each micro-batch takes as long as k sequences more")
def layout_without_overhead(num_devices, num_sequences, state_gb, activations_gb, device_gb, overhead):
    return chosen_layout((num_devices, num_sequences, state_gb, activations_gb, device_gb, 0))


@wrong("4.8", "a stage has a p-th of the layers, so a turn takes a p-th of the time")
def layout_of_whole_turns(*asked):
    return chosen_layout(asked, slots=lambda p, m: p * (m + p - 1))


@wrong("4.8", "these are the most micro-batches that fit: each costs its k, so compare steps")
def layout_of_the_most_microbatches(*asked):
    return chosen_layout(asked, slots=lambda p, m: 1 / m)


@wrong("4.8", "a device may be filled to the brim")
def layout_with_room_left(*asked):
    return chosen_layout(asked, gb=1 - 1e-9)


TEXT_4_8 = [
    term("4.8", "min(p, m) micro-batches in flight", "min(p, m)", "p"),
    term(
        "4.8",
        "a batch may have fewer micro-batches than stages",
        "num_devices % p == 0",
        "num_devices % p == 0 and m >= p"),
    term("4.8", "m + p - 1 turns, not one more", "(m + p - 1)", "(m + p)"),
    term("4.8", "m + p - 1 turns, not one less", "(m + p - 1)", "(m + p - 2)"),
    term("4.8", "all devices may be one pipeline", "range(1, num_devices + 1)", "range(1, num_devices)"),
    term("4.8", "small micro-batches are slow", " + overhead)", ")"),
    term("4.8", "it has to fit", "held <= device_gb", "True"),
    term("4.8", "to the brim", "held <= device_gb", "held < device_gb"),
    term("4.8", "m divides a replica's sequences", " and own % m == 0", ""),
    term("4.8", "a replica's, not the batch's", "own % m == 0", "num_sequences % m == 0"),
    example("4.8", lambda inputs, answers: [
        "{} devices, {} sequences, {} GB of state, {} GB a sequence, {} GB a device, k = {}".format(*inputs[0]),
        "so ({}, {})".format(*answers[0])])]


# ---- 4.9 my_least_batch
@right("4.9", "counted up until little enough is idle")
def batch_by_counting(num_devices, tensor_parallel, num_stages, num_chunks, sequence_length, idle):
    m = 1
    while Fraction(num_stages - 1, num_chunks * m + num_stages - 1) > Fraction(str(idle)):
        m += 1
    return num_devices / (tensor_parallel * num_stages) * m * sequence_length


@right("4.9", "numpy's ceiling")
def batch_in_numpy(num_devices, tensor_parallel, num_stages, num_chunks, sequence_length, idle):
    m = numpy.ceil((num_stages - 1) / num_chunks * (1 / idle - 1)).astype(int)
    return num_devices // (tensor_parallel * num_stages) * m * sequence_length


def least_microbatches(p, v, idle):
    return math.ceil((p - 1) * (1 - idle) / (v * idle) - 1e-9)


@wrong("4.9", "that is for one replica: all of them need as many")
def batch_of_one_replica(num_devices, tensor_parallel, num_stages, num_chunks, sequence_length, idle):
    return least_microbatches(num_stages, num_chunks, idle) * sequence_length


@wrong("4.9", "every stage is taken for a replica: num_stages ranks work on one sequence, so divide by them")
def batch_where_stages_are_replicas(num_devices, tensor_parallel, num_stages, num_chunks, sequence_length, idle):
    m = least_microbatches(num_stages, num_chunks, idle)
    return num_devices / tensor_parallel * m * sequence_length


@wrong("4.9", "tensor parallel ranks are taken for replicas: they work on the same sequence, so divide by them")
def batch_without_tensor_parallelism(num_devices, tensor_parallel, num_stages, num_chunks, sequence_length, idle):
    m = least_microbatches(num_stages, num_chunks, idle)
    return num_devices / num_stages * m * sequence_length


@wrong("4.9", "a share of the ideal time was taken for one of the total: idle = (p - 1)/(v m + p - 1)")
def batch_for_the_ideal_time(num_devices, tensor_parallel, num_stages, num_chunks, sequence_length, idle):
    m = math.ceil((num_stages - 1) / (num_chunks * idle))
    return num_devices / (tensor_parallel * num_stages) * m * sequence_length


@wrong("4.9", "the chunks are left out: with v of them a bubble is v times shorter")
def batch_without_chunks(num_devices, tensor_parallel, num_stages, num_chunks, sequence_length, idle):
    m = least_microbatches(num_stages, 1, idle)
    return num_devices / (tensor_parallel * num_stages) * m * sequence_length


@wrong("4.9", "these are sequences: tokens are asked")
def batch_in_sequences(num_devices, tensor_parallel, num_stages, num_chunks, sequence_length, idle):
    return my_least_batch(num_devices, tensor_parallel, num_stages, num_chunks, 1, idle)


@wrong("4.9", "this is the batch in which that share of the time is work, and the rest idle")
def batch_that_is_mostly_idle(num_devices, tensor_parallel, num_stages, num_chunks, sequence_length, idle):
    return my_least_batch(num_devices, tensor_parallel, num_stages, num_chunks, sequence_length, 1 - idle)


@wrong("4.9", "half a micro-batch is no micro-batch: round m up, and then multiply")
def batch_not_rounded(num_devices, tensor_parallel, num_stages, num_chunks, sequence_length, idle):
    m = (num_stages - 1) * (1 - idle) / (num_chunks * idle)
    return num_devices / (tensor_parallel * num_stages) * m * sequence_length


@wrong("4.9", "m is made a multiple of p: interleaving likes that, and here the smallest batch is asked")
def batch_of_a_multiple_of_stages(num_devices, tensor_parallel, num_stages, num_chunks, sequence_length, idle):
    m = math.ceil(least_microbatches(num_stages, num_chunks, idle) / num_stages) * num_stages
    return num_devices // (tensor_parallel * num_stages) * m * sequence_length


@wrong("4.9", "m is rounded down: with one micro-batch less more of the time is idle than is allowed")
def batch_rounded_down(num_devices, tensor_parallel, num_stages, num_chunks, sequence_length, idle):
    m = math.floor((num_stages - 1) * (1 - idle) / (num_chunks * idle) + 1e-9)
    return num_devices // (tensor_parallel * num_stages) * m * sequence_length


@wrong("4.9", "m is rounded to the nearest: down, in this case, and then more of the time is idle than is allowed")
def batch_rounded_to_the_nearest(num_devices, tensor_parallel, num_stages, num_chunks, sequence_length, idle):
    m = round((num_stages - 1) * (1 - idle) / (num_chunks * idle))
    return num_devices // (tensor_parallel * num_stages) * m * sequence_length


TEXT_4_9 = [
    term("4.9", "chunks", "(num_chunks * idle)", "idle"),
    term("4.9", "of the total time", "* (1 - idle) /", "/"),
    term("4.9", "whole micro-batches", "math.ceil(", "("),
    term("4.9", "every replica its own", "(tensor_parallel * num_stages)", "tensor_parallel"),
    term("4.9", "tensor parallelism", "(tensor_parallel * num_stages)", "num_stages"),
    example("4.9", lambda inputs, answers: (
        "{} devices, tensor_parallel={}, {} stages, {} chunk, {} tokens, idle={}: two replicas, m = 3, ".format(
            *inputs[0])
        + f"{answers[0]['value']} tokens"))]
