"""Right answers to the exercises of chapter 9 that nobody would think of first; tests/grading/test_answers.py has each
pass at ten seeds, in the names of the notebook beside this file.
"""
# ruff: noqa: F821

import numpy
import torch

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


@right("9.7", "numpy's whole numbers")
def layout_in_numpy(*asked):
    return {name: numpy.int64(size) for name, size in my_cheapest_layout(*asked).items()}


@right("9.7", "the same search, in another order of keys")
def layout_in_another_order(*asked):
    return dict(sorted(my_cheapest_layout(*asked).items(), reverse=True))
