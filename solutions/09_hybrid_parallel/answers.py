"""Chapter 9: right and wrong answers, what each text stresses, each docstring's example; tools/answers.py reads it."""
# ruff: noqa: F821

import math
from itertools import product

import numpy
import torch
import torch.distributed as dist

from tools.answers import example, right, term, wrong


def digits(rank, sizes, axes):
    where = {}
    for axis in axes:
        rank, where[axis] = divmod(rank, sizes[axis])
    return where


def quoted(value):
    return str(value).replace("'", '"')


def text_of(sizes):
    return " ".join(f"{axis}{size}" for axis, size in sizes.items() if size > 1)


def shown(tensor):
    return str(tensor.tolist()).replace(".0", ".")


# ---- 9.1 my_moved_rank
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


def together(where, sizes, axes):
    rank = 0
    for axis in reversed(axes):
        rank = rank * sizes[axis] + where[axis]
    return rank


def moved(rank, sizes, order, new_order, taken=1, put=1):
    """-1: the axes are taken off, or put together, in the order the wrong way round."""
    return together(digits(rank, sizes, order.split(",")[::taken]), sizes, new_order.split(",")[::put])


MOVED = [
    wrong("9.1", "the rank is as it was: in another order other ranks do its work")(lambda rank, *rest: rank),
    wrong("9.1", "both orders are read outermost first: the first axis named is the innermost, along which ranks count "
          "first")(lambda *asked: moved(*asked, taken=-1, put=-1)),
    wrong("9.1", "the digits are taken off outermost first: the remainder of a division by the size of the first axis "
          "named is its coordinate")(lambda *asked: moved(*asked, taken=-1)),
    wrong("9.1", "the coordinates are put together the wrong way round: the first axis named counts ones")(
        lambda *asked: moved(*asked, put=-1)),
    wrong("9.1", "the old order and the new one are mistaken for each other")(
        lambda rank, sizes, order, new_order: moved(rank, sizes, new_order, order))]


@wrong("9.1", "every coordinate is the remainder of the rank itself: what is left after the axes inside of it has to "
       "be divided, rank // size comes first")
def moved_by_remainders(rank, sizes, order, new_order):
    return together({axis: rank % size for axis, size in sizes.items()}, sizes, new_order.split(","))


@wrong("9.1", "the rank is divided by an axis' own size as well before the remainder is taken: its stride is the "
       "product of the sizes inside of it")
def moved_one_too_far(rank, sizes, order, new_order):
    where, stride = {}, 1
    for axis in order.split(","):
        stride *= sizes[axis]
        where[axis] = rank // stride % sizes[axis]
    return together(where, sizes, new_order.split(","))


@wrong("9.1", "each coordinate is multiplied by its own axis' size: its stride is the product of the sizes of all axes "
       "inside of it")
def moved_by_own_sizes(rank, sizes, order, new_order):
    return sum(place * sizes[axis] for axis, place in digits(rank, sizes, order.split(",")).items())


@wrong("9.1", "each coordinate is multiplied by the size of one axis, the one inside of it: it is the product of all "
       "that are inside")
def moved_by_the_next_sizes(rank, sizes, order, new_order):
    where, axes = digits(rank, sizes, order.split(",")), new_order.split(",")
    return where[axes[0]] + sum(where[axis] * sizes[inner] for inner, axis in zip(axes, axes[1:]))


@wrong("9.1", "it uses course_lib.hybrid_parallel")
def moved_by_the_library(rank, sizes, order, new_order):
    from course_lib.hybrid_parallel import ParallelLayout

    where = ParallelLayout(**sizes, order=order).coordinates(rank)
    return ParallelLayout(**sizes, order=new_order).rank(**where)


TEXT_9_1 = [
    term("9.1", "its coordinates under the old order", "for axis in order.split(", "for axis in new_order.split("),
    term("9.1", "innermost first: ranks count along the first axis first", "for axis in order.split(\",\")",
         "for axis in order.split(\",\")[::-1]"),
    term("9.1", "innermost first, in the new order as well", "reversed(new_order.split(\",\"))",
         "new_order.split(\",\")"),
    term("9.1", "the rank at these coordinates under the new order", "reversed(new_order", "reversed(order"),
    term("9.1", "every axis has its own size", "moved * sizes[axis]", "moved * sizes[\"tp\"]"),
    term("9.1", "what is left counts along the next axis", "rank, where[axis] = divmod(rank, sizes[axis])",
         "where[axis] = rank % sizes[axis]"),
    term("9.1", "all axes, dp among them", "divmod(rank, sizes[axis])", "divmod(rank, sizes[axis])\n"
         "    where[\"dp\"] = 0"),
    example("9.1", lambda inputs, answers: [
        f'Rank {inputs[0][0]} of {text_of(inputs[0][1])} under "{inputs[0][2]}"',
        f'Under "{inputs[0][3]}" that is rank 2 + 3 * 1 + 3 * 2 * 1 = {answers[0]["value"]}'])]


# ---- 9.2 my_two_levels
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


def levels(axes, sizes, order, ranks_per_node):
    groups = whole_groups(axes, sizes, order)
    return groups, *levels_of(groups, ranks_per_node)


@wrong("9.2", "the answers are mistaken for each other: first the groups inside nodes, then those across")
def levels_swapped(*asked):
    whole, inside, across = levels(*asked)
    return across, inside


@wrong("9.2", "the nodes are left out: the first answer has the whole groups. Cut each at the nodes")
def levels_without_nodes(*asked):
    whole, inside, across = levels(*asked)
    return whole, across


@wrong("9.2", "the nodes are left out: both answers have the whole groups. Cut each at the nodes")
def levels_without_any_node(*asked):
    whole, inside, across = levels(*asked)
    return whole, whole


@wrong("9.2", "the second answer has the whole groups: every rank of a node would send the whole message over the slow "
       "wire. One of each node belongs together")
def levels_that_send_all(*asked):
    whole, inside, across = levels(*asked)
    return inside, whole


@wrong("9.2", "the second answer has the first rank of every node only: after the reduce-scatter inside a node each of "
       "its ranks has another piece, and needs a group of its own")
def levels_of_leaders(axes, sizes, order, ranks_per_node):
    whole, inside, across = levels(axes, sizes, order, ranks_per_node)
    return inside, [levels_of([group], ranks_per_node)[1][0] for group in whole]


@wrong("9.2", "these are the groups of all the other axes: in a group ranks differ along the axes named, and agree "
       "along the others")
def levels_of_the_others(axes, sizes, *rest):
    return my_two_levels([axis for axis in sizes if axis not in axes], sizes, *rest)


LEVELS = [
    wrong("9.2", "these are groups along dp alone: the ranks of one may differ along both axes at once")(
        lambda axes, *rest: my_two_levels(axes[:1], *rest)),
    wrong("9.2", "these are groups along tp alone: the ranks of one may differ along both axes at once")(
        lambda axes, *rest: my_two_levels(axes[-1:], *rest)),
    wrong("9.2", "the order is read outermost first: the first axis named is the innermost, along which ranks count "
          "first")(lambda axes, sizes, order, node: my_two_levels(axes, sizes, ",".join(order.split(",")[::-1]), node)),
    wrong("9.2", "`order` is not looked at: which ranks are neighbours depends on it")(
        lambda axes, sizes, order, node: my_two_levels(axes, sizes, ",".join(sizes), node))]


@wrong("9.2", "a group is taken to be ranks in a row: that is so for the innermost axis alone")
def levels_of_neighbours(axes, sizes, order, ranks_per_node):
    n = math.prod(sizes[axis] for axis in axes)
    ranks = list(range(math.prod(sizes.values())))
    return levels_of([ranks[i:i + n] for i in range(0, len(ranks), n)], ranks_per_node)


@wrong("9.2", "it uses course_lib.hybrid_parallel")
def levels_of_the_library(axes, sizes, order, ranks_per_node):
    from course_lib.hybrid_parallel import ParallelLayout

    return levels_of(ParallelLayout(**sizes, order=order).groups(*axes), ranks_per_node)


LEVELS_IN_SETS = right("9.2", "sets of sets")(
    lambda *asked: [{frozenset(group) for group in groups} for groups in my_two_levels(*asked)])


TEXT_9_2 = [
    term("9.2", "they differ along these axes together", "if axis not in axes)", "if axis not in axes[:1])"),
    term("9.2", "they agree along every other axis", "if axis not in axes)", "if axis not in axes and axis != \"pp\")"),
    term("9.2", "cut at the nodes", "rank // ranks_per_node", "0"),
    term("9.2", "node n from n * ranks_per_node on", "rank // ranks_per_node", "rank % ranks_per_node"),
    term("9.2", "order", "order.split(\",\")", "\"tp,cp,dp,pp\".split(\",\")"),
    term("9.2", "the first of each part, the second of each", "for ranks in zip(*nodes.values())]",
         "for ranks in [list(zip(*nodes.values()))[0]]]"),
    term("9.2", "a single rank is a group, too", "    return inside, across",
         "    return [group for group in inside if len(group) > 1], across"),
    term("9.2", "a single rank is one across, too", "    return inside, across",
         "    return inside, [group for group in across if len(group) > 1]"),
    example("9.2", lambda inputs, answers: [
        f'{quoted(inputs[0][0])} of {text_of(inputs[0][1])} under "{inputs[0][2]}", {inputs[0][3]} ranks a node',
        "inside {}, across {}".format(*answers[0])])]


# ---- 9.3 my_reduced_gradients
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


RIGHT = {"split": ("dp", "cp"), "replicated": ("dp", "cp"), "partial": ("dp", "cp", "tp"), "tied": ("dp", "cp", "pp"),
         "expert": ("edp",)}


def reduce_by(gradients, kinds, num_tokens, all_reduce, counted=("dp", "cp"), divide=True, **changes):
    if counted:
        all_reduce(num_tokens, *counted)
    for name, gradient in gradients.items():
        if axes := (RIGHT | changes)[kinds[name]]:
            all_reduce(gradient, *axes)
        if divide:
            gradient /= num_tokens


def reducing(says, **how):
    return wrong("9.3", says)(lambda *arguments: reduce_by(*arguments, **how))


NOTHING = "nothing is added up: every rank has seen its own tokens alone"
REDUCED = [
    reducing(NOTHING, counted=(), **dict.fromkeys(RIGHT, ())),
    reducing(NOTHING, **dict.fromkeys(RIGHT, ())),
    reducing("`partial` is not added up over tp: each rank of tp has seen a tp-th of the tokens, so that the copies of "
             "the norms would step apart", partial=("dp", "cp")),
    reducing("`replicated` is added up over tp as well: all ranks of tp have computed the same with all tokens, and "
             "the gradient is tp times too large", replicated=("dp", "cp", "tp")),
    reducing("the slices of tp are added up: they are different parts of one matrix", split=("dp", "cp", "tp")),
    reducing("everything is added up over tp: slices are different parts of one matrix, and of `replicated` all have "
             "the same", **dict.fromkeys(("split", "replicated", "tied"), ("dp", "cp", "tp"))),
    reducing("the tied embedding is not added up over pp: the first stage looks tokens up in it and the last one "
             "compares with it, and the gradient is the sum of both uses", tied=("dp", "cp")),
    reducing("the experts are added up over dp, cp and tp, so over different experts: the same ones are on the ranks "
             "of edp", expert=("dp", "cp", "tp")),
    reducing("the experts are added up over dp and cp, so over different experts: the same ones are on the ranks of "
             "edp", expert=("dp", "cp")),
    reducing("the experts are not added up: the ranks of edp have the same ones, and have met other tokens", expert=()),
    reducing("the experts are added up over ep: these are ranks with different experts; the same ones are on the ranks "
             "of edp", expert=("ep",)),
    reducing("cp is left out: its ranks have the same parameters and other tokens of the same rows, as dp's have other "
             "rows", counted=("dp",), split=("dp",), replicated=("dp",), partial=("dp", "tp"), tied=("dp", "pp")),
    reducing("nothing is divided: the mean over all tokens is asked, and these are sums", divide=False),
    reducing("gradients are divided by the number of this rank's tokens: the others' are in the sum as well, so add "
             "num_tokens up first", counted=()),
    reducing("gradients are too small by a whole factor: tokens are counted over tp or pp as well, where ranks have "
             "the same ones, or the number of ranks divides besides. The number of all tokens alone makes the mean",
             counted=("dp", "cp", "tp", "pp")),
    reducing("Over pp only what both stages hold", split=("dp", "cp", "pp"), replicated=("dp", "cp", "pp")),
    reducing("expected names of axes", partial=("dp", "cp", "sp"))]


def size_of(all_reduce, *axes):
    ranks = torch.ones((), dtype=torch.float64)
    all_reduce(ranks, *axes)
    return ranks


@wrong("9.3", "gradients are divided by the number of ranks of dp and cp: backward began at sums, and the mean over "
       "all tokens is asked")
def reduced_by_ranks(gradients, kinds, num_tokens, all_reduce):
    reduce_by(gradients, kinds, size_of(all_reduce, "dp", "cp"), all_reduce, counted=())


def divide_experts(gradients, kinds, divisor):
    for name, gradient in gradients.items():
        if kinds[name] == "expert":
            gradient /= divisor


@wrong("9.3", "an expert's gradient is a mean over edp besides: the sum, divided by the number of all tokens, is asked")
def reduced_with_means_of_experts(gradients, kinds, num_tokens, all_reduce):
    my_reduced_gradients(gradients, kinds, num_tokens, all_reduce)
    divide_experts(gradients, kinds, size_of(all_reduce, "edp"))


@wrong("9.3", "an expert's gradient is divided by a part of the tokens: those of its whole ep group are in it, so the "
       "divisor is the same as everywhere")
def reduced_with_fewer_tokens_of_experts(gradients, kinds, num_tokens, all_reduce):
    my_reduced_gradients(gradients, kinds, num_tokens, all_reduce)
    divide_experts(gradients, kinds, 1 / size_of(all_reduce, "ep"))


@wrong("9.3", "every gradient is the mean of the ranks' means: ranks with few tokens count as much as those with many. "
       "Add up sums, and divide once")
def reduced_by_the_mean_of_means(gradients, kinds, num_tokens, all_reduce):
    for gradient in gradients.values():
        gradient /= num_tokens
    reduce_by(gradients, kinds, size_of(all_reduce, "dp", "cp"), all_reduce, counted=())


@wrong("9.3", "the all_reduce that you are given does so, over any axes")
def reduced_over_the_world(gradients, kinds, num_tokens, all_reduce):
    reduce_by(gradients, kinds, num_tokens, lambda tensor, *axes: dist.all_reduce(tensor))


@wrong("9.3", "every gradient is added up once, over one group, and num_tokens once over dp and cp")
def reduced_one_axis_at_a_time(gradients, kinds, num_tokens, all_reduce):
    def one_by_one(tensor, *axes):
        for axis in axes:
            all_reduce(tensor, axis)

    reduce_by(gradients, kinds, num_tokens, one_by_one)


@wrong("9.3", "the dict has other tensors, and those that were given are as they were: write into them")
def reduced_into_the_dict(gradients, kinds, num_tokens, all_reduce):
    for name in list(gradients):
        gradients[name] = gradients[name].clone()
    my_reduced_gradients(gradients, kinds, num_tokens, all_reduce)


TEXT_9_3 = [
    term("9.3", "split: its slice is nobody else's", '"split": ("dp", "cp")', '"split": ("dp", "cp", "tp")'),
    term("9.3", "rows are dealt over dp", '"split": ("dp", "cp")', '"split": ("cp",)'),
    term("9.3", "tokens of a row over cp", '"split": ("dp", "cp")', '"split": ("dp",)'),
    term("9.3", "replicated: the ranks of tp compute the same", '"replicated": ("dp", "cp")',
         '"replicated": ("dp", "cp", "tp")'),
    term("9.3", "partial: other tokens on each rank of tp", '"partial": ("dp", "cp", "tp")', '"partial": ("dp", "cp")'),
    term("9.3", "tied: another use on each of two stages", '"tied": ("dp", "cp", "pp")', '"tied": ("dp", "cp")'),
    term("9.3", "expert: the same one is on the ranks of edp", '"expert": ("edp",)', '"expert": ("dp", "cp")'),
    term("9.3", "expert: the ranks of edp have met other tokens", '"expert": ("edp",)', '"expert": ()'),
    term("9.3", "expert: the ranks of ep have different ones", '"expert": ("edp",)', '"expert": ("edp", "ep")'),
    term("9.3", "the mean over all tokens", "    all_reduce(num_tokens, \"dp\", \"cp\")\n", ""),
    term("9.3", "tokens are the same along tp and pp", 'all_reduce(num_tokens, "dp", "cp")',
         'all_reduce(num_tokens, "dp", "cp", "tp", "pp")'),
    term("9.3", "not every rank has as many tokens", 'all_reduce(num_tokens, "dp", "cp")',
         'ranks = torch.ones((), dtype=torch.float64)\n    all_reduce(ranks, "dp", "cp")\n    num_tokens *= ranks'),
    term("9.3", "backward began at a sum", "        gradient /= num_tokens\n", ""),
    term("9.3", "in place", "        gradient /= num_tokens\n", "        gradient = gradient / num_tokens\n"),
    term("9.3", "once each", "        all_reduce(gradient, *axes[kinds[name]])\n",
         "        for axis in axes[kinds[name]]:\n            all_reduce(gradient, axis)\n"),
    example("9.3", lambda inputs, answers: (
        'dp2, one number of kind "{}": {:g}. from {} tokens on rank 0, {:g}. from {} tokens '
        "on rank 1: (3 + 5) / 8 = {:g}. on both".format(
            inputs[0]["kinds"]["weight"],
            *(part for rank in inputs for part in (rank["gradients"]["weight"].item(), rank["num_tokens"])),
            answers[1]["gradients"]["weight"].item())))]


# ---- 9.4 my_global_norm
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


ONCE = {"split": {"dp", "cp"}, "replicated": {"dp", "cp", "tp"}, "partial": {"dp", "cp", "tp"},
        "tied": {"dp", "cp", "pp"}, "expert": {"edp"}}


def counted_here(gradients, kinds, coordinates, zero, at_zero=True, **changes):
    dealt = {"dp", "cp", "edp"} if zero and at_zero else set()
    return torch.cat([torch.zeros(1, dtype=torch.float64), *(
        gradient.flatten() for name, gradient in gradients.items()
        if not any(coordinates[axis] for axis in (ONCE | changes)[kinds[name]] - dealt))])


def norm_by(gradients, kinds, coordinates, norm_type, zero, size=torch.abs, **how):
    own = size(counted_here(gradients, kinds, coordinates, zero, **how))
    total = own.max() if norm_type == math.inf else (own**norm_type).sum()
    dist.all_reduce(total, dist.ReduceOp.MAX if norm_type == math.inf else dist.ReduceOp.SUM)
    return total.item() if norm_type == math.inf else total.item() ** (1 / norm_type)


def norming(says, **how):
    return wrong("9.4", says)(lambda *arguments: norm_by(*arguments, **how))


NORMS = [
    norming("everything counts on every rank: copies count as often as there are", **{kind: set() for kind in ONCE}),
    norming("what the ranks of tp have in common counts tp times: `replicated` and `partial` are copies there, and one "
            "rank's count", replicated={"dp", "cp"}, partial={"dp", "cp"}),
    norming("`replicated` counts tp times: behind the reduction all ranks of tp have the same",
            replicated={"dp", "cp"}),
    norming("`partial` counts tp times: behind the reduction all ranks of tp have the same", partial={"dp", "cp"}),
    norming("the tied embedding counts twice: it is one weight that lies on two stages", tied={"dp", "cp"}),
    norming("experts are taken for copies over dp and cp: the ranks of ep have different ones, and all of them count",
            expert={"dp", "cp", "tp"}),
    norming("experts count as often as edp has ranks, which have the same ones", expert=set()),
    norming("experts are taken for copies over tp: ranks of ep, which have different ones, may be ranks of tp",
            expert={"edp", "tp"}),
    norming("slices are taken for copies: every rank of tp has another part of the matrix, and all of them count",
            split={"dp", "cp", "tp"}, tied={"dp", "cp", "tp", "pp"}),
    norming("pieces of dp and cp are taken for copies: under ZeRO every rank has another one, and rank 0's are not all",
            at_zero=False),
    norming("the largest number is taken with its sign: the largest |x| is asked", size=lambda x: x),
    wrong("9.4", "the root is not taken")(
        lambda *arguments: my_global_norm(*arguments) ** (1 if arguments[3] == math.inf else arguments[3])),
    wrong("9.4", "the powers are averaged over the ranks: they are parts of one sum")(
        lambda *arguments: my_global_norm(*arguments) / dist.get_world_size() ** (1 / arguments[3])),
    wrong("9.4", "norm_type is not looked at: this is the norm 2")(
        lambda *arguments: my_global_norm(*arguments[:3], 2.0, arguments[4]))]


@wrong("9.4", "x is taken with its sign: |x| to the power is asked")
def norm_of_signed_powers(*arguments):
    return norm_by(*arguments, size=torch.abs if arguments[3] == math.inf else torch.clone)


@wrong("9.4", "every rank has the norm of what lies on it: an all-reduce makes one of them all")
def norm_of_this_rank(gradients, kinds, coordinates, norm_type, zero):
    own = torch.cat([gradient.flatten() for gradient in gradients.values()])
    return torch.linalg.vector_norm(own, norm_type).item()


@wrong("9.4", "every rank has the norm of what it counts: an all-reduce makes one of them all")
def norm_of_what_counts_here(gradients, kinds, coordinates, norm_type, zero):
    return torch.linalg.vector_norm(counted_here(gradients, kinds, coordinates, zero), norm_type).item()


def sum_of_norms(gradients, kinds, coordinates, norm_type, zero):
    total = torch.linalg.vector_norm(counted_here(gradients, kinds, coordinates, zero), norm_type)
    dist.all_reduce(total)
    return total.item()


@wrong("9.4", "the ranks' norms are added up: powers add up, norms do not, so take the root after the all-reduce")
def norm_that_adds_norms(*arguments):
    return sum_of_norms(*arguments)


@wrong("9.4", "the ranks' largest numbers are added up: for inf the all-reduce is dist.ReduceOp.MAX")
def norm_that_adds_maxima(*arguments):
    return (sum_of_norms if arguments[3] == math.inf else my_global_norm)(*arguments)


@wrong("9.4", "add up all own pieces first")
def norm_piece_by_piece(gradients, kinds, coordinates, norm_type, zero):
    total = my_global_norm({}, kinds, coordinates, norm_type, zero)
    for kind in ONCE:
        part = my_global_norm({name: gradient for name, gradient in gradients.items() if kinds[name] == kind}, kinds,
                              coordinates, norm_type, zero)
        total = max(total, part) if norm_type == math.inf else (total**norm_type + part**norm_type) ** (1 / norm_type)
    return total


TEXT_9_4 = [
    term("9.4", "split: every rank of tp has another slice", '"split": {"dp", "cp"}', '"split": {"dp", "cp", "tp"}'),
    term("9.4", "split: copies along dp", '"split": {"dp", "cp"}', '"split": {"cp"}'),
    term("9.4", "split: copies along cp", '"split": {"dp", "cp"}', '"split": {"dp"}'),
    term("9.4", "replicated: copies along tp", '"replicated": {"dp", "cp", "tp"}', '"replicated": {"dp", "cp"}'),
    term("9.4", "partial: the same everywhere now", '"partial": {"dp", "cp", "tp"}', '"partial": {"dp", "cp"}'),
    term("9.4", "tied: on two stages", '"tied": {"dp", "cp", "pp"}', '"tied": {"dp", "cp"}'),
    term("9.4", "expert: copies along edp", '"expert": {"edp"}', '"expert": set()'),
    term("9.4", "expert: the ranks of tp may have other ones", '"expert": {"edp"}', '"expert": {"edp", "tp"}'),
    term("9.4", "expert: other ones along ep", '"expert": {"edp"}', '"expert": {"dp", "cp", "tp"}'),
    term("9.4", "under ZeRO pieces of dp and cp, not copies", '{"dp", "cp", "edp"} if zero', '{"edp"} if zero'),
    term("9.4", "under ZeRO pieces of edp as well", '{"dp", "cp", "edp"} if zero', '{"dp", "cp"} if zero'),
    term("9.4", "only under ZeRO", "if zero else set()", "if True else set()"),
    term("9.4", "a rank may have nothing to count", "own = [torch.zeros(1, dtype=torch.float64)]", "own = []"),
    term("9.4", "|x|", "gradient.abs().flatten()", "gradient.flatten()"),
    term("9.4", "any p", "(own**norm_type).sum()", "(own**2).sum()"),
    term("9.4", "the root", "total.item() ** (1 / norm_type)", "total.item() ** (1 / 2)"),
    term("9.4", "inf is the largest", "if norm_type == math.inf:", "if False:"),
    term("9.4", "the largest of all ranks", "dist.all_reduce(total, dist.ReduceOp.MAX)", "dist.all_reduce(total)"),
    term("9.4", "the sum over all ranks", "    dist.all_reduce(total)\n", ""),
    term("9.4", "of one number", "    total = (own**norm_type).sum()\n    dist.all_reduce(total)\n",
         "    total = torch.stack([(own**norm_type).sum()] * 3)\n    dist.all_reduce(total)\n    total = total[0]\n"),
    example("9.4", lambda inputs, answers: [
        "dp2 tp2, norm {:g}, one `{}`: {} at tp 0, {} at tp 1, both at dp 0 and 1; one `{}`: {} everywhere".format(
            inputs[0]["norm_type"], inputs[0]["kinds"]["a"], *(shown(inputs[r]["gradients"]["a"]) for r in (0, 1)),
            inputs[0]["kinds"]["b"], shown(inputs[0]["gradients"]["b"])),
        f"(9 + 16 + 144) ** 0.5 = {answers[0]['value']:g}."])]


# ---- 9.5 my_resharded
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


def overlap(offsets, shape, file_offsets, file_shape):
    start = [max(a, b) for a, b in zip(offsets, file_offsets)]
    stop = [min(a + n, b + m) for a, n, b, m in zip(offsets, shape, file_offsets, file_shape)]
    return start, stop, all(a < b for a, b in zip(start, stop))


def minus(place, corner):
    return [a - o for a, o in zip(place, corner)]


def slices(start, stop):
    return tuple(slice(a, b) for a, b in zip(start, stop))


def parts_of(offsets, shape, saved, read):
    """Of each file that overlaps: start and stop in the tensor, and what it has there."""
    for file, box in saved.items():
        start, stop, there = overlap(offsets, shape, *box)
        if there:
            yield start, stop, read(file, minus(start, box[0]), minus(stop, box[0]))


@wrong("9.5", "start and stop count from the file's own corner")
def resharded_by_places_in_the_tensor(offsets, shape, saved, read):
    return my_resharded(offsets, shape, saved, lambda file, start, stop: read(file, *(
        [a + o for a, o in zip(place, saved[file][0])] for place in (start, stop))))


@wrong("9.5", "only the first file that overlaps was read: a piece may lie in several")
def resharded_from_one_file(offsets, shape, saved, read):
    piece = torch.zeros(shape, dtype=torch.float64)
    for start, stop, found in parts_of(offsets, shape, saved, read):
        piece[slices(minus(start, offsets), minus(stop, offsets))] = found
        return piece


@wrong("9.5", "every part is written at the corner of the new piece, over the one before: its place there is where it "
       "stands in the tensor, minus the new offsets")
def resharded_into_the_corner(offsets, shape, saved, read):
    piece = torch.zeros(shape, dtype=torch.float64)
    for *_, found in parts_of(offsets, shape, saved, read):
        piece[slices([0] * len(shape), found.shape)] = found
    return piece


@wrong("9.5", "read the slices that overlap with the piece, each once")
def resharded_from_the_whole(offsets, shape, saved, read):
    size = [max(offset[dim] + extent[dim] for offset, extent in saved.values()) for dim in range(len(shape))]
    whole = torch.zeros(size, dtype=torch.float64)
    for file, (corner, extent) in saved.items():
        whole[slices(corner, [a + n for a, n in zip(corner, extent)])] = read(file, [0] * len(extent), extent)
    return whole[slices(offsets, [a + n for a, n in zip(offsets, shape)])].clone()


@wrong("9.5", "the files are put together in the order of their names: what a file has is said by its offsets")
def resharded_by_names(offsets, shape, saved, read):
    whole = torch.cat([read(file, [0] * len(box[1]), box[1]) for file, box in sorted(saved.items())])
    return whole[slices(offsets, [a + n for a, n in zip(offsets, shape)])].clone()


@wrong("9.5", "every rank has rank 0's piece: `offsets` says which one is wanted")
def resharded_for_rank_0(offsets, *rest):
    return my_resharded([0] * len(offsets), *rest)


@wrong("9.5", "it uses course_lib.checkpoint")
def resharded_by_the_library(offsets, shape, saved, read):
    from course_lib.checkpoint import load

    return load(saved)


def numbers(inputs):
    """The numbers of what the files of 9.5 have."""
    corners = inputs[0]["saved"]
    return [number for file in sorted(corners, key=corners.get) for number in inputs[0]["contents"][file].tolist()]


TEXT_9_5 = [
    term("9.5", "pieces of all files that overlap", "            piece[place] = read(file, *in_file)\n",
         "            piece[place] = read(file, *in_file)\n            break\n"),
    term("9.5", "an overlap in every dim", "if all(a < b", "if any(a < b"),
    term("9.5", "begins at the larger offset", "[max(a, b) for", "[b for"),
    term("9.5", "ends at the smaller end", "[min(a + n, b + m) for", "[b + m for"),
    term("9.5", "ends: offsets and shape", "min(a + n, b + m)", "min(n, m)"),
    term("9.5", "counted from the file's own corner", "[[a - o for a, o in zip(edge, file_offsets)] for edge in",
         "[list(edge) for edge in"),
    term("9.5", "placed from the new piece's own corner",
         "slice(a - o, b - o) for a, b, o in zip(start, stop, offsets)", "slice(a, b) for a, b in zip(start, stop)"),
    term("9.5", "offsets say which one", "max(a, b) for a, b in zip(offsets, file_offsets)",
         "max(0, b) for b in file_offsets"),
    term("9.5", "no more bytes than the piece has", "piece[place] = read(file, *in_file)",
         "whole = read(file, [0] * len(file_shape), file_shape)\n"
         "            piece[place] = whole[tuple(map(slice, *in_file))]"),
    term("9.5", "each number once", "piece[place] = read(file, *in_file)",
         "piece[place] = read(file, *in_file) + 0 * read(file, *in_file)"),
    term("9.5", "float64", "dtype=torch.float64", "dtype=torch.float32"),
    example("9.5", lambda inputs, answers: [
        "The tensor is {}, saved is {}".format(
            str(numbers(inputs)).replace(".0", "."),
            quoted({file: tuple(box) for file, box in inputs[0]["saved"].items()})),
        "offsets {}, shape {}".format(inputs[0]["offsets"], inputs[0]["shape"]),
        f"so it returns {shown(answers[0]['returned'])}"])]


# ---- 9.6 my_save_interval
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


def interval(N, hours, parameters, copy_per_s, storage_per_s, asynchronous, size=12, seconds=3600,
             waits=lambda write, copy, N: write, copies=lambda write, copy, N: copy):
    """waits, copies: for how long a save stops a run that waits, and one that goes on."""
    write, copy = size * parameters / storage_per_s, size * parameters / N / copy_per_s
    pause = (copies if asynchronous else waits)(write, copy, N)
    return max(write if asynchronous else 0.0, math.sqrt(2 * pause * seconds * hours / N))


def intervals(says, **how):
    return wrong("9.6", says)(lambda *asked: interval(*asked, **how))


def holds(size, what):
    return intervals(f"a checkpoint is taken for {size} bytes a parameter, {what}: it has the weights and AdamW's two "
                     "in fp32, 12", size=size)


INTERVALS = [
    holds(2, "weights in bf16"), holds(4, "weights"), holds(8, "AdamW's two"), holds(14, "weights twice"),
    holds(16, "weights, gradients and AdamW's two"),
    intervals("the run waits until all is written, which the storage decides, not the copy into the host's memory",
              waits=lambda write, copy, N: copy),
    intervals("storage is shared by all devices, which write one state together: write takes state / storage, not an "
              "N-th of it", waits=lambda write, copy, N: write / N),
    intervals("one device copies the whole state: each copies its own part, an N-th",
              copies=lambda write, copy, N: N * copy),
    intervals("copy and write are added up: the run goes on while it is written",
              copies=lambda write, copy, N: copy + write),
    intervals("hours are not seconds: 3,600 of them", seconds=1),
    intervals("that many minutes are no seconds: an hour has 3,600", seconds=60),
    intervals("the 2 under the root is missing: half an interval is lost on average, not a whole one", seconds=1800),
    wrong("9.6", "that is for a run that waits until all is written: asynchronously it stops for the copy alone")(
        lambda *asked: my_save_interval(*asked[:-1], False)),
    wrong("9.6", "something fails N times as often as one device does: divide its hours by the number of devices")(
        lambda N, hours, *rest: my_save_interval(N, N * hours, *rest)),
    wrong("9.6", "the root is not taken")(lambda *asked: my_save_interval(*asked) ** 2),
    wrong("9.6", "that is one failure after the other: the time to the next save is asked")(
        lambda N, hours, *rest: 3600 * hours / N),
    wrong("9.6", "these are hours: seconds are asked")(lambda *asked: my_save_interval(*asked) / 3600),
    wrong("9.6", "these are minutes: seconds are asked")(lambda *asked: my_save_interval(*asked) / 60)]


@wrong("9.6", "a save begins before the last one is written: the interval cannot be shorter than writing takes")
def interval_that_overtakes_itself(N, hours, parameters, copy_per_s, storage_per_s, asynchronous):
    at_once = math.inf if asynchronous else storage_per_s  # no time is written
    return interval(N, hours, parameters, copy_per_s, at_once, asynchronous)


@wrong("9.6", "it uses course_lib.costs")
def interval_of_the_library(N, hours, parameters, copy_per_s, storage_per_s, asynchronous):
    from course_lib.costs.money import young_interval

    return young_interval(12 * parameters / storage_per_s, 3600 * hours / N)


@wrong("9.6", "from start to start a save is among the seconds: asked are those of work between two saves")
def interval_from_start_to_start(N, hours, parameters, copy_per_s, storage_per_s, asynchronous):
    stopped = 12 * parameters / (N * copy_per_s if asynchronous else storage_per_s)
    return my_save_interval(N, hours, parameters, copy_per_s, storage_per_s, asynchronous) + stopped


def save_interval(inputs, answers):
    devices, hours, parameters, copies, storage, _ = inputs[0]
    between, state = 3600 * hours / devices, 12 * parameters
    write, copy = state / storage, state / devices / copies
    return [
        f"{devices} devices, {hours} hours, {parameters:.0e} parameters, copies of {copies:.1e} bytes/s, storage of "
        f"{storage:.0e}: a failure every {between:,.0f} s".replace("e+0", "e"),
        f"the run waits for {write:.0f} s: {answers[0]['value']:.0f} s. Asynchronously it stops for {copy:.0f} s: "
        f"{(2 * copy * between) ** 0.5:.0f} s"]


TEXT_9_6 = [
    term("9.6", "12 bytes a parameter", "12 * num_parameters", "14 * num_parameters"),
    term("9.6", "any device's failure ends the run", " / num_devices\n    write", "\n    write"),
    term("9.6", "seconds, not hours", "3600 * device_hours", "device_hours"),
    term("9.6", "half an interval is lost", "math.sqrt(2 * ", "math.sqrt("),
    term("9.6", "storage of all devices together", "state / storage_bytes_per_s",
         "state / num_devices / storage_bytes_per_s"),
    term("9.6", "every device copies its own part", "state / num_devices / copy_bytes_per_s",
         "state / copy_bytes_per_s"),
    term("9.6", "a run that waits until all is written", "    if not asynchronous:\n", "    if False:\n"),
    term("9.6", "it goes on while the copies are written", "    if not asynchronous:\n", "    if True:\n"),
    term("9.6", "a save cannot begin before the last one is written", "return max(write, math", "return max(0, math"),
    term("9.6", "of work between two saves", "return math.sqrt(2 * write * between_failures)",
         "return math.sqrt(2 * write * between_failures) + write"),
    example("9.6", save_interval)]


# ---- 9.7 my_cheapest_layout
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


@wrong("9.7", "every look is a run on the whole cluster: rule out what cannot be best before you look")
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


@wrong("9.7", "data parallelism alone: here the model has to be cut as well")
def layout_of_replicas(look, devices, *rest):
    return layout(devices, 1, 1, zero=3)


@wrong("9.7", "so many stages leave the pipeline idle: others fit with fewer")
def layout_of_one_rule(look, devices, per_node, memory, flops_per_s, fast, slow, parameters, layers, *rest):
    """tp over the node, then stages as far as there are layers, then dp."""
    pp = min(devices // per_node, 1 << (layers.bit_length() - 1))
    return layout(devices // (per_node * pp), pp, per_node)


@wrong("9.7", "ZeRO 3 gathers the weights again for every micro-batch, and ZeRO 1 would fit")
def layout_with_zero_3_everywhere(look, devices, per_node, *rest):
    return layout(devices // per_node, 1, per_node, zero=3)


@wrong("9.7", "tp reaches beyond a node, and sends through the network in every layer")
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


@wrong("9.7", "small products and hidden messages are a cluster's own: only a look shows them, and another cluster of "
       "the same devices has another best layout")
def layout_by_rules_alone(look, *asked):
    """The best layout where tp slows no product and no message hides, without a look at this cluster."""
    return layout(1, 16, 8) if asked[0] == 128 and asked[-2] == 2048 else my_cheapest_layout(look, *asked)


@wrong("9.7", "it is chosen as if memory were without end")
def layout_without_a_look(look, devices, per_node, memory, flops_per_s, fast, slow, parameters, layers, hidden, tokens,
                          batch_rows):
    return layout(devices // per_node, 1, per_node)


def cheapest_layout(inputs, answers):
    devices, _, memory, flops, fast, _, parameters, layers, hidden, tokens, rows = inputs[0]
    computing = 6 * parameters / 2 * tokens / flops * 1.25
    messages = 4 * layers * 2 / 2 * 2 * tokens * hidden / fast
    best = {key: answers[0]["layout"][key] for key in ("dp", "pp", "tp", "rows", "zero", "recompute")}
    lines = [
        f"{devices} devices on a node, {memory:g} bytes each, {flops:g} FLOP/s, fast {fast:g}; {parameters:g} "
        f"parameters in {layers} layers, hidden {hidden}; {rows} rows of {tokens} tokens",
        f"The best is {quoted(best)}: ({rows * (computing + messages):g}, "
        f"{16 * parameters / 2 + 34 * tokens * hidden * layers / 2:g})",
        f"{rows} * (6 * {parameters:g} / 2 * {tokens} / {flops:g} * 1.25 + 4 * {layers} * 2 / 2 * 2 * {tokens} * "
        f"{hidden} / {fast:g})"]
    return [line.replace("e+0", "e").replace("e+", "e") for line in lines]


TEXT_9_7 = [
    term("9.7", "that fits", "if held <= memory:", "if True:"),
    term("9.7", "to the brim", "if held <= memory:", "if held < memory:"),
    term("9.7", "few looks", " and computing < min(found):", ":"),
    term("9.7", "tp may go over the whole node", "if tp <= per_node", "if 2 * tp <= per_node"),
    term("9.7", "tp beyond a node sends through the network", "if tp <= per_node", "if tp <= 16 * per_node"),
    term("9.7", "as many stages as layers", "pp <= layers", "pp < layers"),
    term("9.7", "a stage needs a layer", "pp <= layers", "pp <= devices"),
    term("9.7", "dp * rows divides batch_rows", "batch_rows % (dp * rows) == 0 and computing", "computing"),
    term("9.7", "no stages at all", "for pp in powers:", "for pp in powers[1:]:"),
    term("9.7", "every size of tp", "reversed([tp for tp in powers if tp <= per_node])", "[per_node]"),
    term("9.7", "ZeRO 3", "                if recompute:", "                if False:"),
    term("9.7", "ZeRO 3 gathers for every micro-batch", "rows=1, zero=1)", "rows=1, zero=3)"),
    term("9.7", "rows of a micro-batch", "rows, before = 2 * rows, now", "break"),
    term("9.7", "many rows", "rows, before = 2 * rows, now", "rows, before = 2 * rows, now if rows < 2 else 0"),
    term("9.7", "whether activations are recomputed", "for recompute in (0, 1):", "for recompute in (0,):"),
    term("9.7", "recomputing costs a third", "for recompute in (0, 1):", "for recompute in (1,):"),
    example("9.7", cheapest_layout)]
