"""LayoutPlanner: a published training run under any layout: does it fit, what takes the time, what does it cost?

Planned is what it shows, the planner's own estimate, beside what was published where this very layout was.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from course_lib.facts import published_rows
from course_lib.hybrid_parallel.layout import ParallelLayout
from course_lib.pictures.scene import Scene, Sheet, axis, legend, round_ticks
from course_lib.pictures.units import gigabytes, human_seconds
from course_lib.planner import Estimate, Job, error_of
from course_lib.planner.candidates import divisors, whole_chunks
from course_lib.planner.compare import mfu_of, printed_mfu
from course_lib.planner.estimate import estimate_job
from course_lib.planner.job import job_problem
from course_lib.planner.rows import assumes_v, job_of_row, published_seconds
from course_lib.widgets.base import (
    Control,
    Explorable,
    OneOf,
    Setting,
    WholeNumber,
    chooser,
    require_one_of,
    slider,
)
from course_lib.widgets.fits_or_not import amount

RUNS = {  # -> id of its row in facts
    "Llama 3 405B, H100, Meta 2024": "Llama3-8k",
    "GPT of 310B, A100, Megatron 2021": "SC21-310B",
    "GPT of 145B, A100, Megatron 2021": "SC21-145B",
    "GPT of 70B, H100, Megatron-Core": "MC-70B",
    "MPT of 30B, H100, MosaicML": "MPT-H100-30b-512",
}
TENSOR = (1, 2, 4, 8, 16)
POLICIES = {"none": "all kept", "full": "layers made again"}
HOWS = {f"ZeRO-{stage}, {words}": (stage, policy) for stage in range(4) for policy, words in POLICIES.items()}
TOKENS = 1e12


@dataclass(frozen=True)
class Planned:
    """`published_s`: of a step, where this very layout was published, and `published_how`: what to know of it."""

    run: str
    estimate: Estimate
    how: str
    published_s: float | None
    published_how: str = ""

    @property
    def asked(self) -> str:
        job = self.estimate.job
        chunks = f", {job.v} chunks a stage" if job.v > 1 else ""
        laid_out = f"{cut_of(job.layout)},dp{job.layout.dp}{chunks}"
        return f"{self.run}: {job.layout.world_size:,} devices as {laid_out}, {self.how}"

    @property
    def finding(self) -> str:
        there, held = self.estimate.job.cluster.usable_bytes, self.estimate.memory_bytes
        step = f"{human_seconds(self.estimate.step_s)} a step, {self.estimate.mfu:.0%} of the peak"
        if not self.estimate.fits:
            return f"Does not fit: {gigabytes(held)} of {gigabytes(there)}; it would take {step}"
        return f"{step}, with {gigabytes(held)} of {gigabytes(there)}"

    @property
    def detail(self) -> str:
        between = self.estimate.step_range_s
        usd, kwh = self.estimate.dollars(TOKENS), self.estimate.kwh(TOKENS)
        told = [] if between is None else ["between {} and {}".format(*map(human_seconds, between))]
        told = [*told, f"10¹² tokens take {self.estimate.training_s(TOKENS) / 86400:,.1f} days"]
        told += [f"{amount(usd)} USD"] * (usd is not None) + [f"{amount(kwh)} kWh"] * (kwh is not None)
        if self.published_s is not None:
            told.append(f"published {human_seconds(self.published_s)}, predicted "
                        f"{self.estimate.step_s / self.published_s - 1:+z.0%}{self.published_how}")
        return f"{', '.join(told)}; {error_of(self.estimate.job).short}"


def row_of(run: str) -> dict[str, Any]:
    return next(row for row in published_rows() if row["id"] == RUNS[run])


@cache
def base_of(run: str) -> Job:
    """As it was published."""
    return job_of_row(row_of(run))


def cut_of(layout: ParallelLayout) -> str:
    """What is chosen of a layout; dp follows from the number of devices."""
    return f"tp{layout.tp},pp{layout.pp}"


@cache
def counts_of(run: str) -> tuple[int, ...]:
    own = base_of(run).layout.world_size
    return tuple(int(own * 2.0**k) for k in range(-6, 5) if own * 2.0**k >= 8 and own * 2.0**k % 8 == 0)


@cache
def job_of(run: str, devices: int, tp: int, pp: int, how: str) -> Job | None:
    """The run cut anew: its rows and micro-batches as far as they divide. None where it cannot be."""
    base, (stage, policy) = base_of(run), HOWS[how]
    if devices % (tp * pp) or base.global_batch % (devices // (tp * pp)):
        return None
    dp = devices // (tp * pp)
    layout = ParallelLayout(dp=dp, tp=tp, pp=pp, zero_stage=stage)
    rows, there = base.global_batch // dp, base.cluster.with_devices(devices)
    micro_batch = max(b for b in divisors(base.micro_batch) if rows % b == 0)
    chunks = [v for v in range(1, base.v + 1) if whole_chunks(base.num_layers, pp * v) and (
        v == 1 or pp > 1 and rows // micro_batch % pp == 0)]
    if not chunks or job_problem(base.shape, there, layout, base.global_batch, micro_batch, base.sequence_length,
                                 chunks[-1]):
        return None
    return replace(base, cluster=there, layout=layout, micro_batch=micro_batch, v=chunks[-1], recompute=policy,
                   recompute_layers=0, sequence_parallel=base.sequence_parallel and tp > 1)


@cache
def cuts_of(run: str, devices: int) -> dict[str, tuple[int, int]]:
    """All that can be, by name."""
    how = next(iter(HOWS))
    layers = base_of(run).num_layers
    stages = sorted(p for p in {*divisors(layers), *divisors(layers + 2)} if p <= 64)
    return {f"tp{tp},pp{pp}": (tp, pp) for tp in TENSOR for pp in stages if job_of(run, devices, tp, pp, how)}


def how_of(run: str) -> str:
    """As it was published."""
    base = base_of(run)
    return next(how for how, choice in HOWS.items() if choice == (base.layout.zero_stage, base.recompute))


def nearest_cut(run: str, devices: int, cut: str) -> str:
    """The cut where it can be, else the published one, else the first that can."""
    known = cuts_of(run, devices)
    return next(each for each in (cut, cut_of(base_of(run).layout), *known) if each in known)


def opening_of(run: str) -> dict[str, Any]:
    """The settings of a run as it was published."""
    layout = base_of(run).layout
    cut = nearest_cut(run, layout.world_size, cut_of(layout))
    return {"run": run, "devices": layout.world_size, "cut": cut, "how": how_of(run)}


@cache
def estimate_layout(run: str, devices: int, cut: str, how: str) -> Planned:
    """What the widget shows for these parameters."""
    job, base = job_of(run, devices, *cuts_of(run, devices)[cut], how), base_of(run)
    if (job.layout, job.v, job.recompute) != (base.layout, base.v, base.recompute):
        return Planned(run, estimate_job(job), how, None, "")
    row = row_of(run)
    return Planned(run, estimate_job(job), how, published_seconds(row, job), publication_notes(row, job))


def publication_notes(row: dict[str, Any], job: Job) -> str:
    """In brackets: chunks that were not published, and the published MFU, where it is counted otherwise than here."""
    printed, here = printed_mfu(row, job), mfu_of(row, job)
    told = ["v assumed"] * assumes_v(row)
    told += [f"its {printed:.0%} of the peak count as {here:.0%} here"] * (
        printed is not None and f"{printed:.0%}" != f"{here:.0%}")
    return f" ({'; '.join(told)})" if told else ""


KINDS = {"parameters": "parameters", "gradients": "gradients", "optimizer_state": "optimizer state",
         "activations": "activations", "logits": "late", "other": "other"}  # of memory, each with its role
SAID = {"matmul": "matrix products", "memory": "passes over memory", "tp": "tensor messages",
        "launch": "launches", "pp": "stage messages", "bubble": "bubble",
        "dp": "gradients, not hidden", "optimiser": "optimiser"}  # no run here has experts or context parallelism
LEFT, RIGHT, TOP, BAR, ROW = 190, 690, 16, 26, 24


def scene_of(**settings: Any) -> Scene:
    """What a device holds against what it has; below it the step, cause after cause."""
    sheet, shown = Sheet(), estimate_layout(**settings)
    found = shown.estimate
    add_memory(sheet, found)
    bottom = add_time(sheet, shown, TOP + 118)
    causes = ", ".join(f"{words} {human_seconds(found.seconds[cause])}" for cause, words in SAID.items())
    held = ", ".join(f"{kind.replace('_', ' ')} {gigabytes(held)}" for kind, held in found.memory.items() if held)
    return sheet.scene("LayoutPlanner", shown.asked, shown.asked, shown.finding, shown.detail, bottom,
                       f"Of the step: {causes}. Held: {held}")


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
    bottom = top + len(SAID) * ROW
    assert all(cause in SAID for cause, seconds in found.seconds.items() if seconds), found.seconds
    for number, (cause, words) in enumerate(SAID.items()):
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


class LayoutPlanner(Explorable, draw=scene_of):
    """A `run` on `devices`, cut as `cut` says ("tp8,pp16"; dp is what is left), and `how`: ZeRO's stage and
    recomputation. At first everything is as it was published, and the published step stands beside.
    """

    run = OneOf("Llama 3 405B, H100, Meta 2024", RUNS)
    devices = WholeNumber(8192, 8, 1_000_000)
    cut = Setting("tp8,pp16")
    how = OneOf("ZeRO-2, all kept", HOWS)

    @classmethod
    def check_settings(cls, settings: dict[str, Any]) -> dict[str, Any]:
        require_one_of("devices", settings["devices"], counts_of(settings["run"]))
        require_one_of("cut", settings["cut"], [*cuts_of(settings["run"], settings["devices"])])
        return settings

    @classmethod
    def list_controls(cls, settings: dict[str, Any]) -> list[Control]:
        run, devices = settings["run"], settings["devices"]
        return [chooser("run", "run", RUNS, change=opening_of),
                slider("devices", "devices", counts_of(run), devices, "{:,}".format,
                       change=lambda n: {"devices": n, "cut": nearest_cut(run, n, settings["cut"])}),
                chooser("layout", "cut", cuts_of(run, devices)), chooser("memory", "how", HOWS)]
