"""Exercise 10.5, open-ended: the cheapest run that has seen all tokens by a given day.

`run_of` below is what a whole run takes and costs under one plan. A run may begin under one plan and end under another,
as its checkpoint fits any layout: a part x of its tokens then takes x of the one's days and dollars. So what can be
had is every point between two plans, and the least is on the lower edge of all of them, the convex hull.

The rules are the course's, with what changes a choice little left out: overlap, latency, embedding and head.
"""

import math
import random
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Any

from course_lib.grading.compare import describe
from course_lib.grading.exercise import Exercise, Traffic, Trial
from course_lib.grading.spent import Spent

Plan = dict[str, Any]  # offer (a name), nodes, tp, pp, recompute (0, 1)
KEYS = ("offer", "nodes", "tp", "pp", "recompute")
Offer = dict[str, float]
PAR = 1.01  # of the cheapest run of all
MOST_PARTS = 8


def run_of(plan: Plan, offer: Offer, parameters: float, layers: int, hidden: int, tokens: int, batch_rows: int,
           total_tokens: float) -> tuple[float, float, float]:
    """(days, dollars, bytes on a device) of training a GPT in bf16 under ZeRO 1, micro-batches of one row."""
    nodes, tp, pp, recompute = (plan[key] for key in ("nodes", "tp", "pp", "recompute"))
    devices = 8 * nodes
    dp = devices // (tp * pp)
    micro_batches, part = batch_rows // dp, parameters / (tp * pp)
    computing = (8 if recompute else 6) * part * tokens / offer["flops_per_s"]
    messages = (6 if recompute else 4) * layers / pp * 2 * (tp - 1) / tp * 2 * tokens * hidden
    wire = offer["slow"] if nodes > 1 else offer["fast"]
    pipe = 2 * 2 * tokens * hidden / tp / wire if pp > 1 else 0.0
    gradients = 2 * 2 * part * (dp - 1) / dp / wire
    step = (micro_batches + pp - 1) * (computing + messages / offer["fast"] + pipe) + gradients
    kept = (2 if recompute else 34) * tokens * hidden * layers / (tp * pp) * min(pp, micro_batches)
    held = part * (4 + 12 / dp) + kept
    lost = 0.5 * devices / offer["hours_per_failure"]  # half an hour for each failure of a device
    days = total_tokens / (batch_rows * tokens) * step * (1 + lost) / 86_400
    return days, 24 * days * devices * offer["price"], held


# Prices are like those of facts in 2026, of one device for an hour; FLOP/s are what a matmul reaches.
OFFERS: dict[str, Offer] = {
    "A100": {"price": 1.49, "nodes": 64, "memory": 80e9, "flops_per_s": 200e12, "fast": 300e9, "slow": 25e9,
             "hours_per_failure": 40_000},
    "H100": {"price": 3.99, "nodes": 64, "memory": 80e9, "flops_per_s": 500e12, "fast": 450e9, "slow": 50e9,
             "hours_per_failure": 50_000},
    "H100 spot": {"price": 2.29, "nodes": 8, "memory": 80e9, "flops_per_s": 500e12, "fast": 450e9, "slow": 50e9,
                  "hours_per_failure": 150},
    "H200": {"price": 4.99, "nodes": 32, "memory": 141e9, "flops_per_s": 500e12, "fast": 450e9, "slow": 50e9,
             "hours_per_failure": 50_000},
}
# parameters, layers, hidden, tokens of a row, rows of a batch, tokens of the run; days until the date
CASES = (("13B, 260 billion tokens, 7 days", (13e9, 40, 5120, 4096, 512, 2.6e11, 7)),
         ("7B, 140 billion tokens, 12 days", (7e9, 32, 4096, 4096, 384, 1.4e11, 12)),
         ("70B, 300 billion tokens, 30 days", (70e9, 80, 8192, 4096, 768, 3e11, 30)),
         ("175B, 100 billion tokens, 40 days", (175e9, 96, 12288, 2048, 1536, 1e11, 40)),
         ("7B, 140 billion tokens, a year", (7e9, 32, 4096, 4096, 384, 1.4e11, 365)))


class CheapestRun(Exercise):
    number = "10.5"
    function = "my_cheapest_run"
    points = 5
    right = "the run is possible"
    budget = "par: 1 % above the cheapest run that ends in time, of one plan or of several one behind the other"
    hints = (
        "Draw every plan that fits as a point, days to the right and dollars upwards. The date is a vertical line. "
        "Which points can a run reach that begins under one plan and ends under another?",
        "Two plans with shares x and 1 - x reach every point of the line between theirs. So take each plan that is in "
        "time with each that is too late, and give the late one, which is cheaper, as much as the date allows: "
        "x = (deadline - days)/(late days - days). With many plans, keep only those that no other one beats in days "
        "and in dollars.",
        "found = []  # (days, dollars, plan) of every plan that fits\n"
        "...\n"
        "early = [each for each in found if each[0] <= deadline]\n"
        "late = [each for each in found if each[0] > deadline]\n"
        "best = min(early, key=lambda each: each[1])\n"
        "runs = [(best[1], [(best[2], 1.0)])]\n"
        "for days, dollars, plan in early:\n"
        "    for more_days, other_dollars, other in late:\n"
        "        x = ...\n"
        "        runs.append((x * other_dollars + ..., [(other, x), (plan, 1 - x)]))\n"
        "return min(runs, key=lambda run: run[0])[1]",
    )

    def trials(self, seed: int) -> list[Trial]:
        source = random.Random(seed)
        layers, hidden = 4 * source.randint(8, 12), 512 * source.randint(8, 16)
        parameters = 12.0 * layers * hidden**2
        fastest = 120 * parameters**2 / (512 * 250e12) / 86_400  # about, on all nodes of H100
        days = math.ceil(fastest * source.uniform(1.2, 6))
        drawn = (f"{parameters / 1e9:.3g}B, {20 * parameters / 1e9:.4g} billion tokens, {days} days",
                 (parameters, layers, hidden, 4096, 512, 20 * parameters, days))
        made = []
        for label, asked in (*CASES, drawn):
            offers = {name: {**offer, "price": round(offer["price"] * source.uniform(0.9, 1.1), 2)}
                      for name, offer in OFFERS.items()}
            made.append(Trial([[offers, *asked]], label))
        return made

    @staticmethod
    def run(function: Callable, inputs: list[Any]) -> Any:
        offers, *model, deadline = inputs

        def look(plan: Plan) -> tuple[float, float, float]:
            if fault := fault_of(plan, *inputs):
                raise ValueError(f"look({plan}): {fault}")
            return run_of(plan, offers[plan["offer"]], *model)

        returned = function(look, {name: dict(offer) for name, offer in offers.items()}, *model, deadline)
        if not isinstance(returned, list | tuple):
            return "nothing (None)" if returned is None else f"a {type(returned).__name__}"
        return [as_data(each) for each in returned[:MOST_PARTS + 1]]

    def arguments(self, trial: Trial) -> Sequence[Any]:
        return trial.inputs[0]

    def wrong(self, trial: Trial, answers: list[Any]) -> str | None:
        given = answers[0]
        if type(given) is not list or not 0 < len(given) <= MOST_PARTS or not all(
                type(each) is list and len(each) == 2 and type(each[0]) is dict and type(each[1]) is float
                for each in given):
            said = f"a list of {len(given)}" if type(given) is list else describe(given)
            return f"it returned {said}: expected a list of 1 to {MOST_PARTS} pairs, a plan and its share of the tokens"
        for plan, share in given:
            if fault := fault_of(plan, *trial.inputs[0]):
                return f"it returned {str(plan)[:120]}: {fault}"
            if not 0 <= share <= 1:
                return f"it returned a share of {share:g}: expected 0 to 1"
        shares = sum(share for _, share in given)
        return None if abs(shares - 1) < 1e-6 else f"the shares add up to {shares:g}: all tokens are to be seen once"

    def spent(self, trial: Trial, answers: list[Any], traffic: Traffic) -> Sequence[Spent]:
        asked, given = trial.inputs[0], [part for part in answers[0] if part[1]]
        offers, *model, deadline = asked
        parts = [(*run_of(plan, offers[plan["offer"]], *model), share) for plan, share in given]
        days, dollars = (sum(part[place] * part[3] for part in parts) for place in (0, 1))
        fullest = max(range(len(parts)), key=lambda n: parts[n][2] - offers[given[n][0]["offer"]]["memory"])
        plan = given[fullest][0]
        least = cheapest(asked)
        why = reason(given, dollars, asked) if dollars > PAR * least else ""
        return [Spent("holds", parts[fullest][2] / 1e9, offers[plan["offer"]]["memory"] / 1e9, "", " GB on a device",
                      who=said(plan), why="recomputing, more stages or more tp hold less"),
                Spent("takes", days, deadline, "day", why="it has to end by the date: more nodes for a larger part of "
                                                          "the tokens", slack=1e-6 * deadline),
                Spent("costs", round(dollars), round(PAR * least), "exact dollars", why=why, limit="par {}", slack=1)]


def as_data(part: Any) -> Any:
    """A plan and its share as a list of a dict and a float, or words for what is none."""
    if not isinstance(part, list | tuple) or len(part) != 2 or not isinstance(part[0], dict) or not isinstance(
            part[1], int | float):
        return f"a {type(part).__name__}"
    plan = {str(key): value if isinstance(value, str) else int(value) if isinstance(value, int) else "?"
            for key, value in part[0].items()}
    return [plan, float(part[1])]


def fault_of(plan: Any, offers: dict[str, Offer], parameters: float, layers: int, hidden: int, tokens: int,
             batch_rows: int, *rest: float) -> str | None:
    """Why this is no plan."""
    if not isinstance(plan, dict) or set(plan) != set(KEYS):
        return f"expected {', '.join(KEYS)}, and nothing else"
    if not isinstance(plan["offer"], str) or plan["offer"] not in offers:
        return f"expected one of the offers, {', '.join(offers)}"
    if any(type(plan[key]) is not int for key in KEYS[1:]) or min(plan[key] for key in KEYS[1:4]) < 1:
        return "expected whole numbers, nodes, tp and pp at least 1"
    nodes, tp, pp, recompute = (plan[key] for key in KEYS[1:])
    if nodes > offers[plan["offer"]]["nodes"]:
        return f"there are {offers[plan['offer']]['nodes']} nodes of that offer"
    if 8 % tp:
        return "expected tp = 1, 2, 4 or 8: it stays in a node"
    if layers % pp:
        return f"{pp} stages do not divide {layers} layers"
    if 8 * nodes % (tp * pp) or batch_rows % (8 * nodes // (tp * pp)):
        return (f"tp * pp = {tp * pp} has to divide the {8 * nodes} devices into replicas whose number divides the "
                f"{batch_rows} rows")
    return None if recompute in (0, 1) else "expected recompute = 0 or 1"


def every_plan(*asked: Any) -> Iterable[Plan]:
    offers = asked[0]
    for name, offer in offers.items():
        for nodes in range(1, int(offer["nodes"]) + 1):
            for tp in (1, 2, 4, 8):
                for pp in (pp for pp in range(1, asked[2] + 1) if asked[2] % pp == 0):
                    plan = {"offer": name, "nodes": nodes, "tp": tp, "pp": pp, "recompute": 0}
                    if fault_of(plan, *asked) is None:
                        yield plan
                        yield {**plan, "recompute": 1}


def fitting(asked: Sequence[Any]) -> list[tuple[float, float, Plan]]:
    """(days, dollars, plan) of every plan that fits its devices, the fastest first."""
    offers, *model, _ = asked
    looked = ((*run_of(plan, offers[plan["offer"]], *model), plan) for plan in every_plan(*asked))
    fits = ((days, dollars, plan) for days, dollars, held, plan in looked if held <= offers[plan["offer"]]["memory"])
    return sorted(fits, key=lambda each: each[:2])


def edge(points: list[tuple[float, float, Plan]]) -> list[tuple[float, float, Plan]]:
    """Those on the lower edge of the convex hull, from the fastest plan to the cheapest one."""
    kept: list[tuple[float, float, Plan]] = []
    for point in points:
        if kept and point[1] >= kept[-1][1]:
            continue
        while len(kept) > 1 and slope(kept[-2], kept[-1]) >= slope(kept[-2], point):
            kept.pop()
        kept.append(point)
    return kept


def slope(a: tuple[float, float, Plan], b: tuple[float, float, Plan]) -> float:
    return (b[1] - a[1]) / max(b[0] - a[0], 1e-12)


def cheapest(asked: Sequence[Any]) -> float:
    """Dollars of the cheapest run that ends in time: a point of the edge, or between two of them."""
    deadline, hull = asked[-1], edge(fitting(asked))
    assert hull[0][0] <= deadline, "no plan ends in time"
    if hull[-1][0] <= deadline:
        return hull[-1][1]
    a, b = next((a, b) for a, b in pairwise(hull) if a[0] <= deadline < b[0])
    return a[1] + slope(a, b) * (deadline - a[0])


def reason(given: list[Any], dollars: float, asked: Sequence[Any]) -> str:
    """Why a run is not the cheapest one: the first thing that one would change."""
    offers, *_, deadline = asked
    points = fitting(asked)
    alone = min(each[1] for each in points if each[0] <= deadline)

    def least(plan: Plan, *same: str) -> float:
        """Dollars of the cheapest plan that is alike in these keys, and not slower."""
        days = run_of(plan, offers[plan["offer"]], *asked[1:-1])[0]
        return min((each[1] for each in points if each[0] <= max(days, deadline * (len(given) == 1)) + 1e-9
                    and all(each[2][key] == plan[key] for key in same)), default=float("inf"))

    for plan, _ in given:
        now = run_of(plan, offers[plan["offer"]], *asked[1:-1])[1]
        for same, words in ((("offer", "nodes", "tp", "pp"), "it recomputes, where it would fit without"),
                            (("offer", "nodes"), "the same nodes take less time under another layout"),
                            (("offer",), "the same offer costs less with another number of nodes"),
                            ((), "another offer costs less for as much work")):
            if least(plan, *same) < 0.995 * now:
                return f"{said(plan)}: {words}"
    if len(given) == 1 and dollars <= 1.005 * alone:
        return ("no plan alone is cheaper, but a run may move: begin under a plan that is cheaper and too slow, and "
                "end under one that is faster")
    return "other plans, or other shares of them, cost less: give the cheaper one as much as the date allows"


def said(plan: Plan) -> str:
    """8 nodes of H100, tp4 pp2, recomputing"""
    nodes = f"{plan['nodes']} node{'s' * (plan['nodes'] > 1)}"
    return f"{nodes} of {plan['offer']}, tp{plan['tp']} pp{plan['pp']}" + ", recomputing" * plan["recompute"]
