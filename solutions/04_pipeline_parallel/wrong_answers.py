"""Wrong answers to the exercises of chapter 4, as learners write them; tests/test_exercises.py has each refused.

The imports and the solutions are those of the notebook beside this file, in whose names it runs.
"""
# ruff: noqa: F821

import itertools
import math

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


def rounds_of(numbers_of_rounds):
    return [f"{kind}{i}" for numbers in numbers_of_rounds for kind in "FB" for i in numbers]


@wrong("4.2", "this is one round of all micro-batches")
def rounds_is_gpipe(rank, num_ranks, num_microbatches, num_in_flight):
    return rounds_of([range(num_microbatches)])


@wrong("4.2", "this is the naive pipeline")
def rounds_one_at_a_time(rank, num_ranks, num_microbatches, num_in_flight):
    return rounds_of([i] for i in range(num_microbatches))


@wrong("4.2", "the last round is missing")
def rounds_without_the_rest(rank, num_ranks, num_microbatches, num_in_flight):
    g = num_in_flight
    return rounds_of(range(k * g, (k + 1) * g) for k in range(num_microbatches // g))


@wrong("4.2", "the last round goes on beyond the last micro-batch")
def rounds_that_are_always_full(rank, num_ranks, num_microbatches, num_in_flight):
    return rounds_of(range(start, start + num_in_flight) for start in range(0, num_microbatches, num_in_flight))


@wrong("4.2", "not how many rounds there are")
def rounds_by_their_number(rank, num_ranks, num_microbatches, num_in_flight):
    size = num_microbatches // num_in_flight
    return rounds_of(range(start, min(start + size, num_microbatches)) for start in range(0, num_microbatches, size))


@wrong("4.2", "rank 0: B0 stands before F0")
def rounds_backwards_first(rank, num_ranks, num_microbatches, num_in_flight):
    return [f"{kind}{i}" for kind in "BF" for i in range(num_microbatches)]


@wrong("4.2", "they are not dealt out to the ranks")
def rounds_deal_out(rank, num_ranks, num_microbatches, num_in_flight):
    return rounds_of([range(rank, num_microbatches, num_ranks)])


@wrong("4.2", "expected a list of strings")
def rounds_as_one_string(rank, num_ranks, num_microbatches, num_in_flight):
    return " ".join(my_rounds(rank, num_ranks, num_microbatches, num_in_flight))


@wrong("4.2", "it uses course_lib.pipeline_parallel")
def rounds_by_the_library(rank, num_ranks, num_microbatches, num_in_flight):
    from course_lib.pipeline_parallel import gpipe

    return [str(action) for action in gpipe(num_ranks, num_microbatches).actions[rank]]


@wrong("4.3", "this is the share of the ideal time: here the total is asked")
def bubble_always_of_the_ideal(stage_costs, num_microbatches, of):
    return my_bubble(stage_costs, num_microbatches, "ideal")


@wrong("4.3", "this is the share of the total: here the ideal time is asked")
def bubble_always_of_the_total(stage_costs, num_microbatches, of):
    return my_bubble(stage_costs, num_microbatches, "total")


@wrong("4.3", "this takes all stages for equally long")
def bubble_of_equal_stages(stage_costs, num_microbatches, of):
    idle = len(stage_costs) - 1
    return idle / (num_microbatches + (idle if of == "total" else 0))


def bubble_of_step(step, stage_costs, num_microbatches, of):
    work = num_microbatches * sum(stage_costs)
    idle = len(stage_costs) * step - work
    return idle / (work + idle if of == "total" else work)


@wrong("4.3", "filling and draining the line takes each stage's own time")
def bubble_where_the_slowest_is_everywhere(stage_costs, num_microbatches, of):
    step = (num_microbatches + len(stage_costs) - 1) * max(stage_costs)
    return bubble_of_step(step, stage_costs, num_microbatches, of)


@wrong("4.3", "m - 1 others follow")
def bubble_with_the_slowest_once_more(stage_costs, num_microbatches, of):
    step = sum(stage_costs) + num_microbatches * max(stage_costs)
    return bubble_of_step(step, stage_costs, num_microbatches, of)


@wrong("4.3", "this is the share of useful work")
def bubble_is_what_is_used(stage_costs, num_microbatches, of):
    return 1 - my_bubble(stage_costs, num_microbatches, "total")


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


def others_part(tied, first_adds_before_it_sends=False):
    """The other rank's part of the tied gradient, which stays as it is but for the first rank's, if that adds."""
    other, last = torch.empty_like(tied), dist.get_world_size() - 1
    if dist.get_rank() == 0:
        dist.recv(other, last)
        if first_adds_before_it_sends:
            tied.grad += other
        dist.send(tied.grad, last)
    else:
        dist.send(tied.grad, 0)
        dist.recv(other, 0)
    return other


def add_tied(tied):
    if tied is not None:
        tied.grad += others_part(tied)


@wrong("4.5", "the first and the last rank each have the other part")
def backward_forgets_the_tied_weight(saved, targets, tied):
    backward_of(saved, targets, len(saved))


@wrong("4.5", "the first rank sends the sum back")
def backward_sends_the_sum_back(saved, targets, tied):
    backward_of(saved, targets, len(saved))
    if tied is not None:
        other = others_part(tied, first_adds_before_it_sends=True)
        if dist.get_rank() > 0:
            tied.grad += other


@wrong("4.5", "only the first rank has the sum")
def backward_sums_on_the_first_rank_alone(saved, targets, tied):
    backward_of(saved, targets, len(saved))
    if tied is not None and dist.get_rank() > 0:
        dist.send(tied.grad, 0)
    elif tied is not None:
        other = torch.empty_like(tied)
        dist.recv(other, dist.get_world_size() - 1)
        tied.grad += other


@wrong("4.5", "they add up")
def backward_averages_the_tied_weight(saved, targets, tied):
    backward_of(saved, targets, len(saved))
    add_tied(tied)
    if tied is not None:
        tied.grad /= 2


@wrong("4.5", "once, when it is complete")
def backward_exchanges_after_each_microbatch(saved, targets, tied):
    total = torch.zeros_like(tied) if tied is not None else None
    for i, pair in enumerate(saved):
        backward_of([pair], targets and targets[i:i + 1], len(saved))
        if tied is not None:
            total += tied.grad + others_part(tied)
            tied.grad = None
    if tied is not None:
        tied.grad = total


@wrong("4.5", "rank 0 sends to rank 2")
def backward_where_both_send_first(saved, targets, tied):
    backward_of(saved, targets, len(saved))
    if tied is not None:
        other, peer = torch.empty_like(tied), dist.get_world_size() - 1 - dist.get_rank()
        dist.send(tied.grad, peer)
        dist.recv(other, peer)
        tied.grad += other


@wrong("4.5", "so divide each loss by m")
def backward_forgets_to_divide(saved, targets, tied):
    backward_of(saved, targets, 1)
    add_tied(tied)


@wrong("4.5", "what comes from the next rank is divided already")
def backward_divides_everywhere(saved, targets, tied):
    backward_of(saved, targets, len(saved), after=lambda gradient: gradient / len(saved))
    add_tied(tied)


@wrong("4.5", "the gradient that was received is not used")
def backward_of_a_sum(saved, targets, tied):
    backward_of(saved, targets, len(saved), after=torch.ones_like)
    add_tied(tied)


@wrong("4.5", "is passed on as it is")
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


@wrong("4.5", "the others receive theirs from the next rank")
def backward_on_the_last_rank_alone(saved, targets, tied):
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


@wrong("4.6", "it uses course_lib.pipeline_parallel")
def schedule_by_the_library(rank, num_ranks, num_microbatches):
    from course_lib.pipeline_parallel.schedules import zb_h1

    return [str(action) for action in zb_h1(num_ranks, num_microbatches).actions[rank]]


def interleaved(ahead, num_ranks, num_microbatches, num_chunks, size=None, last_first=True):
    size, chunks = size or num_ranks, range(num_chunks)

    def grouped(kind, chunks):
        return [f"{kind}{i}.{c}" if c else f"{kind}{i}" for start in range(0, num_microbatches, size) for c in chunks
                for i in range(start, start + size)]

    forwards, backwards = grouped("F", chunks), grouped("B", chunks[::-1] if last_first else chunks)
    ahead = min(ahead, len(forwards))
    turns = [action for pair in zip(forwards[ahead:], backwards) for action in pair]
    return forwards[:ahead] + turns + backwards[len(forwards) - ahead:]


@wrong("4.7", "the head start is that of one chunk")
def interleaved_as_1f1b(rank, num_ranks, num_microbatches, num_chunks):
    return interleaved(num_ranks - 1 - rank, num_ranks, num_microbatches, num_chunks)


@wrong("4.7", "this is the papers' head start of two forwards a rank")
def interleaved_as_in_megatron(rank, num_ranks, num_microbatches, num_chunks):
    ahead = 2 * (num_ranks - 1 - rank) + (num_chunks - 1) * num_ranks
    return interleaved(ahead, num_ranks, num_microbatches, num_chunks)


@wrong("4.7", "one forward too many comes before the first backward")
def interleaved_one_too_many(rank, num_ranks, num_microbatches, num_chunks):
    return interleaved(num_chunks * num_ranks - rank, num_ranks, num_microbatches, num_chunks)


@wrong("4.7", "all micro-batches pass a chunk before the next chunk begins")
def interleaved_chunk_after_chunk(rank, num_ranks, num_microbatches, num_chunks):
    ahead = (num_chunks - 1) * num_microbatches + num_ranks - 1 - rank
    return interleaved(ahead, num_ranks, num_microbatches, num_chunks, size=num_microbatches)


@wrong("4.7", "backward begins with the first chunk")
def interleaved_back_in_the_order_of_forward(rank, num_ranks, num_microbatches, num_chunks):
    ahead = (num_chunks - 1) * num_ranks + num_ranks - 1 - rank
    return interleaved(ahead, num_ranks, num_microbatches, num_chunks, last_first=False)


@wrong("4.7", "this is GPipe")
def interleaved_is_gpipe(rank, num_ranks, num_microbatches, num_chunks):
    return interleaved(num_chunks * num_microbatches, num_ranks, num_microbatches, num_chunks)


@wrong("4.7", """'F0.2' among its actions: expected "F0" or "B0" and so on, chunk 1 as "F0.1\"""")
def interleaved_counts_chunks_from_one(rank, num_ranks, num_microbatches, num_chunks):
    return [f"{kind}{i}.{c}" for kind in "FB" for i in range(num_microbatches) for c in range(1, num_chunks + 1)]


def best_layout(num_devices, num_sequences, fits, time):
    layouts = [(p, m) for p in range(1, num_devices + 1) if num_devices % p == 0
               for m in range(1, num_sequences * p // num_devices + 1) if num_sequences * p // num_devices % m == 0]
    return min(filter(lambda layout: fits(*layout), layouts), key=lambda layout: time(*layout))


def step_of(num_devices, num_sequences, overhead):
    return lambda p, m: (m + p - 1) * (num_sequences * p / num_devices / m + overhead) / p


@wrong("4.8", "activations are left out")
def layout_without_activations(num_devices, num_sequences, state_gb, activations_gb, device_gb, overhead):
    return best_layout(num_devices, num_sequences, lambda p, m: state_gb / p <= device_gb,
                       step_of(num_devices, num_sequences, overhead))


@wrong("4.8", "it holds what GPipe would")
def layout_for_gpipe(num_devices, num_sequences, state_gb, activations_gb, device_gb, overhead):
    own = num_sequences / num_devices  # of a rank: its p-th of p times as many
    return best_layout(num_devices, num_sequences, lambda p, m: state_gb / p + own * activations_gb <= device_gb,
                       step_of(num_devices, num_sequences, overhead))


@wrong("4.8", "it counts one micro-batch in flight")
def layout_with_one_in_flight(num_devices, num_sequences, state_gb, activations_gb, device_gb, overhead):
    own = num_sequences / num_devices
    return best_layout(num_devices, num_sequences, lambda p, m: state_gb / p + own / m * activations_gb <= device_gb,
                       step_of(num_devices, num_sequences, overhead))


@wrong("4.8", "small micro-batches cost more time than they save")
def layout_of_the_least_idle_time(num_devices, num_sequences, state_gb, activations_gb, device_gb, overhead):
    def held(p, m):
        return (state_gb + min(p, m) * num_sequences * p / num_devices / m * activations_gb) / p

    return best_layout(num_devices, num_sequences, lambda p, m: held(p, m) <= device_gb, lambda p, m: (p - 1) / m)


@wrong("4.8", "these are the fewest stages that fit")
def layout_of_the_fewest_stages(num_devices, num_sequences, state_gb, activations_gb, device_gb, overhead):
    def held(p, m):
        return (state_gb + min(p, m) * num_sequences * p / num_devices / m * activations_gb) / p

    step = step_of(num_devices, num_sequences, overhead)
    return best_layout(num_devices, num_sequences, lambda p, m: held(p, m) <= device_gb,
                       lambda p, m: (p, step(p, m)))


@wrong("4.8", "m is counted for a replica, and there are 16 of them")
def layout_of_the_whole_batch(num_devices, num_sequences, state_gb, activations_gb, device_gb, overhead):
    return 4, num_sequences


@wrong("4.8", "some devices have nothing to do")
def layout_that_leaves_devices_out(num_devices, num_sequences, state_gb, activations_gb, device_gb, overhead):
    return 3, 1


def least_microbatches(p, v, idle):
    return math.ceil((p - 1) * (1 - idle) / (v * idle) - 1e-9)


@wrong("4.9", "that is for one replica")
def batch_of_one_replica(num_devices, tensor_parallel, num_stages, num_chunks, sequence_length, idle):
    return least_microbatches(num_stages, num_chunks, idle) * sequence_length


@wrong("4.9", "every stage is taken for a replica")
def batch_where_stages_are_replicas(num_devices, tensor_parallel, num_stages, num_chunks, sequence_length, idle):
    m = least_microbatches(num_stages, num_chunks, idle)
    return num_devices / tensor_parallel * m * sequence_length


@wrong("4.9", "tensor parallel ranks are taken for replicas")
def batch_without_tensor_parallelism(num_devices, tensor_parallel, num_stages, num_chunks, sequence_length, idle):
    m = least_microbatches(num_stages, num_chunks, idle)
    return num_devices / num_stages * m * sequence_length


@wrong("4.9", "a share of the ideal time was taken for one of the total")
def batch_for_the_ideal_time(num_devices, tensor_parallel, num_stages, num_chunks, sequence_length, idle):
    m = math.ceil((num_stages - 1) / (num_chunks * idle))
    return num_devices / (tensor_parallel * num_stages) * m * sequence_length


@wrong("4.9", "the chunks are left out")
def batch_without_chunks(num_devices, tensor_parallel, num_stages, num_chunks, sequence_length, idle):
    m = least_microbatches(num_stages, 1, idle)
    return num_devices / (tensor_parallel * num_stages) * m * sequence_length
