"""Right answers to the exercises of chapter 4 that nobody would think of first; tests/grading/test_answers.py has each
pass at ten seeds, in the names of the notebook beside this file.
"""
# ruff: noqa: F821

from fractions import Fraction
from functools import cache

import numpy
import torch
import torch.distributed as dist
from torch import nn

from tools.answers import right


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
