"""FitsOrNot: does a model fit on these devices, how long does training take, and what does it cost?"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import traitlets
from matplotlib.figure import Figure

from course_lib import facts
from course_lib.costs.memory import PRECISIONS, USABLE, ZERO_STAGES, Memory
from course_lib.pictures.palette import BLUE, MAGENTA, ORANGE, TEAL
from course_lib.why_distribute import Run, plan_run
from course_lib.widgets.base import BadParameter, Explorable, WholeNumber

UTILISATION = 0.4
COUNTS = [2**k for k in range(15)]  # what the slider offers; Python takes any number
MODELS = [model.name for model in facts.MODELS if model.tokens]
DEVICES = [device.name for device in facts.ACCELERATORS]
COLOURS = {"parameters": BLUE, "gradients": ORANGE, "optimizer state": TEAL, "activations": MAGENTA}
STAGE_NAMES = ("whole on each device", "ZeRO-1: optimizer state cut", "ZeRO-2: and gradients", "ZeRO-3: and parameters")


class FitsOrNot(Explorable, script="fits_or_not.js"):
    """Memory of each device under ZeRO stages 0 to 3 against what it has; days, dollars and kilowatt-hours.

    `model` and `device` are names of facts, `precision` one of why_distribute.PRECISIONS. Time is 6ND at 40 % of the
    peak.
    """

    model = traitlets.Unicode("Llama 3 8B").tag(sync=True, echo_update=False)
    device = traitlets.Unicode("H100").tag(sync=True, echo_update=False)
    num_devices = WholeNumber(8, 1, 100_000).tag(sync=True, echo_update=False)
    precision = traitlets.Unicode("mixed").tag(sync=True, echo_update=False)
    choices = traitlets.Dict().tag(sync=True, echo_update=False)
    parameters = ("model", "device", "num_devices", "precision")

    def __init__(self, model: str = "Llama 3 8B", device: str = "H100", num_devices: int = 8,
                 precision: str = "mixed") -> None:
        super().__init__(model=model, device=device, num_devices=num_devices, precision=precision)
        self.choices = {"model": MODELS, "device": DEVICES, "num_devices": COUNTS, "precision": list(PRECISIONS)}

    @traitlets.validate("model", "device", "precision")
    def _known(self, proposal: Any) -> str:
        name, known = proposal.trait.name, {"model": MODELS, "device": DEVICES, "precision": list(PRECISIONS)}
        if proposal.value not in known[name]:
            raise BadParameter(f"{name}={proposal.value!r}: expected one of {', '.join(known[name])}")
        return proposal.value

    def outlook(self) -> Outlook:
        return outlook(self.model, self.device, self.num_devices, self.precision)

    def compute(self) -> dict[str, Any]:
        return frame(self.outlook())

    def sentence(self) -> str:
        shown = self.outlook()
        return f"FitsOrNot, {shown.question}: {shown.finding}; {shown.detail}"

    def picture(self) -> Figure:
        from course_lib.widgets.fits_or_not_picture import draw

        return draw(self.outlook())


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
    run: Run | None

    @property
    def first_that_fits(self) -> int | None:
        """The lowest stage that leaves a tenth of the device free."""
        return next((stage for stage, needed in enumerate(self.by_stage) if needed.total <= USABLE * self.there), None)

    @property
    def question(self) -> str:
        return f"{self.model} on {self.num_devices:,} x {self.device}, {self.precision}"

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
        usd = "no price in facts" if self.run.usd is None else f"{amount(self.run.usd)} USD"
        kwh = "no power in facts" if self.run.kwh is None else f"{amount(self.run.kwh)} kWh"
        days = f"{self.run.days:,.1f}" if self.run.days < 1000 else amount(self.run.days)
        return f"{days} days, {usd}, {kwh}, at {UTILISATION:.0%} of the peak"

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


def frame(shown: Outlook) -> dict[str, Any]:
    """What the browser draws: widths are shares of the scale, which it cuts at 1."""
    bars = []
    for name, needed in zip(STAGE_NAMES, shown.by_stage, strict=True):
        parts = [[kind, value / shown.scale, COLOURS[kind]] for kind, value in zip(COLOURS, needed.by_kind().values())]
        bars.append({"name": name, "parts": parts, "total": gigabytes(needed.total),
                     "fits": needed.total <= USABLE * shown.there, "cut": needed.total > shown.scale})
    return {
        "bars": bars,
        "limit": shown.there / shown.scale,
        "limit_text": shown.limit_text,
        "colours": COLOURS,
        "headline": f"{shown.model} {shown.finding}",
        "detail": shown.detail,
        "key": f"{shown.model} {shown.device} n={shown.num_devices} {shown.precision}",
    }


def gigabytes(num_bytes: float) -> str:
    """`14 GB`, `2,794 GB`, `1.75 GB`."""
    value = num_bytes / 1e9
    return f"{value:,.0f} GB" if value >= 100 else f"{value:.3g} GB"


def amount(value: float) -> str:
    """`71.7 million`, `972 thousand`, `840`."""
    for size, name in ((1e9, "billion"), (1e6, "million"), (1e3, "thousand")):
        if value >= size:
            return f"{value / size:.3g} {name}"
    return f"{value:.3g}"
