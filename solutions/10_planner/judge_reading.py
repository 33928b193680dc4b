"""Exercise 10.2: reading plans: what keeps each from being the best, and which published runs are like it.

    the best   the shortest step of all that fit          a tie    a step at most 1 % longer
    slower     by the cause that adds most seconds to the best's
    too large  or the least ZeRO stage with which it would fit: 1 divides the optimiser's state by dp, 2 gradients as
               well, 3 parameters as well

Plans are estimates of course_lib.planner, runs those of course_lib.facts; of both, such are drawn that no rounding, and
no constant of the planner to the digit, decides.
"""

import math
import random
from functools import lru_cache
from itertools import product
from typing import Any

from course_lib.costs.memory import USABLE
from course_lib.facts import model, published_rows
from course_lib.grading.compare import describe
from course_lib.grading.exercise import Exercise, SentBytes, Trial
from course_lib.grading.on_rank import values
from course_lib.grading.spent import Spent
from course_lib.hybrid_parallel.layout import ParallelLayout
from course_lib.planner.cluster import cluster
from course_lib.planner.estimate import Estimate, estimate
from course_lib.planner.rows import FITS, job_of_row

from .judge_terms import CAUSES

GIB = 2**30
TIE = 0.01
CUT = ("optimizer_state", "gradients", "parameters")  # by ZeRO 1, 2, 3
AXES = ("dp", "tp", "pp")
# model, device, devices, rows of a batch, micro-batch; the first are the trials of every seed
ASKED = (("Llama 3 70B", "H100", 256, 512, 1), ("GPT-3", "A100", 1024, 1536, 1), ("Llama 3 8B", "H100", 64, 256, 1),
         ("Llama 2 70B", "A100", 512, 1024, 1), ("Llama 3 405B", "H100", 8192, 2048, 1))
Plan = dict[str, Any]


class ReadPlans(Exercise):
    number = "10.2"
    budget = "the word and the number of runs for every plan"
    run = staticmethod(values)

    def trials(self, seed: int) -> list[Trial]:
        source = random.Random(seed)
        return [Trial([list(example())], "the example, four plans"),
                *(drawn_trial(asked, 0) for asked in ASKED), drawn_trial(source.choice(ASKED), 1 + seed)]

    def arguments(self, trial: Trial) -> list[Any]:
        return trial.inputs[0]

    def solve(self, plans: list[Plan], limit: float, runs: list[Plan]) -> list[list[Any]]:
        best = best_of(plans, limit)
        return [[word_of(plan, best, limit), sum(is_like(run, plan) for run in runs)] for plan in plans]

    def select_parts(self, answers: list[Any]) -> Any:
        return answers[0]

    def difference(self, given: Any, expected: list[list[Any]]) -> str:
        if type(given) is not list or len(given) != len(expected):
            has = f"a list of {len(given)}" if type(given) is list else describe(given)
            return f"it returned {has}: expected a list of {len(expected)}, a word and a number for each plan"
        place = next(place for place, (has, right) in enumerate(zip(given, expected)) if has != right)
        has, (word, runs) = given[place], expected[place]
        if type(has) is not list or len(has) != 2:
            return f"plan {place} is {describe(has)}: expected a word and a number of runs"
        if has[0] != word:
            return f"plan {place} is {describe(has[0])!r}, expected {word!r}"
        return f"plan {place} has {describe(has[1])} runs like it, expected {runs}"

    def opening(self, trial: Trial, answers: list[Any]) -> str:
        return f"{self.wrong(trial, answers)}: "

    def usage(self, trial: Trial, answers: list[Any], traffic: SentBytes) -> list[Spent]:
        return [Spent("read", len(answers[0]), len(trial.inputs[0][0]), "plan", limit="of {}")]


def step_of(plan: Plan) -> float:
    return sum(plan["seconds"].values())


def held_by(plan: Plan, zero: int = 0) -> float:
    """GiB that a device would hold with ZeRO's stage raised to `zero`, or as the plan is."""
    return sum(size / (plan["dp"] if kind in CUT[plan["zero"]:zero] else 1) for kind, size in plan["memory"].items())


def best_of(plans: list[Plan], limit: float) -> Plan:
    return min((plan for plan in plans if held_by(plan) <= limit), key=step_of)


def word_of(plan: Plan, best: Plan, limit: float) -> str:
    if held_by(plan) > limit:
        enough = (zero for zero in range(plan["zero"] + 1, 4) if held_by(plan, zero) <= limit)
        return next((f"ZeRO-{zero}" for zero in enough), "too large")
    if plan is best:
        return "best"
    if step_of(plan) <= (1 + TIE) * step_of(best):
        return "tie"
    return max(plan["seconds"], key=lambda cause: plan["seconds"][cause] - best["seconds"][cause])


def is_like(run: Plan, plan: Plan) -> bool:
    """Whether a run has the plan's device, at least half as many of them, and like it tp inside a node or beyond."""
    return (run["device"] == plan["device"] and 2 * run["devices"] >= plan["devices"]
            and (run["tp"] > run["per_node"]) == (plan["tp"] > plan["per_node"]))


# Trials

def example() -> tuple[list[Plan], float, list[Plan]]:
    """The example of the docstring, which can be followed by hand: plans, GiB of a device, runs."""
    def plan(dp: int, tp: int, pp: int, seconds: tuple[float, ...], memory: tuple[float, ...]) -> Plan:
        return {"device": "H100", "devices": 16, "per_node": 8, "dp": dp, "tp": tp, "pp": pp, "zero": 1,
                "seconds": dict(zip(("matmul", "tp", "bubble", "dp"), seconds)),
                "memory": dict(zip(("parameters", "gradients", "optimizer_state", "activations"), memory))}
    runs = [{"device": device, "devices": devices, "per_node": 8, "tp": tp}
            for device, devices, tp in (("H100", 8, 8), ("H100", 128, 4), ("H100", 6, 1), ("A100", 64, 8))]
    plans = [plan(2, 4, 2, (6.0, 1.0, 1.0, 0.5), (10, 20, 15, 30)),
             plan(1, 16, 1, (6.2, 3.5, 0.0, 0.0), (9, 18, 27, 20)),
             plan(2, 2, 4, (5.9, 0.4, 2.2, 0.05), (10, 20, 15, 35)),
             plan(4, 4, 1, (6.0, 1.0, 0.0, 1.0), (20, 40, 15, 35))]
    return plans, 80, runs


@lru_cache(maxsize=16)
def every_plan(name: str, device: str, devices: int, rows: int, micro_batch: int) -> tuple[tuple[Plan, float], ...]:
    """Plans with the GiB there are, ZeRO 0 and 1, with and without recomputing."""
    found = []
    where, asked = cluster(device, devices), model(name)
    for tp, pp, v, zero, again in product((1, 2, 4, 8, 16), (1, 2, 4, 5, 8, 10, 16), (1, 2, 4), (0, 1), ("none", "full")
                                          ):
        if devices % (tp * pp) == 0 and (v == 1 or pp > 1):
            layout = ParallelLayout(dp=devices // (tp * pp), tp=tp, pp=pp, zero_stage=zero)
            try:
                found.append(shown_plan(estimate(asked, where, layout, rows, micro_batch, v=v, recompute=again)))
            except ValueError:  # what cannot be built
                continue
    return tuple((plan, where.usable_bytes / GIB * USABLE) for plan in found)


def shown_plan(found: Estimate) -> Plan:
    where, layout = found.job.cluster, found.job.layout
    return {"device": where.device.name, "devices": layout.world_size, "per_node": where.devices_per_node,
            **{axis: getattr(layout, axis) for axis in AXES}, "zero": layout.zero_stage,
            "seconds": {cause: found.seconds[cause] for cause in CAUSES},
            "memory": {kind: size / GIB for kind, size in found.memory.items()}}


@lru_cache(maxsize=256)
def drawn_trial(asked: tuple[Any, ...], seed: int) -> Trial:
    """A best plan that is not the fastest of all, and of each other kind some, whatever there is."""
    source = random.Random(f"{asked} {seed}")
    every = every_plan(*asked)
    limit, plans = every[0][1], [plan for plan, _ in every]
    fit = sorted((plan for plan in plans if held_by(plan) <= limit), key=step_of)
    best = source.choice(fit[: max(1, len(fit) // 4)])
    kinds: dict[str, list[Plan]] = {}
    for plan in plans:
        faster = held_by(plan) <= limit and step_of(plan) <= step_of(best)  # those are no candidates, best is
        if not faster and is_clear(plan, best, limit):
            kinds.setdefault(word_of(plan, best, limit), []).append(plan)
    chosen = [best, *(source.choice(of) for of in kinds.values())]
    fast = [plan for plan in kinds.get("too large", []) + kinds.get("ZeRO-1", []) if step_of(plan) < step_of(best)]
    twice = [plan for of in kinds.values() for plan in of if plan["zero"] and held_by(plan) > limit
             and word_of(plan | {"zero": 0}, best, limit) != word_of(plan, best, limit)]  # its own stage tells
    chosen += [source.choice(of) for of in (fast, twice) if of]
    chosen = [plan for place, plan in enumerate(chosen) if plan not in chosen[:place]]
    source.shuffle(chosen)
    name, device, devices, *_ = asked
    return Trial([[chosen, limit, some_runs(device, source)]], f"plans of {name} on {devices:,} {device}")


def is_clear(plan: Plan, best: Plan, limit: float) -> bool:
    """Whether what is said of it would be said of numbers a little off, too."""
    if any(math.isclose(held_by(plan, zero), limit, rel_tol=0.03) for zero in range(4)):
        return False
    if held_by(plan) > limit:
        return True
    longer = step_of(plan) / step_of(best) - 1
    adds = sorted((plan["seconds"][cause] - best["seconds"][cause] for cause in plan["seconds"]), reverse=True)
    return 5e-4 < longer < 0.7 * TIE or 2 * TIE < longer < 1 and adds[0] > 1.3 * adds[1]


def some_runs(device: str, source: random.Random) -> list[Plan]:
    """Up to eight published runs on this device, and six on others."""
    jobs = [job_of_row(row) for row in published_rows("visible") if row["metric"] != FITS]
    runs = [{"device": job.cluster.device.name, "devices": job.layout.world_size,
             "per_node": job.cluster.devices_per_node, "tp": job.layout.tp} for job in jobs]
    of_these, others = ([run for run in runs if (run["device"] == device) == same] for same in (True, False))
    return source.sample(of_these, min(8, len(of_these))) + source.sample(others, 6)
