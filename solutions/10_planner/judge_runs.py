"""Exercise 10.5: the cheapest run by a date, of one plan or of several one behind the other.

A part x of the tokens takes x of its plan's days and dollars. So every point between two plans can be had, and
the least is a plan that ends in time, or lies between such a plan and a cheaper one that does not.
"""

import math
import random
from itertools import product
from typing import Any

from course_lib.grading.chapters import load
from course_lib.grading.compare import describe
from course_lib.grading.exercise import Exercise, SentBytes, Trial
from course_lib.grading.spent import Spent

from .on_rank import cheapest_run

step_of = load(9, "judge_layouts").step_of

KEYS = ("offer", "nodes", "tp", "pp", "recompute")  # of a plan: a name, then whole numbers; recompute is 0 or 1
# Prices are like those of facts in 2026, of one device for an hour; FLOP/s are what a matmul reaches. One offer is
# short of memory, and nodes are not only powers of two.
TERMS = ("price", "nodes", "memory", "flops_per_s", "fast", "slow", "hours_per_failure")
OFFERS: dict[str, dict[str, float]] = {name: dict(zip(TERMS, terms)) for name, *terms in (
    ("A100", 1.39, 64, 80e9, 200e12, 300e9, 25e9, 40_000), ("A100 40 GB", 0.79, 12, 40e9, 200e12, 300e9, 25e9, 40_000),
    ("H100", 3.99, 64, 80e9, 500e12, 450e9, 50e9, 50_000), ("H100 spot", 1.99, 6, 80e9, 500e12, 450e9, 50e9, 150))}
# Numbers to follow by hand: one node, wires that cost next to nothing, memory that one plan fills to the brim.
EXAMPLE_OFFERS = {name: dict(zip(TERMS, (price, 1, 5.534e9, flops_per_s, 1e18, 1e18, 50_000)))
                  for name, price, flops_per_s in (("old", 0.05, 1e12), ("new", 0.8, 4e12))}
Plan = tuple[str, int, int, int, int]  # in the order of KEYS
PAR = 1.01  # of the cheapest run


class CheapestRun(Exercise):
    number = "10.5"
    right = "the run is possible"
    budget = "par: 1 % above the cheapest run that ends in time, of one plan or of several one behind the other"
    run = staticmethod(cheapest_run)
    is_plan = True
    asks = True
    errors = tuple((words, "is there a plan among those that were looked at which fits and is in time? With other "
                    "nodes, stages or tp, or recomputing, there is") for words in (" empty", "list index out of range"))
    # parameters, layers, hidden, tokens of a row, rows of a batch, tokens of the run; days until the date
    example = 1e9, 1, 1000, 1000, 8, 4.608e9, 25
    # Each of the offers, each tp and recomputing decides somewhere, and the last one has time for the cheapest plan.
    cases = (
        (20e9, 44, 6144, 2048, 768, 4e11, 4),
        (34e9, 48, 8192, 32768, 384, 1.7e11, 4),
        (20e9, 44, 6144, 2048, 128, 1e11, 10),
        (175e9, 96, 12288, 65536, 128, 3.5e11, 295),
        (7e9, 32, 4096, 16384, 768, 1.4e11, 1),
        (7e9, 32, 4096, 4096, 384, 1.4e11, 365))
    few_rows = 175e9, 96, 12288, 2048, 4, 1e9, 10  # the cheapest plan has more stages than rows

    def trials(self, seed: int) -> list[Trial]:
        source = random.Random(seed)
        made = [Trial([[EXAMPLE_OFFERS, *self.example]], "the example, two offers of one node, 25 days",
                      hidden={"small": 0.1, "restart": 0.0})]
        layers, hidden = 4 * source.randint(8, 12), 512 * source.randint(8, 16)
        parameters = 12.0 * layers * hidden**2
        fastest = 120 * parameters**2 / (512 * 250e12) / 86_400  # about, on all nodes of H100
        drawn = parameters, layers, hidden, 4096, 512, 20 * parameters, math.ceil(fastest * source.uniform(1.2, 6))
        for asked in (*self.cases, drawn, self.few_rows):
            offers = {name: offer | {"price": round(offer["price"] * source.uniform(0.95, 1.05), 2)}
                      for name, offer in OFFERS.items()}
            days = f"{asked[6]} day{'s' * (asked[6] > 1)}"
            label = f"{asked[0] / 1e9:.3g}B, {asked[5] / 1e9:.4g} billion tokens, {days}"
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

    def usage(self, trial: Trial, answers: list[Any], traffic: SentBytes) -> list[Spent]:
        offers, *_, deadline = trial.inputs[0]
        memory = {name: offer["memory"] for name, offer in offers.items()}
        costs = costs_of_plans(trial.hidden, *trial.inputs[0])
        parts = [(tuple(plan[key] for key in KEYS), share) for plan, share in answers[0] if share]
        days, dollars = (sum(share * costs[plan][place] for plan, share in parts) for place in (0, 1))
        fullest = max((plan for plan, _ in parts), key=lambda plan: costs[plan][2] - memory[plan[0]])
        points = sorted((*cost[:2], plan) for plan, cost in costs.items() if cost[2] <= memory[plan[0]])
        par = PAR * cheapest(points, deadline)
        why = reason([(*costs[plan], plan) for plan, _ in parts], dollars, points, deadline) if dollars > par else ""
        return [Spent("holds", costs[fullest][2] / 1e9, memory[fullest[0]] / 1e9, "", " GB on a device",
                      who=words_of(*fullest), decides=True),
                Spent("takes", days, deadline, "day", slack=1e-6 * deadline, decides=True),
                Spent("costs", round(dollars, 2), round(par, 2), "exact dollars", why=why, limit="par {}", slack=0.01)]


def costs_of_plans(cluster: dict[str, float], *asked: Any) -> dict[Plan, tuple[float, float, float]]:
    """(days, dollars, bytes on a device) of every plan."""
    offers, _, layers, _, _, batch_rows, *_ = asked
    stages = [pp for pp in range(1, layers + 1) if layers % pp == 0]
    every = (plan for name, offer in offers.items()
             for plan in product([name], range(1, offer["nodes"] + 1), (1, 2, 4, 8), stages, (0, 1))
             if not 8 * plan[1] % (plan[2] * plan[3]) and not batch_rows % (8 * plan[1] // (plan[2] * plan[3])))
    return {plan: run_of(dict(zip(KEYS, plan)), cluster, offers[plan[0]], *asked[1:-1]) for plan in every}


def run_of(plan: dict[str, Any], cluster: dict[str, float], offer: dict[str, float], parameters: float, layers: int,
           hidden: int, tokens: int, batch_rows: int, total_tokens: float) -> tuple[float, float, float]:
    """(days, dollars, bytes on a device) of training as 9.7 has it, under ZeRO 1, with micro-batches of one row.

    cluster: what no reader is told, small: the share by which each halving of a product by tp makes it slower; restart:
    the hours that each failure costs.
    """
    tp, pp, devices = plan["tp"], plan["pp"], 8 * plan["nodes"]
    layout = {"dp": devices // (tp * pp), "pp": pp, "tp": tp, "rows": 1, "zero": 1, "recompute": plan["recompute"]}
    wires = (offer[term] for term in ("memory", "flops_per_s", "fast", "slow"))
    step, held = step_of(layout, {"small": cluster["small"], "hidden": 0.0}, devices, 8, *wires, parameters, layers,
                         hidden, tokens, batch_rows)
    lost = cluster["restart"] * devices / offer["hours_per_failure"]
    days = total_tokens / (batch_rows * tokens) * step * (1 + lost) / 86_400
    return days, 24 * days * devices * offer["price"], held


def plan_fault(plan: Any, offers: dict[str, dict[str, float]], parameters: float, layers: int, hidden: int, tokens: int,
               batch_rows: int, *rest: float) -> str | None:
    """Why `plan` is no plan of these offers for this model, None where it is one."""
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
