"""ZeroMemory: what one of N devices holds, kind by kind, and from how many devices on a GPU has room for it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from itertools import groupby
from math import ceil
from typing import Any

from course_lib import facts
from course_lib.costs.memory import STAGE_NAMES, USABLE, Memory, device_memory
from course_lib.pictures.palette import ROLES
from course_lib.pictures.scene import Scene, Sheet, axis, legend, round_ticks, width_of
from course_lib.pictures.units import gigabytes
from course_lib.widgets.base import Control, Explorable, OneOf, WholeNumber, chooser, slider

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
KINDS = ("parameters", "gradients", "optimizer state")  # each is a role, too


@dataclass(frozen=True)
class Room:
    """GPUs with the same memory: whether `needed` leaves a tenth of it free, and from how many devices on it does."""

    names: tuple[str, ...]
    there: float
    fits: bool
    fits_from: int | None  # None: at no number of devices

    @property
    def label(self) -> str:
        some = [*self.names[:2], "..."] if len(self.names) > 3 else self.names
        return f"{', '.join(some)}: {gigabytes(self.there)}"

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
                 for kind, (name, value) in zip(KINDS, self.needed.by_kind().items()) if value]
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


LEFT, RIGHT, TOP, ROW, BAR = 180, 800, 10, 34, 24


def scene_of(**settings: Any) -> Scene:
    """What a device holds above what GPUs have, and a line where it ends. What is longer than the scale is cut."""
    sheet, shown = Sheet(), need(**settings)
    needed, unit = shown.needed, (RIGHT - LEFT) / shown.scale
    first = 2 if needed.host else 1  # the row of the smallest GPU
    bottom, held = TOP + (first + len(shown.rooms)) * ROW, 0.0
    for row, room in enumerate(shown.rooms, start=first):
        add_room(sheet, room, TOP + row * ROW, unit)
    if needed.total <= shown.scale:
        add_limit(sheet, LEFT + unit * needed.total, shown.rooms, first, unit, bottom - 6)
    for row, room in enumerate(shown.rooms, start=first):
        sheet.text(f"{room.label} verdict", "verdict" if room.fits else "refusal", LEFT + unit * room.there + 8,
                   TOP + row * ROW + BAR / 2, room.verdict)
    sheet.text("device", "label", LEFT - 10, TOP + BAR / 2, "each device holds", "end")
    for kind, value in zip(KINDS, needed.by_kind().values()):
        left, held = min(held, shown.scale), held + value
        sheet.rect(f"device: {kind}", kind, LEFT + unit * left, TOP, unit * (min(held, shown.scale) - left), BAR,
                   hint=f"{kind} {gigabytes(value)}")
    add_total(sheet, "device", needed.total, shown.scale, TOP)
    if needed.host:
        sheet.text("host", "label", LEFT - 10, TOP + ROW + BAR / 2, "its host holds", "end")
        sheet.rect("host: optimizer state", "on the host", LEFT, TOP + ROW, unit * min(needed.host, shown.scale), BAR)
        add_total(sheet, "host", needed.host, shown.scale, TOP + ROW)
    axis(sheet, LEFT, RIGHT, bottom, shown.scale / 1e9,
         [(at, f"{at:,.4g}") for at in round_ticks(shown.scale / 1e9)], "GB")
    entries = [*((kind, kind) for kind in KINDS), *([("on the host", "on the host")] if needed.host else []),
               ("room", "what a GPU has"), ("spare", "must stay free")]
    legend(sheet, LEFT, bottom + 56, entries)
    verdicts = "; ".join(f"{room.label}: {room.verdict.strip('✓✗ ')}" for room in shown.rooms)
    return sheet.scene("ZeroMemory", f"{shown.model} n={shown.num_devices} stage={shown.stage} {shown.recipe}",
                       f"{shown.question}, {shown.recipe}", shown.finding, shown.detail, bottom + 72,
                       f"Room for it: {verdicts}")


def add_room(sheet: Sheet, room: Room, y: float, unit: float) -> None:
    """What a GPU has, its end paler: that has to stay free."""
    there, usable = unit * room.there, unit * USABLE * room.there
    sheet.text(room.label, "label", LEFT - 10, y + BAR / 2, room.label, "end")
    sheet.rect(f"{room.label} usable", "room", LEFT, y, usable, BAR)
    sheet.rect(f"{room.label} free", "spare", LEFT + usable, y, there - usable, BAR)


def add_limit(sheet: Sheet, x: float, rooms: tuple[Room, ...], first: int, unit: float, bottom: float) -> None:
    """The line where what is held ends, with a gap where it would run through a verdict."""
    top = TOP
    for row, room in enumerate(rooms, start=first):
        start = LEFT + unit * room.there + 8
        if start - 4 < x < start + width_of(room.verdict, ROLES["verdict"].size) + 4:
            sheet.line(f"held above {room.label}", "limit", x, top, x, TOP + row * ROW)
            top = TOP + row * ROW + BAR
    sheet.line("held", "limit", x, top, x, bottom)


def add_total(sheet: Sheet, who: str, num_bytes: float, scale: float, y: float) -> None:
    x = LEFT + (RIGHT - LEFT) * min(num_bytes, scale) / scale
    sheet.text(f"{who} in all", "verdict", x + 8, y + BAR / 2, f"{gigabytes(num_bytes)}{' »' * (num_bytes > scale)}")


class ZeroMemory(Explorable, draw=scene_of):
    """What each of `num_devices` devices holds at ZeRO `stage` (0: data parallel), and which GPU has room for it.

    `model` is a name of facts, `recipe` one of RECIPES: number formats, optimiser, where its state lies. Activations
    come on top: a tenth of a GPU has to stay free here, and chapter 7 counts them.
    """

    model = OneOf("Llama 2 7B", MODELS)
    num_devices = WholeNumber(8, 1, 100_000)
    stage = WholeNumber(2, 0, 3)
    recipe = OneOf(next(iter(RECIPES)), RECIPES)

    @classmethod
    def list_controls(cls, settings: dict[str, Any]) -> list[Control]:
        return [chooser("model", "model", MODELS),
                slider("devices", "num_devices", COUNTS, settings["num_devices"], "{:,}".format),
                chooser("stage", "stage", STAGE_NAMES, STAGE_NAMES.__getitem__), chooser("recipe", "recipe", RECIPES)]
