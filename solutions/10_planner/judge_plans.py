"""Chapter 10, layouts of one run: what they hold, the fastest that fits, and one that beats a measured run.

Exercise 10.1: bytes of a rank by kind.

    l  layers of hidden size h, 12 h^2 numbers each    V  numbers of the vocabulary; embedding and read-out are V h each
    B  rows of a batch, m = B/(dp b) micro-batches of b rows a replica
    a layer keeps 34 s b h bytes of a micro-batch (attention without s x s matrices), or its input alone, 2 s b h

Sources: Korthikanti et al. 2022, equations 2 and 4; Megatron-Core's distributed optimiser, 6 + 12/dp bytes a parameter
under ZeRO 1.

Exercises 10.3 and 10.4: the fastest layout that fits, and one that beats a measured run.

    N = dp tp pp  devices     B  rows of a batch, one a micro-batch, m = B/dp of them a replica, 1F1B    l  layers
10.3, t = tp, p = pp: k layers of a stage are recomputed; G  billions of parameters in a layer; A, I  GB that it keeps
of a row: everything, or its input alone; c  what a rank more of tp costs
    held (stage 0)  (G (4 + 12/dp) l/p + min(p, m) ((l/p - k) A + k I) + (A if k else 0)) / t
    step            (m + p - 1) (3 l/p + k) (1 + c (t - 1)) / t              in the forward time of a layer and a row
10.4, seconds by cause: a rank has B l tp/N layers and rows to pass, of each of which it sends (tp - 1)/tp, and
1/(tp pp) = dp/N of the gradients, of which it sends (dp - 1)/dp, so
    matmul  the same in every layout            tp  in proportion to tp - 1, over what a ring of neighbours has
    bubble  (matmul + tp) (pp - 1)/m            dp  in proportion to dp - 1, over what a ring of every tp-th rank has
which is a card for each of its ranks in a node (costs.network); with all cards it is `slower` times as slow as inside

Sources: Korthikanti et al. 2022, section 5; Megatron-LM, --recompute-method block with --recompute-num-layers.
"""

import math
import random
from itertools import product
from typing import Any

from course_lib.costs.links import Link
from course_lib.costs.memory import training_memory
from course_lib.costs.network import Network
from course_lib.costs.scaling import peak_1f1b
from course_lib.grading.compare import alike, describe, is_list_of, is_number, number, unlike
from course_lib.grading.exercise import Exercise, SentBytes, Trial, trials_of
from course_lib.grading.on_rank import values
from course_lib.grading.spent import Spent

from .on_rank import better_layout

CUTS = ("dp", "tp", "pp", "rows", "zero", "recompute")
GPT3 = 96, 12288, 51200, 2048, 1536  # l, h, V, s, B
LLAMA_7B = 32, 4096, 32000, 4096, 256  # with a GPT's layers


def label_of(l: int, h: int, V: int, s: int, B: int, cut: dict[str, int], stage: int) -> str:
    return (f"layers {l}, hidden {h}, dp {cut['dp']}, tp {cut['tp']}, pp {cut['pp']}, rows {cut['rows']}, "
            f"ZeRO {cut['zero']}, recompute {cut['recompute']}, stage {stage}")


class LayoutMemory(Exercise):
    number = "10.1"
    tolerance = (1e-9, 1e-6)
    budget = "each kind to the byte"
    run = staticmethod(values)
    cases = (
        ((2, 10, 100, 8, 3), (1, 1, 1, 3, 0, 0), 0),
        (GPT3, (8, 8, 16, 1, 1, 0), 15),
        (GPT3, (64, 8, 16, 4, 1, 0), 0),
        ((*LLAMA_7B[:4], 12), (4, 2, 8, 1, 2, 0), 1),  # 3 micro-batches
        (GPT3, (8, 8, 16, 1, 1, 0), 0),
        (GPT3, (8, 8, 16, 2, 1, 1), 3),
        (LLAMA_7B, (64, 1, 1, 2, 3, 0), 0),
        (LLAMA_7B, (2, 4, 4, 4, 0, 0), 3))

    def trials(self, seed: int) -> list[Trial]:
        source = random.Random(seed)
        dp, tp, pp = (2 ** power for power in map(source.randint, (1, 1, 2), (4, 3, 4)))
        drawn = dp, tp, pp, *map(source.randint, (1, 1, 0), (2, 3, 1))
        stage, l, h = source.randint(1, pp - 2), pp * source.randint(2, 6), 128 * source.randint(8, 64)
        cases = (*self.cases, ((l, h, 32000, 1024, 64 * dp), drawn, stage))
        return trials_of(((*sizes, dict(zip(CUTS, cut)), stage) for sizes, cut, stage in cases), label_of)

    def solve(self, inputs: list[Any]) -> list[dict[str, float]]:
        l, h, V, s, B, cut, stage = inputs[0]
        dp, tp, pp, b, zero, recompute = (cut[name] for name in CUTS)
        numbers = (l / pp * 12 * h**2 + ((stage == 0) + (stage == pp - 1)) * V * h) / tp
        state = training_memory(numbers, "mixed, fp32 gradients", zero, dp).by_kind()
        one, in_flight = s * b * h / tp, peak_1f1b(pp, B // (dp * b), stage)
        kept = (2 if recompute else 34) * one * l / pp * in_flight + (34 * one if recompute else 0)
        return [state | {"activations": kept, "logits": 4 * s * b * V / tp if stage == pp - 1 else 0.0}]

    def difference(self, given: list[Any], expected: list[dict[str, float]]) -> str:
        (has,), (right,) = given, expected
        if type(has) is not dict or has.keys() != right.keys():
            form = f"a dict with {', '.join(map(str, has)) or 'nothing'}" if type(has) is dict else describe(has)
            return f"it returned {form[:150]}: expected a dict with {', '.join(right)}"
        kind = next(kind for kind in right if not alike(has[kind], right[kind], self.tolerance))
        if not is_number(has[kind]):
            return f"{kind} is {describe(has[kind])}, expected {number(right[kind] / 1e9)} GB"
        return "{} is {} GB, expected {} GB".format(kind, *unlike(has[kind] / 1e9, right[kind] / 1e9))

    def opening(self, trial: Trial, answers: list[Any]) -> str:
        return f"{self.wrong(trial, answers)}: "

    def usage(self, trial: Trial, answers: list[Any], traffic: SentBytes) -> list[Spent]:
        given, right = (sum(held.values()) / 1e9 for (held,) in (answers, self.solve(trial.inputs)))
        return [Spent("counted", given, right, "", " GB in all", limit="{} expected", slack=1e-6)]


AXES = ("dp", "tp", "pp")
PAR = 1.01  # of the shortest step


class LayoutUnderCap(Exercise):
    number = "10.3"
    right = "the layout is possible"
    budget = "no device holds more than the cap, and no other layout that fits takes a shorter step"
    run = staticmethod(values)
    is_plan = True
    errors = ((" empty", "does a layout fit among those that were looked at? With more layers recomputed, more tp or "
               "more stages one does"),)
    # N, devices of a node, l, B, G, A, I, GB of a device, c.
    # First the example; then two in which fewer micro-batches than stages, and A only where k is not 0, decide. Later
    # t and p that are no powers of two, what recomputing costs, and as many stages as layers, all of them recomputed.
    cases = (
        (4, 2, 4, 4, 1, 1, 0, 18, 0.1),  # full to the brim
        (16, 1, 24, 4, 0.2, 1.0, 0.05, 20, 0.05),
        (16, 1, 16, 4, 1, 1, 0.05, 25, 0.05),  # more stages than rows
        (8, 8, 4, 8, 1, 1, 0.05, 8.9, 0.01),  # more tp than layers
        (32, 8, 32, 4, 0.8, 1.0, 0.05, 20.1, 0.05),
        (512, 8, 96, 512, 1.81, 0.856, 0.050, 36, 0.03),
        (24, 6, 12, 12, 0.4, 4, 0.1, 11, 0.2),
        (18, 6, 15, 48, 1, 4, 0.3, 23, 0.2),
        (64, 8, 32, 64, 0.2, 4.56, 0.27, 72, 0.05),
        (18, 6, 9, 30, 1, 3, 0.1, 12, 0.2),
        (256, 8, 80, 256, 0.86, 2.28, 0.134, 36, 0.04),
        (32, 2, 48, 256, 0.4, 0.36, 0.02, 19, 0.10),
        (512, 8, 96, 512, 1.81, 0.856, 0.050, 70, 0.03))
    label = "{2} layers of {4:g} billion, which keep {5:g} GB of a row, on {0} devices with {7} GB, {1} a node"

    def trials(self, seed: int) -> list[Trial]:
        source = random.Random(seed)
        l, G, power, A = map(source.randint, (2, 20, 5, 40), (6, 60, 6, 120))
        drawn = 2**power, 4, 12 * l, 192, G / 100, A / 100, 0.05, 40, 0.05
        return trials_of((*self.cases, drawn), self.label.format)

    def wrong(self, trial: Trial, answers: list[Any]) -> str | None:
        (N, per_node, l, B, *_), (given,) = trial.inputs[0], answers
        if not is_list_of(given, int, length=3):
            return f"it returned {describe(given)}: expected three whole numbers, tp, pp and k"
        if given[0] < 1 or per_node % given[0]:
            return f"it returned tp = {given[0]}: expected a divisor of the {per_node} devices of a node"
        return None if tuple(given) in costs_of(*trial.inputs[0]) else (
            f"it returned tp, pp, k = {given}: expected pp to divide the {l} layers, k from 0 to {l}/pp of a stage, "
            f"and tp * pp to divide {N} devices into replicas whose number divides the {B} rows")

    def usage(self, trial: Trial, answers: list[Any], traffic: SentBytes) -> list[Spent]:
        costs, cap, (t, p, k) = costs_of(*trial.inputs[0]), trial.inputs[0][7], answers[0]
        (held, step), who = costs[t, p, k], f"with tp {t}, pp {p} and k = {k} it"
        least = min(step for held, step in costs.values() if held <= cap)
        return [Spent("holds", held, cap, "", " GB on stage 0", who=who, slack=1e-9, decides=True),
                Spent("takes", step, least, "", " layers' time", who=who, limit="par {}", slack=1e-6)]


def costs_of(N: int, per_node: int, l: int, B: int, G: float, A: float, I: float, cap: float, c: float
             ) -> dict[tuple[int, int, int], tuple[float, float]]:
    """{(t, p, k): (held, step)} of every layout that deals out devices, layers and rows evenly."""
    costs = {}
    for t, p in product(range(1, per_node + 1), range(1, l + 1)):
        if per_node % t == l % p == N % (t * p) == 0 and B % (N // (t * p)) == 0:
            dp, m, L = N // (t * p), B * t * p // N, l // p
            for k in range(L + 1):
                held = (G * (4 + 12 / dp) * L + min(p, m) * ((L - k) * A + k * I) + (A if k else 0)) / t
                costs[t, p, k] = held, (m + p - 1) * (3 * L + k) * (1 + c * (t - 1)) / t
    return costs


class BetterLayout(Exercise):
    number = "10.4"
    right = "the layout is possible"
    budget = "par: at most 1 % above the shortest step of all layouts that fit"
    run = staticmethod(better_layout)
    is_plan = True
    # dp, tp, pp of the run; its seconds of matmul, tp, dp; B, devices of a node, `slower`; what `fitting` gets
    cases = (((2, 2, 1), (4.0, 0.2, 0.8), (8, 2, 4.0), (80, 4, 4, 12, 1)),  # the example: every layout fits
             ((4, 2, 3), (12.0, 0.03, 4.35), (8, 4, 6.0), (80, 24, 121, 356, 20)),  # the cards of dp's ring decide
             ((2, 2, 2), (4.0, 0.24, 1.0), (4, 2, 1.75), (80, 8, 4, 12, 1)),  # tp beyond nodes that are hardly slower
             ((8, 2, 16), (10.0, 0.15, 1.05), (128, 8, 6.0), (72, 60, 120, 360, 60)),
             ((4, 8, 8), (12.0, 1.05, 0.06), (128, 8, 9.0), (75, 96, 700, 2100, 160)),  # short of memory
             ((2, 16, 2), (9.0, 10.8, 0.05), (128, 4, 6.0), (60, 60, 120, 360, 60)),  # tp beyond the node
             ((16, 2, 1), (5.0, 0.30, 3.75), (64, 8, 20.0), (72, 40, 52, 156, 30)),  # a slow network
             ((2, 4, 16), (18.0, 0.36, 0.13), (64, 4, 6.0), (36, 32, 28, 84, 16)),  # a long pipeline
             ((8, 16, 8), (8.0, 5.37, 0.99), (64, 8, 6.0), (80, 48, 118, 354, 142)),  # tp's own bubble decides
             ((2, 8, 4), (8.0, 0.66, 0.24), (64, 4, 6.0), (48, 80, 271, 517, 113)),  # dp - 1 decides
             ((3, 3, 1), (10.0, 5.75, 1.43), (96, 3, 12.0), (80, 32, 109, 189, 40)))  # as many stages as devices

    label = "{:g}B on {} devices, {} a node, run as dp{} tp{} pp{}"

    def trials(self, seed: int) -> list[Trial]:
        source, made = random.Random(seed), []
        size, tensor, reduction = map(source.randint, (10, 15, 15), (60, 90, 120))
        drawn = (4, 4, 2), (8.0, tensor / 100, reduction / 100), (64, 8, 9.0), (80, 48, 4 * size, 12 * size, 60)
        for sizes, seconds, asked, memory in (*self.cases, drawn):
            run = dict(zip(AXES, sizes))
            by_cause = seconds_of(run, run, dict(zip(("matmul", "tp", "dp"), seconds)), *asked)
            label = self.label.format(memory[2] / 4, math.prod(sizes), asked[1], *sizes)
            fit = fitting(math.prod(sizes), asked[0], *memory)
            made.append(Trial([[run, by_cause, *asked, fit]], "the example, " * (not made) + label))
        return made

    def wrong(self, trial: Trial, answers: list[Any]) -> str | None:
        (run, *_, fit), (given,) = trial.inputs[0], answers
        words = str(given)[:120] if type(given) is dict else describe(given)
        if type(given) is not dict or set(given) != set(AXES) or any(type(size) is not int for size in given.values()):
            return f"it returned {words}: expected a dict with {', '.join(AXES)}, whole numbers"
        if (devices := math.prod(given.values())) != (N := math.prod(run.values())):
            return f"it returned {words}: that is {devices} devices, and there are {N}"
        return None if given in fit else f"it returned {words}, for which `fits` is False"

    def usage(self, trial: Trial, answers: list[Any], traffic: SentBytes) -> list[Spent]:
        *asked, fit = trial.inputs[0]
        every = [seconds_of(its, *asked) for its in (*fit, answers[0])]
        here, there = every[-1], min(every, key=lambda each: sum(each.values()))
        cause = max(here, key=lambda cause: here[cause] - there[cause])  # takes most of what the best layout saves
        why = f"{cause} takes {here[cause]:.3g} s of it, and {there[cause]:.3g} s in the best layout"
        return [Spent("takes", sum(here.values()), PAR * sum(there.values()), "", " s for a step", why=why,
                      limit="par {}", slack=1e-9)]


def seconds_of(its: dict[str, int], run: dict[str, int], seconds: dict[str, float], B: int, per_node: int, slower: float
               ) -> dict[str, float]:
    """Seconds of the layout `its` by cause, from the `seconds` that were measured in the layout `run`."""
    wires = Network(per_node, Link(0.0, 1.0), Link(0.0, slower * per_node), per_node)

    def times(n: int, ours: int, n_of_run: int, stride_of_run: int) -> float:
        """How often as long as in the run a ring takes: of n ranks, `ours` apart."""
        here, there = wires.group(n, ours).ring_s_per_byte, wires.group(n_of_run, stride_of_run).ring_s_per_byte
        return (n - 1) * here / ((n_of_run - 1) * there)

    matmul, tensor = seconds["matmul"], seconds["tp"] * times(its["tp"], 1, run["tp"], 1)
    return {"matmul": matmul, "tp": tensor, "bubble": (matmul + tensor) * (its["pp"] - 1) * its["dp"] / B,
            "dp": seconds["dp"] * times(its["dp"], its["tp"], run["dp"], run["tp"])}


def fitting(N: int, B: int, cap: float, layers: int, weights: float, optimizer: float, activations: float
            ) -> list[dict[str, int]]:
    """Layouts that fit under ZeRO 1. GB: weights with gradients, the optimiser's state, activations of a row."""
    every = ((N // (tp * pp), tp, pp) for tp, pp in product(range(1, N + 1), repeat=2) if N % (tp * pp) == 0)
    return [{"dp": dp, "tp": tp, "pp": pp} for dp, tp, pp in every if B % dp == 0 and pp <= layers
            and (weights + optimizer / dp + activations * min(pp, B // dp)) / (tp * pp) <= cap]
