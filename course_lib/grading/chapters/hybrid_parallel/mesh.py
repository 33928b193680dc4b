"""Exercises 9.1 and 9.2: a rank's place when the axes change their order; groups of several axes, cut at the nodes.

    sizes  {"dp": 2, "pp": 2, "cp": 1, "tp": 2}      order  "tp,cp,dp,pp", innermost first: ranks count along tp first
    rank = tp + size(tp) (cp + size(cp) (dp + size(dp) pp))      node n has the ranks [n G, (n + 1) G)
"""

import math
import random
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from course_lib.grading.compare import describe
from course_lib.grading.exercise import Exercise, Traffic, Trial
from course_lib.grading.numbers import NumberExercise
from course_lib.grading.spent import Spent

Sizes = dict[str, int]
Groups = list[list[int]]
ORDER = "tp,cp,dp,pp"
ORDERS = (ORDER, "tp,dp,cp,pp", "pp,tp,dp,cp", "dp,tp,pp,cp", "tp,pp,dp,cp")


def named(dp: int = 1, pp: int = 1, cp: int = 1, tp: int = 1) -> Sizes:
    return {"dp": dp, "pp": pp, "cp": cp, "tp": tp}


def turned(order: str) -> str:
    """Outermost first."""
    return ",".join(reversed(order.split(",")))


def coordinates(rank: int, sizes: Sizes, order: str = ORDER) -> dict[str, int]:
    """The digits of `rank`, the innermost axis the fastest."""
    found = {}
    for axis in order.split(","):
        rank, found[axis] = divmod(rank, sizes[axis])
    return found


def rank_at(where: dict[str, int], sizes: Sizes, order: str = ORDER) -> int:
    rank = 0
    for axis in reversed(order.split(",")):
        rank = rank * sizes[axis] + where[axis]
    return rank


def groups_of(axes: Iterable[str], sizes: Sizes, order: str = ORDER) -> Groups:
    """The ranks that differ along these axes only."""
    found: dict[tuple[int, ...], list[int]] = {}
    for rank in range(math.prod(sizes.values())):
        where = coordinates(rank, sizes, order)
        found.setdefault(tuple(where[axis] for axis in sizes if axis not in axes), []).append(rank)
    return list(found.values())


def words_for(sizes: Sizes) -> str:
    """dp4 tp2"""
    return " ".join(f"{axis}{size}" for axis, size in sizes.items() if size > 1) or "dp1"


class MovedRank(NumberExercise):
    number = "9.1"
    function = "my_moved_rank"
    points = 2
    tolerance = (0.0, 0.0)
    budget = "the one rank of all that does the same"
    hints = (
        "A rank is a number whose digits are its coordinates, and every digit has a base of its own. What does the "
        "same work has the same coordinates. So which two steps are there?",
        "To take the digits off, begin with the innermost axis: divmod by its size leaves the coordinate, and the rest "
        "for the next axis. To put them together, begin with the outermost: rank = rank * size + coordinate.",
        "where = {}\n"
        "for axis in order.split(\",\"):\n"
        "    rank, where[axis] = divmod(rank, ...)\n"
        "moved = 0\n"
        "for axis in reversed(...):\n"
        "    moved = moved * ... + ...\n"
        "return moved",
    )
    LLAMA = named(dp=8, pp=16, cp=16, tp=8)
    cases = (("rank 13 of dp2 pp3 cp2 tp2", (13, named(2, 3, 2, 2), ORDER, "cp,dp,tp,pp")),
             ("rank 5 of dp2 pp2 tp2", (5, named(2, 2, 1, 2), ORDER, "pp,tp,dp,cp")),
             ("rank 21 of dp4 pp2 cp3 tp2", (21, named(4, 2, 3, 2), ORDER, "dp,tp,pp,cp")),
             ("rank 7 of dp3 tp4, which trade places", (7, named(3, 1, 1, 4), ORDER, "dp,tp,pp,cp")),
             ("rank 9 of dp4 pp4 tp4, the order as it was", (9, named(4, 4, 1, 4), ORDER, ORDER)),
             ("rank 12,345 of dp8 pp16 cp16 tp8, Llama 3's", (12_345, LLAMA, "tp,cp,pp,dp", ORDER)),
             ("the only rank", (0, named(), ORDER, ORDERS[2])))

    def expected(self, rank: int, sizes: Sizes, order: str, new_order: str) -> float:
        return float(rank_at(coordinates(rank, sizes, order), sizes, new_order))

    def draw(self, source: random.Random) -> tuple[str, tuple[Any, ...]]:
        sizes = named(*(source.randint(2, 5) for _ in range(4)))
        rank = source.randrange(math.prod(sizes.values()))
        return f"rank {rank} of {words_for(sizes)}", (rank, sizes, ORDER, source.choice(ORDERS[1:]))

    def mistakes(self, rank: int, sizes: Sizes, order: str, new_order: str) -> Iterable[tuple[str, float]]:
        def moved(before: str, after: str, digits: Callable[[str], dict[str, int]] | None = None) -> float:
            where = digits(before) if digits else coordinates(rank, sizes, before)
            return float(rank_at(where, sizes, after))

        def one_too_far(order: str) -> dict[str, int]:
            axes = order.split(",")
            return {axis: rank // math.prod(sizes[each] for each in axes[:i + 1]) % sizes[axis]
                    for i, axis in enumerate(axes)}

        yield "the rank is as it was: in another order other ranks do its work", float(rank)
        yield ("both orders are read outermost first: the first axis named is the innermost, along which ranks count "
               "first", moved(turned(order), turned(new_order)))
        yield ("the digits are taken off outermost first: the remainder of a division by the size of the first axis "
               "named is its coordinate", moved(turned(order), new_order))
        yield ("the coordinates are put together the wrong way round: the first axis named counts ones",
               moved(order, turned(new_order)))
        yield "the old order and the new one are mistaken for each other", moved(new_order, order)
        yield ("every coordinate is the remainder of the rank itself: what is left after the axes inside of it has to "
               "be divided, rank // size comes first",
               moved(order, new_order, lambda order: {axis: rank % size for axis, size in sizes.items()}))
        yield ("the rank is divided by an axis' own size as well before the remainder is taken: its stride is the "
               "product of the sizes inside of it",
               moved(order, new_order, one_too_far))
        where, new = coordinates(rank, sizes, order), new_order.split(",")
        yield ("each coordinate is multiplied by its own axis' size: its stride is the product of the sizes of all "
               "axes inside of it", float(sum(where[axis] * sizes[axis] for axis in new)))
        yield ("each coordinate is multiplied by the size of one axis, the one inside of it: it is the product of all "
               "that are inside", float(where[new[0]] + sum(where[axis] * sizes[inner]
                                                             for inner, axis in zip(new, new[1:]))))


class TwoLevels(Exercise):
    number = "9.2"
    function = "my_two_levels"
    points = 3
    right = "the groups are right"
    budget = "par: 2(k-1)/k of an i-th of the message from each rank over the slow wire, i ranks a node, k nodes"
    hints = (
        "Two questions about every pair of ranks: do they differ along the axes that were named and no others? And are "
        "they on one node?",
        "Go through the ranks. What they have along all the other axes names their group, and rank // ranks_per_node "
        "their node: a dict of dicts of lists. The innermost lists are the first answer. For the second take, group by "
        "group, the first of every node, then the second of every node: zip(*lists).",
        "found = {}\n"
        "for rank in range(math.prod(sizes.values())):\n"
        "    where = ...  # coordinates, as in 9.1\n"
        "    others = tuple(where[axis] for axis in sizes if ...)\n"
        "    found.setdefault(others, {}).setdefault(rank // ranks_per_node, []).append(rank)\n"
        "inside = [ranks for nodes in found.values() for ranks in nodes.values()]\n"
        "across = [list(ranks) for nodes in found.values() for ranks in ...]\n"
        "return inside, across",
    )
    CASES = ((("dp", "tp"), named(2, 2, 2, 4), ORDER, 8), (("dp", "cp"), named(dp=4, cp=2, tp=2), ORDER, 8),
             (("dp",), named(2, 2, 1, 2), ORDER, 4),
             (("dp", "tp"), named(dp=4, pp=2, tp=2), "tp,cp,pp,dp", 8),
             (("tp",), named(dp=2, tp=4), "dp,tp,cp,pp", 4), (("pp", "cp"), named(2, 2, 2, 2), "cp,tp,pp,dp", 4),
             (("tp",), named(dp=2, pp=2, tp=2), ORDER, 4), (("dp", "cp"), named(8, 4, 4, 4), ORDER, 32),
             (("dp",), named(), ORDER, 1))

    def trials(self, seed: int) -> list[Trial]:
        source, ranks = random.Random(seed), 2 ** random.Random(seed).randint(1, 3)
        drawn = ("dp", "cp"), named(4, source.randint(2, 3), 2, ranks), source.choice(ORDERS[:2]), 2 * ranks
        return [Trial([[list(axes), sizes, order, node]],
                      f"{' and '.join(axes)} of {words_for(sizes)}, {order}, {node} rank{'s' * (node > 1)} a node")
                for axes, sizes, order, node in (*self.CASES, drawn)]

    @staticmethod
    def run(function: Callable, inputs: list[Any]) -> Any:
        axes, sizes, order, node = inputs
        returned = function(list(axes), dict(sizes), order, node)
        if not isinstance(returned, tuple | list) or len(returned) != 2:
            return "nothing (None)" if returned is None else f"a {type(returned).__name__}, and no pair"
        lists = [[[int(rank) for rank in group] for group in groups] for groups in returned]
        return lists if sum(map(len, lists)) <= 100_000 else "too many groups"

    def arguments(self, trial: Trial) -> Sequence[Any]:
        return trial.inputs[0]

    def given(self, answers: list[Any]) -> Any:
        answer = answers[0]
        return [tidy(groups) for groups in answer] if whole_lists(answer) else answer

    def wrong(self, trial: Trial, answers: list[Any]) -> str | None:
        if not whole_lists(answers[0]):
            return (f"it returned {describe(answers[0])}: expected two lists of groups, each a list of ranks")
        return super().wrong(trial, answers)

    def expected(self, axes: list[str], sizes: Sizes, order: str, node: int) -> list[Groups]:
        return levels(groups_of(axes, sizes, order), node)

    def mistakes(self, axes: list[str], sizes: Sizes, order: str, node: int) -> Iterable[tuple[str, list[Groups]]]:
        right = self.expected(axes, sizes, order, node)
        whole = groups_of(axes, sizes, order)
        yield "the answers are mistaken for each other: first the groups inside nodes, then those across", right[::-1]
        yield ("the nodes are left out: the first answer has the whole groups. Cut each at the nodes",
               [tidy(whole), right[1]])
        yield ("the nodes are left out: both answers have the whole groups. Cut each at the nodes", [tidy(whole)] * 2)
        yield ("the second answer has the whole groups: every rank of a node would send the whole message over the "
               "slow wire. One of each node belongs together", [right[0], tidy(whole)])
        yield ("the second answer has the first rank of every node only: after the reduce-scatter inside a node each "
               "of its ranks has another piece, and needs a group of its own",
               [right[0], tidy(levels([group], node)[1][0] for group in whole)])
        rest = [axis for axis in sizes if axis not in axes]
        yield ("these are the groups of all the other axes: in a group ranks differ along the axes named, and agree "
               "along the others", levels(groups_of(rest, sizes, order), node))
        if len(axes) > 1:
            for axis in axes:
                yield (f"these are groups along {axis} alone: the ranks of one may differ along both axes at once",
                       levels(groups_of([axis], sizes, order), node))
        yield ("the order is read outermost first: the first axis named is the innermost, along which ranks count "
               "first", levels(groups_of(axes, sizes, turned(order)), node))
        yield ("`order` is not looked at: which ranks are neighbours depends on it",
               levels(groups_of(axes, sizes, ",".join(sizes)), node))
        n = len(whole[0])
        yield ("a group is taken to be ranks in a row: that is so for the innermost axis alone",
               levels([list(range(start, start + n)) for start in range(0, n * len(whole), n)], node))

    def difference(self, given: Any, expected: list[Groups]) -> str:
        for has, should, place in zip(given, expected, ("inside nodes", "across nodes")):
            if has != should:
                wrong = next((group for group in has if group not in should), None)
                missing = next((group for group in should if group not in has), None)
                return (f"{place}: " + (f"{wrong[:16]} is no such group" if wrong is not None else
                                        "a group is there twice" if missing is None else "a group is missing")
                        + (f", and {missing[:16]} is one" if missing else ""))
        raise AssertionError("nothing differs")

    def spent(self, trial: Trial, answers: list[Any], traffic: Traffic) -> list[Spent]:
        given, right = self.given(answers), self.expected(*self.arguments(trial))
        return [Spent("sends", slow_share(given), slow_share(right), "share", on=" of a message over the slow wire",
                      limit="par {}", slack=1e-9)]


def whole_lists(answer: Any) -> bool:
    """Whether this is a pair of lists of lists of whole numbers."""
    return type(answer) is list and len(answer) == 2 and all(
        type(groups) is list and all(type(group) is list and all(type(rank) is int for rank in group)
                                     for group in groups) for groups in answer)


def tidy(groups: Iterable[Iterable[int]]) -> Groups:
    """In one order, whatever they came in."""
    return sorted(sorted(group) for group in groups)


def levels(groups: Iterable[Sequence[int]], node: int) -> list[Groups]:
    """The parts of groups inside nodes, and across them the first of each part, the second of each, and so on."""
    inside, across = [], []
    for group in groups:
        parts: dict[int, list[int]] = {}
        for rank in group:
            parts.setdefault(rank // node, []).append(rank)
        inside += parts.values()
        longest = max(map(len, parts.values()))
        across += [[part[i] for part in parts.values() if i < len(part)] for i in range(longest)]
    return [tidy(inside), tidy(across)]


def slow_share(answer: list[Groups]) -> float:
    """Of its message, what a rank sends to other nodes: a ring over each group across, of the pieces of one inside."""
    inside, across = ({rank: len(group) for group in groups for rank in group} for groups in answer)
    return max(2 * (k - 1) / k / inside.get(rank, 1) for rank, k in across.items())
