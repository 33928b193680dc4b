"""LayoutPlanner: a published training run, or any model on any devices, under any layout: does it fit, what takes the
time, what does it cost?
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import traitlets

from course_lib.pictures.scene import Scene, Sheet, axis, legend, round_ticks
from course_lib.pictures.units import gigabytes, human_seconds
from course_lib.planner import Estimate
from course_lib.widgets.base import OneOf, SceneExplorable, WholeNumber, refuse_unknown, require_one_of
from course_lib.widgets.controls import Control, chooser, slider
from course_lib.widgets.planned_layout import (
    HOWS,
    Planned,
    base_of,
    counts_of,
    cut_of,
    cuts_of,
    estimate_layout,
    fill_in,
    how_of,
    nearest_cut,
    own_run,
    runs_beside,
)

KINDS = {"parameters": "parameters", "gradients": "gradients", "optimizer_state": "optimizer state",
         "activations": "activations", "logits": "late", "other": "other"}  # of memory, each with its role
SAID = {"matmul": "matrix products", "memory": "passes over memory", "tp": "tensor messages",
        "ep": "expert messages", "launch": "launches", "pp": "stage messages", "bubble": "bubble",
        "dp": "gradients, not hidden", "optimiser": "optimiser"}  # no layout here has context parallelism
LEFT, RIGHT, TOP, BAR, ROW = 190, 690, 16, 26, 24


def scene_of(shown: Planned) -> Scene:
    """What a device holds against what it has; below it the step, cause after cause."""
    sheet, found = Sheet(), shown.estimate
    add_memory(sheet, found)
    bottom = add_time(sheet, shown, TOP + 118)
    causes = ", ".join(f"{words} {human_seconds(found.seconds[cause])}" for cause, words in SAID.items())
    return Scene(
        key=shown.asked, asked=shown.asked, headline=shown.finding, detail=shown.detail,
        sentence=f"LayoutPlanner, {shown.asked}: {shown.finding}; {shown.detail}",
        alternative=f"{shown.finding}. {shown.detail}. Of the step: {causes}. Held: " + ", ".join(
            f"{kind.replace('_', ' ')} {gigabytes(held)}" for kind, held in found.memory.items() if held),
        height=bottom, marks=tuple(sheet.marks))


def add_memory(sheet: Sheet, found: Estimate) -> None:
    """Kind after kind; what is longer than one and a half devices is cut."""
    there = found.job.cluster.usable_bytes
    scale, held = 1.5 * there, 0.0
    unit = (RIGHT - LEFT) / scale
    sheet.text("holds", "label", LEFT - 10, TOP + BAR / 2, "a device holds", "end")
    for kind, role in KINDS.items():
        left, held = min(held, scale), held + found.memory[kind]
        sheet.rect(f"held {kind}", role, LEFT + unit * left, TOP, unit * (min(held, scale) - left), BAR,
                   hint=f"{kind.replace('_', ' ')} {gigabytes(found.memory[kind])}")
    end = LEFT + unit * max(min(held, scale), there)
    words = f"{'✓' if found.fits else '✗'} {gigabytes(held)}{' »' * (held > scale)}"
    sheet.text("held in all", "verdict" if found.fits else "refusal", end + 8, TOP + BAR / 2, words)
    limit = LEFT + unit * there
    sheet.line("limit", "limit", limit, TOP - 6, limit, TOP + BAR + 6)
    sheet.text("limit is", "finding", limit, TOP + BAR + 17,
               f"{found.job.cluster.device.name}: {gigabytes(there)} to allocate", "middle")
    sheet.text("legend is", "small", LEFT - 128, TOP + BAR + 44, "memory:", "end")
    legend(sheet, LEFT - 120, TOP + BAR + 44, [(role, kind.replace("_", " ")) for kind, role in KINDS.items()])


def add_time(sheet: Sheet, shown: Planned, top: float) -> float:
    """A row for each cause, which begins where the one above it ends. Returns the bottom."""
    found = shown.estimate
    scale = 1.08 * max(found.step_s, shown.published_s or 0.0)
    unit, gone = (RIGHT - LEFT) / scale, 0.0
    causes = {cause: words for cause, words in SAID.items() if cause != "ep" or found.job.shape.num_experts > 1}
    bottom = top + len(causes) * ROW
    assert all(cause in causes for cause, seconds in found.seconds.items() if seconds), found.seconds
    for number, (cause, words) in enumerate(causes.items()):
        y, seconds = top + number * ROW, found.seconds[cause]
        role = "forward" if cause == "matmul" else "idle" if cause == "bubble" else "backward"
        sheet.text(f"{cause} is", "label" if seconds else "quiet", LEFT - 10, y + ROW / 2, words, "end")
        sheet.rect(f"time {cause}", role, LEFT + unit * gone, y + 3, unit * seconds, ROW - 6)
        gone += seconds
        share = f"{human_seconds(seconds)}, {seconds / found.step_s:.1%}" if seconds else "none"
        sheet.text(f"{cause} takes", "small" if seconds else "quiet", RIGHT + 14, y + ROW / 2, share)
    if shown.published_s is not None:
        x = LEFT + unit * shown.published_s
        sheet.line("published", "bound", x, top - 8, x, bottom)
        sheet.text("published is", "strong", x, top - 17, f"published: {human_seconds(shown.published_s)}", "end")
    axis(sheet, LEFT, RIGHT, bottom, scale, [(at, f"{at:,.4g}") for at in round_ticks(scale)], "seconds of a step")
    return bottom + 46


class LayoutPlanner(SceneExplorable):
    """A `run` on `devices`, cut as `cut` says ("tp8,pp16"; dp is what is left), and `how`: ZeRO's stage and
    recomputation. Of a published run everything is at first as it was published, and the published step stands beside.

    LayoutPlanner(model="Qwen3-32B", device="H200", tokens="4M"): any model and device of course_lib.facts; its run is
    "Qwen3-32B on H200, 4M tokens a step", and everything is at first as planned for the fewest devices.
    """

    run = traitlets.Any("Llama 3 405B, H100, Meta 2024").tag(sync=True, echo_update=False)
    devices = WholeNumber(8192, 8, 1_000_000)
    cut = traitlets.Any("tp8,pp16").tag(sync=True, echo_update=False)
    how = OneOf("ZeRO-2, all kept", HOWS)
    controls = ("run", "devices", "cut", "how")

    def __init__(self, run: str = "Llama 3 405B, H100, Meta 2024", devices: int | None = None,
                 cut: str | None = None, how: str | None = None, *, model: str = "", device: str = "H100",
                 tokens: str = "2M") -> None:
        run = own_run(model, device, tokens) if model else run
        super().__init__(**fill_in({"run": run, "devices": devices, "cut": cut, "how": how}))

    @classmethod
    def scene(cls, parameters: Mapping[str, Any]) -> Scene:
        """As of every widget; what is not given is as the run was published, as far as that can be."""
        refuse_unknown(cls.__name__, parameters, cls.controls)
        return super().scene(fill_in({"run": cls.run.default_value, **parameters}))

    @classmethod
    def check_settings(cls, settings: dict[str, Any]) -> dict[str, Any]:
        base_of(settings["run"])  # BadParameter for what is no run
        require_one_of("devices", settings["devices"], counts_of(settings["run"]))
        require_one_of("cut", settings["cut"], [*cuts_of(settings["run"], settings["devices"])])
        return settings

    @classmethod
    def list_controls(cls, settings: dict[str, Any]) -> list[Control]:
        run, devices = settings["run"], settings["devices"]

        def another_run(run: str) -> dict[str, Any]:
            base = base_of(run)
            count = base.layout.world_size
            cut = nearest_cut(run, count, cut_of(base.layout))
            return {"run": run, "devices": count, "cut": cut, "how": how_of(run)}

        return [chooser("run", "run", runs_beside(run), change=another_run),
                slider("devices", "devices", counts_of(run), devices, "{:,}".format,
                       change=lambda n: {"devices": n, "cut": nearest_cut(run, n, settings["cut"])}),
                chooser("layout", "cut", cuts_of(run, devices)), chooser("memory", "how", HOWS)]

    @classmethod
    def draw(cls, settings: dict[str, Any]) -> Scene:
        return scene_of(estimate_layout(settings["run"], settings["devices"], settings["cut"], settings["how"]))
