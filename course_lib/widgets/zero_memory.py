"""ZeroMemory: what one of N devices holds, kind by kind, and from how many devices on a GPU has room for it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from itertools import groupby
from math import ceil
from typing import Any

import traitlets
from matplotlib.figure import Figure

from course_lib import facts
from course_lib.costs.memory import STAGE_NAMES, USABLE, Memory, device_memory
from course_lib.pictures.palette import BLUE, GREY, ORANGE, TEAL
from course_lib.widgets.base import BadParameter, Explorable, WholeNumber
from course_lib.widgets.fits_or_not import gigabytes

COUNTS = [2**k for k in range(13)]  # what the slider offers; Python takes any number
MODELS = [model.name for model in facts.MODELS]
RECIPES: dict[str, tuple[str, str, bool]] = {  # -> precision and optimiser of costs.memory, offload
    "bf16 over fp32 master, Adam": ("mixed", "adam", False),
    "bf16 over fp32 master, Adam on the host": ("mixed", "adam", True),
    "bf16 over fp32 master, SGD with momentum": ("mixed", "sgd with momentum", False),
    "bf16 with fp32 gradients, Adam": ("mixed, fp32 gradients", "adam", False),
    "fp32, Adam": ("fp32", "adam", False),
    "fp32, Adam on the host": ("fp32", "adam", True),
    "bf16 alone, Adam": ("pure 16-bit", "adam", False),
}
COLOURS = {"parameters": BLUE, "gradients": ORANGE, "optimizer state": TEAL, "on the host": GREY}
ON_DEVICE = [kind for kind in COLOURS if kind != "on the host"]


@dataclass(frozen=True)
class Room:
    """GPUs with the same memory: whether `needed` leaves a tenth of it free, and from how many devices on it does."""

    names: tuple[str, ...]
    there: float
    fits: bool
    fits_from: int | None  # None: at no number of devices

    @property
    def label(self) -> str:
        return f"{', '.join(self.names)}: {gigabytes(self.there)}"

    @property
    def verdict(self) -> str:
        if self.fits_from is None:
            return "✗ at no number of devices"
        how = "on one device, too" if self.fits_from == 1 else f"from {self.fits_from:,} devices on"
        return f"{'✓' if self.fits else '✗'} {how}"


@dataclass(frozen=True)
class Need:
    """All that there is to see. `least`: bytes of a device that no number of devices brings down."""

    model: str
    num_devices: int
    stage: int
    recipe: str
    needed: Memory
    least: Memory
    rooms: tuple[Room, ...]

    @property
    def question(self) -> str:
        return f"{self.model}, {STAGE_NAMES[self.stage]} on {self.num_devices:,} device{'s' * (self.num_devices > 1)}"

    @property
    def finding(self) -> str:
        fitting = [room for room in self.rooms if room.fits]
        total = gigabytes(self.needed.total)
        if not fitting:
            return f"{total} on each device; no GPU here has room for it"
        if not self.needed.total:
            return "nothing stays on the device between the layers"
        return f"{total} on each device; {' or '.join(fitting[0].names)} has room for it"

    @property
    def detail(self) -> str:
        parts = [f"{kind} {gigabytes(value)}{' whole' if self.least.by_kind()[name] else ''}"
                 for kind, (name, value) in zip(COLOURS, self.needed.by_kind().items()) if value]
        host = [f"{gigabytes(self.needed.host)} on its host"] if self.needed.host else []
        more = (f"never below {gigabytes(self.least.total)}" if self.least.total else "all of it shared out")
        return "; ".join([", ".join(parts + host), more])

    @property
    def scale(self) -> float:
        """Bytes at the right end: room for the verdicts beside the largest GPU; what is longer is cut."""
        return 1.45 * max(room.there for room in self.rooms)


def memory(model: str, num_devices: int, stage: int, recipe: str) -> Memory:
    """Of each device. Without ZeRO, offload gives every process's host the whole state, as on one device."""
    precision, optimizer, offload = RECIPES[recipe]
    parameters = facts.model(model).parameters.value
    if offload and stage == 0:
        return device_memory(parameters, 1, 1, precision, optimizer, offload)
    return device_memory(parameters, num_devices, stage, precision, optimizer, offload)


@cache
def need(model: str, num_devices: int, stage: int, recipe: str) -> Need:
    """What the widget shows for these parameters."""
    needed, one = (memory(model, n, stage, recipe) for n in (num_devices, 1))
    half = memory(model, 2, stage, recipe)
    least = Memory(*(2 * half.by_kind()[kind] - one.by_kind()[kind] for kind in one.by_kind()))  # all goes as a + b/N
    gpus = sorted((device for device in facts.ACCELERATORS if device.kind == "GPU"), key=lambda gpu: gpu.memory_bytes)
    rooms = []
    for there, same in groupby(gpus, key=lambda gpu: gpu.memory_bytes):
        shared, left = one.total - least.total, USABLE * there - least.total
        first = None if left < 0 or (left == 0 and shared) else 1 if not shared else max(1, ceil(shared / left))
        rooms.append(Room(tuple(gpu.name for gpu in same), there, needed.total <= USABLE * there, first))
    return Need(model, num_devices, stage, recipe, needed, least, tuple(rooms))


def frame(shown: Need) -> dict[str, Any]:
    """What the browser draws: widths are shares of the scale, which it cuts at 1."""
    scale, needed = shown.scale, shown.needed
    parts = [[kind, value / scale, COLOURS[kind]] for kind, value in zip(ON_DEVICE, needed.by_kind().values())]
    return {
        "parts": parts,
        "total": gigabytes(needed.total),
        "end": needed.total / scale,
        "host": [needed.host / scale, COLOURS["on the host"], gigabytes(needed.host)],
        "rooms": [{"label": room.label, "there": room.there / scale, "usable": USABLE * room.there / scale,
                   "fits": room.fits, "verdict": room.verdict} for room in shown.rooms],
        "colours": COLOURS,
        "headline": shown.finding,
        "detail": shown.detail,
        "key": f"{shown.model} n={shown.num_devices} stage={shown.stage} {shown.recipe}",
    }


class ZeroMemory(Explorable, script="zero_memory.js"):
    """What each of `num_devices` devices holds at ZeRO `stage` (0: data parallel), and which GPU has room for it.

    `model` is a name of facts, `recipe` one of RECIPES: number formats, optimiser, where its state lies. Activations
    come on top: a tenth of a GPU has to stay free here, and chapter 7 counts them.
    """

    model = traitlets.Unicode("Llama 2 7B").tag(sync=True, echo_update=False)
    num_devices = WholeNumber(8, 1, 100_000).tag(sync=True, echo_update=False)
    stage = WholeNumber(2, 0, 3).tag(sync=True, echo_update=False)
    recipe = traitlets.Unicode(next(iter(RECIPES))).tag(sync=True, echo_update=False)
    choices = traitlets.Dict().tag(sync=True, echo_update=False)
    parameters = ("model", "num_devices", "stage", "recipe")

    def __init__(self, model: str = "Llama 2 7B", num_devices: int = 8, stage: int = 2,
                 recipe: str = next(iter(RECIPES))) -> None:
        super().__init__(model=model, num_devices=num_devices, stage=stage, recipe=recipe)
        self.choices = {"model": MODELS, "num_devices": COUNTS, "stage": list(STAGE_NAMES.values()),
                        "recipe": list(RECIPES)}

    @traitlets.validate("model", "recipe")
    def _known(self, proposal: Any) -> str:
        name, known = proposal.trait.name, {"model": MODELS, "recipe": list(RECIPES)}
        if proposal.value not in known[name]:
            raise BadParameter(f"{name}={proposal.value!r}: expected one of {', '.join(known[name])}")
        return proposal.value

    def need(self) -> Need:
        return need(self.model, self.num_devices, self.stage, self.recipe)

    def compute(self) -> dict[str, Any]:
        return frame(self.need())

    def sentence(self) -> str:
        shown = self.need()
        return f"ZeroMemory, {shown.question}, {shown.recipe}: {shown.finding}; {shown.detail}"

    def picture(self) -> Figure:
        from course_lib.widgets.zero_memory_picture import draw

        return draw(self.need())
