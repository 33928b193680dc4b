"""Exercises 9.1, 9.2 and 9.7: a rank's place when axes change their order; groups cut at the nodes; the best layout.

    sizes  {"dp": 2, "pp": 2, "cp": 1, "tp": 2}      order  "tp,cp,dp,pp", innermost first: ranks count along tp first
    rank = tp + size(tp) (cp + size(cp) (dp + size(dp) pp))      node n has the ranks [n G, (n + 1) G)

9.7 is open-ended. `step_of` is the cluster: what a look at a layout gives, which the judge answers and counts. The
rules of thumb that it obeys are the chapter's, and the exercise says them in words; two shares are a cluster's own, and
only a look shows them. What hardly changes the choice is left out (latency, the embedding).
"""

import random
from collections.abc import Iterable, Sequence
from itertools import groupby, product
from math import log2, prod
from typing import Any

from course_lib.grading.compare import describe, is_list_of, part
from course_lib.grading.exercise import Exercise, SentBytes, Trial
from course_lib.grading.kinds import NumberExercise, network_of_rates
from course_lib.grading.spent import Spent
from course_lib.hybrid_parallel.layout import AXES, ParallelLayout

from .on_rank import cheapest_layout, two_levels

Sizes = dict[str, int]
Groups = list[list[int]]
Layout = dict[str, int]  # dp, pp, tp, rows of a micro-batch, zero stage (0, 1, 3), recompute (0, 1)
Cluster = dict[str, float]
KEYS = ("dp", "pp", "tp", "rows", "zero", "recompute")
ORDER = "tp,cp,dp,pp"
ORDERS = (ORDER, "tp,dp,cp,pp", "pp,tp,dp,cp", "dp,tp,pp,cp", "tp,pp,dp,cp")
LOOKS = 64  # trial runs
POWERS = [2**i for i in range(11)]
PAR = 1.01  # of the shortest step of all
A100 = 200e12, 300e9, 25e9  # FLOP/s, bytes/s of a device inside its node, and of its network card
H100 = 400e12, 450e9, 50e9
EXAMPLE = (2, 2, 8.17e9, 6e12, 1.6e9, 1e9, 1e9, 10, 1000, 1000, 2), {"small": 0.25, "hidden": 0.5}
CASES = (
    ("70B on 128 A100, 32 rows of 2,048 tokens", (128, 8, 80e9, *A100, 70e9, 80, 8192, 2048, 32)),
    ("405B on 1,024 H100, 512 rows of 8,192 tokens", (1024, 8, 80e9, *H100, 405e9, 126, 16384, 8192, 512)),
    ("70B on 128 H100, 32 rows of 65,536 tokens", (128, 8, 80e9, *H100, 70e9, 80, 8192, 65536, 32)),
    ("7B on 16 devices of 24 GB, one a node, 10 Gbit/s between them",
     (16, 1, 24e9, 60e12, 16e9, 1.25e9, 7e9, 32, 4096, 2048, 128)),  # ZeRO 1
    ("20B of 16 layers on 16 devices of 24 GB, one a node, 10 Gbit/s between them",
     (16, 1, 24e9, 150e12, 16e9, 1.25e9, 20e9, 16, 10240, 2048, 256)),  # as many stages as layers and devices
    ("11B of 6 wide layers on 16 devices of 16 GB, one a node, 10 Gbit/s between them",
     (16, 1, 16e9, 150e12, 16e9, 1.25e9, 11e9, 6, 12288, 2048, 256)),  # large micro-batches
    ("36B on 64 devices of 80 GB, PCIe inside nodes, of which each has 100 Gbit/s",
     (64, 8, 80e9, 400e12, 64e9, 12.5e9 / 8, 36e9, 80, 6144, 4096, 256)),  # ZeRO 3 in a node, stages across nodes
    ("13B on 32 devices of 40 GB, 4 a node, a card of 5 GB/s each",
     (32, 4, 40e9, 150e12, 300e9, 5e9, 13e9, 40, 5120, 2048, 256)),
    ("30B on 16 devices of 80 GB, all on one switch", (16, 16, 80e9, 400e12, 450e9, 450e9, 30e9, 60, 6656, 4096, 128)),
    ("8B on them", (16, 16, 80e9, 400e12, 450e9, 450e9, 8e9, 32, 4096, 4096, 128)))  # data parallelism alone
# Where small products lose little, the best layouts are close: whoever looks away too early misses the best.
LITTLE = dict.fromkeys((CASES[2][0], CASES[7][0]), ((0.0, 0.015), (0.35, 0.5)))


def sizes_of(text: str) -> Sizes:
    """The size of each axis in a text such as "dp4 tp2"."""
    layout = ParallelLayout.from_string(text)
    return {axis: layout.size(axis) for axis in AXES}


class MovedRank(NumberExercise):
    number = "9.1"
    tolerance = (0.0, 0.0)
    budget = "the one rank of all that does the same"
    cases = tuple((f"{'the example, ' * (rank == 15)}rank {rank:,} of {text}", (rank, sizes_of(text), order, new_order))
                  for rank, text, order, new_order in (
                      (15, "dp3 pp3 tp2", ORDER, "pp,tp,dp,cp"), (13, "dp2 pp3 cp2 tp2", ORDER, "cp,dp,tp,pp"),
                      (21, "dp4 pp2 cp3 tp2", ORDER, "dp,tp,pp,cp"), (7, "dp3 tp4", ORDER, "dp,tp,pp,cp"),
                      (9, "dp4 pp4 tp4", ORDER, ORDER), (0, "dp1", ORDER, "pp,tp,dp,cp"),
                      (12_345, "dp8 pp16 cp16 tp8", "tp,cp,pp,dp", ORDER)))  # Llama 3's

    def solve(self, rank: int, sizes: Sizes, order: str, new_order: str) -> int:
        where = ParallelLayout(**sizes, order=order).coordinates(rank)
        return ParallelLayout(**sizes, order=new_order).rank(**{axis: where[axis] for axis in AXES})

    def draw(self, source: random.Random) -> tuple[str, tuple[Any, ...]]:
        sizes = {axis: source.randint(2, 5) for axis in AXES}
        rank = source.randrange(prod(sizes.values()))
        text = " ".join(f"{axis}{size}" for axis, size in sizes.items())
        return f"rank {rank} of {text}", (rank, sizes, ORDER, source.choice(ORDERS[1:]))


class TwoLevels(Exercise):
    number = "9.2"
    budget = "par: 2(k-1)/k of an i-th of the message from each rank over the slow wire, i ranks a node, k nodes"
    run = staticmethod(two_levels)
    cases = (  # axes of the groups, layout, order, ranks of a node
        ("dp", "dp4 tp2", ORDER, 4), ("dp,tp", "dp2 pp2 cp2 tp4", ORDER, 8), ("dp,cp", "dp4 cp2 tp2", ORDER, 8),
        ("dp", "dp2 pp2 tp2", ORDER, 4), ("dp,tp", "dp4 pp2 tp2", "tp,cp,pp,dp", 8),
        ("tp", "dp2 tp4", "dp,tp,cp,pp", 4), ("pp,cp", "dp2 pp2 cp2 tp2", "cp,tp,pp,dp", 4),
        ("tp", "dp2 pp2 tp2", ORDER, 4), ("dp,cp", "dp8 pp4 cp4 tp4", ORDER, 32), ("dp", "dp1", ORDER, 1))

    def trials(self, seed: int) -> list[Trial]:
        source, tp = random.Random(seed), 2 ** random.Random(seed).randint(1, 3)
        drawn = "dp,cp", f"dp4 pp{source.randint(2, 3)} cp2 tp{tp}", source.choice(ORDERS[:2]), 2 * tp
        return [Trial([[axes.split(","), sizes_of(text), order, node]],
                      f"{'the example, ' * (text == 'dp4 tp2')}{axes.replace(',', ' and ')} of {text}, {order}, "
                      f"{node} rank{'s' * (node > 1)} a node")
                for axes, text, order, node in (*self.cases, drawn)]

    def solve(self, inputs: list[Any]) -> list[list[Groups]]:
        (axes, sizes, order, node), = inputs
        inside, across = [], []
        for group in ParallelLayout(**sizes, order=order).groups(*axes):
            parts = [list(ranks) for _, ranks in groupby(group, lambda rank: rank // node)]
            inside += parts
            across += zip(*parts)  # the first of each part, the second of each, and so on
        return [[sorted(inside), sorted(map(list, across))]]

    def difference(self, each_given: list[Any], each_expected: list[list[Groups]]) -> str:
        (given, *_), (expected,) = each_given, each_expected
        if not are_lists(given):
            return f"it returned {describe(given)}: expected two lists of groups, each a list of ranks"
        level = 0 if given[0] != expected[0] else 1
        strange = [f"{group[:16]} is no such group" for group in given[level] if group not in expected[level]][:1]
        missing = [f"{group[:16]} is one" for group in expected[level] if group not in given[level]][:1]
        return f"{('inside', 'across')[level]} nodes: {', and '.join(strange + missing) or 'a group is there twice'}"

    def usage(self, trial: Trial, answers: list[Any], traffic: SentBytes) -> list[Spent]:
        share, par = slow_share(answers[0]), slow_share(*self.solve(trial.inputs))
        return [Spent("sends", share, par, "share", on=" of a message over the slow wire", limit="par {}", slack=1e-9)]


def are_lists(answer: Any) -> bool:
    """Whether this is a pair of lists of lists of whole numbers."""
    return is_list_of(answer, list, length=2) and all(is_list_of(groups, list) and all(
        is_list_of(group, int) for group in groups) for groups in answer)


def slow_share(levels: list[Groups]) -> float:
    """The share of its message that a rank sends to other nodes, of the rank that sends most.

    Each group inside a node cuts the message into pieces; a ring over the group across sends one of them.
    """
    inside, across = ({rank: len(group) for group in groups for rank in group} for groups in levels)
    return max(2 * (k - 1) / k / inside[rank] for rank, k in across.items())


class CheapestLayout(Exercise):
    number = "9.7"
    right = "the layout is possible"
    budget = f"par: 1 % above the shortest step of all layouts that fit, after at most {LOOKS} looks"
    run = staticmethod(cheapest_layout)
    asks = True
    is_plan = True
    compared = "layout"

    def trials(self, seed: int) -> list[Trial]:
        source = random.Random(seed)
        devices, B = 2 ** source.randint(5, 8), source.randint(8, 60)
        hidden = 512 * round((B * 1e9 / 12 / 45) ** 0.5 / 512)
        drawn = (f"{B}B on {devices} H100, 4,096 tokens",
                 (devices, 8, 80e9, *H100, B * 1e9, round(B * 1e9 / 12 / hidden**2), hidden, 4096, 512))

        def cluster(small: tuple[float, float] = (0.0, 0.15), hidden: tuple[float, float] = (0.0, 0.8)) -> Cluster:
            return {"small": source.uniform(*small), "hidden": source.uniform(*hidden)}

        (example, its_own), (label, asked), others = EXAMPLE, CASES[0], [*CASES[1:], drawn]
        return [Trial([list(asked)], label, hidden=own) for label, asked, own in (
            ("the example, 1B on 2 devices", example, its_own),
            (label, asked, cluster((0.0, 0.03), (0.0, 0.1))),  # two clusters that are alike, as long as nobody looks
            (f"{label}, another cluster", asked, cluster((0.12, 0.15), (0.7, 0.8))),
            *((label, asked, cluster(*LITTLE.get(label, ()))) for label, asked in others))]

    def reply(self, trial: Trial, question: Any) -> list[float]:
        if fault := fault_of(question, *trial.inputs[0]):
            raise ValueError(f"look({question}): {fault}")
        return list(step_of(question, trial.hidden, *trial.inputs[0]))

    def wrong(self, trial: Trial, answers: list[Any]) -> str | None:
        layout, looks = (part(answers[0], name) for name in ("layout", "asked"))
        fault = fault_of(layout, *trial.inputs[0]) if type(looks) is int else "nobody has counted how often it looked"
        return f"it returned {layout if type(layout) is dict else describe(layout)}: {fault}" if fault else None

    def usage(self, trial: Trial, answers: list[Any], traffic: SentBytes) -> list[Spent]:
        asked, layout = trial.inputs[0], answers[0]["layout"]
        (seconds, held), (shortest, best) = step_of(layout, trial.hidden, *asked), best_of(trial.hidden, asked)
        who = (f"with dp{layout['dp']} pp{layout['pp']} tp{layout['tp']}, {layout['rows']} row"
               f"{'s' * (layout['rows'] > 1)}, ZeRO {layout['zero']}{', recomputing' * layout['recompute']} it")
        why = reason(layout, best, trial.hidden, asked)
        return [Spent("holds", held / 1e9, asked[2] / 1e9, "", " GB on a device", who=who, why=why, decides=True),
                Spent("takes", seconds, shortest * PAR, "", " s for a step", who=who, why=why, limit="par {}",
                      slack=1e-9), Spent("took", answers[0]["asked"], LOOKS, "look")]


def every_layout(*asked: Any) -> Iterable[Layout]:
    """Every layout of as many devices as are asked about: sizes of axes and rows are powers of 2."""
    for pp, tp, rows in product(POWERS, POWERS, POWERS):
        sizes = asked[0] // (pp * tp), pp, tp, rows
        if pp * tp <= asked[0] and fault_of(dict(zip(KEYS, (*sizes, 0, 0))), *asked) is None:
            yield from (dict(zip(KEYS, (*sizes, *rest))) for rest in product((0, 1, 3), (0, 1)))


def best_of(cluster: Cluster, asked: Sequence[Any]) -> tuple[float, Layout]:
    """(seconds, layout) of the shortest step of all that fit."""
    found = ((*step_of(layout, cluster, *asked), layout) for layout in every_layout(*asked))
    return min(((seconds, layout) for seconds, held, layout in found if held <= asked[2]), key=lambda each: each[0])


def step_of(layout: Layout, cluster: Cluster, devices: int, per_node: int, memory: float, flops_per_s: float,
            fast: float, slow: float, parameters: float, layers: int, hidden: int, tokens: int, batch_rows: int
            ) -> tuple[float, float]:
    """(seconds of a step, bytes on a device) of a GPT in bf16 with AdamW; ranks count along tp, then dp, then pp.

    cluster: what no reader is told, small: the share by which each halving of a product by tp makes it slower; hidden:
    the share of the gradients' messages that lies behind backward.
    """
    dp, pp, tp, rows, zero, recompute = (layout[key] for key in KEYS)
    part, micro_batches = parameters / (pp * tp), batch_rows // (dp * rows)
    activation = 2 * rows * tokens * hidden  # bytes between two layers
    wires = network_of_rates(per_node, fast, slow)
    computing = (8 if recompute else 6) * part * rows * tokens / flops_per_s * (1 + cluster["small"] * log2(tp))
    tensor = wires.group(tp).seconds("all_reduce", (6 if recompute else 4) * layers / pp * activation)
    pipe = wires.group(pp, tp * dp).seconds("send", 2 * activation / tp)
    gradients = wires.group(dp, tp).seconds("all_reduce", 2 * part)
    gathers = 2 * wires.group(dp, tp).seconds("all_gather", 2 * part) if zero == 3 else 0.0
    step = (micro_batches + pp - 1) * max(computing + tensor + pipe, gathers) + (1 - cluster["hidden"]) * gradients
    state = part * {0: 16, 1: 4 + 12 / dp, 3: 16 / dp}[zero]  # weights and gradients 2 + 2, the optimiser's 12
    kept = (2 if recompute else 34) / 2 * activation * layers / (pp * tp) * min(pp, micro_batches)
    return step, state + kept


def fault_of(layout: Any, devices: int, *cluster: Any) -> str | None:
    """Why this is no layout of so many devices; `cluster` as step_of has it."""
    values = [layout.get(key) for key in KEYS] if isinstance(layout, dict) and len(layout) == len(KEYS) else [None]
    if not all(isinstance(value, int) for value in values) or min(values[:4]) < 1 or values[4] not in (0, 1, 3) or (
            values[5] not in (0, 1)):
        return (f"expected a dict with {', '.join(KEYS)}, and nothing else: whole numbers, zero 0, 1 or 3, recompute 0 "
                "or 1, the others at least 1")
    dp, pp, tp, rows, *_ = values
    layers, batch_rows = cluster[-4], cluster[-1]
    if dp * pp * tp != devices:
        return f"dp * pp * tp is {dp * pp * tp}, and there are {devices} devices"
    if pp > layers:
        return f"{pp} stages of {layers} layers: every stage needs one"
    if batch_rows % (dp * rows):
        return f"dp * rows is {dp * rows}, which does not divide the {batch_rows} rows of the batch"
    return None


def reason(layout: Layout, best: Layout, cluster: Cluster, asked: Sequence[Any]) -> str:
    """Why this layout is not the best one: the first thing that one would change."""
    (devices, per_node, memory), (seconds, held) = asked[:3], step_of(layout, cluster, *asked)

    def better(**changes: int) -> bool:
        then, needed = step_of(layout | changes, cluster, *asked)
        return not fault_of(layout | changes, *asked) and needed <= memory and (then < seconds or held > memory)

    other_rows = any(better(rows=rows) for rows in POWERS)
    more = {key: layout[key] - best[key] for key in layout}
    known = (
        (layout["dp"] == devices > best["dp"], "data parallelism alone: here the model has to be cut as well"),
        (held > memory and other_rows, "smaller micro-batches would make it fit"),
        (held > memory and better(recompute=1), "recomputing would make it fit"),
        (held > memory and better(zero=3), "ZeRO 3 would make it fit"),
        (held > memory, "it is chosen as if memory were without end"),
        (layout["tp"] > per_node, "tp reaches beyond a node, and sends through the network in every layer"),
        (better(recompute=0), "it recomputes, which is a third more arithmetic, and would fit without"),
        (better(zero=1), "ZeRO 3 gathers the weights again for every micro-batch, and ZeRO 1 would fit"),
        (other_rows, "other micro-batches take less: small ones keep a pipeline busy, large ones hide gathers"),
        (more["recompute"] > 0, "it recomputes, a third more arithmetic, where other layouts fit without"),
        (more["pp"] > 0, "so many stages leave the pipeline idle: others fit with fewer"),
        (more["tp"] > 0, "so much tp sends too much in every layer: others fit with less"),
        (more["tp"] < 0, "more tp would be nearly free inside the node, and save stages or gathers"),
        (more["pp"] < 0, "more stages send less than dp does with gradients and gathers"))
    return next((words for holds, words in known if holds), "")
