"""Why one plan is slower than another: the causes that change, and what of the layout each change comes from."""

from __future__ import annotations

from course_lib.planner.estimate import Estimate

WORDS = {"matmul": "products", "memory": "passes over memory", "tp": "tensor parallelism", "cp": "context parallelism",
         "ep": "expert parallelism", "launch": "waits for launches", "pp": "messages between stages",
         "bubble": "the bubble", "dp": "data parallelism's messages", "optimiser": "the optimiser"}
WORTH_SAYING = 0.01  # of the step


def reasons_for(estimate: Estimate, best: Estimate) -> list[str]:
    """Why `estimate` is slower than `best`, or what it gains: the causes that change, the largest change first."""
    change = {cause: estimate.seconds[cause] - best.seconds[cause] for cause in estimate.seconds}
    told = [cause for cause in sorted(change, key=lambda cause: -abs(change[cause]))
            if abs(change[cause]) > WORTH_SAYING * best.step_s]
    return [f"{WORDS[cause]} {change[cause] / best.step_s:+.0%} of the step{because(cause, estimate, best)}"
            for cause in told]


def because(cause: str, estimate: Estimate, best: Estimate) -> str:
    """What of the layout a change of this cause comes from, as far as one sentence can say."""
    here, there, G = estimate.job, best.job, estimate.job.cluster.devices_per_node
    if cause == "tp" and here.layout.tp > G >= there.layout.tp:
        return f": tp{here.layout.tp} leaves the node of {G}"
    if cause == "bubble":
        return f": {here.num_microbatches} micro-batches through {here.layout.pp} stages of {here.v} chunks"
    if cause in ("matmul", "memory") and policy(estimate) != policy(best):
        return f": recompute {policy(estimate)}, not {policy(best)}"
    slower = estimate.seconds[cause] > best.seconds[cause]
    if cause in ("matmul", "launch") and here.tokens_per_rank != there.tokens_per_rank and (
            slower == (here.tokens_per_rank < there.tokens_per_rank)):  # small products are slow
        return f": products of {here.tokens_per_rank:.0f} tokens, not {there.tokens_per_rank:.0f}"
    if cause == "matmul" and here.layout.pp != there.layout.pp:
        return f": the fullest of {here.layout.pp} stages, not of {there.layout.pp}"
    if cause in ("matmul", "dp", "optimiser") and saving(estimate) != saving(best):
        return f": {saving(estimate) or 'nothing saved'}, not {saving(best) or 'nothing saved'}"
    if cause in ("dp", "optimiser") and here.layout.zero_stage != there.layout.zero_stage:
        return f": ZeRO-{here.layout.zero_stage}, not ZeRO-{there.layout.zero_stage}"
    if cause in ("tp", "cp", "ep", "dp") and size(estimate, cause) != size(best, cause):
        return f": {cause}{size(estimate, cause)}, not {cause}{size(best, cause)}"
    return ""


def size(estimate: Estimate, axis: str) -> int:
    """The number of ranks along `axis`."""
    return getattr(estimate.layout, axis)


def saving(estimate: Estimate) -> str:
    """What saves memory since it was asked for: "adam8bit, offload optimizer, LoRA 16, 4 replicas"; "" for nothing."""
    job = estimate.job
    told = (job.optimizer if job.optimizer != "adam" else "", f"offload {job.offload}" * (job.offload != "none"),
            f"LoRA {job.lora_rank}" * (job.lora_rank > 0), f"{job.replicas} replicas" * (job.replicas > 1))
    return ", ".join(filter(None, told))


def policy(estimate: Estimate) -> str:
    """What is made again: "none", "selective", "full", "3 layers" of each stage, or modules of each layer."""
    layers = estimate.job.recompute_layers
    if estimate.job.recompute_modules:
        return "+".join(estimate.job.recompute_modules)
    return estimate.job.recompute if not layers else f"{layers} layer{'s' * (layers > 1)}"
