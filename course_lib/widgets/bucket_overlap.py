"""BucketOverlap: how much of the communication is hidden behind backward, and how large should a bucket be?"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

from course_lib.costs.memory import MIB
from course_lib.costs.overlap import ALONE, CAPS, MACHINES, MODELS, TOGETHER, Overlap, simulate_overlap
from course_lib.pictures.scene import Scene, Sheet, axis, round_ticks, width_of
from course_lib.pictures.units import human_seconds, mebibytes
from course_lib.widgets.base import BadParameter, Control, Explorable, OneOf, WholeNumber, chooser, slider

MIN_RANKS = 2
RANKS = (2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


def ranks_of(machine: str) -> list[int]:
    return [num for num in RANKS if num <= MACHINES[machine].max_ranks]


@lru_cache(maxsize=64)
def overlap(model: str, machine: str, num_ranks: int, bucket_cap_mb: int) -> Overlap:
    """One simulated step."""
    on = MACHINES[machine]
    return simulate_overlap(MODELS[model].pieces(on.flops_per_s), bucket_cap_mb * MIB, num_ranks, on.wires)


LEFT, RIGHT, LANE = 95, 876, 38
BACKWARD, STREAM, AXIS = 34, 80, 130
CHART, FOOT = 200, 318


def scene_of(bucket_cap_mb: int, num_ranks: int, machine: str, model: str) -> Scene:
    """Two lanes, backward and the stream of all-reduces, and what other bucket sizes would leave exposed."""
    shown = overlap(model, machine, num_ranks, bucket_cap_mb)
    sweep = {cap: overlap(model, machine, num_ranks, cap).exposed_s for cap in sorted({*CAPS, bucket_cap_mb})}
    headline, detail = texts(shown, sweep)
    asked = f"{model} on {num_ranks} ranks of {machine}, buckets: {cap_words(bucket_cap_mb)}"
    sheet, size, on = Sheet(), MODELS[model], MACHINES[machine]
    add_lanes(sheet, shown)
    add_sweep(sheet, sweep, bucket_cap_mb)
    sheet.text("note", "quiet", LEFT, FOOT + 46,
               f"numbers are layers; {size.num_sequences} sequences of {size.sequence_length:,} tokens per rank, "
               f"{on.flops_per_s / 1e12:.4g} TFLOP/s each, float32 gradients, "
               f"{on.bytes_per_s(num_ranks) / 1e9:.4g} GB/s from each")
    by_size = "; ".join(f"{cap_words(cap)} {human_seconds(exposed)}" for cap, exposed in sweep.items())
    return sheet.scene("BucketOverlap", f"{model} | {machine} | n={num_ranks} | cap={bucket_cap_mb}", asked, headline,
                       detail, FOOT + 58, f"Exposed by bucket size: {by_size}")


def texts(shown: Overlap, sweep: dict[int, float]) -> tuple[str, str]:
    """Headline and detail."""
    best, num = min(sweep, key=sweep.__getitem__), len(shown.buckets)
    longest = max(shown.buckets, key=lambda bucket: bucket.num_bytes)
    return (f"{percent(shown.hidden)} of the communication is hidden behind backward: "
            f"{human_seconds(shown.exposed_s)} of {human_seconds(shown.communication_s)} are left",
            f"{num} all-reduce{'s' * (num > 1)}, the largest of {mebibytes(longest.num_bytes)}. Each "
            f"gradient alone would leave {human_seconds(sweep[ALONE])}, one message for all "
            f"{human_seconds(sweep[TOGETHER])}; best of these: {cap_words(best)}, {human_seconds(sweep[best])}.")


def add_lanes(sheet: Sheet, shown: Overlap) -> None:
    scale = (RIGHT - LEFT) / shown.end_s
    for y, name in ((BACKWARD, "backward"), (STREAM, "all-reduce")):
        sheet.text(name, "label", LEFT - 10, y + LANE / 2, name, "end")
    for name, start, end in shown.blocks:
        frame = (LEFT + scale * start, BACKWARD, scale * (end - start), LANE)
        sheet.rect(f"backward of {name}", "backward", *frame)
        sheet.inside(f"backward of {name} is", "on light", *frame, f"layer {name}" if name.isdigit() else name, name)
    for number, bucket in enumerate(shown.buckets):
        frame = (LEFT + scale * bucket.start_s, STREAM, scale * (bucket.end_s - bucket.start_s), LANE)
        sheet.rect(f"bucket {number}", "message", *frame, hint=mebibytes(bucket.num_bytes))
        sheet.inside(f"bucket {number} is", "on light", *frame, mebibytes(bucket.num_bytes))
    over = LEFT + scale * shown.backward_s
    exposed, backward = f"exposed {human_seconds(shown.exposed_s)}", f"backward {human_seconds(shown.backward_s)}"
    if shown.exposed_s:
        sheet.rect("exposed", "idle", over, BACKWARD, RIGHT - over, LANE)
    sheet.line("end of backward", "bound", over, BACKWARD - 4, over, AXIS)
    beside = min(over - 6, RIGHT - width_of(exposed, 12, bold=True) - 16)
    sheet.text("backward takes", "small", max(beside, LEFT + width_of(backward, 11.5)), BACKWARD - 14, backward, "end")
    sheet.text("exposed is", "finding", RIGHT, BACKWARD - 14, exposed, "end")
    axis(sheet, LEFT, RIGHT, AXIS, shown.end_s, [(at, human_seconds(at)) for at in round_ticks(shown.end_s)])


def add_sweep(sheet: Sheet, sweep: dict[int, float], present: int) -> None:
    """Exposed time for each cap, the present one in blue."""
    sheet.text("chart", "label", LEFT, CHART - 28, "Exposed time by bucket size")
    column, most = (RIGHT - LEFT) / len(sweep), max(sweep.values()) or 1.0
    for number, (cap, exposed) in enumerate(sweep.items()):
        left, tall = LEFT + column * number, (FOOT - CHART) * exposed / most
        role = "strong" if cap == present else "small"
        name = cap_words(cap)
        sheet.rect(f"{name} would expose", "present" if cap == present else "other", left + 6, FOOT - tall, column - 12,
                   tall)
        sheet.text(f"{name} exposes", role, left + column / 2, FOOT - tall - 9, human_seconds(exposed), "middle")
        sheet.text(name, role, left + column / 2, FOOT + 13, name, "middle")


def cap_words(cap_mb: int) -> str:
    return {ALONE: "each alone", TOGETHER: "all in one"}.get(cap_mb, f"{cap_mb:,} MiB")


def percent(share: float) -> str:
    """Never "100%" while something is left."""
    return f"{math.floor(100 * share + 1e-9)}%"


class BucketOverlap(Explorable, draw=scene_of):
    """One backward pass of `model` with buckets of at most `bucket_cap_mb` MiB (0: every gradient alone).

    `model` is one of costs.overlap.MODELS, `machine` of MACHINES; the widget's lists have them all.
    """

    bucket_cap_mb = WholeNumber(25, ALONE, TOGETHER)
    num_ranks = WholeNumber(16, MIN_RANKS)
    machine = OneOf("A100, 8 in a node, HDR", MACHINES)
    model = OneOf("GPT-2, 124M", MODELS)

    @classmethod
    def check_settings(cls, settings: dict[str, Any]) -> dict[str, Any]:
        most = MACHINES[settings["machine"]].max_ranks
        if settings["num_ranks"] > most:
            raise BadParameter(f"num_ranks={settings['num_ranks']}: expected at most {most} with {settings['machine']}")
        return settings

    @classmethod
    def list_controls(cls, settings: dict[str, Any]) -> list[Control]:
        return [slider("bucket size", "bucket_cap_mb", CAPS, settings["bucket_cap_mb"], cap_words),
                chooser("machine", "machine", MACHINES, change=lambda name: {
                    "machine": name, "num_ranks": min(ranks_of(name), key=lambda n: abs(n - settings["num_ranks"]))}),
                slider("ranks", "num_ranks", ranks_of(settings["machine"]), settings["num_ranks"]),
                chooser("model", "model", MODELS)]
