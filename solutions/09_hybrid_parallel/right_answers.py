"""Right answers to the exercises of chapter 9 that nobody would think of first; tests/grading/test_answers.py has each
pass at ten seeds, in the names of the notebook beside this file.
"""
# ruff: noqa: F821

import math
from itertools import product

import numpy
import torch
import torch.distributed as dist

from tools.answers import right


@right("9.1", "numpy's unravel_index and ravel_multi_index")
def moved_in_numpy(rank, sizes, order, new_order):
    old, new = order.split(","), new_order.split(",")
    where = dict(zip(old, numpy.unravel_index(rank, [sizes[axis] for axis in old], order="F")))
    return numpy.ravel_multi_index([where[axis] for axis in new], [sizes[axis] for axis in new], order="F")


@right("9.1", "a tensor of all ranks, its axes moved")
def moved_in_a_tensor(rank, sizes, order, new_order):
    old, new = order.split(",")[::-1], new_order.split(",")[::-1]
    ranks = torch.arange(int(numpy.prod(list(sizes.values())))).view([sizes[axis] for axis in old])
    return (ranks.permute([old.index(axis) for axis in new]).flatten() == rank).nonzero()[0, 0]


@right("9.2", "numpy's whole numbers, tuples")
def levels_in_numpy(*asked):
    inside, across = my_two_levels(*asked)
    return tuple(numpy.array(group) for group in inside), tuple(map(tuple, across))


@right("9.2", "in another order, found by comparing all pairs")
def levels_by_pairs(axes, sizes, order, ranks_per_node):
    names, total = order.split(","), int(numpy.prod(list(sizes.values())))

    def place(rank):
        where = {}
        for axis in names:
            rank, where[axis] = divmod(rank, sizes[axis])
        return where
    places = [place(rank) for rank in range(total)]
    key = [tuple(where[axis] for axis in names if axis not in axes) for where in places]
    groups = {}
    for rank in reversed(range(total)):
        groups.setdefault(key[rank], []).append(rank)
    inside, across = [], []
    for group in groups.values():
        parts = {}
        for rank in sorted(group):
            parts.setdefault(rank // ranks_per_node, []).append(rank)
        inside += [part[::-1] for part in parts.values()]
        across += [list(each) for each in zip(*parts.values())]
    return inside[::-1], across


def added_up(gradients, kinds, num_tokens, all_reduce, divide_first):
    total = num_tokens.clone()
    all_reduce(total, "cp", "dp")
    axes = {"split": "dp cp", "replicated": "dp cp", "partial": "dp cp tp", "tied": "dp cp pp", "expert": "edp"}
    for name in sorted(gradients):
        if divide_first:
            gradients[name] /= total
        all_reduce(gradients[name], *axes[kinds[name]].split()[::-1])
        if not divide_first:
            gradients[name].div_(total)


@right("9.3", "divided first, names in order")
def reduced_divided_first(gradients, kinds, num_tokens, all_reduce):
    added_up(gradients, kinds, num_tokens, all_reduce, divide_first=True)


@right("9.3", "axes in another order")
def reduced_with_axes_turned(gradients, kinds, num_tokens, all_reduce):
    added_up(gradients, kinds, num_tokens, all_reduce, divide_first=False)


@right("9.3", "all of one kind together, and the tokens in the same message")
def reduced_kind_by_kind(gradients, kinds, num_tokens, all_reduce):
    axes = {"partial": ("tp", "dp", "cp"), "tied": ("pp", "dp", "cp"), "expert": ("edp",), "split": ("dp", "cp")}
    first = [torch.atleast_1d(num_tokens)]
    for kind in ("split", "replicated", "partial", "tied", "expert"):
        own = [gradient for name, gradient in gradients.items() if kinds[name] == kind]
        if own or first:
            flat = torch.cat([each.flatten() for each in first + own])
            all_reduce(flat, *axes.get(kind, ("cp", "dp")))
            if first:
                total, flat, first = flat[0].clone(), flat[1:], []
            for gradient, part in zip(own, flat.split([each.numel() for each in own])):
                gradient.copy_(part.view_as(gradient) / total)


@right("9.4", "with Python's own numbers, sent in four bytes")
def norm_in_four_bytes(gradients, kinds, coordinates, norm_type, zero):
    inside = {"replicated": "tp", "partial": "tp", "tied": "pp"}
    own = [0.0]
    for name, gradient in gradients.items():
        copies = ["edp"] if kinds[name] == "expert" else ["dp", "cp"]
        if not any(coordinates[axis] for axis in ([] if zero else copies) + [inside.get(kinds[name], "")] if axis):
            own += map(abs, gradient.flatten().tolist())
    largest = norm_type == float("inf")
    total = torch.tensor(max(own) if largest else math.fsum(each**norm_type for each in own))
    dist.all_reduce(total, dist.ReduceOp.MAX if largest else dist.ReduceOp.SUM)
    return float(total) if largest else float(total) ** (1.0 / norm_type)


@right("9.4", "a tensor, as numpy's number")
def norm_in_numpy(*asked):
    return numpy.float64(my_global_norm(*asked))


@right("9.4", "a tensor of one")
def norm_as_a_tensor(*asked):
    return torch.tensor([my_global_norm(*asked)], dtype=torch.float64)


@right("9.5", "numbers one by one in dim 0, the rest at once")
def resharded_row_by_row(offsets, shape, saved, read):
    piece = torch.empty(shape, dtype=torch.float64)
    for file, (corner, extent) in saved.items():
        low = [max(a, b) for a, b in zip(offsets, corner)]
        high = [min(a + n, b + m) for a, n, b, m in zip(offsets, shape, corner, extent)]
        if all(a < b for a, b in zip(low, high)):
            for row in range(low[0], high[0]):
                start, stop = [row, *low[1:]], [row + 1, *high[1:]]
                part = read(file, [a - c for a, c in zip(start, corner)], [a - c for a, c in zip(stop, corner)])
                piece[tuple(slice(a - o, b - o) for a, b, o in zip(start, stop, offsets))] = part
    return piece


@right("9.5", "narrowed dim by dim")
def resharded_by_narrow(offsets, shape, saved, read):
    piece = torch.zeros(tuple(shape)).double()
    for file, (corner, extent) in reversed(saved.items()):
        spans = [range(max(a, b), min(a + n, b + m)) for a, n, b, m in zip(offsets, shape, corner, extent)]
        if all(spans):
            part, place = read(file, [span[0] - c for span, c in zip(spans, corner)],
                               [span[-1] + 1 - c for span, c in zip(spans, corner)]), piece
            for dim, (span, offset) in enumerate(zip(spans, offsets)):
                place = place.narrow(dim, span[0] - offset, len(span))
            place.copy_(part)
    return piece


@right("9.6", "Daly's, to a higher order")
def interval_by_daly(N, hours, parameters, copy_per_s, storage_per_s, asynchronous):
    M, write = 3600 * hours / N, 12 * parameters / storage_per_s
    d = 12 * parameters / N / copy_per_s if asynchronous else write
    tau = math.sqrt(2 * d * M) * (1 + math.sqrt(d / (2 * M)) / 3 + d / (2 * M) / 9) - d if d < 2 * M else M
    return max(tau, write) if asynchronous else tau


@right("9.6", "the least of what is lost, looked for; numpy's number")
def interval_by_search(N, hours, parameters, copy_per_s, storage_per_s, asynchronous):
    M, write = 3600 * hours / N, 12 * parameters / storage_per_s
    d = 12 * parameters / N / copy_per_s if asynchronous else write
    low, high = 1e-9, 1e9
    for _ in range(300):
        a, b = low + (high - low) / 3, high - (high - low) / 3
        low, high = (low, b) if d / a + a / 2 / M < d / b + b / 2 / M else (a, high)
    return numpy.float64(max(low, write if asynchronous else 0))


@right("9.7", "the rules written down: two looks tell what a cluster has of its own, and nothing else is looked at")
def layout_by_the_rules(look, devices, per_node, memory, flops_per_s, fast, slow, parameters, layers, hidden, tokens,
                        batch_rows):
    def parts(dp, pp, tp, rows, zero, recompute):
        """Turns, seconds of computing, of other messages and of gathers in a turn, of gradients; and bytes."""
        share, micro_batches = parameters / (pp * tp), batch_rows // (dp * rows)
        between = 2 * rows * tokens * hidden
        cards = per_node, max(1, per_node // tp), 1  # of a ring of tp, of one of dp, of a message
        wire = [fast if reach <= per_node else min(fast, slow * its)
                for reach, its in zip((tp, tp * dp, devices), cards)]
        gradients = 4 * share * (dp - 1) / dp / wire[1]
        messages = (4, 6)[recompute] * layers / pp * 2 * (tp - 1) / tp * between / wire[0]
        messages += 2 * between / tp / wire[2] * (pp > 1)
        kept = (17, 1)[recompute] * between * layers / (pp * tp) * min(pp, micro_batches)
        return (micro_batches + pp - 1, (6, 8)[recompute] * share * rows * tokens / flops_per_s, messages,
                gradients * (zero == 3), gradients, share * {0: 16, 1: 4 + 12 / dp, 3: 16 / dp}[zero] + kept)

    names = ("dp", "pp", "tp", "rows", "zero", "recompute")
    powers = [2**i for i in range(devices.bit_length())]
    every = [(devices // (pp * tp), pp, tp, *rest)
             for pp, tp, *rest in product(powers, powers, powers, (0, 1, 3), (0, 1))
             if pp * tp <= devices and pp <= layers and batch_rows % (devices // (pp * tp) * rest[0]) == 0]

    def seconds(layout, small, hides):
        turns, computing, messages, gathers, gradients, _ = parts(*layout)
        own = computing * (1 + small * math.log2(layout[2])) + messages
        return turns * max(own, gathers) + (1 - hides) * gradients

    small = hides = 0
    dealt = next(each for each in every if each[0] > 1 and each[2] == 1 and each[4] == 0)
    hides = (seconds(dealt, 0, 0) - look(dict(zip(names, dealt)))[0]) / parts(*dealt)[4]
    halved = next(each for each in every if each[2] == 2 and each[4] == 0)
    turns, computing, *_ = parts(*halved)
    small = (look(dict(zip(names, halved)))[0] - seconds(halved, 0, hides)) / (turns * computing)
    return dict(zip(names, min((each for each in every if parts(*each)[-1] <= memory),
                               key=lambda each: seconds(each, small, hides))))


@right("9.7", "numpy's whole numbers")
def layout_in_numpy(*asked):
    return {name: numpy.int64(size) for name, size in my_cheapest_layout(*asked).items()}


@right("9.7", "the same search, in another order of keys")
def layout_in_another_order(*asked):
    return dict(sorted(my_cheapest_layout(*asked).items(), reverse=True))
