"""A published row as a job, and a step's seconds in the row's own metric."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from course_lib.costs.flops import attention_flops_per_token, sc21_step_flops, step_flops
from course_lib.facts import LatentAttention, PublishedLayout, Shape, published_rows, published_table
from course_lib.hybrid_parallel.layout import ParallelLayout
from course_lib.planner.cluster import Cluster, cluster
from course_lib.planner.job import MODULES, PRECISION_NAMES, Job
from course_lib.planner.memory import memory_bytes, stage_bytes
from course_lib.planner.rates import rates_of_job
from course_lib.planner.software import FSDP2, FSDP2_EAGER, NANOTRON, TORCHTITAN, TRAINERS, Software, software_of
from course_lib.planner.step import stages_at

Row = dict[str, Any]
# A row's word for hardware -> a name in facts, or in facts.DEVICE_VARIANTS. What stands behind it is software.
HARDWARE = {
    "V100": "V100", "A100": "A100", "A100-80G": "A100", "A100-40G": "A100 40GB", "H100": "H100", "H200": "H200",
    "H100-96G-500W": "H100 96GB 500W", "B200": "B200", "GB200": "GB200",
    "B300": "B300", "GB300": "GB300", "TPUv4": "TPU v4", "TPUv5e": "TPU v5e", "TPUv5p": "TPU v5p"}
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
    if row["hw"].split(" ")[0] not in HARDWARE:
        raise ValueError(f"hw={row['hw']!r}: expected one of {', '.join(HARDWARE)}, with the software behind a blank")
    if row["metric"] not in (*METRICS, FITS):
        raise ValueError(f"metric={row['metric']!r}: expected one of {'; '.join((*METRICS, FITS))}")
    if row.get("precision", "bf16") not in PRECISION_NAMES:
        raise ValueError(f"precision={row['precision']!r}: expected one of {', '.join(PRECISION_NAMES)}")


def shape_of_row(row: Row) -> Shape:
    """The model of a published run."""
    return Shape(row["layers"], row["hidden"], row["heads"], row["kv_heads"], row["ffn"], row["vocab"], row["seq"],
                 head_dim=row.get("head_dim") or 0, gated=row["glu"], tied=row.get("tied", False),
                 num_experts=row.get("experts") or 1, active_experts=row.get("top_k") or 1,
                 latent=latent_of_row(row), **{name: row.get(name) or 0 for name in MORE_OF_SHAPE},
                 window_every=row.get("window_every") or 1)


def latent_of_row(row: Row) -> LatentAttention | None:
    """Its latent attention; None where it has ordinary one."""
    widths = row.get("mla")
    return widths and LatentAttention(*(widths[name] for name in LATENT))


def cluster_of_row(row: Row) -> Cluster:
    """Devices that NVLink joins are a node."""
    return cluster(HARDWARE[row["hw"].split(" ")[0]], row["gpus"],
                   row.get("gpus_per_domain") or row.get("gpus_per_node") or 8, row.get("node_gbps") or 0.0,
                   between=row.get("network") or "")


def job_of_row(row: Row) -> Job:
    """ValueError that names an unknown field's value, or says why the layout cannot be."""
    require_row(row)
    row = known_of_trainer(row) | row
    layout = ParallelLayout(dp=row["dp"], pp=row["pp"], cp=row["cp"], tp=row["tp"], ep=row.get("ep") or 1,
                            etp=row.get("etp") or (row["tp"] if (row.get("experts") or 1) > 1 else 1),
                            zero_stage=row["zero"])
    some = row.get("recompute_layers") or 0
    return Job(shape_of_row(row), cluster_of_row(row), layout, row["gbs"], row["mbs"], row["seq"], row["v"],
               schedule=row["schedule"], recompute="full" if some else row["recompute"], recompute_layers=some,
               recompute_modules=tuple(set(row.get("recompute_modules") or ()) & set(MODULES)),
               sequence_parallel=row["sp"], precision=row.get("precision", "bf16"), flash=row["flash_assumed"],
               gradient_bytes=row.get("grad_bytes", 2), master=row.get("master", True),
               dropout=not row["flash_assumed"], software=software_of_row(row),
               offload_layers=row.get("cpu_offload_layers") or 0, uneven=True)


def known_of_trainer(row: Row) -> Row:
    """What the row leaves out and its trainer's name says; {} where nothing is noted."""
    text = text_of_software(row).lower()
    return next((known for word, known in OF_TRAINERS.items() if word in text), {})


def software_of_row(row: Row) -> Software:
    """The software that a published run used, by its name and its words."""
    text = text_of_software(row)
    trainer = next((changes for word, changes in TRAINERS.items() if word in text.lower()), {})
    return with_recipe(row, replace(software_of(text, row["flash_assumed"], row["zero"]), **trainer))


def text_of_software(row: Row) -> str:
    """Where a row says what trained it: its software, and the words about its hardware."""
    return f"{row.get('software') or ''} {row['hw']}"


def with_recipe(row: Row, found: Software) -> Software:
    """`found` with what the row's recipe says of launches and of experts' rows."""
    captured = (row.get("cuda_graph") or "none") != "none"
    return replace(found, waits_for_launches=found.waits_for_launches and not captured,
                   overlaps_experts=bool(row.get("moe_a2a_overlap")),
                   waits_for_rows=row.get("cuda_graph") != "full_iteration" and not row.get("token_drop"),
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
