"""Wrong answers to the exercises of chapter 9, as learners write them; tests/test_exercises.py has each refused.

The imports and the solutions are those of the notebook beside this file, in whose names it runs.
"""
# ruff: noqa: F821

import math

import torch
import torch.distributed as dist

from course_lib.grading.wrong_answers import wrong


def digits(rank, sizes, axes):
    where = {}
    for axis in axes:
        rank, where[axis] = divmod(rank, sizes[axis])
    return where


def together(where, sizes, axes):
    rank = 0
    for axis in reversed(axes):
        rank = rank * sizes[axis] + where[axis]
    return rank


@wrong("9.1", "other ranks do its work")
def moved_nowhere(rank, sizes, order, new_order):
    return rank


@wrong("9.1", "both orders are read outermost first")
def moved_from_the_outside(rank, sizes, order, new_order):
    return together(digits(rank, sizes, order.split(",")[::-1]), sizes, new_order.split(",")[::-1])


@wrong("9.1", "put together the wrong way round")
def moved_and_turned(rank, sizes, order, new_order):
    return together(digits(rank, sizes, order.split(",")), sizes, new_order.split(",")[::-1])


@wrong("9.1", "mistaken for each other")
def moved_back(rank, sizes, order, new_order):
    return together(digits(rank, sizes, new_order.split(",")), sizes, order.split(","))


@wrong("9.1", "the remainder of the rank itself")
def moved_by_remainders(rank, sizes, order, new_order):
    return together({axis: rank % size for axis, size in sizes.items()}, sizes, new_order.split(","))


@wrong("9.1", "multiplied by its own axis' size")
def moved_by_own_sizes(rank, sizes, order, new_order):
    return sum(place * sizes[axis] for axis, place in digits(rank, sizes, order.split(",")).items())


@wrong("9.1", "it uses course_lib.hybrid_parallel")
def moved_by_the_library(rank, sizes, order, new_order):
    from course_lib.hybrid_parallel import ParallelLayout

    where = ParallelLayout(**sizes, order=order).coordinates(rank)
    return ParallelLayout(**sizes, order=new_order).rank(**where)


def whole_groups(axes, sizes, order):
    found = {}
    for rank in range(math.prod(sizes.values())):
        where = digits(rank, sizes, order.split(","))
        found.setdefault(tuple(where[axis] for axis in sizes if axis not in axes), []).append(rank)
    return list(found.values())


def levels_of(groups, node):
    nodes = [[[rank for rank in group if rank // node == n] for n in sorted({rank // node for rank in group})]
             for group in groups]
    return [part for parts in nodes for part in parts], [list(ranks) for parts in nodes for ranks in zip(*parts)]


@wrong("9.2", "the answers are mistaken for each other")
def levels_swapped(axes, sizes, order, ranks_per_node):
    return levels_of(whole_groups(axes, sizes, order), ranks_per_node)[::-1]


@wrong("9.2", "the first answer has the whole groups")
def levels_without_nodes(axes, sizes, order, ranks_per_node):
    groups = whole_groups(axes, sizes, order)
    return groups, levels_of(groups, ranks_per_node)[1]


@wrong("9.2", "every rank of a node would send the whole message")
def levels_that_send_all(axes, sizes, order, ranks_per_node):
    groups = whole_groups(axes, sizes, order)
    return levels_of(groups, ranks_per_node)[0], groups


@wrong("9.2", "the first rank of every node only")
def levels_of_leaders(axes, sizes, order, ranks_per_node):
    groups = whole_groups(axes, sizes, order)
    return (levels_of(groups, ranks_per_node)[0],
            [levels_of([group], ranks_per_node)[1][0] for group in groups])


@wrong("9.2", "the groups of all the other axes")
def levels_of_the_others(axes, sizes, order, ranks_per_node):
    return levels_of(whole_groups([axis for axis in sizes if axis not in axes], sizes, order), ranks_per_node)


@wrong("9.2", "groups along dp alone")
def levels_of_the_first_axis(axes, sizes, order, ranks_per_node):
    return levels_of(whole_groups(axes[:1], sizes, order), ranks_per_node)


@wrong("9.2", "the order is read outermost first")
def levels_from_the_outside(axes, sizes, order, ranks_per_node):
    turned = ",".join(reversed(order.split(",")))
    return levels_of(whole_groups(axes, sizes, turned), ranks_per_node)


@wrong("9.2", "ranks in a row")
def levels_of_neighbours(axes, sizes, order, ranks_per_node):
    n = math.prod(sizes[axis] for axis in axes)
    ranks = list(range(math.prod(sizes.values())))
    return levels_of([ranks[i:i + n] for i in range(0, len(ranks), n)], ranks_per_node)


@wrong("9.2", "it uses course_lib.hybrid_parallel")
def levels_of_the_library(axes, sizes, order, ranks_per_node):
    from course_lib.hybrid_parallel import ParallelLayout

    return levels_of(ParallelLayout(**sizes, order=order).groups(*axes), ranks_per_node)


RIGHT = {"split": ("dp", "cp"), "replicated": ("dp", "cp"), "partial": ("dp", "cp", "tp"), "tied": ("dp", "cp", "pp"),
         "expert": ("edp",)}


def reduce_by(gradients, kinds, num_tokens, all_reduce, counted=("dp", "cp"), **changes):
    if counted:
        all_reduce(num_tokens, *counted)
    for name, gradient in gradients.items():
        if axes := (RIGHT | changes)[kinds[name]]:
            all_reduce(gradient, *axes)
        gradient /= num_tokens


@wrong("9.3", "the norms would step apart")
def reduced_without_the_norms_over_tp(*arguments):
    reduce_by(*arguments, partial=("dp", "cp"))


@wrong("9.3", "tp times too large")
def reduced_with_replicated_over_tp(*arguments):
    reduce_by(*arguments, replicated=("dp", "cp", "tp"))


@wrong("9.3", "different parts of one matrix")
def reduced_with_all_over_tp(*arguments):
    reduce_by(*arguments, **dict.fromkeys(("split", "replicated", "tied"), ("dp", "cp", "tp")), expert=("edp", "tp"))


@wrong("9.3", "the tied embedding is not added up over pp")
def reduced_without_the_tied_over_pp(*arguments):
    reduce_by(*arguments, tied=("dp", "cp"))


@wrong("9.3", "the experts are added up over tp as well")
def reduced_with_experts_over_tp(*arguments):
    reduce_by(*arguments, expert=("edp", "tp"))


@wrong("9.3", "so over different experts")
def reduced_with_experts_as_all_others(*arguments):
    reduce_by(*arguments, expert=("dp", "cp"))


@wrong("9.3", "the experts are not added up")
def reduced_without_experts(*arguments):
    reduce_by(*arguments, expert=())


@wrong("9.3", "cp is left out")
def reduced_without_cp(*arguments):
    reduce_by(*arguments, counted=("dp",), split=("dp",), replicated=("dp",), partial=("dp", "tp"), tied=("dp", "pp"))


@wrong("9.3", "the number of this rank's tokens")
def reduced_by_own_tokens(*arguments):
    reduce_by(*arguments, counted=())


@wrong("9.3", "ranks with few tokens count as much")
def reduced_by_the_mean_of_means(gradients, kinds, num_tokens, all_reduce):
    ranks = torch.ones((), dtype=torch.float64)
    all_reduce(ranks, "dp", "cp")
    for name, gradient in gradients.items():
        gradient /= num_tokens
        all_reduce(gradient, *RIGHT[kinds[name]])
        gradient /= ranks


@wrong("9.3", "tokens are counted over tp or pp as well")
def reduced_with_tokens_of_the_world(*arguments):
    reduce_by(*arguments, counted=("dp", "cp", "tp", "pp"))


@wrong("9.3", "Over pp only what both stages hold")
def reduced_over_everything(*arguments):
    reduce_by(*arguments, split=("dp", "cp", "pp"), replicated=("dp", "cp", "pp"))


@wrong("9.3", "expected names of axes")
def reduced_over_an_axis_that_is_none(*arguments):
    reduce_by(*arguments, partial=("dp", "cp", "sp"))


@wrong("9.3", "it calls torch.distributed's own all_reduce")
def reduced_over_the_world(gradients, kinds, num_tokens, all_reduce):
    reduce_by(gradients, kinds, num_tokens, lambda tensor, *axes: dist.all_reduce(tensor))


@wrong("9.3", "added up once, over one group")
def reduced_one_axis_at_a_time(gradients, kinds, num_tokens, all_reduce):
    def one_by_one(tensor, *axes):
        for axis in axes:
            all_reduce(tensor, axis)

    reduce_by(gradients, kinds, num_tokens, one_by_one)


ONCE = {"split": {"dp", "cp"}, "replicated": {"dp", "cp", "tp"}, "partial": {"dp", "cp", "tp"},
        "tied": {"dp", "cp", "pp"}, "expert": {"edp", "tp"}}


def norm_by(gradients, kinds, coordinates, norm_type, zero, at_zero=True, **changes):
    dealt = {"dp", "cp", "edp"} if zero and at_zero else set()
    own = torch.cat([torch.zeros(1, dtype=torch.float64), *(
        gradient.abs().flatten() for name, gradient in gradients.items()
        if not any(coordinates[axis] for axis in (ONCE | changes)[kinds[name]] - dealt))])
    total = own.max() if norm_type == math.inf else (own**norm_type).sum()
    dist.all_reduce(total, dist.ReduceOp.MAX if norm_type == math.inf else dist.ReduceOp.SUM)
    return total.item() if norm_type == math.inf else total.item() ** (1 / norm_type)


@wrong("9.4", "copies count as often as there are")
def norm_of_everything(*arguments):
    return norm_by(*arguments, **{kind: set() for kind in ONCE})


@wrong("9.4", "what the ranks of tp have in common counts tp times")
def norm_that_forgets_tp(*arguments):
    return norm_by(*arguments, replicated={"dp", "cp"}, partial={"dp", "cp"}, expert={"edp"})


@wrong("9.4", "the tied embedding counts twice")
def norm_with_the_tied_twice(*arguments):
    return norm_by(*arguments, tied={"dp", "cp"})


@wrong("9.4", "experts are taken for copies over dp and cp")
def norm_of_the_first_experts(*arguments):
    return norm_by(*arguments, expert={"dp", "cp", "tp"})


@wrong("9.4", "under ZeRO every rank has another one")
def norm_of_the_first_pieces(*arguments):
    return norm_by(*arguments, at_zero=False)


@wrong("9.4", "an all-reduce makes one of them all")
def norm_of_this_rank(gradients, kinds, coordinates, norm_type, zero):
    own = torch.cat([gradient.flatten() for gradient in gradients.values()])
    return torch.linalg.vector_norm(own, norm_type).item()


@wrong("9.4", "for inf the all-reduce is dist.ReduceOp.MAX")
def norm_that_adds_maxima(gradients, kinds, coordinates, norm_type, zero):
    if norm_type != math.inf:
        return my_global_norm(gradients, kinds, coordinates, norm_type, zero)
    own = [gradient.abs().max() for name, gradient in gradients.items()
           if not any(coordinates[axis] for axis in ONCE[kinds[name]])]
    total = max(own, default=torch.zeros((), dtype=torch.float64)).clone()
    dist.all_reduce(total)
    return total.item()


@wrong("9.4", "add up all own pieces first")
def norm_piece_by_piece(gradients, kinds, coordinates, norm_type, zero):
    total = my_global_norm({}, kinds, coordinates, norm_type, zero)
    for kind in ONCE:
        part = my_global_norm({name: gradient for name, gradient in gradients.items() if kinds[name] == kind}, kinds,
                              coordinates, norm_type, zero)
        total = max(total, part) if norm_type == math.inf else (total**norm_type + part**norm_type) ** (1 / norm_type)
    return total


def overlap(offsets, shape, file_offsets, file_shape):
    start = [max(a, b) for a, b in zip(offsets, file_offsets)]
    stop = [min(a + n, b + m) for a, n, b, m in zip(offsets, shape, file_offsets, file_shape)]
    return start, stop, all(a < b for a, b in zip(start, stop))


def minus(place, corner):
    return [a - o for a, o in zip(place, corner)]


def slices(start, stop):
    return tuple(slice(a, b) for a, b in zip(start, stop))


@wrong("9.5", "start and stop count from the file's own corner")
def resharded_by_places_in_the_tensor(offsets, shape, saved, read):
    piece = torch.zeros(shape, dtype=torch.float64)
    for file, box in saved.items():
        start, stop, there = overlap(offsets, shape, *box)
        if there:
            piece[slices(minus(start, offsets), minus(stop, offsets))] = read(file, start, stop)
    return piece


@wrong("9.5", "only the first file")
def resharded_from_one_file(offsets, shape, saved, read):
    piece = torch.zeros(shape, dtype=torch.float64)
    for file, box in saved.items():
        start, stop, there = overlap(offsets, shape, *box)
        if there:
            piece[slices(minus(start, offsets), minus(stop, offsets))] = read(file, minus(start, box[0]),
                                                                              minus(stop, box[0]))
            return piece


@wrong("9.5", "at the corner of the new piece")
def resharded_into_the_corner(offsets, shape, saved, read):
    piece = torch.zeros(shape, dtype=torch.float64)
    for file, box in saved.items():
        start, stop, there = overlap(offsets, shape, *box)
        if there:
            piece[slices([0] * len(start), minus(stop, start))] = read(file, minus(start, box[0]), minus(stop, box[0]))
    return piece


@wrong("9.5", "the slices that overlap with the piece, each once")
def resharded_from_the_whole(offsets, shape, saved, read):
    size = [max(offset[dim] + extent[dim] for offset, extent in saved.values()) for dim in range(len(shape))]
    whole = torch.zeros(size, dtype=torch.float64)
    for file, (corner, extent) in saved.items():
        whole[slices(corner, [a + n for a, n in zip(corner, extent)])] = read(file, [0] * len(extent), extent)
    return whole[slices(offsets, [a + n for a, n in zip(offsets, shape)])].clone()


@wrong("9.5", "in the order of their names")
def resharded_by_names(offsets, shape, saved, read):
    whole = torch.cat([read(file, [0] * len(box[1]), box[1]) for file, box in sorted(saved.items())])
    return whole[slices(offsets, [a + n for a, n in zip(offsets, shape)])].clone()


@wrong("9.5", "it uses course_lib.checkpoint")
def resharded_by_the_library(offsets, shape, saved, read):
    from course_lib.checkpoint import load

    return load(saved)


def interval(N, hours, parameters, copy_per_s, storage_per_s, asynchronous, pause=None, size=12, between=None):
    state, between = size * parameters, between or 3600 * hours / N
    write, copy = state / storage_per_s, state / N / copy_per_s
    if pause == "write":
        return math.sqrt(2 * write * between)
    return max(write, math.sqrt(2 * copy * between)) if asynchronous else math.sqrt(2 * write * between)


@wrong("9.6", "it stops for the copy alone")
def interval_that_waits(*case):
    return interval(*case, pause="write")


@wrong("9.6", "divide its hours by the number of devices")
def interval_of_one_device(N, hours, *rest):
    return interval(N, hours, *rest, between=3600 * hours)


@wrong("9.6", "before the last one is written")
def interval_that_overtakes_itself(N, hours, parameters, copy_per_s, storage_per_s, asynchronous):
    if not asynchronous:
        return my_save_interval(N, hours, parameters, copy_per_s, storage_per_s, asynchronous)
    return math.sqrt(2 * 12 * parameters / N / copy_per_s * 3600 * hours / N)


@wrong("9.6", "the 2 under the root is missing")
def interval_without_the_half(N, hours, *rest):
    return interval(N, hours, *rest, between=1800 * hours / N)


@wrong("9.6", "16 bytes a parameter")
def interval_with_gradients(*case):
    return interval(*case, size=16)


@wrong("9.6", "it uses course_lib.costs")
def interval_of_the_library(N, hours, parameters, copy_per_s, storage_per_s, asynchronous):
    from course_lib.costs.failures import young

    return young(12 * parameters / storage_per_s, 3600 * hours / N)


@wrong("9.7", "rule out what cannot be best")
def layout_after_looking_at_all(look, devices, per_node, memory, flops_per_s, fast, slow, parameters, layers, hidden,
                                tokens, batch_rows):
    found, powers = [], [2**i for i in range(devices.bit_length())]
    for tp in powers:
        for pp in (pp for pp in powers if pp * tp <= devices and pp <= layers):
            dp = devices // (tp * pp)
            for rows in (rows for rows in powers if batch_rows % (dp * rows) == 0):
                for zero, recompute in ((zero, recompute) for zero in (0, 1, 3) for recompute in (0, 1)):
                    layout = {"dp": dp, "pp": pp, "tp": tp, "rows": rows, "zero": zero, "recompute": recompute}
                    seconds, held = look(layout)
                    if held <= memory:
                        found.append((seconds, len(found), layout))
    return min(found)[-1]


def layout(dp, pp, tp, rows=1, zero=1, recompute=0):
    return {"dp": dp, "pp": pp, "tp": tp, "rows": rows, "zero": zero, "recompute": recompute}


@wrong("9.7", "data parallelism alone")
def layout_of_replicas(look, devices, *rest):
    return layout(devices, 1, 1, zero=3)


@wrong("9.7", "so many stages leave the pipeline idle")
def layout_of_one_rule(look, devices, per_node, memory, flops_per_s, fast, slow, parameters, layers, *rest):
    """tp over the node, then stages as far as there are layers, then dp."""
    pp = min(devices // per_node, 1 << (layers.bit_length() - 1))
    return layout(devices // (per_node * pp), pp, per_node)


@wrong("9.7", "ZeRO 1 would fit")
def layout_with_zero_3_everywhere(look, devices, per_node, *rest):
    return layout(devices // per_node, 1, per_node, zero=3)


@wrong("9.7", "tp reaches beyond a node")
def layout_of_tp_first(look, devices, *rest):
    return layout(devices // 16, 1, 16)


@wrong("9.7", "does not divide the")
def layout_that_leaves_rows_over(look, devices, per_node, *rest):
    return layout(devices // per_node, 1, per_node, rows=7)


@wrong("9.7", "and there are 128 devices")
def layout_of_one_node(look, devices, per_node, *rest):
    return layout(1, 1, per_node)


@wrong("9.7", "smaller micro-batches would make it fit")
def layout_without_memory(look, devices, per_node, memory, flops_per_s, fast, slow, parameters, layers, hidden, tokens,
                          batch_rows):
    return my_cheapest_layout(look, devices, per_node, math.inf, flops_per_s, fast, slow, parameters, layers, hidden,
                              tokens, batch_rows)
