"""A model's shape from its Hugging Face config.json; a plan as Megatron-Core's flags or torchtitan's configuration.

What a Shape has no place for is left out: biases of q, k and v alone, normalisation of q and k, scales of rotary
positions, the part of a model that reads images. Where dense layers alternate with experts, the dense ones come first.

Names as in NVIDIA/Megatron-LM d98e8a6 (megatron/training/arguments.py, megatron/core/transformer/transformer_config.py)
and pytorch/torchtitan of August 2026 (torchtitan/config/configs.py, distributed/activation_checkpoint.py). Paths, data,
learning rates, tokenizers, the base of rotary positions and how a router is balanced are the reader's own.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from course_lib.facts import LatentAttention, Shape, nearest_first
from course_lib.planner.estimate import Estimate
from course_lib.planner.job import Job


@dataclass(frozen=True)
class Config:
    """What the file says, and `name`, under which errors mention it."""

    values: Mapping[str, Any]
    name: str

    def whole(self, key: str, default: int | None = None, least: int = 1) -> int:
        """A whole number. ValueError for another value, and where there is none (null is none) and no default."""
        value = self.values.get(key)
        if value is None:
            value = default
        if value is None:
            raise ValueError(f"{self.name} has no {key!r}: expected a whole number of {least} or more")
        if type(value) is not int or value < least:
            raise ValueError(f"{self.name}: {key}={value!r}: expected a whole number of {least} or more")
        return value

    def flag(self, key: str, default: bool = False) -> bool:
        """The boolean under `key`. ValueError for anything else that stands there."""
        value = self.values.get(key, default)
        if type(value) is not bool:
            raise ValueError(f"{self.name}: {key}={value!r}: expected true or false")
        return value

    def entries(self, key: str) -> list[Any]:
        """The list under `key`, [] where there is none. ValueError for anything else that stands there."""
        value = self.values.get(key) or []
        if not isinstance(value, list):
            raise ValueError(f"{self.name}: {key}={value!r}: expected a list")
        return value


Sizes = dict[str, Any]  # arguments of Shape


def shape_from_config(config: str | Path | Mapping[str, Any], sequence_length: int = 0) -> Shape:
    """The Shape of a config.json: its path, the folder that it is in, or what is in it.

    sequence_length: 0 for what the model was trained with before its context was stretched, as far as the file tells;
    else the longest that it takes. ValueError, in one line, for a file that is none, an architecture that is not
    here, and a key that is missing or cannot be.

    >>> shape = shape_from_config({"model_type": "gpt2", "n_layer": 12, "n_embd": 768, "n_head": 12,
    ...                            "vocab_size": 50257, "n_positions": 1024})
    >>> shape.ffn_size, shape.d
    (3072, 64)
    """
    read = Config(config, "this config") if isinstance(config, Mapping) else load(Path(config))
    kind = read.values.get("model_type")
    if str(kind) not in READERS and isinstance(read.values.get("text_config"), Mapping):
        read = Config(read.values["text_config"], f"text_config of {read.name}")
        kind = read.values.get("model_type")
    if kind is None:
        raise ValueError(f"{read.name} has no 'model_type': expected one of {', '.join(READERS)}")
    if str(kind) not in READERS:
        raise ValueError(f"{read.name}: model_type={kind!r}: expected one of {', '.join(nearest_first(kind, READERS))}")
    sizes = READERS[kind](read)
    return Shape(**sizes | {"sequence_length": sequence_length or sizes["sequence_length"]}, source=read.name)


def load(path: Path) -> Config:
    """The config.json at `path`, or in the folder `path`. ValueError where it cannot be read."""
    path = path / "config.json" if path.is_dir() else path
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"{path} cannot be read ({error.strerror}): expected a config.json") from None
    except ValueError as error:
        raise ValueError(f"{path} is no JSON ({error}): expected a config.json") from None
    if not isinstance(values, dict):
        raise ValueError(f"{path} holds a {type(values).__name__}: expected the object of a config.json")
    return Config(values, str(path))


# What each architecture calls its sizes


def llama(c: Config, gated: bool = True, biases: bool = False) -> Sizes:
    """Sizes of a Llama, and of all that are built like it."""
    heads, hidden = c.whole("num_attention_heads"), c.whole("hidden_size")
    head_dim = c.whole("head_dim", 0, least=0)
    return {"num_layers": c.whole("num_hidden_layers"), "hidden_size": hidden, "num_heads": heads,
            "num_kv_heads": c.whole("num_key_value_heads", heads), "ffn_size": c.whole("intermediate_size"),
            "vocab_size": c.whole("vocab_size"), "sequence_length": trained_length(c),
            "head_dim": 0 if head_dim * heads == hidden else head_dim, "gated": gated, "biases": biases,
            "tied": c.flag("tie_word_embeddings"), **window(c)}


def trained_length(c: Config) -> int:
    """Tokens of a row in pre-training: before rotary positions were stretched for longer ones."""
    scaling = c.values.get("rope_scaling") or c.values.get("rope_parameters")
    stretched = Config(scaling, c.name) if isinstance(scaling, Mapping) else c
    longest = c.whole("max_position_embeddings")
    return stretched.whole("original_max_position_embeddings", c.whole("initial_context_length", longest))


def window(c: Config) -> Sizes:
    """The fields of a model whose layers look back at a window: all of them, or, as layer_types lists, one in so many.
    """
    width = c.whole("sliding_window", 0, least=0)
    kinds = c.entries("layer_types")
    windows = sum(kind == "sliding_attention" for kind in kinds) if kinds else c.whole("num_hidden_layers")
    unless_told = not str(c.values.get("model_type")).startswith("qwen")
    if not (width and windows and c.flag("use_sliding_window", unless_told)):
        return {}
    if (kinds and len(kinds) % windows) or "max_window_layers" in c.values and not kinds:
        raise ValueError(f"{c.name}: sliding_window={width} in some layers: expected all of them, or layer_types with "
                         "one in so many")
    return {"window": width, "window_every": len(kinds) // windows if kinds else 1}


def mixtral(c: Config) -> Sizes:
    """Sizes of a Llama with experts in every layer."""
    return llama(c) | {"num_experts": c.whole("num_local_experts"), "active_experts": c.whole("num_experts_per_tok")}


def qwen_moe(c: Config) -> Sizes:
    """Sizes of a Qwen with experts, whose first or every other layer may have none."""
    sizes = llama(c)
    experts = {"num_experts": c.whole("num_experts"), "active_experts": c.whole("num_experts_per_tok"),
               "ffn_size": c.whole("moe_intermediate_size")}
    if shared := c.whole("shared_expert_intermediate_size", 0, least=0):
        experts |= {"shared_experts": 1, "shared_ffn": shared}
    step, plain = c.whole("decoder_sparse_step", 1), c.entries("mlp_only_layers")
    sparse = [layer for layer in range(sizes["num_layers"]) if (layer + 1) % step == 0 and layer not in plain]
    return sizes | experts | name_dense(sizes["num_layers"] - len(sparse), sizes["ffn_size"])


def name_dense(layers: int, ffn: int) -> Sizes:
    """The fields of layers without experts; {} where there are none."""
    return {"dense_layers": layers, "dense_ffn": ffn} if layers else {}


def deepseek(c: Config) -> Sizes:
    """Sizes of DeepSeek-V2, -V3 and Kimi K2: latent attention, shared experts, dense layers first."""
    sizes, ffn = llama(c), c.whole("moe_intermediate_size")
    latent = LatentAttention(c.whole("q_lora_rank", 0, least=0), c.whole("kv_lora_rank"), c.whole("qk_nope_head_dim"),
                             c.whole("qk_rope_head_dim"), c.whole("v_head_dim"))
    if (every := c.whole("moe_layer_freq", 1)) != 1:
        raise ValueError(f"{c.name}: moe_layer_freq={every}: expected 1, experts in every layer after the first ones")
    shared = c.whole("n_shared_experts", 0, least=0)
    return sizes | name_dense(c.whole("first_k_dense_replace", 0, least=0), sizes["ffn_size"]) | {
        "ffn_size": ffn, "head_dim": 0, "latent": latent, "num_experts": c.whole("n_routed_experts"),
        "active_experts": c.whole("num_experts_per_tok"), "shared_experts": shared, "shared_ffn": ffn if shared else 0,
        "mtp_layers": c.whole("num_nextn_predict_layers", 0, least=0)}


def llama4(c: Config) -> Sizes:
    """Its windows (attention_chunk_size) are as long as the rows that it is trained on, and are left out."""
    sizes = llama(c)
    layers, step = sizes["num_layers"], c.whole("interleave_moe_layer_step", 1)
    with_experts = len(c.entries("moe_layers")) or layers // step
    return sizes | name_dense(layers - with_experts, c.whole("intermediate_size_mlp")) | {
        "num_experts": c.whole("num_local_experts"), "active_experts": c.whole("num_experts_per_tok"),
        "shared_experts": 1, "shared_ffn": sizes["ffn_size"], "window": 0, "window_every": 1}


def gpt2(c: Config) -> Sizes:
    """Sizes of a GPT-2, whose config has names of its own."""
    hidden, heads = c.whole("n_embd"), c.whole("n_head")
    return {"num_layers": c.whole("n_layer"), "hidden_size": hidden, "num_heads": heads, "num_kv_heads": heads,
            "ffn_size": c.whole("n_inner", 4 * hidden), "vocab_size": c.whole("vocab_size"),
            "sequence_length": c.whole("n_positions"), "tied": c.flag("tie_word_embeddings", True), "biases": True,
            "learned_positions": True}


READERS: dict[str, Callable[[Config], Sizes]] = {
    "llama": llama, "mistral": llama, "qwen2": llama, "qwen3": llama, "phi3": llama, "olmo2": llama,
    "mixtral": mixtral, "qwen2_moe": qwen_moe, "qwen3_moe": qwen_moe,
    "deepseek_v2": deepseek, "deepseek_v3": deepseek, "kimi_k2": deepseek,
    "gpt_oss": lambda c: mixtral(c) | {"biases": True}, "llama4_text": llama4, "gpt2": gpt2,
    "gpt_neox": lambda c: llama(c, gated=False, biases=True),
    "nemotron": lambda c: llama(c, gated=False),
}


# A plan in the words of Megatron-Core

Flags = list[tuple[str, object]]  # (name, value); a value of True is a flag that stands alone, 0 or False none at all
SHARDING = {2: "optim_grads", 3: "optim_grads_params"}
NUMBERS = {"bf16": ["--bf16"], "fp16": ["--fp16"], "fp8": ["--bf16", "--fp8-format hybrid"],
           "mxfp8": ["--bf16", "--fp8-format e4m3", "--fp8-recipe mxfp8"],
           "nvfp4": ["--bf16", "--fp4-format e2m1"]}


def megatron_flags(plan: Estimate) -> list[str]:
    """The plan as Megatron-Core's flags, one for each line."""
    job, L = plan.job, plan.layout
    experts = job.shape.num_experts > 1
    return [*write_flags([
        ("tensor-model-parallel-size", L.tp), ("pipeline-model-parallel-size", L.pp),
        ("context-parallel-size", L.cp), ("sequence-parallel", job.sequence_parallel and L.tp > 1),
        ("expert-model-parallel-size", experts and L.ep), ("expert-tensor-parallel-size", experts and L.etp),
        *pipeline_flags(job), *sharding_flags(job), *recompute_flags(job), ("micro-batch-size", job.micro_batch),
        ("global-batch-size", job.global_batch), ("seq-length", job.sequence_length),
        ("max-position-embeddings", job.sequence_length)]),
        *NUMBERS[job.precision], *write_flags(shape_flags(job.shape))]


def write_flags(flags: Flags) -> list[str]:
    """Those that are set, as a command line has them."""
    return [f"--{name}" if value is True else f"--{name} {value}" for name, value in flags if value]


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


def shape_flags(shape: Shape) -> Flags:
    """The model's sizes, for Megatron-Core: also of latent attention and of experts, where it has them."""
    grouped, latent = shape.num_kv_heads < shape.num_heads, shape.latent
    found: Flags = [
        ("num-layers", shape.num_layers), ("hidden-size", shape.hidden_size),
        ("ffn-hidden-size", shape.dense_ffn or shape.ffn_size), ("num-attention-heads", shape.num_heads),
        ("group-query-attention", grouped), ("num-query-groups", grouped and shape.num_kv_heads),
        ("kv-channels", 0 if latent else shape.d), ("swiglu", shape.gated),
        ("untie-embeddings-and-output-weights", not shape.tied), ("disable-bias-linear", not shape.biases),
        ("normalization", 0 if shape.biases else "RMSNorm"),
        ("position-embedding-type", "learned_absolute" if shape.learned_positions else "rope"),
        ("window-size", f"'({shape.window}, 0)'" if shape.window else 0),
        ("window-attn-skip-freq", shape.window_every if shape.window_every > 1 else 0),
        ("mtp-num-layers", shape.mtp_layers)]
    if latent:
        found += [("multi-latent-attention", True), ("q-lora-rank", latent.q_rank), ("kv-lora-rank", latent.kv_rank),
                  ("qk-head-dim", latent.nope), ("qk-pos-emb-head-dim", latent.rope), ("v-head-dim", latent.value)]
    if shape.num_experts > 1:
        plain, sparse = shape.dense_layers, shape.num_layers - shape.dense_layers
        found += [("num-experts", shape.num_experts), ("moe-router-topk", shape.active_experts),
                  ("moe-ffn-hidden-size", shape.ffn_size),
                  ("moe-layer-freq", f"'([0]*{plain}+[1]*{sparse})'" if plain else 0),
                  ("moe-shared-expert-intermediate-size", shape.shared_experts * shape.shared_ffn),
                  ("moe-token-dispatcher-type", "alltoall"), ("moe-grouped-gemm", True)]
    return found


# ... and of torchtitan

def runs_on_titan(plan: Estimate) -> bool:
    """Whether torchtitan can run the plan: it deals out whole experts, shards gradients wherever it shards, and makes
    no or all layers again.
    """
    return plan.layout.etp == 1 and plan.layout.zero_stage != 1 and not plan.job.recompute_layers


def torchtitan_lines(plan: Estimate) -> list[str]:
    """Python, for a function that returns a Trainer.Config. ValueError for what torchtitan does not have."""
    job, L = plan.job, plan.layout
    if not runs_on_titan(plan):
        raise ValueError(f"{L} with {job.recompute_layers} layers made again: expected etp 1, ZeRO 0, 2 or 3, and no "
                         "or all layers made again, since torchtitan has no others")
    shards, replicas = (L.dp, 1) if L.zero_stage else (1, L.dp)
    degrees = {"data_parallel_shard_degree": shards, "data_parallel_replicate_degree": replicas,
               "tensor_parallel_degree": L.tp,
               "pipeline_parallel_degree": L.pp, "context_parallel_degree": L.cp, "expert_parallel_degree": L.ep,
               "fsdp_reshard_after_forward": repr("always" if L.zero_stage == 3 else "never")}
    lines = [f"config.parallelism.{name} = {value}" for name, value in degrees.items()]
    tokens = job.micro_batch * job.sequence_length
    if L.pp > 1:  # the end stages have one layer less where the layers are not even
        layers, chunks = job.shape.num_layers, L.pp * job.v
        ends = int(bool(layers % chunks))
        pipeline = {"pipeline_parallel_schedule": repr("Interleaved1F1B" if job.v > 1 else "1F1B"),
                    "pipeline_parallel_layers_per_stage": -(-layers // chunks),
                    "pipeline_parallel_first_stage_less_layers": ends,
                    "pipeline_parallel_last_stage_less_layers": ends, "num_pp_microbatches": job.num_microbatches}
        lines += [f"config.parallelism.{name} = {value}" for name, value in pipeline.items()]
    lines += [f"config.training.num_tokens_per_microbatch_per_dp_rank = {tokens}",
              f"config.training.num_tokens_per_train_step = {job.tokens}",
              f"config.training.max_context_length = {job.sequence_length}"]
    policy = {"full": "FullAC.Config()", "selective": "SelectiveAC.Config()", "none": "None"}[job.recompute]
    return [*lines, f"config.activation_checkpoint = {policy}"]
