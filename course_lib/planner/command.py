"""The planner as a command: a model, devices and a batch in; out come plans in words or as JSON, why the others are
slower, how sure that is, or a framework's flags.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from textwrap import wrap
from time import perf_counter
from typing import Any

from course_lib.command_line import Parser, whole
from course_lib.facts import ACCELERATORS, DEVICE_VARIANTS, MODELS, Shape, model
from course_lib.planner.candidates import Choices, ask
from course_lib.planner.cluster import Cluster, cluster
from course_lib.planner.compare import MEASURE, error_of
from course_lib.planner.constants import MEGATRON_CORE, SOFTWARE, find_software
from course_lib.planner.estimate import Estimate
from course_lib.planner.frameworks import megatron_flags, runs_on_titan, shape_from_config, torchtitan_lines
from course_lib.planner.job import PRECISION_NAMES, SCHEDULES, describe_recompute, shape_of
from course_lib.planner.plan import (
    GIB,
    Plans,
    correction_of,
    plan,
    reasons_for,
    why_not,
)
from course_lib.planner.search import Progress, pick_distinct, ties

TOKENS = 1e12  # that dollars are told for
WIDTH = 105  # characters of a line: what a notebook cell shows
COLUMNS = ("", "layout", "v", "micro-batch", "recompute", "s/step", "range", "MFU", "GiB", "USD/1e12 tokens")


def report(plans: Plans, name: str, top: int = 5) -> str:
    """For people: the best plan of each of `top` sets of axes. `name`: of the model."""
    asked, of = plans.asked, plans.asked.cluster
    question = (f"{name} on {of.num_devices:,} {of.device.name} in nodes of {of.devices_per_node}: "
                f"{asked.global_batch:,} rows of {asked.sequence_length:,} tokens, {asked.how['precision']}, "
                f"{asked.how['software'].name}")
    if not plans:
        return f"{question}\n{plans.reason}"
    shown, best = pick_distinct(plans)[:top], plans[0]
    told = notes(plans)
    for number, each in enumerate(shown[1:], 2):
        reasons = "; ".join(reasons_for(each, best)) or "nothing that is worth saying"
        told.append(f"{number} against 1: {each.step_s / best.step_s - 1:+z.1%}: {reasons}")
    wrapped = (line for note in told for line in wrap(note, WIDTH, subsequent_indent="    "))
    return "\n".join([question, *table(shown, plans), *wrapped, f"how far off: {error_of(best.job).text}"])


def table(shown: Sequence[Estimate], plans: Plans) -> list[str]:
    """The table of plans, a line each; "=" behind the number of one that ties with the first."""
    tied, rows = ties(plans), [COLUMNS]
    for number, each in enumerate(shown, 1):
        usd, between = each.dollars(TOKENS), each.step_range_s
        rows.append((
            f"{number}{'=' * (each in tied and len(tied) > 1)}", str(each.layout), str(each.job.v),
            str(each.job.micro_batch), describe_recompute(each.job), f"{each.step_s:.3g}",
            "unknown" if between is None else "{:.3g} to {:.3g}".format(*between), f"{each.mfu:.1%}",
            f"{each.memory_bytes / GIB:.1f} of {each.job.cluster.usable_bytes / GIB:.1f}",
            "" if usd is None else f"{usd:,.0f}"))
    widths = [max(len(row[column]) for row in rows) for column in range(len(COLUMNS))]
    return ["  ".join(cell.ljust(width) if column < 2 else cell.rjust(width)
                      for column, (cell, width) in enumerate(zip(row, widths))).rstrip() for row in rows]


def notes(plans: Plans) -> list[str]:
    """Ties, idle devices, what nearly fits."""
    found, world = [], plans.asked.cluster.num_devices
    if len(tied := ties(plans)) > 1:
        found.append(f"=: the first {len(tied)} plans are within 1 % of each other, which no estimate can tell apart; "
                     "the simplest stands first")
    if plans.idle_devices:
        more = f"; a batch of {plans.enough_rows:,} rows would use all" if plans.enough_rows else ""
        found.append(f"{plans[0].num_devices:,} of {world:,} devices, {plans.idle_devices:,} idle: nothing that uses "
                     f"more of them is faster{more}")
    if plans and plans[0].uncertainty is None:
        found.append(f"range unknown: {MEASURE}")
    for each in plans.nearly[:2]:
        over = (each.memory_bytes - plans.asked.limit_bytes) / GIB
        found.append(f"nearly fits: {each.layout}, v {each.job.v}, micro-batch {each.job.micro_batch}, recompute "
                     f"{describe_recompute(each.job)}: {each.step_s:.3g} s, {over:.1f} GiB more than leaves room for "
                     "fragments")
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
            "plans": [plan_as_json(each, plans[0], each in tied) for each in pick_distinct(plans)[:top]],
            "nearly": [plan_as_json(each, plans[0] if plans else each, False) for each in plans.nearly[:top]]}


def plan_as_json(each: Estimate, best: Estimate, tied: bool) -> dict[str, Any]:
    """One plan as plain data: its layout, seconds by cause, bytes by kind, and why it is slower than the best."""
    job, layout = each.job, each.layout
    return {"layout": str(layout), **{axis: getattr(layout, axis) for axis in ("dp", "pp", "cp", "tp", "ep", "etp")},
            "zero_stage": layout.zero_stage, "v": job.v, "micro_batch": job.micro_batch,
            "num_microbatches": job.num_microbatches, "recompute": job.recompute,
            "recompute_layers": job.recompute_layers, "recompute_modules": list(job.recompute_modules),
            "step_s": each.step_s, "step_range_s": each.step_range_s and list(each.step_range_s),
            "mfu": each.mfu, "tokens_per_s": each.tokens_per_s, "seconds": each.seconds, "memory": each.memory,
            "usable_bytes": job.cluster.usable_bytes, "dollars_per_1e12_tokens": each.dollars(TOKENS), "tied": tied,
            "reasons": reasons_for(each, best)}


PROGRAM = "python -m course_lib.planner"
DESCRIPTION = """\
Which layout trains a model fastest on your devices: every one that can be built and fits is tried, and the best are
listed with seconds, memory, reasons and how far off such an estimate was on published runs.
"""
EXAMPLES = """\
examples
  a model of the course's facts:  python -m course_lib.planner --model llama-3-70b --gpus 64xH100 --tokens 2M
  your own, from Hugging Face:    python -m course_lib.planner --model config.json --gpus 16xA100 --tokens 512K
  some axes as you want them:     python -m course_lib.planner --model llama-3-70b --gpus 64xH100 --tokens 2M --tp 8
  longer rows, other numbers:     python -m course_lib.planner --model llama-3-405b --gpus 1024xB200 --tokens 4M \\
                                      --sequence 131072 --precision fp8
  why not another layout:         python -m course_lib.planner --model llama-3-70b --gpus 64xH100 --tokens 2M \\
                                      --why-not dp2,pp8,tp4
  corrected by a step of yours:   ... --measured dp8,tp8=5.3
  for a framework, or a program:  ... --megatron    ... --torchtitan    ... --json

K, M and G of tokens are 2^10, 2^20 and 2^30, as batches are counted: 2M tokens in rows of 8,192 are 256 rows.
"""
UNITS = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30}
TITAN = "FSDP2, compiled"
GRADIENTS = {"bf16": 2, "fp32": 4}


def parser() -> Parser:
    """All options of the command."""
    arguments = Parser(PROGRAM, description=DESCRIPTION, epilog=EXAMPLES,
                       formatter_class=argparse.RawDescriptionHelpFormatter)
    what = arguments.add_argument_group("what is trained, on what")
    what.add_argument("--model", required=True, metavar="NAME|config.json", help="a model of course_lib.facts, or the "
                      "config.json of a Hugging Face model")
    what.add_argument("--gpus", required=True, metavar="64xH100", help="how many of which device")
    what.add_argument("--per-node", type=whole(1), metavar="N", help="devices of a node (default: 8, or what the "
                      "device usually has)")
    what.add_argument("--tokens", required=True, metavar="2M", help="of a step, in all rows")
    what.add_argument("--sequence", type=whole(1), metavar="N", help="tokens of a row (default: the model's)")
    what.add_argument("--precision", default="bf16", choices=PRECISION_NAMES, help="of products (default: bf16)")
    what.add_argument("--software", metavar="NAME", help=f"one of {', '.join(s.name for s in SOFTWARE)} (default: "
                      f"{MEGATRON_CORE.name}; with --torchtitan {TITAN})")
    axes = arguments.add_argument_group("as you want it (default: whatever is best)")
    for axis, words in (("tp", "tensor parallelism"), ("pp", "pipeline stages"), ("cp", "context parallelism"),
                        ("ep", "expert parallelism"), ("dp", "replicas")):
        axes.add_argument(f"--{axis}", type=whole(1), metavar="N", help=words)
    axes.add_argument("--v", type=whole(1), metavar="N", help="chunks of layers on each stage")
    axes.add_argument("--micro-batch", type=whole(1), metavar="N", help="rows")
    axes.add_argument("--zero", type=int, choices=(0, 1, 2, 3), help="what replicas shard")
    axes.add_argument("--recompute", choices=("none", "selective", "some", "full"), help="what is made again in "
                      "backward: some: as few whole layers as let it fit")
    axes.add_argument("--gradients", choices=tuple(GRADIENTS), help="in which they are added up and reduced (default: "
                      "as the software does)")
    axes.add_argument("--schedule", choices=tuple(SCHEDULES), help="of the pipeline (default: 1F1B, "
                      "interleaved where v > 1)")
    axes.add_argument("--measured", action="append", metavar="dp8,tp8=5.3", help="a step of your own, in "
                      "seconds, which corrects all others; may be given several times")
    out = arguments.add_argument_group("what is told")
    out.add_argument("--top", type=whole(1), default=5, metavar="N", help="plans (default: 5)")
    out.add_argument("--why-not", metavar="dp2,pp8,tp4", help="why this layout is not the best")
    form = out.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="all of it, for a program")
    form.add_argument("--megatron", action="store_true", help="the first plan as Megatron-Core's flags")
    form.add_argument("--torchtitan", action="store_true", help="the first plan as lines of a torchtitan configuration")
    return arguments


# What was asked for

def match_name(text: str, names: Iterable[str]) -> str:
    """The name that is meant, or `text` itself: "llama-3-70b" and "Llama 3 70B" are one."""
    def plain(name: str) -> str:
        return re.sub(r"[^a-z0-9]", "", name.lower())

    return next((name for name in names if plain(name) == plain(text)), text)


def model_of(text: str) -> tuple[str, Shape]:
    """(its name, its shape). ValueError for one that nobody knows, and for a file that is no configuration."""
    path = Path(text)
    if path.suffix == ".json" or path.is_file():
        return str(path), shape_from_config(path)
    found = model(match_name(text, (each.name for each in MODELS)))
    return found.name, shape_of(found)


def cluster_of(text: str, per_node: int | None) -> Cluster:
    """The cluster that "64xH100" names. ValueError for another form, or an unknown device."""
    found = re.fullmatch(r"([\d,_]+) ?[x*×] ?(.+)", text.strip())
    if not found or not int(re.sub(r"\D", "", found[1]) or 0):
        raise ValueError(f"--gpus {text!r}: expected a number and a device, such as 64xH100")
    names = (each.name for each in (*ACCELERATORS, *DEVICE_VARIANTS))
    how = {"devices_per_node": per_node} if per_node else {}
    return cluster(match_name(found[2], names), int(re.sub(r"\D", "", found[1])), **how)


def rows_of(text: str, sequence_length: int) -> int:
    """Rows that have so many tokens together, rounded."""
    found = re.fullmatch(r"([\d.]+)([kmg]?)", text.strip().lower().replace(",", ""))
    try:
        tokens = float(found[1]) * UNITS[found[2]] if found else 0.0
    except ValueError:
        tokens = 0.0
    if tokens < sequence_length:
        raise ValueError(f"--tokens {text!r}: expected a number such as 2M, at least the {sequence_length:,} of a row")
    return round(tokens / sequence_length)


def measured_of(texts: Sequence[str]) -> dict[str, float]:
    """{layout: seconds} of "dp8,tp8=5.3" and the like. ValueError for another form."""
    found = {}
    for text in texts:
        layout, _, seconds = text.rpartition("=")
        try:
            found[layout] = float(seconds)
        except ValueError:
            layout = ""
        if not layout:
            raise ValueError(f"--measured {text!r}: expected a layout and its seconds, such as dp8,tp8=5.3")
    return found


def tell_progress() -> Progress:
    """Says every two seconds, in a terminal, how far a search is."""
    said = perf_counter()

    def told(looked: int, best_s: float) -> None:
        nonlocal said
        if sys.stderr.isatty() and perf_counter() - said > 2:
            said = perf_counter()
            print(f"{looked:,} plans so far, the best {best_s:.3g} s a step ...", file=sys.stderr)
    return told


def choices_of(given: argparse.Namespace) -> Choices:
    """What the search may choose from, as far as options leave it free."""

    def only(value: int | None) -> tuple[int, ...]:
        return (value,) if value else ()

    stages = (2, 3) if given.torchtitan else Choices.zero_stages
    policies = Choices.recompute if given.recompute is None else (given.recompute.replace("some", "full"),)
    return Choices(recompute=policies, light=given.recompute == "selective",
                   whole=given.recompute == "full",
                   zero_stages=stages if given.zero is None else (given.zero,), micro_batches=only(given.micro_batch),
                   chunks=only(given.v), tensor=only(given.tp), pipeline=only(given.pp),
                   context=only(given.cp), experts=only(given.ep), data=only(given.dp))


# What is told

def answer(given: argparse.Namespace) -> tuple[str, int]:
    """(what is printed, the exit status: 0 where there is a plan or a reason, 1 where there is no plan)."""
    name, shape = model_of(given.model)
    of = cluster_of(given.gpus, given.per_node)
    sequence_length = given.sequence or shape.sequence_length
    software = find_software(given.software or (TITAN if given.torchtitan else MEGATRON_CORE.name))
    rows = rows_of(given.tokens, sequence_length)
    how: dict[str, Any] = {"sequence_length": sequence_length, "precision": given.precision, "software": software}
    how |= {"gradient_bytes": GRADIENTS[given.gradients]} if given.gradients else {}
    how |= {"schedule": given.schedule} if given.schedule else {}
    times = correction_of(ask(shape, of, rows, **how), measured_of(given.measured or ()), given.micro_batch or 0,
                          given.v or 0)
    if given.why_not:
        found = why_not(shape, of, given.why_not, rows, micro_batch=given.micro_batch or 0, v=given.v or 0,
                        recompute=(given.recompute or "none").replace("some", "full"), **how)
        content = {"layout": str(found.layout), "verdict": found.verdict, "reasons": list(found.reasons),
                   "remedies": list(found.remedies),
                   "estimate": found.estimate and plan_as_json(found.estimate, found.estimate, False)}
        return (json.dumps(content, indent=2) if given.json else str(found)), 0
    plans = plan(shape, of, rows, choices=choices_of(given), told=tell_progress(), **how).corrected(times)
    code = 0 if plans else 1
    if given.json:
        return json.dumps(as_json(plans, name, given.top), indent=2), code
    if plans and given.megatron:
        return "\n".join(megatron_flags(plans[0])), code
    if plans and given.torchtitan:
        return "\n".join(torchtitan_lines(next(filter(runs_on_titan, plans), plans[0]))), code
    told = f"\nyour steps take {times:.2f} times as long as estimated; so do all above" if given.measured else ""
    return report(plans, name, given.top) + told, code


def main(arguments: Sequence[str] | None = None) -> int:
    """0; 1 where nothing fits; 2, with one line, for what cannot be understood."""
    reader = parser()
    given = reader.parse_args(arguments)
    try:
        text, code = answer(given)
    except ValueError as error:
        reader.error(str(error))
    print(text)
    return code
