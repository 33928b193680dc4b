"""Exercise 10.4: from the seconds of one run, by cause, to a layout that beats it.

On N = dp tp pp devices with a given batch of B rows, one row a micro-batch, 1F1B:

    matmul  the same in every layout            tp  in proportion to tp - 1, `slower` times that beyond a node
    bubble  (matmul + tp) (pp - 1)/m            dp  in proportion to dp - 1, always over the slow wire

because a rank has B l tp/N layers and rows to pass, of each of which it sends (tp - 1)/tp; and 1/(tp pp) = dp/N of the
gradients, of which it sends (dp - 1)/dp; and m = B/dp.
"""

import math
import random
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from course_lib.grading.compare import describe
from course_lib.grading.exercise import Exercise, Traffic, Trial
from course_lib.grading.spent import Spent

Layout = dict[str, int]  # dp, tp, pp
AXES = ("dp", "tp", "pp")
PAR = 1.01  # of the shortest step of all

# The layout of the run; B; devices of a node; how much slower the wire between nodes is; layers; GB of weights and
# gradients; of the optimiser's state; of all layers' activations for a row; of a device; matmul seconds; seconds of tp
# for each rank more of it, inside a node; of dp for each replica more. Nobody tells the reader the last five.
CASES = (("30B on 256 devices, run as dp8 tp2 pp16",
          ((8, 2, 16), 128, 8, 6.0, 60, 120, 360, 60, 72, 10.0, 0.15, 0.15)),
         ("short of memory: 175B on 256 devices, run as dp4 tp8 pp8",
          ((4, 8, 8), 128, 8, 9.0, 96, 700, 2100, 160, 75, 12.0, 0.15, 0.02)),
         ("tp beyond the node: 30B on 64 devices, 4 a node, run as dp2 tp16 pp2",
          ((2, 16, 2), 128, 4, 6.0, 60, 120, 360, 60, 60, 9.0, 0.12, 0.05)),
         ("a slow network: 13B on 32 devices, run as dp16 tp2 pp1",
          ((16, 2, 1), 64, 8, 20.0, 40, 52, 156, 30, 72, 5.0, 0.30, 0.25)),
         ("a long pipeline: 7B on 128 devices, 4 a node, run as dp2 tp4 pp16",
          ((2, 4, 16), 64, 4, 6.0, 32, 28, 84, 16, 36, 18.0, 0.12, 0.13)))


class BetterLayout(Exercise):
    number = "10.4"
    function = "my_better_layout"
    points = 4
    right = "the layout is possible"
    budget = "par: at most 1 % above the shortest step of all layouts that fit"
    hints = (
        "Each cause follows a rule of its own. What does the run tell you about each rule's constant? With the "
        "constants you can say the seconds of any layout, before anybody runs it.",
        "Seconds of tp for each rank more: seconds[\"tp\"] / (tp - 1), and a `slower`-th of that if its tp is beyond a "
        "node. Of dp: seconds[\"dp\"] / (dp - 1). matmul stays. Try every dp, tp, pp with the same product, for which "
        "`fits` says yes, and add up.",
        "per_rank = seconds[\"tp\"] / (layout[\"tp\"] - 1) / (slower if layout[\"tp\"] > per_node else 1)\n"
        "per_replica = ...\n"
        "def predicted(dp, tp, pp):\n"
        "    sent = per_rank * (tp - 1) * (slower if tp > per_node else 1)\n"
        "    work = seconds[\"matmul\"] + sent\n"
        "    return work + work * (pp - 1) / ... + ...\n"
        "# all layouts of as many devices in which dp divides batch_rows and which fit; the least of them",
    )

    def trials(self, seed: int) -> list[Trial]:
        source = random.Random(seed)
        B, rank, replica = source.randint(10, 60), source.randint(5, 30) / 100, source.randint(5, 40) / 100
        drawn = ((4, 4, 2), 64, 8, 9.0, 48, 4 * B, 12 * B, 60, 80, 8.0, rank, replica)
        return [Trial([[list(asked[0]), *asked[1:]]], label) for label, asked in (
            *CASES, (f"{B}B on 32 devices, run as dp4 tp4 pp2", drawn))]

    @staticmethod
    def run(function: Callable, inputs: list[Any]) -> Any:
        def fits(layout: Layout) -> bool:
            return fault_of(layout, *inputs) is None and held(layout, *inputs) <= inputs[8]

        layout, B, per_node, slower = inputs[:4]
        layout = dict(zip(AXES, layout))
        returned = function(layout, seconds_of(layout, *inputs), B, per_node, slower, fits)
        if isinstance(returned, dict) and all(type(value) is int for value in returned.values()):
            return {str(axis): size for axis, size in returned.items()}
        return "nothing (None)" if returned is None else f"a {type(returned).__name__}, no dict of whole numbers"

    def arguments(self, trial: Trial) -> Sequence[Any]:
        return trial.inputs[0]

    def wrong(self, trial: Trial, answers: list[Any]) -> str | None:
        given = answers[0]
        if type(given) is not dict:
            return f"it returned {describe(given)}: expected a dict with {', '.join(AXES)}"
        fault = fault_of(given, *trial.inputs[0])
        return f"it returned {str(given)[:120]}: {fault}" if fault else None

    def spent(self, trial: Trial, answers: list[Any], traffic: Traffic) -> Sequence[Spent]:
        asked, given = trial.inputs[0], answers[0]
        causes = [cause for cause, would in self.mistakes(*asked) if would == given]
        who, why = said(given), ". Or ".join(causes[:2])
        return [Spent("holds", held(given, *asked), asked[8], "", " GB on a device", who=who, why=why, slack=1e-9),
                Spent("takes", total(given, *asked), PAR * total(best(*asked), *asked), "", " s for a step", who=who,
                      why=why or largest(given, *asked), limit="par {}", slack=1e-9)]

    def mistakes(self, *asked: Any) -> Iterable[tuple[str, Layout]]:
        layout, B, per_node, slower, *_ = asked
        run = dict(zip(AXES, layout))
        seconds, every = seconds_of(run, *asked), list(every_layout(*asked))
        fitting = [other for other in every if held(other, *asked) <= asked[8]]
        wire = slower if run["tp"] > per_node else 1

        def chosen(among: list[Layout] = fitting, tensor: Callable[[int], float] = lambda tp: tp - 1,
                   data: Callable[[Layout], float] = lambda its: its["dp"] - 1, beyond: float = slower,
                   bubble: Callable[[Layout], float] = lambda its: (its["pp"] - 1) * its["dp"] / B,
                   causes: Sequence[str] = ("tp", "bubble", "dp")) -> Layout:
            def predicted(its: Layout) -> float:
                sent = seconds["tp"] / wire * tensor(its["tp"]) / max(tensor(run["tp"]), 1e-9)
                work = seconds["matmul"] + sent * (beyond if its["tp"] > per_node else 1) * ("tp" in causes)
                return (work + work * bubble(its) * ("bubble" in causes)
                        + seconds["dp"] * data(its) / max(data(run), 1e-9) * ("dp" in causes))

            return min(among, key=predicted) if among else run

        yield "this is the layout of the run: another one that fits takes less", run
        yield "this would be the shortest step if memory were without end: ask `fits`", chosen(every)
        yield "tp beyond a node goes over the slow wire, `slower` times as long", chosen(beyond=1)
        yield ("the bubble is taken to depend on pp alone: more replicas leave each fewer micro-batches, m = B/dp",
               chosen(bubble=lambda its: (its["pp"] - 1) * run["dp"] / B))
        yield ("the bubble is left out: whoever has more stages waits longer for the first micro-batch",
               chosen(causes=("tp", "dp")))
        yield "tp's messages are left out", chosen(causes=("bubble", "dp"))
        yield "dp's messages are left out", chosen(causes=("tp", "bubble"))
        yield ("tp's time is taken to depend on (tp - 1)/tp only: with larger tp a rank also has more layers and rows "
               "to pass, so it is tp - 1", chosen(tensor=lambda tp: (tp - 1) / tp))
        yield ("dp's time is taken to depend on (dp - 1)/dp only: with more replicas a rank also has more of the "
               "gradients, 1/(tp pp) = dp/N, so it is dp - 1", chosen(data=lambda its: (its["dp"] - 1) / its["dp"]))
        yield "the seconds of the run are those of every layout: only one cause is looked at, the largest", chosen(
            causes=(max(("tp", "bubble", "dp"), key=lambda cause: seconds[cause]),))


def seconds_of(its: Layout, layout: Sequence[int], B: int, per_node: int, slower: float, layers: int, weights: float,
               optimizer: float, activations: float, cap: float, matmul: float, per_rank: float,
               per_replica: float) -> dict[str, float]:
    """By cause."""
    tensor = per_rank * (its["tp"] - 1) * (slower if its["tp"] > per_node else 1)
    return {"matmul": matmul, "tp": tensor, "bubble": (matmul + tensor) * (its["pp"] - 1) * its["dp"] / B,
            "dp": per_replica * (its["dp"] - 1)}


def total(its: Layout, *asked: Any) -> float:
    return sum(seconds_of(its, *asked).values())


def held(its: Layout, layout: Sequence[int], B: int, per_node: int, slower: float, layers: int, weights: float,
         optimizer: float, activations: float, *rest: float) -> float:
    """GB on a device of stage 0, under ZeRO 1."""
    dp, tp, pp = (its[axis] for axis in AXES)
    return (weights + optimizer / dp + activations * min(pp, B // dp)) / (tp * pp)


def fault_of(its: Any, layout: Sequence[int], B: int, per_node: int, slower: float, layers: int, *rest: float
             ) -> str | None:
    """Why this is no layout of as many devices."""
    if not isinstance(its, dict) or set(its) != set(AXES) or any(
            type(size) is not int or size < 1 for size in its.values()):
        return "expected dp, tp and pp, whole numbers from 1 on"
    if math.prod(its.values()) != math.prod(layout):
        return f"that is {math.prod(its.values())} devices, and there are {math.prod(layout)}"
    if B % its["dp"]:
        return f"dp = {its['dp']} does not divide the {B} rows of the batch"
    return f"{its['pp']} stages of {layers} layers: every stage needs one" if its["pp"] > layers else None


def every_layout(*asked: Any) -> Iterable[Layout]:
    N = math.prod(asked[0])
    for tp in (tp for tp in range(1, N + 1) if N % tp == 0):
        for pp in (pp for pp in range(1, N // tp + 1) if N // tp % pp == 0):
            its = {"dp": N // (tp * pp), "tp": tp, "pp": pp}
            if fault_of(its, *asked) is None:
                yield its


def best(*asked: Any) -> Layout:
    return min((its for its in every_layout(*asked) if held(its, *asked) <= asked[8]),
               key=lambda its: total(its, *asked))


def largest(its: Layout, *asked: Any) -> str:
    """The cause that takes most of what the best layout saves."""
    here, there = seconds_of(its, *asked), seconds_of(best(*asked), *asked)
    cause = max(here, key=lambda cause: here[cause] - there[cause])
    return f"{cause} takes {here[cause]:.3g} s of it, and {there[cause]:.3g} s in the best layout"


def said(its: Layout) -> str:
    return " ".join(f"{axis}{its[axis]}" for axis in AXES)
