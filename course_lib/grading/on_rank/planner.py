"""Chapter 10 on a rank: bytes by kind, layouts, and plans of a whole run.

The notebook prints `run_of`, with the course's rules but for what changes a choice little: overlap, latency, both ends.
"""

from collections.abc import Callable
from typing import Any

from course_lib.grading.on_rank.plain import plain

KEYS = ("offer", "nodes", "tp", "pp", "recompute")  # of a plan: a name, then whole numbers; recompute is 0 or 1
# Prices are like those of facts in 2026, of one device for an hour; FLOP/s are what a matmul reaches.
TERMS = ("price", "nodes", "memory", "flops_per_s", "fast", "slow", "hours_per_failure")
OFFERS: dict[str, dict[str, float]] = {name: dict(zip(TERMS, terms)) for name, *terms in (
    ("A100", 1.49, 64, 80e9, 200e12, 300e9, 25e9, 40_000),
    ("H100", 3.99, 64, 80e9, 500e12, 450e9, 50e9, 50_000),
    ("H100 spot", 2.29, 8, 80e9, 500e12, 450e9, 50e9, 150),
    ("H200", 4.99, 32, 141e9, 500e12, 450e9, 50e9, 50_000))}


def as_data(value: Any) -> Any:
    """Numbers and strings in lists and dicts, these in the order of their names; words for anything else."""
    if isinstance(value, dict):
        return {str(name): as_data(value[name]) for name in sorted(value, key=str)}
    if isinstance(value, list | tuple):
        return [as_data(each) for each in value]
    return next((kind for kind in (int, float, str) if isinstance(value, kind)), plain)(value)


def data(function: Callable, inputs: list[Any]) -> Any:
    """10.1: bytes by kind. 10.3: tp, pp and the layers that are recomputed."""
    return as_data(function(*inputs))


def better_layout(function: Callable, inputs: list[Any]) -> Any:
    """10.4: a layout. `fitting`: all that fit, of which the function may ask for each whether it is there."""
    *asked, fitting = inputs
    return as_data(function(*asked, lambda layout: layout in fitting))


def cheapest_run(function: Callable, inputs: list[Any]) -> Any:
    """10.5: plans, each with its share of the tokens."""
    offers, *model, deadline = inputs

    def look(plan: dict[str, Any]) -> tuple[float, float, float]:
        if fault := plan_fault(plan, offers, *model):
            raise ValueError(f"look({plan}): {fault}")
        return run_of(plan, offers[plan["offer"]], *model)

    return as_data(function(look, {name: dict(offer) for name, offer in offers.items()}, *model, deadline))


def run_of(plan: dict[str, Any], offer: dict[str, float], parameters: float, layers: int, hidden: int, tokens: int,
           batch_rows: int, total_tokens: float) -> tuple[float, float, float]:
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
