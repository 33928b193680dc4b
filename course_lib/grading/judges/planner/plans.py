"""Exercises 10.3 to 10.5: the fastest layout that fits, one that beats a measured run, the cheapest run by a date.

    N = dp tp pp  devices     B  rows of a batch, one a micro-batch, m = B/dp of them a replica, 1F1B    l  layers
10.3, t = tp, p = pp: k layers of a stage are recomputed; G  billions of parameters in a layer; A, I  GB that it keeps
of a row: everything, or its input alone; c  what a rank more of tp costs
    held (stage 0)  (G (4 + 12/dp) l/p + min(p, m) ((l/p - k) A + k I) + (A if k else 0)) / t
    step            (m + p - 1) (3 l/p + k) (1 + c (t - 1)) / t              in the forward time of a layer and a row
10.4, seconds by cause: a rank has B l tp/N layers and rows to pass, of each of which it sends (tp - 1)/tp, and
1/(tp pp) = dp/N of the gradients, of which it sends (dp - 1)/dp, so
    matmul  the same in every layout            tp  in proportion to tp - 1, `slower` times that beyond a node
    bubble  (matmul + tp) (pp - 1)/m            dp  in proportion to dp - 1, always over the slow wire
10.5: a part x of the tokens takes x of its plan's days and dollars. So every point between two plans can be had, and
the least is a plan that ends in time, or lies between such a plan and a cheaper one that does not.

Sources: Korthikanti et al. 2022, section 5; Megatron-LM, --recompute-method block with --recompute-num-layers.
"""

import math
import random
from itertools import product
from typing import Any

from course_lib.grading.compare import describe
from course_lib.grading.exercise import Exercise, Traffic, Trial
from course_lib.grading.on_rank.plain import values
from course_lib.grading.on_rank.planner import better_layout, cheapest_run
from course_lib.grading.spent import Spent

KEYS = ("offer", "nodes", "tp", "pp", "recompute")  # of a plan: a name, then whole numbers; recompute is 0 or 1
# Prices are like those of facts in 2026, of one device for an hour; FLOP/s are what a matmul reaches. Nodes are not
# only powers of two, and one offer is short of memory: there recomputing decides.
TERMS = ("price", "nodes", "memory", "flops_per_s", "fast", "slow", "hours_per_failure")
OFFERS: dict[str, dict[str, float]] = {name: dict(zip(TERMS, terms)) for name, *terms in (
    ("A100", 1.49, 64, 80e9, 200e12, 300e9, 25e9, 40_000), ("A100 40 GB", 0.79, 12, 40e9, 200e12, 300e9, 25e9, 40_000),
    ("H100", 3.99, 64, 80e9, 500e12, 450e9, 50e9, 50_000), ("H100 spot", 2.29, 6, 80e9, 500e12, 450e9, 50e9, 150),
    ("H200", 4.99, 32, 141e9, 500e12, 450e9, 50e9, 50_000))}
Plan = tuple[str, int, int, int, int]  # in the order of KEYS
AXES = ("dp", "tp", "pp")
PAR = 1.01  # of the shortest step, or of the cheapest run


class LayoutUnderCap(Exercise):
    number = "10.3"
    right = "the layout is possible"
    budget = "no device holds more than the cap, and no other layout that fits takes a shorter step"
    run = staticmethod(values)
    is_plan = True
    # N, devices of a node, l, B, G, A, I, GB of a device, c. A GPT-3 first, rows of 2,048 tokens, which keep 34 s h.
    # First the example; then two in which fewer micro-batches than stages, and A only where k is not 0, decide.
    cases = (
        (4, 2, 4, 4, 1, 1, 0, 20, 0.1),
        (16, 1, 24, 4, 0.2, 1.0, 0.05, 20, 0.05),
        (32, 8, 32, 4, 0.8, 1.0, 0.05, 20, 0.05),
        (512, 8, 96, 512, 1.81, 0.856, 0.050, 36, 0.03),
        (64, 8, 32, 64, 0.2, 4.56, 0.27, 72, 0.05),
        (256, 8, 80, 256, 0.86, 2.28, 0.134, 36, 0.04),
        (32, 2, 48, 256, 0.4, 0.36, 0.02, 19, 0.10),
        (512, 8, 96, 512, 1.81, 0.856, 0.050, 70, 0.03),
    )
    label = "{2} layers of {4:g} billion, which keep {5:g} GB of a row, on {0} devices with {7} GB, {1} a node"

    def trials(self, seed: int) -> list[Trial]:
        source = random.Random(seed)
        l, G, power, A = map(source.randint, (2, 20, 5, 40), (6, 60, 6, 120))
        drawn = 2**power, 4, 12 * l, 192, G / 100, A / 100, 0.05, 40, 0.05
        return [Trial([list(asked)], "the example, " * (number == 0) + self.label.format(*asked))
                for number, asked in enumerate((*self.cases, drawn))]

    def wrong(self, trial: Trial, answers: list[Any]) -> str | None:
        (N, per_node, l, B, *_), (given,) = trial.inputs[0], answers
        if type(given) is not list or len(given) != 3 or not all(type(count) is int for count in given):
            return f"it returned {describe(given)}: expected three whole numbers, tp, pp and k"
        if given[0] < 1 or per_node % given[0]:
            return f"it returned tp = {given[0]}: expected a divisor of the {per_node} devices of a node"
        return None if tuple(given) in costs_of(*trial.inputs[0]) else (
            f"it returned tp, pp, k = {given}: expected pp to divide the {l} layers, k from 0 to {l}/pp of a stage, "
            f"and tp * pp to divide {N} devices into replicas whose number divides the {B} rows")

    def spent(self, trial: Trial, answers: list[Any], traffic: Traffic) -> list[Spent]:
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
    cases = (((4, 8, 8), (12.0, 1.05, 0.06), (128, 8, 9.0), (75, 96, 700, 2100, 160)),  # short of memory
             ((8, 2, 16), (10.0, 0.15, 1.05), (128, 8, 6.0), (72, 60, 120, 360, 60)),
             ((2, 16, 2), (9.0, 10.8, 0.05), (128, 4, 6.0), (60, 60, 120, 360, 60)),  # tp beyond the node
             ((16, 2, 1), (5.0, 0.30, 3.75), (64, 8, 20.0), (72, 40, 52, 156, 30)),  # a slow network
             ((2, 4, 16), (18.0, 0.36, 0.13), (64, 4, 6.0), (36, 32, 28, 84, 16)),  # a long pipeline
             ((8, 16, 8), (8.0, 5.37, 0.99), (64, 8, 6.0), (80, 48, 118, 354, 142)),  # tp's own bubble decides
             ((2, 8, 4), (8.0, 0.66, 0.24), (64, 4, 6.0), (48, 80, 271, 517, 113)))  # tp - 1 and dp - 1 decide

    label = "{:g}B on {} devices, {} a node, run as dp{} tp{} pp{}"

    def trials(self, seed: int) -> list[Trial]:
        source, made = random.Random(seed), []
        size, tensor, reduction = map(source.randint, (10, 15, 15), (60, 90, 120))
        drawn = (4, 4, 2), (8.0, tensor / 100, reduction / 100), (64, 8, 9.0), (80, 48, 4 * size, 12 * size, 60)
        for sizes, seconds, asked, memory in (*self.cases, drawn):
            run = dict(zip(AXES, sizes))
            by_cause = seconds_of(run, run, dict(zip(("matmul", "tp", "dp"), seconds)), *asked)
            label = self.label.format(memory[2] / 4, math.prod(sizes), asked[1], *sizes)
            made.append(Trial([[run, by_cause, *asked, fitting(math.prod(sizes), asked[0], *memory)]], label))
        return made

    def wrong(self, trial: Trial, answers: list[Any]) -> str | None:
        (run, *_, fit), (given,) = trial.inputs[0], answers
        words = str(given)[:120] if type(given) is dict else describe(given)
        if type(given) is not dict or set(given) != set(AXES) or any(type(size) is not int for size in given.values()):
            return f"it returned {words}: expected a dict with {', '.join(AXES)}, whole numbers"
        if (devices := math.prod(given.values())) != (N := math.prod(run.values())):
            return f"it returned {words}: that is {devices} devices, and there are {N}"
        return None if given in fit else f"it returned {words}, for which `fits` is False"

    def spent(self, trial: Trial, answers: list[Any], traffic: Traffic) -> list[Spent]:
        *asked, fit = trial.inputs[0]
        every = [seconds_of(its, *asked) for its in (*fit, answers[0])]
        here, there = every[-1], min(every, key=lambda each: sum(each.values()))
        cause = max(here, key=lambda cause: here[cause] - there[cause])  # takes most of what the best layout saves
        why = f"{cause} takes {here[cause]:.3g} s of it, and {there[cause]:.3g} s in the best layout"
        return [Spent("takes", sum(here.values()), PAR * sum(there.values()), "", " s for a step", why=why,
                      limit="par {}", slack=1e-9)]


def seconds_of(its: dict[str, int], run: dict[str, int], seconds: dict[str, float], B: int, per_node: int, slower: float
               ) -> dict[str, float]:
    """By cause, from those of the run."""
    reach, of_run = ((layout["tp"] - 1) * (slower if layout["tp"] > per_node else 1) for layout in (its, run))
    matmul, tensor = seconds["matmul"], seconds["tp"] * reach / of_run
    return {"matmul": matmul, "tp": tensor, "bubble": (matmul + tensor) * (its["pp"] - 1) * its["dp"] / B,
            "dp": seconds["dp"] * (its["dp"] - 1) / (run["dp"] - 1)}


def fitting(N: int, B: int, cap: float, layers: int, weights: float, optimizer: float, activations: float
            ) -> list[dict[str, int]]:
    """Layouts that fit under ZeRO 1. GB: weights with gradients, the optimiser's state, activations of a row."""
    every = ((N // (tp * pp), tp, pp) for tp, pp in product(range(1, N + 1), repeat=2) if N % (tp * pp) == 0)
    return [{"dp": dp, "tp": tp, "pp": pp} for dp, tp, pp in every if B % dp == 0 and pp <= layers
            and (weights + optimizer / dp + activations * min(pp, B // dp)) / (tp * pp) <= cap]


class CheapestRun(Exercise):
    number = "10.5"
    right = "the run is possible"
    budget = "par: 1 % above the cheapest run that ends in time, of one plan or of several one behind the other"
    run = staticmethod(cheapest_run)
    is_plan = True
    asks = True
    # parameters, layers, hidden, tokens of a row, rows of a batch, tokens of the run; days until the date
    cases = (
        (13e9, 40, 5120, 4096, 512, 2.6e11, 7),
        (7e9, 32, 4096, 4096, 384, 1.4e11, 12),
        (7e9, 32, 4096, 131072, 48, 4.2e10, 20),
        (70e9, 80, 8192, 4096, 768, 3e11, 30),
        (175e9, 96, 12288, 2048, 1536, 1e11, 40),
        (7e9, 32, 4096, 4096, 384, 1.4e11, 365),
    )

    def trials(self, seed: int) -> list[Trial]:
        source, made = random.Random(seed), []
        layers, hidden = 4 * source.randint(8, 12), 512 * source.randint(8, 16)
        parameters = 12.0 * layers * hidden**2
        fastest = 120 * parameters**2 / (512 * 250e12) / 86_400  # about, on all nodes of H100
        drawn = parameters, layers, hidden, 4096, 512, 20 * parameters, math.ceil(fastest * source.uniform(1.2, 6))
        for asked in (*self.cases, drawn):
            offers = {name: offer | {"price": round(offer["price"] * source.uniform(0.9, 1.1), 2)}
                      for name, offer in OFFERS.items()}
            label = f"{asked[0] / 1e9:.3g}B, {asked[5] / 1e9:.4g} billion tokens, {asked[6]} days"
            made.append(Trial([[offers, *asked]], label, hidden={"small": source.uniform(0.0, 0.1),
                                                                 "restart": source.uniform(0.3, 0.8)}))
        return made

    def reply(self, trial: Trial, question: Any) -> list[float]:
        offers, *model, _ = trial.inputs[0]
        if fault := plan_fault(question, offers, *model):
            raise ValueError(f"look({question}): {fault}")
        return list(run_of(question, trial.hidden, offers[question["offer"]], *model))

    def wrong(self, trial: Trial, answers: list[Any]) -> str | None:
        given = answers[0]
        if type(given) is not list or not 0 < len(given) <= 8 or not all(
                type(each) is list and len(each) == 2 and type(each[1]) in (int, float) for each in given):
            has = f"a list of {len(given)}" if type(given) is list else describe(given)
            return f"it returned {has}: expected a list of 1 to 8 pairs, a plan and its share of the tokens"
        for plan, share in given:
            if fault := plan_fault(plan, *trial.inputs[0]):
                return f"it returned {str(plan)[:120]}: {fault}"
            if not 0 <= share <= 1:
                return f"it returned a share of {share:g}: expected 0 to 1"
        whole = sum(share for _, share in given)
        return None if abs(whole - 1) < 1e-6 else f"the shares add up to {whole:g}: all tokens are to be seen once"

    def spent(self, trial: Trial, answers: list[Any], traffic: Traffic) -> list[Spent]:
        offers, *_, deadline = trial.inputs[0]
        memory, costs = (
            {name: offer["memory"] for name, offer in offers.items()},
            costs_of_plans(trial.hidden, *trial.inputs[0]),
        )
        parts = [(tuple(plan[key] for key in KEYS), share) for plan, share in answers[0] if share]
        days, dollars = (sum(share * costs[plan][place] for plan, share in parts) for place in (0, 1))
        fullest = max((plan for plan, _ in parts), key=lambda plan: costs[plan][2] - memory[plan[0]])
        points = sorted((*cost[:2], plan) for plan, cost in costs.items() if cost[2] <= memory[plan[0]])
        par = PAR * cheapest(points, deadline)
        why = reason([(*costs[plan], plan) for plan, _ in parts], dollars, points, deadline) if dollars > par else ""
        return [Spent("holds", costs[fullest][2] / 1e9, memory[fullest[0]] / 1e9, "", " GB on a device",
                      who=words_of(*fullest), decides=True),
                Spent("takes", days, deadline, "day", slack=1e-6 * deadline, decides=True),
                Spent("costs", round(dollars), round(par), "exact dollars", why=why, limit="par {}", slack=1)]


def costs_of_plans(cluster: dict[str, float], *asked: Any) -> dict[Plan, tuple[float, float, float]]:
    """(days, dollars, bytes on a device) of every plan."""
    offers, _, layers, _, _, batch_rows, *_ = asked
    stages = [pp for pp in range(1, layers + 1) if layers % pp == 0]
    every = (plan for name, offer in offers.items()
             for plan in product([name], range(1, offer["nodes"] + 1), (1, 2, 4, 8), stages, (0, 1))
             if not 8 * plan[1] % (plan[2] * plan[3]) and not batch_rows % (8 * plan[1] // (plan[2] * plan[3])))
    return {plan: run_of(dict(zip(KEYS, plan)), cluster, offers[plan[0]], *asked[1:-1]) for plan in every}


def run_of(
    plan: dict[str, Any],
    cluster: dict[str, float],
    offer: dict[str, float],
    parameters: float,
    layers: int,
    hidden: int,
    tokens: int,
    batch_rows: int,
    total_tokens: float,
) -> tuple[float, float, float]:
    """(days, dollars, bytes on a device) of training a GPT in bf16 under ZeRO 1, micro-batches of one row.

    cluster: what no reader is told, small: the share by which each halving of a product by tp makes it slower; restart:
    the hours that each failure costs.
    """
    nodes, tp, pp, recompute = (plan[key] for key in ("nodes", "tp", "pp", "recompute"))
    devices = 8 * nodes
    dp = devices // (tp * pp)
    micro_batches, part = batch_rows // dp, parameters / (tp * pp)
    computing = (8 if recompute else 6) * part * tokens / offer["flops_per_s"] * (1 + cluster["small"] * math.log2(tp))
    messages = (6 if recompute else 4) * layers / pp * 2 * (tp - 1) / tp * 2 * tokens * hidden
    wire = offer["slow"] if nodes > 1 else offer["fast"]
    pipe = 2 * 2 * tokens * hidden / tp / wire if pp > 1 else 0.0
    gradients = 2 * 2 * part * (dp - 1) / dp / wire
    step = (micro_batches + pp - 1) * (computing + messages / offer["fast"] + pipe) + gradients
    kept = (2 if recompute else 34) * tokens * hidden * layers / (tp * pp) * min(pp, micro_batches)
    held = part * (4 + 12 / dp) + kept
    lost = cluster["restart"] * devices / offer["hours_per_failure"]
    days = total_tokens / (batch_rows * tokens) * step * (1 + lost) / 86_400
    return days, 24 * days * devices * offer["price"], held


def plan_fault(plan: Any, offers: dict[str, dict[str, float]], parameters: float, layers: int, hidden: int, tokens: int,
               batch_rows: int, *rest: float) -> str | None:
    """Why this is no plan."""
    if not isinstance(plan, dict) or set(plan) != set(KEYS):
        return f"expected {', '.join(KEYS)}, and nothing else"
    name, *sizes = (plan[key] for key in KEYS)
    if not isinstance(name, str) or name not in offers:
        return f"expected one of the offers, {', '.join(offers)}"
    if any(type(size) is not int for size in sizes) or min(sizes[:3]) < 1:
        return "expected whole numbers, nodes, tp and pp at least 1"
    (nodes, tp, pp, recompute), most = sizes, offers[name]["nodes"]
    dp, rest_of_devices = divmod(8 * nodes, tp * pp)
    faults = ((nodes > most, f"there are {most} nodes of that offer"),
              (8 % tp, "expected tp = 1, 2, 4 or 8: it stays in a node"),
              (layers % pp, f"{pp} stages do not divide {layers} layers"),
              (rest_of_devices or batch_rows % dp, f"tp * pp = {tp * pp} has to divide the {8 * nodes} devices into "
                                                   f"replicas whose number divides the {batch_rows} rows"),
              (recompute not in (0, 1), "expected recompute = 0 or 1"))
    return next((words for is_fault, words in faults if is_fault), None)


def cheapest(points: list[tuple[float, float, Plan]], deadline: float) -> float:
    """Dollars of the cheapest run that ends in time. `points`: (days, dollars) of plans that fit, fastest first."""
    front = points[:1]  # the fastest plan, and each that is cheaper than all that are faster
    for point in points:
        front += [point] * (point[1] < front[-1][1])
    early, late = ([each for each in front if (each[0] <= deadline) == in_time] for in_time in (True, False))
    between = (a[1] + (b[1] - a[1]) * (deadline - a[0]) / (b[0] - a[0]) for a, b in product(early, late))
    return min(early[-1][1], *between, math.inf)


def reason(parts: list[Any], dollars: float, points: list[tuple[float, float, Plan]], deadline: float) -> str:
    """Why a run is not the cheapest one: the first thing that one would change."""
    for days, now, _, plan in parts:
        latest = max(days, deadline * (len(parts) == 1)) + 1e-9
        cheaper = [each[2] for each in points if each[0] <= latest and each[1] < 0.995 * now]
        for same, words in ((4, "it recomputes, where it would fit without"),
                            (2, "the same nodes take less time under another layout"),
                            (1, "the same offer costs less with another number of nodes"),
                            (0, "another offer costs less for as much work")):
            if any(other[:same] == plan[:same] for other in cheaper):
                return f"{words_of(*plan)}: {words}"
    if len(parts) == 1 and dollars <= 1.005 * min(point[1] for point in points if point[0] <= deadline):
        return ("no plan alone is cheaper, but a run may move: begin under a plan that is cheaper and too slow, and "
                "end under one that is faster")
    return "other plans, or other shares of them, cost less: give the cheaper one as much as the date allows"


def words_of(offer: str, nodes: int, tp: int, pp: int, recompute: int) -> str:
    """8 nodes of H100, tp4 pp2, recomputing"""
    return f"{nodes} node{'s' * (nodes > 1)} of {offer}, tp{tp} pp{pp}" + ", recomputing" * recompute
