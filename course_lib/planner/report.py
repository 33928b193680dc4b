"""Plans in words: a table, why the others are slower, how sure, and the same as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import wrap
from typing import Any

from course_lib.planner.candidates import SAVING
from course_lib.planner.errors import error_of
from course_lib.planner.estimate import Estimate
from course_lib.planner.plan import Plans
from course_lib.planner.ranking import distinct, ties
from course_lib.planner.reasons import policy, reasons_for, saving
from course_lib.planner.why_not import WhyNot

GIB = 2**30
TOKENS = 1e12  # that dollars are told for
WIDTH = 105  # characters of a line: what a notebook cell shows
COLUMNS = ("", "layout", "v", "micro-batch", "recompute", "s/step", "range", "MFU", "GiB", "USD/1e12 tokens")


def asked_in_words(plans: Plans, name: str) -> str:
    """Model, devices, batch, precision and software in one line."""
    asked, of = plans.asked, plans.asked.cluster
    return (f"{name} on {of.num_devices:,} {of.device.name} in nodes of {of.devices_per_node}: {asked.global_batch:,} "
            f"rows of {asked.sequence_length:,} tokens, {asked.how['precision']}, {asked.how['software'].name}")


def report(plans: Plans, name: str, top: int = 5) -> str:
    """For people: the best plan of each of `top` sets of axes. `name`: of the model."""
    if not plans:
        return f"{asked_in_words(plans, name)}\n{plans.reason}"
    shown, best = distinct(plans)[:top], plans[0]
    lines = [asked_in_words(plans, name), *table(shown, plans)]
    lines += (line for note in notes(plans) for line in wrap(note, WIDTH, subsequent_indent="    "))
    for number, each in enumerate(shown[1:], 2):
        reasons = "; ".join(reasons_for(each, best)) or "nothing that is worth saying"
        lines += wrap(f"{number} against 1: {each.step_s / best.step_s - 1:+z.1%}: {reasons}", WIDTH,
                      subsequent_indent="    ")
    return "\n".join([*lines, f"how far off: {error_of(best.job).text}"])


def table(shown: Sequence[Estimate], plans: Plans) -> list[str]:
    """The table of plans, a line each."""
    tied = ties(plans) if len(plans) else []
    rows = [COLUMNS] + [row_of(number, each, each in tied and len(tied) > 1) for number, each in enumerate(shown, 1)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(COLUMNS))]
    return ["  ".join(cell.ljust(width) if column < 2 else cell.rjust(width)
                      for column, (cell, width) in enumerate(zip(row, widths))).rstrip() for row in rows]


def row_of(number: int, each: Estimate, tied: bool) -> tuple[str, ...]:
    """The cells of one plan; "=" behind the number of one that ties with the first."""
    low, high = each.step_range_s
    usd = each.dollars(TOKENS)
    layout = ", ".join(filter(None, (str(each.layout), saving(each))))
    return (f"{number}{'=' if tied else ''}", layout, str(each.job.v), str(each.job.micro_batch),
            policy(each), f"{each.step_s:.3g}", f"{low:.3g} to {high:.3g}", f"{each.mfu:.1%}",
            f"{each.memory_bytes / GIB:.1f} of {each.job.cluster.usable_bytes / GIB:.1f}",
            "" if usd is None else f"{usd:,.0f}")


def notes(plans: Plans) -> list[str]:
    """Ties, idle devices, what nearly fits."""
    found, world = [], plans.asked.cluster.num_devices
    if len(tied := ties(plans)) > 1:
        found.append(f"=: the first {len(tied)} plans are within 1 % of each other, which no estimate can tell apart; "
                     "the simplest stands first")
    if plans.idle_devices:
        found.append(f"{plans[0].num_devices:,} of {world:,} devices, {plans.idle_devices:,} idle: nothing that uses "
                     "more of them is faster")
    for each in plans.nearly[:2]:
        over = (each.memory_bytes - plans.asked.limit_bytes) / GIB
        found.append(f"nearly fits: {each.layout}, v {each.job.v}, micro-batch {each.job.micro_batch}, recompute "
                     f"{policy(each)}: {each.step_s:.3g} s, {over:.1f} GiB more than leaves room for fragments")
    return found


# JSON

def as_json(plans: Plans, name: str, top: int = 5) -> dict[str, Any]:
    """The whole answer as plain data."""
    asked, tied = plans.asked, ties(plans)
    error = error_of(plans[0].job) if plans else None
    return {"model": name, "device": asked.cluster.device.name, "num_devices": asked.cluster.num_devices,
            "devices_per_node": asked.cluster.devices_per_node, "global_batch": asked.global_batch,
            "sequence_length": asked.sequence_length, "precision": asked.how["precision"],
            "software": asked.how["software"].name, "idle_devices": plans.idle_devices, "reason": plans.reason,
            "error": None if error is None else str(error),
            "nearest_runs": [] if error is None else [str(run) for run in error.nearest],
            "plans": [plan_as_json(each, plans[0], each in tied) for each in distinct(plans)[:top]],
            "nearly": [plan_as_json(each, plans[0] if plans else each, False) for each in plans.nearly[:top]]}


def plan_as_json(each: Estimate, best: Estimate, tied: bool) -> dict[str, Any]:
    """One plan as plain data: its layout, seconds by cause, bytes by kind, and why it is slower than the best."""
    job, layout = each.job, each.layout
    return {"layout": str(layout), **{axis: getattr(layout, axis) for axis in ("dp", "pp", "cp", "tp", "ep", "etp")},
            "zero_stage": layout.zero_stage, "v": job.v, "micro_batch": job.micro_batch,
            "num_microbatches": job.num_microbatches, "recompute": job.recompute,
            "recompute_layers": job.recompute_layers, "recompute_modules": list(job.recompute_modules),
            **{name: getattr(job, name) for name in SAVING}, "host_bytes": each.host_bytes,
            "step_s": each.step_s, "step_range_s": list(each.step_range_s),
            "mfu": each.mfu, "tokens_per_s": each.tokens_per_s, "seconds": each.seconds, "memory": each.memory,
            "usable_bytes": job.cluster.usable_bytes, "dollars_per_1e12_tokens": each.dollars(TOKENS), "tied": tied,
            "reasons": reasons_for(each, best)}


def why_not_as_json(found: WhyNot) -> dict[str, Any]:
    """Why a layout is not the plan, as plain data."""
    return {"layout": str(found.layout), "verdict": found.verdict, "reasons": list(found.reasons),
            "remedies": list(found.remedies),
            "estimate": None if found.estimate is None else plan_as_json(found.estimate, found.estimate, False)}
