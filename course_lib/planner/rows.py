"""A published row as a job, in words, and a step's seconds in the row's own metric; how near two runs are.

Errors of runs that no constant was fitted on are what stands beside an advice (compare.error_of). Nearness is counted
in factors of two, with a fixed price for another device, software or number format; which runs are named beside an
advice depends on it, no number does.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import log2
from pathlib import Path
from typing import Any

from course_lib.costs.flops import attention_flops_per_token, count_parameters, sc21_step_flops, step_flops
from course_lib.facts import (
    ACCELERATORS,
    DEVICE_VARIANTS,
    MODELS,
    LatentAttention,
    PublishedLayout,
    Shape,
    published_rows,
    published_table,
)
from course_lib.hybrid_parallel.layout import ParallelLayout
from course_lib.planner.cluster import cluster
from course_lib.planner.constants import FSDP2, FSDP2_EAGER, NANOTRON, TORCHTITAN, TRAINERS, Software, software_of
from course_lib.planner.estimate import estimate_job
from course_lib.planner.job import BITS, MODULES, PRECISION_NAMES, Job, rates_of_job
from course_lib.planner.memory import memory_bytes, stage_bytes, stages_at

Row = dict[str, Any]
# A row's word for hardware where it is not the name in facts. What stands behind it is software.
SPELLED = {"A100-80G": "A100", "A100-40G": "A100 40GB", "H100-96G-500W": "H100 96GB 500W",
           "TPUv4": "TPU v4", "TPUv5e": "TPU v5e", "TPUv5p": "TPU v5p"}
NEEDED = ("hw", "layers", "hidden", "heads", "kv_heads", "ffn", "glu", "vocab", "seq", "gpus", "tp", "cp", "pp", "dp",
          "v", "mbs", "gbs", "recompute", "sp", "zero", "schedule", "flash_assumed", "metric")
MORE_OF_SHAPE = ("shared_experts", "shared_ffn", "dense_layers", "dense_ffn", "mtp_layers", "window")
LATENT = ("q_lora_rank", "kv_lora_rank", "qk_nope", "qk_rope", "v_head")  # in the order of LatentAttention
# Rank 0 writes its own peak (nanotron helpers.py, KempnerForge metrics/tracker.py); torchtitan's metrics.py takes the
# first rank of the last stage.
LOG_OF_FIRST = (NANOTRON.name, FSDP2.name, FSDP2_EAGER.name)
# What rows of a trainer leave out, by a word of their free text: all published runs of nanotron were on AWS's EFA, that
# other jobs share (Ultra-Scale Playbook); KempnerForge's distributed/parallel.py makes the model 16-bit, with no copy.
OF_TRAINERS: dict[str, Row] = {"nanotron": {"network": "EFA v2"}, "kempnerforge": {"master": False}}
# A row's word for a schedule -> that of pipeline_parallel.schedules: the one with the same memory and idle time.
SCHEDULE_NAMES = {"1f1b": "1F1B", "gpipe": "GPipe", "zb1p": "ZB-H1", "zb2p": "ZB-H2", "dualpipe": "DualPipe"}
SEND_ONCE = ("hybridep", "deepep")  # dispatchers: a token's row goes once to each node
FITS = "fits in device memory (1 yes, 0 out of memory)"


def read_rows(file: str | None) -> tuple[list[Row], dict[str, Any]]:
    """(rows, what their fields mean) of a file in the format of facts/published.json, or of a list of rows; None: the
    course's own.
    """
    if file is None:
        return published_rows(), published_table("fields")
    content = json.loads(Path(file).read_text(encoding="utf-8"))
    return (content["rows"], content.get("fields", {})) if isinstance(content, dict) else (content, {})


def per_device(flops: Callable[[Row, Shape], float], unit: float = 1e12) -> Callable[[Row, Job, float], float]:
    """A metric in FLOPs a second and device, in units of `unit`, from FLOPs of a step."""
    return lambda row, job, seconds: flops(row, job.shape) / seconds / row["gpus"] / unit


def causal_flops(row: Row, shape: Shape) -> float:
    """Attention counted half: what the mask hides is not computed."""
    attention = 3 * attention_flops_per_token(shape, row["seq"]) * shape.num_layers * row["gbs"] * row["seq"]
    return step_flops(shape, row["gbs"], row["seq"]) - attention / 2


METRICS: dict[str, Callable[[Row, Job, float], float]] = {
    "step time s": lambda row, job, seconds: seconds,
    "tokens/s per GPU": lambda row, job, seconds: row["gbs"] * row["seq"] / seconds / row["gpus"],
    "achieved TFLOP/s per GPU incl. recompute FLOPs (SC21 eq 3)": per_device(
        lambda row, shape: sc21_step_flops(row["gbs"], row["seq"], row["layers"], row["hidden"], row["vocab"])),
    "MFU % (full s^2 attention FLOPs)": lambda row, job, seconds: 100 * step_flops(
        job.shape, row["gbs"], row["seq"]) / seconds / row["gpus"] / job.cluster.peak_flops_per_s(),
    "model TFLOP/s per GPU (no recompute, full s^2)": per_device(
        lambda row, shape: step_flops(shape, row["gbs"], row["seq"])),
    "model TFLOP/s per GPU (causal attention counted half; convention assumed)": per_device(causal_flops),
}


def row_of_layout(run: PublishedLayout) -> Row:
    """A row without a value, of a GPT of 2021 on A100: all layers recomputed, 51,200 tokens in the vocabulary."""
    dp = run.num_devices // (run.tp * run.pp)
    return {"id": run.name, "hw": "A100", "layers": run.layers, "hidden": run.hidden_size, "heads": run.num_heads,
            "kv_heads": run.num_heads, "ffn": 4 * run.hidden_size, "glu": False, "vocab": 51_200, "seq": 2048,
            "gpus": run.num_devices, "tp": run.tp, "cp": 1, "pp": run.pp, "dp": dp, "v": run.v,
            "mbs": run.micro_batch, "gbs": run.global_batch, "recompute": "full", "sp": False, "zero": 0,
            "schedule": "1f1b", "flash_assumed": False, "metric": FITS, "source": run.source}


def require_row(row: Row) -> None:
    """ValueError that names what is missing or unknown."""
    missing = [name for name in NEEDED if row.get(name) is None]
    if missing:
        raise ValueError(f"the row {row.get('id', '')!r} lacks {', '.join(missing)}: expected all of "
                         f"{', '.join(NEEDED)}")
    known = [device.name for device in (*ACCELERATORS, *DEVICE_VARIANTS)]
    if device_of_row(row) not in known:
        raise ValueError(f"hw={row['hw']!r}: expected one of {', '.join(known)}, with the software behind a blank")
    if row["metric"] not in (*METRICS, FITS):
        raise ValueError(f"metric={row['metric']!r}: expected one of {'; '.join((*METRICS, FITS))}")
    if row.get("precision", "bf16") not in PRECISION_NAMES:
        raise ValueError(f"precision={row['precision']!r}: expected one of {', '.join(PRECISION_NAMES)}")


def device_of_row(row: Row) -> str:
    """The name that facts gives to the row's hardware."""
    word = row["hw"].split(" ")[0]
    return SPELLED.get(word, word)


def shape_of_row(row: Row) -> Shape:
    """The model of a published run."""
    widths = row.get("mla")
    return Shape(row["layers"], row["hidden"], row["heads"], row["kv_heads"], row["ffn"], row["vocab"], row["seq"],
                 head_dim=row.get("head_dim") or 0, gated=row["glu"], tied=row.get("tied", False),
                 num_experts=row.get("experts") or 1, active_experts=row.get("top_k") or 1,
                 latent=widths and LatentAttention(*(widths[name] for name in LATENT)),
                 **{name: row.get(name) or 0 for name in MORE_OF_SHAPE}, window_every=row.get("window_every") or 1)


def job_of_row(row: Row) -> Job:
    """ValueError that names an unknown field's value, or says why the layout cannot be."""
    require_row(row)
    text = text_of_software(row)
    # What the row leaves out and its trainer's name says; what this trainer does with a software that others have, too.
    row = next((known for word, known in OF_TRAINERS.items() if word in text), {}) | row
    changes = next((changes for word, changes in TRAINERS.items() if word in text), {})
    software = replace(software_of(text, row["flash_assumed"], row["zero"]), **changes)
    of = cluster(device_of_row(row), row["gpus"],  # devices that NVLink joins are a node
                 row.get("gpus_per_domain") or row.get("gpus_per_node") or 8, row.get("node_gbps") or 0.0,
                 between=row.get("network") or "")
    layout = ParallelLayout(dp=row["dp"], pp=row["pp"], cp=row["cp"], tp=row["tp"], ep=row.get("ep") or 1,
                            etp=row.get("etp") or (row["tp"] if (row.get("experts") or 1) > 1 else 1),
                            zero_stage=row["zero"])
    some = row.get("recompute_layers") or 0
    return Job(shape_of_row(row), of, layout, row["gbs"], row["mbs"], row["seq"], row["v"],
               schedule=SCHEDULE_NAMES.get(row["schedule"], row["schedule"]),
               recompute="full" if some else row["recompute"], recompute_layers=some,
               recompute_modules=tuple(set(row.get("recompute_modules") or ()) & set(MODULES)),
               sequence_parallel=row["sp"], precision=row.get("precision", "bf16"), flash=row["flash_assumed"],
               gradient_bytes=row.get("grad_bytes", 0), master=row.get("master", True),
               dropout=not row["flash_assumed"], software=with_recipe(row, software),
               offload_layers=row.get("cpu_offload_layers") or 0, uneven=True)


def text_of_software(row: Row) -> str:
    """Where a row says what trained it, in small letters: its software, and the words about its hardware."""
    return f"{row.get('software') or ''} {row['hw']}".lower()


def with_recipe(row: Row, found: Software) -> Software:
    """`found` with what the row's recipe says of experts' rows."""
    return replace(found, overlaps_experts=bool(row.get("moe_a2a_overlap")),
                   sends_rows_once=any(word in f"{row.get('dispatcher') or ''} {text_of_software(row)}".lower()
                                       for word in SEND_ONCE))


def peak_of_row(row: Row, job: Job) -> dict[str, float]:
    """Bytes by kind of the rank whose peak the row tells; of the fullest where nobody says which one that is."""
    stages = stages_at(job, rates_of_job(job))
    if job.software.name in LOG_OF_FIRST:
        return stage_bytes(job, stages.first, 0)
    if job.software.name == TORCHTITAN.name:
        return stage_bytes(job, stages.last, job.layout.pp - 1)
    return memory_bytes(job, stages)


def in_metric(row: Row, job: Job, seconds: float) -> float:
    """A step's seconds in the metric of the row: tokens a second, TFLOP/s and so on."""
    return METRICS[row["metric"]](row, job, seconds)


def published_seconds(row: Row, job: Job) -> float:
    """What a published value says of the step's time. All metrics but the step time go with its inverse."""
    if row["metric"].startswith("step time"):
        return row["value"]
    return in_metric(row, job, 1.0) / row["value"]


NAMED = 3  # nearest runs
OTHER_DEVICE, OTHER_GENERATION, OTHER_SOFTWARE, OTHER_BITS, OTHER_EXPERTS = 1, 3, 2, 3, 4


@dataclass(frozen=True)
class PublishedRun:
    """A published run. `error`: the planner's, relative, in the row's own metric. `faster`: the planner's run is the
    faster one.
    """

    row: Row
    job: Job
    error: float

    @property
    def faster(self) -> bool:
        """Whether the planner promises a faster run than was published: of a step time, that it is too low."""
        return (self.error > 0) != self.row["metric"].startswith("step time")

    def __str__(self) -> str:
        off = f"{abs(self.error):.0%} too {'fast' if self.faster else 'slow'}"
        return f"{describe(self.job)}{', v assumed' if assumes_v(self.row) else ''}: {off}"


@lru_cache(maxsize=1)
def unfitted_runs() -> tuple[PublishedRun, ...]:
    """All published times that no constant was fitted on, predicted."""
    found = []
    for row in published_rows("visible"):
        if row["metric"] != FITS:
            job = job_of_row(row)
            found.append(PublishedRun(row, job, in_metric(row, job, estimate_job(job).step_s) / row["value"] - 1))
    return tuple(found)


# What a run is

def describe(job: Job) -> str:
    """The job in words: model, devices, cut, software. The model is the one of facts with as many layers of these
    sizes; else how many parameters.
    """
    def sizes(of: Shape) -> tuple[int, ...]:
        return of.num_layers, of.hidden_size, of.num_heads, of.num_kv_heads, of.ffn_size, of.num_experts, of.vocab_size
    shape, L = job.shape, job.layout
    experts = f" with {shape.num_experts} experts" if shape.num_experts > 1 else ""
    name = next((model.name for model in MODELS if model.shape and sizes(model.shape) == sizes(shape)),
                f"{'Llama' if shape.gated else 'GPT'} of {count_parameters(shape) / 1e9:.3g}B{experts}")
    axes = (("tp", L.tp), ("cp", L.cp), ("pp", L.pp), ("ep", L.ep), ("v", job.v), ("ZeRO-", L.zero_stage))
    cut = " ".join(f"{axis}{size}" for axis, size in axes if size > 1 or axis == "ZeRO-" and size) or "dp alone"
    bits = "" if BITS.get(job.precision) == 16 else f", {job.precision}"
    return f"{name} on {L.world_size:,} {job.cluster.device.name}, {cut}{bits}, {job.software.name}"


# How far apart two are

def distance(one: Job, other: Job) -> float:
    """Factors of two between sizes and layouts, added up, and what another device, software or number format counts."""
    def sizes(job: Job) -> tuple[float, ...]:
        L = job.layout
        return (count_parameters(job.shape), L.world_size, job.sequence_length, job.micro_batch, L.tp, L.cp, L.pp,
                L.ep, job.v**0.5)
    devices = one.cluster.device, other.cluster.device
    return sum(abs(log2(a / b)) for a, b in zip(sizes(one), sizes(other))) + (
        OTHER_DEVICE * (devices[0].name != devices[1].name)
        + OTHER_GENERATION * (devices[0].generation != devices[1].generation)
        + OTHER_SOFTWARE * (one.software.name != other.software.name)
        + OTHER_BITS * (BITS.get(one.precision, 8) != BITS.get(other.precision, 8))
        + OTHER_EXPERTS * ((one.shape.num_experts > 1) != (other.shape.num_experts > 1)))


def nearest_runs(job: Job, runs: Sequence[PublishedRun]) -> tuple[PublishedRun, ...]:
    """The few of `runs` that are most like the job, nearest first."""
    return tuple(sorted(runs, key=lambda run: distance(job, run.job))[:NAMED])


def assumes_v(row: Row) -> bool:
    """Chunks per stage that the source does not give."""
    return row["v"] > 1 and "v NOT published" in row.get("verified", "")
