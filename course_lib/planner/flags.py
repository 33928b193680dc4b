"""A plan in the words of the frameworks that run it: Megatron-Core's flags, lines of a torchtitan configuration.

Names as in NVIDIA/Megatron-LM d98e8a6 (megatron/training/arguments.py, megatron/core/transformer/transformer_config.py)
and pytorch/torchtitan of August 2026 (torchtitan/config/configs.py, distributed/activation_checkpoint.py). Paths, data,
learning rates and tokenizers are the reader's own.
"""

from __future__ import annotations

from course_lib.facts import Shape
from course_lib.planner.estimate import Estimate
from course_lib.planner.job import Job
from course_lib.planner.plan import saving

Flags = list[tuple[str, object]]  # (name, value); a value of True is a flag that stands alone, None or 1 none at all
SHARDING = {2: "optim_grads", 3: "optim_grads_params"}
NUMBERS = {"bf16": ["--bf16"], "fp16": ["--fp16"], "fp8": ["--bf16", "--fp8-format hybrid"],
           "mxfp8": ["--bf16", "--fp8-format e4m3", "--fp8-recipe mxfp8"],
           "nvfp4": ["--bf16", "--fp4-format e2m1"]}


def megatron_flags(plan: Estimate) -> list[str]:
    """The plan as Megatron-Core's flags, one for each line. ValueError for what its pre-training does not have."""
    job = plan.job
    if job.lora_rank:
        raise ValueError(f"LoRA of rank {job.lora_rank}: expected a plan without, Megatron-Core trains whole models")
    found = [*layout_flags(job), *pipeline_flags(job), *sharding_flags(job), *recompute_flags(job), *batch_flags(job)]
    return [*map(in_words, [each for each in found if each[1]]), *NUMBERS[job.precision], *shape_flags(job.shape)]


def in_words(flag: tuple[str, object]) -> str:
    """One flag of the command line."""
    name, value = flag
    return f"--{name}" if value is True else f"--{name} {value}"


def layout_flags(job: Job) -> Flags:
    """Sizes of the axes, for Megatron-Core."""
    L = job.layout
    return [("tensor-model-parallel-size", L.tp), ("pipeline-model-parallel-size", L.pp),
            ("context-parallel-size", L.cp), ("sequence-parallel", job.sequence_parallel and L.tp > 1),
            ("expert-model-parallel-size", L.ep if job.shape.num_experts > 1 else 0),
            ("expert-tensor-parallel-size", L.etp if job.shape.num_experts > 1 else 0)]


def pipeline_flags(job: Job) -> Flags:
    """Flags of the pipeline. Where both ends count as a layer each, Megatron has to be told."""
    shape, pp, v = job.shape, job.layout.pp, job.v
    if pp == 1:
        return []
    if shape.mtp_layers:
        return [("pipeline-model-parallel-layout", f"'{chunks_in_letters(shape, pp * v)}'")]
    ends = bool(shape.num_layers % (pp * v))
    return [("num-virtual-stages-per-pipeline-rank", v if v > 1 else 0),
            ("account-for-embedding-in-pipeline-split", ends), ("account-for-loss-in-pipeline-split", ends)]


def chunks_in_letters(shape: Shape, chunks: int) -> str:
    """E embedding, t layer, m layer of multi-token prediction, L loss; a bar between chunks."""
    layers = "t" * shape.num_layers + "m" * shape.mtp_layers
    if len(layers) % chunks:
        layers = "E" + layers + "L"
    each = len(layers) // chunks
    cut = "|".join(layers[at:at + each] for at in range(0, len(layers), each))
    return cut if cut.startswith("E") else f"E{cut}L"


def sharding_flags(job: Job) -> Flags:
    """ZeRO-1 is the distributed optimiser; 2 and 3 are Megatron-FSDP's."""
    zero = job.layout.zero_stage
    found: Flags = [("use-distributed-optimizer", zero > 0), ("overlap-grad-reduce", job.layout.dp * job.layout.cp > 1),
                    ("overlap-param-gather", zero > 0), ("grad-reduce-in-bf16", job.gradient_bytes == 2)]
    found += [("num-distributed-optimizer-instances", job.replicas if job.replicas > 1 else 0),
              ("optimizer-cpu-offload", job.offload != "none")]
    if job.optimizer == "adam8bit":
        found += [("use-precision-aware-optimizer", True), ("exp-avg-dtype", "fp8"), ("exp-avg-sq-dtype", "fp8")]
    if zero in SHARDING:
        found += [("use-megatron-fsdp", True), ("data-parallel-sharding-strategy", SHARDING[zero]),
                  ("ckpt-format", "fsdp_dtensor")]
    return found


def recompute_flags(job: Job) -> Flags:
    """Megatron counts layers in each chunk of a stage."""
    if job.recompute_modules:
        return [("recompute-granularity", "selective"), ("recompute-modules", " ".join(job.recompute_modules))]
    if job.recompute != "full":
        return [("recompute-granularity", "selective" if job.recompute == "selective" else 0)]
    return [("recompute-granularity", "full"), ("recompute-method", "block" if job.recompute_layers else "uniform"),
            ("recompute-num-layers", max(1, job.recompute_layers // job.v))]


def batch_flags(job: Job) -> Flags:
    """Rows and tokens, for Megatron-Core."""
    return [("micro-batch-size", job.micro_batch), ("global-batch-size", job.global_batch),
            ("seq-length", job.sequence_length), ("max-position-embeddings", job.sequence_length)]


def shape_flags(shape: Shape) -> list[str]:
    """The model's sizes, for Megatron-Core, without those that are 0 or off."""
    found: Flags = [
        ("num-layers", shape.num_layers), ("hidden-size", shape.hidden_size),
        ("ffn-hidden-size", shape.dense_ffn or shape.ffn_size), ("num-attention-heads", shape.num_heads),
        ("group-query-attention", shape.num_kv_heads < shape.num_heads),
        ("num-query-groups", shape.num_kv_heads if shape.num_kv_heads < shape.num_heads else 0),
        ("kv-channels", 0 if shape.latent else shape.d), ("swiglu", shape.gated),
        ("untie-embeddings-and-output-weights", not shape.tied), ("disable-bias-linear", not shape.biases),
        ("mtp-num-layers", shape.mtp_layers)]
    return [in_words(each) for each in [*found, *latent_flags(shape), *expert_flags(shape)] if each[1]]


def latent_flags(shape: Shape) -> Flags:
    """Flags of latent attention, for Megatron-Core; [] for a model without it."""
    if shape.latent is None:
        return []
    of = shape.latent
    return [("multi-latent-attention", True), ("q-lora-rank", of.q_rank), ("kv-lora-rank", of.kv_rank),
            ("qk-head-dim", of.nope), ("qk-pos-emb-head-dim", of.rope), ("v-head-dim", of.value)]


def expert_flags(shape: Shape) -> Flags:
    """Flags of experts, for Megatron-Core; [] for a model without them."""
    if shape.num_experts == 1:
        return []
    dense = f"'([0]*{shape.dense_layers}+[1]*{shape.num_layers - shape.dense_layers})'" if shape.dense_layers else 0
    return [("num-experts", shape.num_experts), ("moe-router-topk", shape.active_experts),
            ("moe-ffn-hidden-size", shape.ffn_size), ("moe-layer-freq", dense),
            ("moe-shared-expert-intermediate-size", shape.shared_experts * shape.shared_ffn),
            ("moe-token-dispatcher-type", "alltoall"), ("moe-grouped-gemm", True)]


# torchtitan

def runs_on_titan(plan: Estimate) -> bool:
    """Whether torchtitan can run the plan: it deals out whole experts, shards gradients wherever it shards, and makes
    no or all layers again.
    """
    return plan.layout.etp == 1 and plan.layout.zero_stage != 1 and not plan.job.recompute_layers


def torchtitan_lines(plan: Estimate) -> list[str]:
    """Python, for a function that returns a Trainer.Config. ValueError for what torchtitan does not have."""
    job, L = plan.job, plan.layout
    if job.lora_rank or job.optimizer != "adam":
        raise ValueError(f"{saving(plan)}: expected a plan without, this writes no adapters and no optimiser")
    if not runs_on_titan(plan):
        raise ValueError(f"{L} with {job.recompute_layers} layers made again: expected etp 1, ZeRO 0, 2 or 3, and no "
                         "or all layers made again, since torchtitan has no others")
    sharded = L.zero_stage > 0
    replicas = job.replicas if sharded else L.dp
    degrees = {"data_parallel_shard_degree": max(1, L.dp // replicas), "data_parallel_replicate_degree": replicas,
               "tensor_parallel_degree": L.tp,
               "pipeline_parallel_degree": L.pp, "context_parallel_degree": L.cp, "expert_parallel_degree": L.ep,
               "fsdp_reshard_after_forward": repr("always" if L.zero_stage == 3 else "never")}
    lines = [f"config.parallelism.{name} = {value}" for name, value in degrees.items()]
    tokens = job.micro_batch * job.sequence_length
    lines += pipeline_lines(job) if L.pp > 1 else []
    lines += [f"config.training.num_tokens_per_microbatch_per_dp_rank = {tokens}",
              f"config.training.num_tokens_per_train_step = {job.tokens}",
              f"config.training.max_context_length = {job.sequence_length}"]
    policy = {"full": "FullAC.Config()", "selective": "SelectiveAC.Config()", "none": "None"}[job.recompute]
    lines += ["config.training.enable_cpu_offload = True"] if job.offload != "none" else []
    return [*lines, f"config.activation_checkpoint = {policy}"]


def pipeline_lines(job: Job) -> list[str]:
    """The pipeline's settings, for torchtitan; the end stages have one layer less where the layers are not even."""
    layers, chunks = job.shape.num_layers, job.layout.pp * job.v
    ends = int(bool(layers % chunks))
    settings = {"pipeline_parallel_schedule": repr("Interleaved1F1B" if job.v > 1 else "1F1B"),
                "pipeline_parallel_layers_per_stage": -(-layers // chunks),
                "pipeline_parallel_first_stage_less_layers": ends, "pipeline_parallel_last_stage_less_layers": ends,
                "num_pp_microbatches": job.num_microbatches}
    return [f"config.parallelism.{name} = {value}" for name, value in settings.items()]
