"""FitsOrNot: does a model fit on these devices, how long does training take, and what does it cost?"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

from course_lib import facts
from course_lib.costs.flops import UTILISATION
from course_lib.costs.memory import PRECISIONS, USABLE, ZERO_STAGES, Memory
from course_lib.pictures.scene import Scene, Sheet, axis, legend, round_ticks, width_of
from course_lib.pictures.units import gigabytes
from course_lib.why_distribute import TrainingNeeds, plan_run
from course_lib.widgets.base import Control, Explorable, OneOf, WholeNumber, chooser, slider

COUNTS = [2**k for k in range(15)]  # what the slider offers; Python takes any number
MODELS = [model.name for model in facts.MODELS if model.tokens]
DEVICES = [device.name for device in facts.ACCELERATORS]
KINDS = ("parameters", "gradients", "optimizer state", "activations")  # each is a role, too
STAGE_NAMES = ("whole on each device", "ZeRO-1: optimizer state cut", "ZeRO-2: and gradients", "ZeRO-3: and parameters")


@dataclass(frozen=True)
class Outlook:
    """All that there is to see. `by_stage[k]`: bytes of each device under ZeRO stage k. `run` is None for a number
    format whose peak the makers of the device have not published."""

    model: str
    device: str
    num_devices: int
    precision: str
    by_stage: tuple[Memory, ...]
    there: float
    run: TrainingNeeds | None

    @property
    def first_that_fits(self) -> int | None:
        """The lowest stage that leaves a tenth of the device free."""
        return next((stage for stage, needed in enumerate(self.by_stage) if needed.total <= USABLE * self.there), None)

    @property
    def question(self) -> str:
        shape = facts.model(self.model).shape
        rows = f"one row of {shape.sequence_length:,} tokens at a time" if shape else "activations unknown"
        return f"{self.model} on {self.num_devices:,} x {self.device}, {self.precision}, {rows}"

    @property
    def finding(self) -> str:
        stage, there = self.first_that_fits, gigabytes(self.there)
        if stage is None:
            wanted = gigabytes(self.by_stage[3].total)
            return f"does not fit, even with ZeRO-3: {wanted} wanted of {there} on each device"
        how = "fits whole" if stage == 0 else f"fits from ZeRO-{stage} on"
        return f"{how}: {gigabytes(self.by_stage[stage].total)} of {there} on each device"

    @property
    def detail(self) -> str:
        if self.run is None:
            return "no time: facts has no peak of this device in this number format"
        usd = "no price in facts" if self.run.usd is None else span_of(self.run.usd, self.run.dearest_usd)
        kwh = "no power in facts" if self.run.kwh is None else f"{amount(self.run.kwh)} kWh"
        days = f"{self.run.days:,.1f} days" if self.run.days < 1000 else f"{self.run.days / 365.25:,.1f} years"
        return f"{days}, {usd}, {kwh}, at {UTILISATION:.0%} of the peak"

    @property
    def limit_text(self) -> str:
        return f"{self.device}: {gigabytes(self.there)}, of which a tenth must stay free"

    @property
    def scale(self) -> float:
        """Bytes at the right end: three devices' worth at most, or the limit could not be seen."""
        return max(1.25 * self.there, min(max(needed.total for needed in self.by_stage), 3 * self.there))


@cache
def outlook(model: str, device: str, num_devices: int, precision: str) -> Outlook:
    """What the widget shows for these parameters."""
    trained, on = facts.model(model), facts.accelerator(device)
    known = PRECISIONS[precision].peak in ("half", *on.peaks)
    computes = on if known else facts.accelerator("A100")  # memory asks for no arithmetic units: take some that exist
    runs = [plan_run(trained, computes, num_devices, precision, stage, utilisation=UTILISATION)
            for stage in ZERO_STAGES]
    return Outlook(model, device, num_devices, precision, tuple(run.needed for run in runs), on.memory_bytes,
                   runs[0] if known else None)


LEFT, RIGHT, TOP, ROW, BAR = 220, 785, 42, 40, 26


def scene_of(**settings: Any) -> Scene:
    """A bar for each ZeRO stage, and the line that it has to stay left of. What is longer than the scale is cut."""
    sheet, shown = Sheet(), outlook(**settings)
    unit = (RIGHT - LEFT) / shown.scale
    bottom, limit = TOP + len(STAGE_NAMES) * ROW, LEFT + unit * shown.there
    sheet.rect("stays free", "spare", limit - unit * (1 - USABLE) * shown.there, TOP - 8,
               unit * (1 - USABLE) * shown.there, bottom - TOP + 8)
    totals = []
    for number, (name, needed) in enumerate(zip(STAGE_NAMES, shown.by_stage, strict=True)):
        y, held = TOP + number * ROW, 0.0
        sheet.text(name, "label", LEFT - 10, y + BAR / 2, name, "end")
        for kind, value in zip(KINDS, needed.by_kind().values()):
            left, held = min(held, shown.scale), held + value
            sheet.rect(f"{name}: {kind}", kind, LEFT + unit * left, y, unit * (min(held, shown.scale) - left), BAR,
                       hint=f"{kind} {gigabytes(value)}")
        fits = needed.total <= USABLE * shown.there
        totals.append((name, f"{'✓' if fits else '✗'} {gigabytes(held)}{' »' if held > shown.scale else ''}", fits,
                       LEFT + unit * min(held, shown.scale), y + BAR / 2))
    sheet.line("limit", "limit", limit, TOP - 8, limit, bottom)
    late = limit + width_of(shown.limit_text, 12, bold=True) > 820
    sheet.text("limit is", "finding", limit, TOP - 18, shown.limit_text, "end" if late else "start")
    for name, words, fits, x, middle in totals:
        crossed = x < limit < x + 12 + width_of(words, 12, bold=True)  # by the line of the limit
        sheet.text(f"{name} in all", "verdict" if fits else "refusal", (limit if crossed else x) + 8, middle, words)
    axis(sheet, LEFT, RIGHT, bottom, shown.scale / 1e9,
         [(at, f"{at:,.4g}") for at in round_ticks(shown.scale / 1e9)], "GB on each device")
    legend(sheet, LEFT, bottom + 56, [(kind, kind) for kind in KINDS])
    wanted = "; ".join(f"{name} {words.strip('✓✗ »')}" for name, words, *_ in totals)
    return sheet.scene("FitsOrNot", f"{shown.model} {shown.device} n={shown.num_devices} {shown.precision}",
                       shown.question, f"{shown.model} {shown.finding}", shown.detail, bottom + 72,
                       f"Wanted on each device: {wanted}",
                       f"FitsOrNot, {shown.question}: {shown.finding}; {shown.detail}")


def span_of(low: float, high: float) -> str:
    """`1.36 to 6.23 million USD`, `972 thousand to 2.4 million USD`: what the cheapest and the dearest seller ask."""
    first, last = amount(low), amount(high)
    if first == last:
        return f"{last} USD"
    same_unit = first.partition(" ")[2] == last.partition(" ")[2]
    return f"{first.partition(' ')[0] if same_unit else first} to {last} USD"


def amount(value: float) -> str:
    """`71.7 million`, `972 thousand`, `840`."""
    for size, name in ((1e9, "billion"), (1e6, "million"), (1e3, "thousand")):
        if value >= size:
            return f"{value / size:.3g} {name}"
    return f"{value:.3g}"


class FitsOrNot(Explorable, draw=scene_of):
    """Memory of each device under ZeRO stages 0 to 3 against what it has; days, dollars and kilowatt-hours.

    `model` and `device` are names of facts, `precision` one of why_distribute.PRECISIONS. Time is 6ND at 40 % of the
    peak.
    """

    model = OneOf("Llama 3 8B", MODELS)
    device = OneOf("H100", DEVICES)
    num_devices = WholeNumber(8, 1, 100_000)
    precision = OneOf("mixed", PRECISIONS)

    @classmethod
    def list_controls(cls, settings: dict[str, Any]) -> list[Control]:
        return [chooser("model", "model", MODELS), chooser("device", "device", DEVICES),
                slider("devices", "num_devices", COUNTS, settings["num_devices"], "{:,}".format),
                chooser("precision", "precision", PRECISIONS)]
